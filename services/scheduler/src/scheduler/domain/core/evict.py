"""Victims: the cheapest workloads in the cell that another needs.

Example: a gang of 4 pods with 8 GPUs waits, and opportunistic pods are on every node. Of the racks
that could hold all four the one is chosen whose pods have the fewest GPUs, not four nodes in four
racks. Inside a node a pod likewise gets a whole switch, where one can be had.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import or_
from typing import NamedTuple, Protocol

from scheduler.domain.core.node_models import Want
from scheduler.domain.core.nodes import Phase, Place, Pool, Slot, Workload
from scheduler.domain.core.place import Placer
from scheduler.domain.core.state import State, claimable
from scheduler.domain.core.views import EVERYWHERE, TRIED_RACKS, View, When

CANDIDATES, CANDIDATES_A_POD = 64, 8
"""Slots of which the price is looked at: so many, and at least so many for each pod."""


class Cost(NamedTuple):
    """What it costs that workloads leave, compared in this order: GPUs of protected gangs, of
    gangs in their own cells or in none, of gangs on borrowed capacity, of surplus pods; GPUs times
    ranks above opportunistic gangs; lost work in GPU milliseconds.
    """

    protected: int = 0
    gpus: int = 0
    borrowed: int = 0
    surplus: int = 0
    priority: int = 0
    lost_ms: int = 0

    def plus(self, other: "Cost") -> "Cost":
        """The sum."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


NO_COST = Cost()

WHOLE_GANG = Cost(borrowed=1)
"""What it costs at the least that a whole gang leaves."""

CostOf = Callable[[Workload], Cost | None]
"""What it costs that a workload leaves for the one that is asked for; None: it need not."""


class Rules(Protocol):
    """Which workloads may have to leave, or go on without cells, for another."""

    def of(self, asking: Workload, *, is_inside: bool = True) -> CostOf:
        """What it costs that others leave for a workload. ``is_inside`` False: none of its own
        virtual cluster.
        """

    def is_too_many(self, asking: Workload, victims: Iterable[Workload]) -> bool:
        """More gangs would leave inside its virtual cluster than may."""

    def lazy(self, asking: Workload) -> Iterable[Workload]:
        """Those that are downgraded before they are preempted for a workload."""

    def surplus(self, asking: Workload) -> Iterable[Workload]:
        """Pods that their gangs can spare, and that may have to leave for a workload."""


@dataclass(frozen=True, slots=True)
class Choice:
    """``victims``: without them the workload fits; ``slots``: one for each of its pods."""

    victims: tuple[Workload, ...]
    slots: tuple[Slot, ...]


