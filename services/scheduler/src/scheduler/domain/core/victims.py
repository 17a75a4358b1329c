"""Which gangs have to leave so that another fits: the fewest GPUs, then the shortest run."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.forest import Slot
from scheduler.domain.core.hardware import pin_owner
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.machines import Machine, SlotState, Take
from scheduler.domain.core.model import Kind
from scheduler.domain.core.seeking import merge

ON_A_NODE = 12
"""Gangs on a node of which every subset is looked at; of more, one after another is taken."""

EVERY_SUBSET = 6
"""Of so few candidates at the most every set that costs less is tried."""

Cost = tuple[int, float]
"""GPUs of victims, and how long the one that has run longest has run (or any number in that
order).
"""


def overlapping(cluster: Cluster, pods: Sequence[Pod], removed: Sequence[Live]) -> set[str]:
    """Of the gangs that were taken away in thought, those that are in these pods' way."""
    found: set[str] = set()
    for other in removed:
        for pod in other.pods.values():
            if pod.state is not None and any(
                mine.state is pod.state and (mine.gpus & pod.gpus or mine.leaves & pod.leaves)
                for mine in pods
            ):
                found.add(other.id)
    spared = {other.id: other for other in removed if other.id not in found}
    for machine in {pod.machine.name: pod.machine for pod in pods}.values():
        found |= _short_of(machine, [o for g, o in spared.items() if g in machine.pods])
    return found


def _short_of(machine: Machine, here: Sequence[Live]) -> set[str]:
    """Who must leave a machine for what it has beside GPUs; large gangs stay first."""
    if not machine.sort.names:
        return set()
    free = list(machine.free)
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
    cluster: Cluster,
    live: Live,
    candidates: dict[str, Live],
    works: Callable[[Sequence[Live]], bool],
    now: float,
) -> list[Live] | None:
    """Victims with which all waiting pods of the gang fit, as few GPUs as can be found.

    ``works`` says whether it would be placed without these gangs.
    """
    by_cost = sorted(candidates.values(), key=lambda o: (cost_of([o], now), o.id))
    found = _greedy(cluster, live, candidates)
    if found is None or not works(found):
        found = _adding(found or [], [o for o in by_cost if o.is_charged], works)
    if found is None:
        found = _adding([], by_cost, works)
    if found is None:
        return None
    found = _without(found, works, now)
    if len(candidates) <= EVERY_SUBSET:
        found = _cheaper(by_cost, found, works, now)
    return sorted(found, key=lambda other: other.id)


def _adding(
    first: Sequence[Live], others: Sequence[Live], works: Callable[[Sequence[Live]], bool]
) -> list[Live] | None:
    """Some more of the others, as many as are needed: doubled until it works."""
    more, size = [other for other in others if other not in first], 1
    while more:
        chosen = [*first, *more[:size]]
        if works(chosen):
            return chosen
        if size >= len(more):
            return None
        size *= 2
    return None


def _without(found: list[Live], works: Callable[[Sequence[Live]], bool], now: float) -> list[Live]:
    """Nobody who need not leave: the costliest are spared first."""
    if len(found) < 2:
        return found
    for other in sorted(found, key=lambda o: (cost_of([o], now), o.id), reverse=True):
        rest = [each for each in found if each is not other]
        if works(rest):
            found = rest
    return found


def _cheaper(
    by_cost: Sequence[Live],
    found: list[Live],
    works: Callable[[Sequence[Live]], bool],
    now: float,
) -> list[Live]:
    """Of few candidates every set that costs less is tried, the cheapest first."""
    bound = cost_of(found, now)
    sets = sorted(
        (cost, [other.id for other in some], some)
        for size in range(1, len(by_cost) + 1)
        for some in combinations(by_cost, size)
        if (cost := cost_of(some, now)) < bound
    )
    for _, _, some in sets:
        if works(some):
            return list(some)
    return found


def cost_of(gangs: Sequence[Live], now: float) -> Cost:
    """GPUs of victims, and how long the one that has run longest has run."""
    gpus = sum(gang.gpus_in_use for gang in gangs)
    starts = [gang.started_at for gang in gangs if gang.started_at is not None]
    return gpus, now - min(starts, default=now)


def _greedy(cluster: Cluster, live: Live, candidates: dict[str, Live]) -> list[Live] | None:
    chooser = _Chooser(cluster, live, candidates)
    for kind, names in merge(live.waiting):
        for _ in names:
            if not chooser.add(kind):
                return None
    return sorted(chooser.victims.values(), key=lambda other: other.id)


