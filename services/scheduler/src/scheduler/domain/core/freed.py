"""What has become free, as waiting classes ask: whether it could help any of them.

Example: a pod with one GPU ends, and 10,000 gangs wait. Those whose smallest pod could not be on
that node, whoever may leave it for them, are not tried again.
"""

from collections.abc import Iterable
from operator import add

from scheduler.domain.core.costs import Costs
from scheduler.domain.core.evict import CostOf
from scheduler.domain.core.fit import QUOTA, No
from scheduler.domain.core.node_models import NEVER, Want
from scheduler.domain.core.nodes import Phase, Pool, Slot, Workload
from scheduler.domain.core.queue import WorkloadClass
from scheduler.domain.core.reserve import beside
from scheduler.domain.core.shortage import shortage
from scheduler.domain.core.state import State, claimable
from scheduler.domain.core.views import EVERYWHERE, When

PRICED = 32
"""Slots that are looked at closely for one class, at the most. Of more it is taken to be helped."""


Room = tuple[int, tuple[int, ...]]
"""Leaves on a slot, and amounts of its node by resource."""


class Freed:
    """``slots``: where something became free; ``owners``: of whom a cell was unbound."""

    def __init__(self, state: State, costs: Costs, freed: Iterable[Slot | str]) -> None:
        self._state = state
        self._costs = costs
        self.slots: dict[Slot, None] = {}
        self.owners: set[str] = set()
        for each in freed:
            if isinstance(each, Slot):
                self.slots[each] = None
            else:
                self.owners.add(each)
        self._most: dict[tuple[str, int], int] = {}
        self._places: dict[str, dict[Slot, None]] = {}
        self._rooms: dict[tuple[object, ...], Room] = {}

    @property
    def is_small(self) -> bool:
        """Each class may look closely."""
        return len(self.slots) <= PRICED

    def helps(self, waiting: WorkloadClass) -> bool:
        """The class's first may fit now. A class that lacks quota is noted as such."""
        if waiting.tested_nodes is not None:
            return any(slot.node.name in waiting.tested_nodes for slot in self.slots)
        if waiting.owner is None:
            return self._helps_opportunistic(waiting)
        if waiting.leaves_of_pod in (0, NEVER):
            is_cheap = self._may_evict(waiting) or self._helps_opportunistic(waiting)
            return is_cheap or self._has_room(waiting)
        if waiting.may_use_other_quota:
            return True
        before = waiting.no or waiting.was
        lacked_room = before is not None and before.code != QUOTA
        is_here = lacked_room and waiting.owner not in self.owners
        if is_here and waiting.leaves_of_pod > self._most_of(waiting.owner, waiting.priority):
            return False
        short = shortage(self._state, waiting.wanted, waiting.priority)
        if short is not None:
            waiting.no = No(QUOTA, short._asdict())
            return False
        return not lacked_room or self._has_room(waiting)

    def _most_of(self, owner: str, priority: int) -> int:
        """Leaves that a gang of a priority could have on one of the slots, at the most."""
        most = self._most.get((owner, priority))
        if most is None:
            most = self._most[owner, priority] = max(
                (
                    claimable(slot, owner, priority, may_bind=True).bit_count()
                    for slot in self.slots
                ),
                default=0,
            )
        return most

    def _has_room(self, waiting: WorkloadClass) -> bool:
        """A pod of the class's first could be on one of the slots, if all left that may have to."""
        heads = waiting.heads()
        if not heads:
            return False
        _, head = heads[0]
        if self._costs.records.of(head).reserved_since is not None:
            return True  # gangs that overstay may leave for it
        allowed, slots = head.gang.allowed_nodes, self._places_of(waiting.owner)
        if len(slots) > PRICED:
            return True
        racks: dict[Pool, int] = {}
        for slot in slots:
            if allowed is None or slot.node.name in allowed:
                if slot.open and slot.pool not in racks:
                    racks[slot.pool] = self._bindable(slot.pool, head)
                may_bind = slot.open > 0 and racks[slot.pool] >> slot.rack & 1 == 1
                leaves, left = self._room_on(slot, head, may_bind=may_bind)
                if any(_fits(want, slot, leaves, left) for want, _ in waiting.wants):
                    return True
        return False

    def _places_of(self, owner: str | None) -> dict[Slot, None]:
        """Where an owner's gangs may be helped: one of which a cell was unbound may bind another
        elsewhere.
        """
        if owner is None or owner not in self.owners:
            return self.slots
        found = self._places.get(owner)
        if found is None:
            found = self._places[owner] = self.slots.copy()
            for pool in self._state.pools:
                racks = self._state.openable(pool, owner)
                found.update(
                    dict.fromkeys(
                        slot
                        for number, rack in enumerate(pool.racks)
                        if racks >> number & 1
                        for slot in rack
                    )
                )
        return found

    def _bindable(self, pool: Pool, head: Workload) -> int:
        """Racks in which more cells may be bound for a gang, as a bit set: all, if others may lose
        theirs for it.
        """
        records = self._costs.records
        if any(True for _ in records.charged_below(head.owner, head.priority)) or any(
            self._costs.goes_before(head, each) for each in beside(records, head)
        ):
            return EVERYWHERE
        return self._state.openable(pool, head.owner or "")

    def _room_on(self, slot: Slot, head: Workload, *, may_bind: bool) -> Room:
        """What a gang could have on a slot, if all left that may have to. Gangs of one virtual
        cluster and priority share the answer until the slot changes.
        """
        asking = head.owner, head.priority, head.gang.virtual_cluster, may_bind
        busy = slot.used, slot.held, slot.leaving, slot.charged, slot.open, slot.node.soon
        key = slot, asking, busy
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = self._look_at(
                slot, head, self._costs.of(head), may_bind=may_bind
            )
        return room

    def _look_at(self, slot: Slot, head: Workload, cost_of: CostOf, *, may_bind: bool) -> Room:
        assert head.owner is not None
        mask = claimable(slot, head.owner, head.priority, may_bind=may_bind)
        left = slot.node.soon
        for other, (gpus, charge) in slot.pods.items():
            if other.phase is Phase.PREEMPTED:
                continue
            if cost_of(other) is None:  # it may lose its cells yet
                mask &= ~(gpus if self._costs.is_lazy(other) else gpus | charge)
                continue
            for place in other.places:
                if place.slot.node is slot.node:
                    left = tuple(map(add, left, place.amounts))
        return mask.bit_count(), left

    def _may_evict(self, waiting: WorkloadClass) -> bool:
        """Opportunistic gangs may leave the rest of what a guaranteed pod wants beside GPUs."""
        return any(
            want.need(slot.model)[0] == 0 for want, _ in waiting.wants for slot in self.slots
        )

    def _helps_opportunistic(self, waiting: WorkloadClass) -> bool:
        """Its pods could be on what is idle, in whosever cells."""
        least, want_of = waiting.leaves_of_pod, self._state.want
        wants = [want_of(want.kind, is_charged=False) for want, _ in waiting.wants]
        for slot in self.slots:
            if (slot.good & ~slot.staying).bit_count() < least:
                continue
            for when in (When.NOW, When.SOON):
                key = self._state.idle(slot.pool, when).key_of(slot)
                if key >= 0 and any(want.rank(key) is not None for want in wants):
                    return True
        return False


def _fits(want: Want, slot: Slot, leaves: int, left: tuple[int, ...]) -> bool:
    has_amounts = all(left[i] >= want.amounts[i] for i in slot.model.limited)
    return has_amounts and leaves >= want.need(slot.model)[0]