class _Price(NamedTuple):
    """One pod more on a slot. ``level``: of the cell that has all its leaves."""

    protected: int
    level: int
    cost: Cost
    victims: tuple[Workload, ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """Pods of one kind on these slots."""

    cost: Cost
    slots: tuple[Slot, ...]
    victims: tuple[Workload, ...]


def choose(
    state: State, workload: Workload, cost_of: CostOf, claimed: Sequence[Place]
) -> Choice | None:
    """Where it costs least, pod by pod; where that leads nowhere, on the places of ``claimed``,
    where it would fit if nothing but leaves counted. Nothing is changed. None: neither does.
    """
    slots: list[Slot]
    victims: list[Workload]
    chooser = _Chooser(state, workload, cost_of)
    places = {place.pod: place.slot for place in claimed}
    for is_cheapest in (True, False):
        slots, victims = [], []
        with state.trial():
            for want, pods in workload.wants:
                way = chooser.choose(want, pods) if is_cheapest else None
                if not is_cheapest:
                    way = chooser.on([places[pod] for pod in pods], want, pods)
                if way is None or not chooser.follow(way, want, pods):
                    break
                slots += way.slots
                victims += way.victims
            else:
                return Choice(tuple(victims), tuple(slots))
    return None


class _Chooser:
    """Chooses in the caller's trial: whom it chooses leaves, and what it places is placed."""

    def __init__(self, state: State, workload: Workload, cost_of: CostOf) -> None:
        self._state = state
        self._workload = workload
        self._cost_of = cost_of
        self._placer = Placer(state, workload, When.SOON)

    def choose(self, want: Want, pods: tuple[str, ...]) -> _Way | None:
        """Slots for these pods, of one GPU type: the first that they prefer, else the cheapest.
        Nothing is changed.
        """
        tried = (self._choose(pools, want, pods) for pools in self._placer.pools_for(want))
        ways = (way for way in tried if way is not None)
        if want.gpu_types:
            return next(ways, None)
        return min(ways, key=lambda way: way.cost, default=None)

    def _choose(self, pools: list[Pool], want: Want, pods: tuple[str, ...]) -> _Way | None:
        """Of one rack, else wherever they cost least."""
        views = list(self._views(pools, want))
        if len(pods) > 1:
            tried = (self._try(slots, want, pods) for slots in self._racks(views, want, len(pods)))
            ways = [way for way in tried if way is not None]
            if ways:
                return min(ways, key=lambda way: way.cost)
        return self._try(self._candidates(views, want, len(pods)), want, pods)

    def on(self, slots: Sequence[Slot], want: Want, pods: tuple[str, ...]) -> _Way | None:
        """These pods on these slots. Nothing is changed."""
        cost, victims = NO_COST, list[Workload]()
        with self._state.trial():
            for pod, slot in zip(pods, slots, strict=True):
                way = self._try([slot], want, (pod,))
                if way is None or not self.follow(way, want, (pod,)):
                    return None
                cost, victims = cost.plus(way.cost), [*victims, *way.victims]
        return _Way(cost, tuple(slots), tuple(victims))

    def follow(self, way: _Way, want: Want, pods: tuple[str, ...]) -> bool:
        """Do it."""
        for victim in way.victims:
            self._state.evict(victim)
        pairs = zip(pods, way.slots, strict=True)
        return all(self._placer.take_on(want, slot, pod) for pod, slot in pairs)

    def _try(self, candidates: list[Slot], want: Want, pods: tuple[str, ...]) -> _Way | None:
        """Each pod on the slot of these where it costs least then."""
        state, cost = self._state, NO_COST
        slots: list[Slot] = []
        victims: list[Workload] = []
        prices = _Prices(self, want, candidates)
        with state.trial():
            for pod in pods:
                while (found := prices.cheapest()) is not None:
                    slot, price = found
                    touched = {slot, *(p.slot for v in price.victims for p in v.places)}
                    with state.trial() as trial:
                        for victim in price.victims:
                            state.evict(victim)
                        if self._placer.take_on(want, slot, pod):
                            trial.commit()
                            break
                    prices.drop(slot)
                else:
                    return None
                slots.append(slot)
                victims += price.victims
                cost = cost.plus(price.cost)
                prices.changed(touched)
        return _Way(cost, tuple(slots), tuple(victims))

    # Slots to try.

    def _views(self, pools: list[Pool], want: Want) -> Iterator[View]:
        owner = self._workload.owner_of(want)
        for pool in pools:
            if want.costs_no_leaves(pool.models):
                yield self._state.idle(pool, When.CLAIM)
            elif owner is not None and pool.chain is not None:
                may_bind = self._state.openable(pool, owner) != 0
                priority = self._workload.priority
                yield self._state.claim(pool, owner, priority, may_bind=may_bind)

    def _racks(self, views: list[View], want: Want, count: int) -> Iterator[list[Slot]]:
        """Racks that could hold so many pods, those with most idle leaves first."""
        for view in views:
            view.flush()
            tried = 0
            for rack in self._state.idle(view.pool, When.SOON).fullest_first():
                if view.room(rack, want.bare) >= count:
                    yield _in_rack(view, rack, want)
                    tried += 1
                    if tried == TRIED_RACKS:
                        break

    def _candidates(self, views: list[View], want: Want, count: int) -> list[Slot]:
        """The first of each rack, with the rest of it."""
        found: dict[Slot, None] = {}
        most = max(CANDIDATES, CANDIDATES_A_POD * count)
        for view in views:
            found.update(dict.fromkeys(self._placer.joining(view.pool, want)))
            for _, slot in view.seek(want.bare, EVERYWHERE, 0, is_opportunistic=False):
                found.update(dict.fromkeys(_in_rack(view, slot.rack, want)))
                if len(found) >= most:
                    break
        return list(found)

    # What it costs.

    def least(self, slot: Slot, want: Want) -> int:
        """GPUs of victims at the least: leaves that are wanting on a slot."""
        free = slot.good & ~slot.staying & ~slot.charged
        for other, (gpus, charge) in slot.pods.items():
            is_borrowed = other.priority < 0 and not other.is_opportunistic
            if other.is_surplus or is_borrowed or other.phase is Phase.NOMINATED:
                free |= gpus | charge  # they count less than others
        return max(0, self._need(slot, want) - free.bit_count())

    def _need(self, slot: Slot, want: Want) -> int:
        """Leaves that a pod takes, unless it shares one."""
        return 0 if self._placer.joinable(want, slot) else want.need(slot.model)[0]

    def price(self, slot: Slot, want: Want) -> _Price | None:
        """The nearest leaves first; of those as near the cheapest."""
        owner = self._workload.owner_of(want)
        assert owner is not None
        need = self._need(slot, want)
        mask = claimable(slot, owner, self._workload.priority, may_bind=False)
        if self._state.may_bind_any(owner, slot):
            mask |= slot.open & slot.good
        mask &= ~slot.pods.get(self._workload, (0, 0))[1]
        others: list[_Other] = []
        for other, (gpus, charge) in slot.pods.items():
            if other is self._workload or other.phase is Phase.PREEMPTED:
                continue
            cost = self._cost_of(other)
            if cost is None:
                mask &= ~(gpus | charge)
            else:
                others.append(_Other(cost, other.name, other, gpus | charge))
        others.sort(key=lambda each: each[:2])
        gone = _Gone(slot, want, need, others)
        best: _Price | None = None
        for level in range(want.nearest(slot.shape), slot.shape.levels + 1):
            for part in slot.shape.parts[level]:
                here = part.mask & mask
                if here.bit_count() < need:
                    continue
                found = self._priced(level, gone.victims(here))
                if found is not None and (best is None or found[:3] < best[:3]):
                    best = found
            if best is not None and not best.protected:
                break
        beside = self._beside(slot, want, others) if need else []
        if best is not None:
            beside.append(best)
        return min(beside, key=lambda each: each[:3], default=None)

    def _beside(self, slot: Slot, want: Want, others: "list[_Other]") -> list[_Price]:
        """The pod shares a leaf of which the cheapest others leave, and not all."""
        found: list[_Price] = []
        for leaf in tuple(slot.shares) if want.may_share(slot.model) else ():
            with self._state.trial():
                gone: list[_Other] = []
                for each in others:
                    if not any(p.slot is slot and p.charge == leaf for p in each.workload.places):
                        continue
                    self._state.evict(each.workload)
                    gone.append(each)
                    if self._placer.joinable(want, slot) & leaf and _has_amounts(slot, want, []):
                        priced = self._priced(want.nearest(slot.shape), gone)
                        found += [priced] if priced else []
                        break
        return found

    def _priced(self, level: int, victims: "list[_Other] | None") -> _Price | None:
        if victims is None:
            return None
        cost = NO_COST
        for each in victims:
            cost = cost.plus(each.cost)
        return _Price(cost.protected, level, cost, tuple(each.workload for each in victims))


class _Prices:
    """What one pod more costs on each of some slots, as far as it has to be known."""

    def __init__(self, chooser: _Chooser, want: Want, slots: list[Slot]) -> None:
        self._chooser = chooser
        self._want = want
        self._known: dict[Slot, _Price] = {}
        self._rest = [(chooser.least(slot, want), n, slot) for n, slot in enumerate(slots)]
        self._rest.sort(reverse=True, key=lambda each: each[:2])

    def cheapest(self) -> tuple[Slot, _Price] | None:
        """The slot where it costs least. None: it can be on none of them."""
        best = min(self._known, key=self._order, default=None)
        while self._rest and not (best and self._is_best(best, self._rest[-1][0])):
            slot = self._rest.pop()[2]
            self._note(slot)
            if slot in self._known:
                best = slot if best is None else min(best, slot, key=self._order)
        return None if best is None else (best, self._known[best])

    def _is_best(self, best: Slot, least: int) -> bool:
        """No slot with at least so many GPUs of victims can be better than this one."""
        price, shape = self._known[best], best.shape
        is_nearest = price.level <= self._want.nearest(shape)
        is_fewest = (price.cost.gpus, price.cost.priority, price.cost.lost_ms) <= (least, 0, 0)
        return is_nearest and not price.protected and is_fewest

    def _order(self, slot: Slot) -> tuple[object, ...]:
        return *self._known[slot][:3], slot.node.number, slot.number

    def _note(self, slot: Slot) -> None:
        price = self._chooser.price(slot, self._want)
        if price is not None:
            self._known[slot] = price

    def drop(self, slot: Slot) -> None:
        """It can't be there."""
        self._known.pop(slot, None)

    def changed(self, slots: set[Slot]) -> None:
        """What it costs on these may be something else now."""
        for slot in slots & self._known.keys():
            del self._known[slot]
            self._note(slot)


class _Other(NamedTuple):
    """A workload on a slot. ``leaves``: that it uses, holds, or is charged."""

    cost: Cost
    name: str
    workload: Workload
    leaves: int


class _Gone:
    """Others that leave a slot, the cheapest first. ``held``: leaves that are in use when so many
    of them are gone; ``least``: how many have to go for what is wanted beside leaves.
    """

    def __init__(self, slot: Slot, want: Want, need: int, others: list[_Other]) -> None:
        self._slot, self._want, self._need, self._others = slot, want, need, others
        leaves = (each.leaves for each in reversed(others))
        self._held = list(accumulate(leaves, or_, initial=0))[::-1]
        counts = range(len(others) + 1)
        self._least = bisect_left(
            counts, True, key=lambda count: _has_amounts(slot, want, others[:count])
        )

    def victims(self, here: int) -> list[_Other] | None:
        """The cheapest until these leaves and the node have enough; then those are spared that need
        not leave, the costliest first.
        """
        for count in range(self._least, len(self._held)):
            if (here & ~self._held[count]).bit_count() >= self._need:
                break
        else:
            return None
        chosen = self._others[:count]
        for each in reversed(chosen[:-1]):
            rest = [other for other in chosen if other is not each]
            if self._is_enough(here, rest):
                chosen = rest
        return chosen

    def _is_enough(self, here: int, gone: list[_Other]) -> bool:
        for each in self._others:
            if each not in gone:
                here &= ~each.leaves
        return here.bit_count() >= self._need and _has_amounts(self._slot, self._want, gone)


def _in_rack(view: View, rack: int, want: Want) -> list[Slot]:
    """Whatever the view has shown before."""
    slots = [slot for _, _, slot in view.in_rack(rack, want.bare)]
    slots.sort(key=lambda slot: slot.number)
    return slots


def _has_amounts(slot: Slot, want: Want, gone: list[_Other]) -> bool:
    limited = slot.model.limited
    if not limited:
        return True
    left = list(slot.node.soon)
    for each in gone:
        for place in each.workload.places:
            if place.slot.node is slot.node:
                for i in limited:
                    left[i] += place.amounts[i]
    return all(left[i] >= want.amounts[i] for i in limited)