class _Chooser:
    """Takes one node after another for the pods, each time the one that costs least more."""

    def __init__(self, cluster: Cluster, live: Live, candidates: dict[str, Live]) -> None:
        self.cluster = cluster
        self.live = live
        self.candidates = candidates
        self.victims: dict[str, Live] = {}
        self.used: dict[int, int] = {}
        self.taken: dict[str, list[Take]] = {}

    def add(self, kind: Kind) -> bool:
        """Find room for one more pod."""
        best: tuple[Cost, int] | None = None
        chosen: tuple[SlotState, int, list[Live]] | None = None
        for state in self._states(kind):
            found = self._cost(state, kind)
            if found is None:
                continue
            cost, leaves, victims = found
            rank = (cost, state.slot.number)
            if best is None or rank < best:
                best, chosen = rank, (state, leaves, victims)
                if cost[0] == 0:
                    break
        if chosen is None:
            return False
        state, leaves, victims = chosen
        self.victims.update((victim.id, victim) for victim in victims)
        self.used[state.slot.number] = self.used.get(state.slot.number, 0) | leaves
        take = state.machine.sort.take(kind)
        assert take is not None
        self.taken.setdefault(state.machine.name, []).append(take)
        return True

    def _states(self, kind: Kind) -> Iterable[SlotState]:
        """Nodes that the gang's virtual cluster has, or may have."""
        hardware = self.cluster.hardware
        owner = self.live.owner if kind.pin is None else pin_owner(kind.pin)
        types = kind.gpu_types or hardware.forest.gpu_types
        numbers: set[int] = set()
        for name, region in hardware.regions.get(owner, {}).items():
            if kind.pin is not None or name in types:
                numbers.update(region.tags)
        if kind.pin is None:
            for quota in hardware.quotas.get(owner, ()):
                if quota.chain.leaf in types and hardware.unbound[owner][quota.path]:
                    cells = hardware.cells[quota.chain.name]
                    if quota.level >= quota.chain.node_level:
                        slots: Iterable[Slot] = (
                            slot for cell in cells.free_cells(quota.level) for slot in cell.slots()
                        )
                        numbers.update(slot.number for slot in slots)
                    else:
                        numbers.update(n for n, space in cells.space.items() if space)
        only = self.live.gang.allowed_nodes
        for number in sorted(numbers):
            state = hardware.states[number]
            if only is None or state.machine.name in only:
                yield state

    def _cost(self, state: SlotState, kind: Kind) -> tuple[Cost, int, list[Live]] | None:
        """The cheapest victims for one more pod on this node, and its leaves."""
        take = state.machine.sort.take(kind)
        if take is None or not state.usable:
            return None
        mine = self._mine(state, kind)
        fixed = state.reserved | state.charged | state.held
        here: list[tuple[Live, int]] = []
        for gang in sorted({*state.holders, *state.chargers, *state.machine.pods}):
            other = self.candidates.get(gang)
            if other is not None:
                mask = _mask(other, state)
                fixed &= ~mask
                if other.id not in self.victims and not other.is_leaving:
                    here.append((other, mask))
        best: tuple[Cost, int, list[Live]] | None = None
        for victims in _subsets(here):
            gone = [other for other, _ in victims]
            cost = _cost_of(gone)
            if best is not None and cost >= best[0]:
                continue
            stay = fixed
            for other, mask in here:
                if other not in gone:
                    stay |= mask
            pick = state.slot.shape.pick(mine & ~stay, take.leaves) if take.leaves else None
            if take.leaves and pick is None:
                continue
            if self._has(state.machine, take, gone):
                best = cost, 0 if pick is None else pick.leaves, gone
        return best

    def _mine(self, state: SlotState, kind: Kind) -> int:
        """Leaves that the gang's virtual cluster has there or may have."""
        owner = self.live.owner if kind.pin is None else pin_owner(kind.pin)
        mine = state.bound.get(owner, 0)
        if kind.pin is None:
            mine |= self.cluster.hardware.cells[state.slot.chain.name].space[state.slot.number]
        return mine & state.usable & ~self.used.get(state.slot.number, 0)

    def _has(self, machine: Machine, take: Take, gone: Sequence[Live]) -> bool:
        if not machine.sort.names:
            return True
        free = list(machine.free)
        away = {*(other.id for other in gone), *self.victims}
        away |= {gang for gang in machine.pods if self.cluster.gangs[gang].is_leaving}
        for gang in away:
            for pod in self.cluster.gangs[gang].pods.values():
                if pod.machine is machine:
                    free = [a + b for a, b in zip(free, pod.take.amounts, strict=True)]
        for other in self.taken.get(machine.name, ()):
            free = [a - b for a, b in zip(free, other.amounts, strict=True)]
        return all(a >= b or not b for a, b in zip(free, take.amounts, strict=True))


def _mask(other: Live, state: SlotState) -> int:
    """What would be free without the gang."""
    mask = 0
    for pod in other.pods.values():
        if pod.state is state:
            mask |= pod.leaves | pod.gpus if other.is_charged else pod.gpus
    return mask


def _cost_of(gangs: Sequence[Live]) -> Cost:
    gpus = sum(gang.gpus_in_use for gang in gangs)
    return gpus, -min((gang.started_at or 0.0 for gang in gangs), default=0.0)


def _subsets(here: Sequence[tuple[Live, int]]) -> Iterable[Sequence[tuple[Live, int]]]:
    """Small ones first."""
    if len(here) <= ON_A_NODE:
        for size in range(len(here) + 1):
            yield from combinations(here, size)
        return
    ordered = sorted(here, key=lambda each: (each[0].gpus, each[0].id))
    for size in range(len(ordered) + 1):
        yield ordered[:size]
