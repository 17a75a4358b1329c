"""Which gangs have to leave so that another fits: the fewest GPUs, then the least work lost."""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import combinations

from scheduler.domain.core.holdings import Live, Pod, Price
from scheduler.domain.core.machines import Machine
from scheduler.domain.core.prices import NOBODY, both, price_of

EVERY_SUBSET = 8
"""Of so few candidates at the most the cheapest set is surely found."""

SPARED = 24
"""Of so few victims at the most each is tried to be spared at once; of more, first several at a
time.
"""

TIED = 64
"""Gangs that would cost the same are looked at for a better place, so many at the most."""

Tries = Callable[[Sequence[Live]], "list[Live] | None"]
"""Places the gang as if these were away: who of them is in the way then, None where it does not fit
even so.
"""


def overlapping(pods: Sequence[Pod], removed: Sequence[Live]) -> set[str]:
    """Of the gangs that were taken away in thought, those that are in these pods' way."""
    found: set[str] = set()
    used: dict[int, tuple[int, int]] = {}
    for pod in pods:
        if pod.state is not None:
            gpus, leaves = used.get(pod.state.slot.number, (0, 0))
            used[pod.state.slot.number] = gpus | pod.gpus, leaves | pod.leaves
    for other in removed:
        for pod in other.pods.values():
            if pod.state is not None:
                gpus, leaves = used.get(pod.state.slot.number, (0, 0))
                if gpus & pod.gpus or leaves & pod.leaves:
                    found.add(other.id)
                    break
    spared = {other.id: other for other in removed if other.id not in found}
    for machine in {pod.machine.name: pod.machine for pod in pods}.values():
        found |= _short_of(machine, [spared[g] for g in sorted(machine.pods) if g in spared])
    return found


def _short_of(machine: Machine, here: Sequence[Live]) -> set[str]:
    """Who must leave a machine for what it has beside GPUs; large gangs stay first."""
    if not machine.sort.names:
        return set()
    free = list(machine.later)
    left: set[str] = set()
    for other in sorted(here, key=lambda other: (-other.gpus, other.id)):
        takes = [pod.take for pod in other.pods.values() if pod.machine is machine]
        after = [
            have - sum(take.amounts[index] for take in takes) for index, have in enumerate(free)
        ]
        if all(amount >= 0 for amount in after):
            free = after
        else:
            left.add(other.id)
    return left


def choose(
    found: list[Live] | None,
    candidates: Callable[[], Sequence[Live]],
    tries: Tries,
    is_late: Callable[[], bool],
    *,
    are_few: bool,
) -> list[Live] | None:
    """Victims with which all waiting pods of a gang fit, as few GPUs as can be found.

    ``found``: those that were found to do, None: it is not known whether any do. ``are_few``: gangs
    that could have to go are so few that it is worth while to try cheaper sets of them, as long as
    it is not ``is_late``.
    """
    needed = None if found is None else tries(found)
    if found is None or needed is None:
        others = candidates()
        if tries(others) is None:
            return None
        by_price = sorted(others, key=lambda other: (price_of((other,)), other.id))
        charged = [other for other in by_price if other.is_charged]
        found = _adding(charged, tries, is_late) or _adding(by_price, tries, is_late)
    elif len(needed) < len(found) and tries(needed) is not None:
        found = needed
    if are_few:
        found = without(found, tries, is_late)
        if len(others := candidates()) <= EVERY_SUBSET:
            found = without(_cheaper(others, found, tries, is_late), tries, is_late)
    return sorted(found, key=lambda other: other.id)


def nearest(found: list[Live], others: Iterable[Live], tries: Tries) -> list[Live]:
    """Of victims that cost the same those that give the best place, were all of them gone."""
    names, prices = {each.id for each in found}, {price_of((each,)) for each in found}
    tied = [each for each in others if each.id not in names and price_of((each,)) in prices]
    if not tied:
        return found
    needed = tries(found + tied[:TIED])
    if needed is None or price_of(needed) > price_of(found) or tries(needed) is None:
        return found
    return sorted(needed, key=lambda other: other.id)


def _adding(others: Sequence[Live], tries: Tries, is_late: Callable[[], bool]) -> list[Live]:
    """As many as are needed, in their order: doubled until it works; none where it does not."""
    size = 1
    while others:
        chosen = list(others[:size])
        needed = tries(chosen)
        if needed is not None:
            return needed if tries(needed) is not None else chosen
        if size >= len(others):
            break
        size = len(others) if is_late() else 2 * size
    return []


def without(found: list[Live], tries: Tries, is_late: Callable[[], bool]) -> list[Live]:
    """Nobody who need not leave: the costliest are spared first; of many, several at a time, then
    half as many, and one by one at last.
    """
    left = sorted(found, key=lambda o: (price_of((o,)), o.id), reverse=True)
    size = len(left) // 2 if len(left) > SPARED else 1
    while size and len(left) > 1:
        first = 0
        while first < len(left) and not is_late():
            rest = left[:first] + left[first + size :]
            if rest and tries(rest) is not None:
                left = rest
            else:
                first += size
        size //= 2
    return left


def _cheaper(
    candidates: Sequence[Live], found: list[Live], tries: Tries, is_late: Callable[[], bool]
) -> list[Live]:
    """The cheapest of few candidates. What does not fit without some of them does not fit without
    fewer: of sets that cost less, as many gangs as can be are tried together.
    """
    prices = [price_of((other,)) for other in candidates]
    best = price_of(found)
    sets = sorted(
        (price, [candidates[number].id for number in some], frozenset(some))
        for size in range(1, len(prices) + 1)
        for some in combinations(range(len(prices)), size)
        if (price := _together(prices, some)) < best
    )
    by_price = sorted(range(len(prices)), key=lambda number: prices[number])
    failed: list[frozenset[int]] = []
    for price, _, some in sets:
        while not is_late() and price < best and not any(some <= each for each in failed):
            wide = some
            for number in by_price:
                if _together(prices, wide | {number}) < best:
                    wide |= {number}
            chosen = [candidates[number] for number in sorted(wide)]
            needed = tries(chosen)
            if needed is None:
                failed.append(wide)
                break
            found = needed if tries(needed) is not None else chosen
            best = price_of(found)
    return found


def _together(prices: Sequence[Price], some: Iterable[int]) -> Price:
    return reduce(both, (prices[number] for number in some), NOBODY)
