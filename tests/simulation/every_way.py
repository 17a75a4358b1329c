"""Whether a workload could be placed in any way at all: every node, every leaf, every cell."""

from itertools import combinations

from scheduler.domain.core.node_models import NEVER, Want
from scheduler.domain.core.nodes import Binding, Phase, Place, Slot, Workload
from scheduler.domain.core.state import State

MOST_STEPS = 20_000


class TooLong(Exception):
    """The search took too many steps."""


class EveryWay:
    """A search among what is free when those have left that leave; for guests: now."""

    def __init__(self, state: State, workload: Workload) -> None:
        self._state = state
        self._workload = workload
        self._pods = [(want, pod) for want, names in workload.wants for pod in names]
        self._slots = [slot for pool in state.pools for slot in pool.slots]
        self._steps = 0
        self._leaf_of: dict[Want, str | None] = {}

    def exists(self) -> bool:
        """Raises TooLong. Nothing is changed."""
        with self._state.trial():
            return self._place(0, 0)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooLong

    def _place(self, number: int, first: int) -> bool:
        if number == len(self._pods):
            return True
        want, pod = self._pods[number]
        is_same = number > 0 and self._pods[number - 1][0] is want
        if not is_same:
            self._leaf_of.pop(want, None)
        return any(
            self._on(number, index, want, pod)
            for index, slot in enumerate(self._slots)
            if (index >= first or not is_same) and self._may(want, slot)
        )

    def _may(self, want: Want, slot: Slot) -> bool:
        allowed, leaf = self._workload.gang.allowed_nodes, slot.pool.gpu_type
        left = slot.node.left if self._workload.is_opportunistic else slot.node.soon
        return (
            want.need(slot.model)[0] != NEVER
            and (allowed is None or slot.node.name in allowed)
            and (not want.gpu_types or leaf in want.gpu_types)
            and (not want.gpus or self._leaf_of.get(want, leaf) == leaf)
            and all(left[i] >= want.amounts[i] for i in slot.model.limited)
        )

    def _on(self, number: int, index: int, want: Want, pod: str) -> bool:
        slot, owner = self._slots[index], self._workload.owner_of(want)
        leaves = want.need(slot.model)[0]
        if number == 0 or self._pods[number - 1][0] is not want:
            self._leaf_of[want] = slot.pool.gpu_type
        if owner is None:
            mask = slot.free
        else:
            mask = slot.good & ~slot.staying & ~slot.charged
            mask &= slot.open | slot.bound.get(owner, 0)
        bits = [1 << i for i in range(slot.shape.leaves) if mask >> i & 1]
        for some in combinations(bits, leaves):
            self._step()
            place = Place(pod, slot, sum(some[: want.gpus]), want.amounts)
            if owner is None:
                if self._take(number, index, place):
                    return True
            elif self._cover(number, index, place._replace(charge=sum(some), owner=owner)):
                return True
        return False

    def _take(self, number: int, index: int, place: Place) -> bool:
        with self._state.trial():
            self._state.take(self._workload, place, Phase.NOMINATED)
            return self._place(number + 1, index)

    def _cover(self, number: int, index: int, place: Place) -> bool:
        """Bind cells around what is charged, in every way."""
        self._step()
        slot = place.slot
        rest = place.charge & ~slot.bound.get(place.owner, 0)
        if not rest:
            return self._take(number, index, place)
        for binding in self._ways(place.owner, slot, rest & -rest):
            with self._state.trial():
                self._state.bind(binding)
                if self._cover(number, index, place):
                    return True
        return False

    def _ways(self, owner: str, slot: Slot, leaf: int) -> list[Binding]:
        found = []
        for quota in self._state.quotas.get(owner, ()):
            if not quota.left or quota.chain is not slot.pool.chain or slot.fixed is None:
                continue
            buddy, cell = self._state.buddies[quota.chain.name], slot.fixed.cell
            if quota.level >= quota.chain.node_level:
                while cell.level < quota.level and cell.parent is not None:
                    cell = cell.parent
                if cell.level == quota.level and buddy.may_bind(cell, None, slot):
                    found.append(Binding(owner, quota, cell, None))
                continue
            for part in slot.shape.parts[quota.level]:
                if part.mask & leaf and buddy.may_bind(cell, part, slot):
                    found.append(Binding(owner, quota, cell, part))
        return found
