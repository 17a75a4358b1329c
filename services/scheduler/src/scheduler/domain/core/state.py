"""The state: places of workloads, what they are charged, which cells are bound to which owner.

Everything that decisions read is here, and only the methods of `State` change it, by the journal.
So any of them can be tried and undone. Views are derived, and follow.
"""

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import add, sub

from scheduler.domain.core.buddy import Buddy
from scheduler.domain.core.forest import Cell, Forest
from scheduler.domain.core.journal import MISSING, Journal, Trial
from scheduler.domain.core.model import OPPORTUNISTIC, Kind
from scheduler.domain.core.node_models import Model, Patterns, Resources, Want, distinct_limits
from scheduler.domain.core.nodes import (
    Binding,
    Node,
    Phase,
    Place,
    Pool,
    QuotaLeft,
    Shares,
    Slot,
    Wants,
    Workload,
    mask_on,
)
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core.shapes import Shape
from scheduler.domain.core.views import View, When

CLAIMS = 128
"""Views of what gangs could have that are kept: those that were asked last."""

UNLIMITED = 1 << 60
"""What is left of a resource without a limit."""

NOTHING = (0, 0)
WITHOUT_GPUS = Shape((), (0, 0))

Account = tuple[str, str]
"""An owner and a GPU type."""

_Dirty = dict[Slot, None]


class State:
    """``pools``: by chain; that of nodes without GPUs last. ``pools_of``: those of a GPU type.
    ``models``: of all pools. ``gpu_types``: as configured.
    ``quotas``: by owner, lowest first. ``owned`` and ``charged``: leaves by account, and of charged
    ones by priority. ``sharing``: slots of a pool, by number as a bit set, where one more pod
    without GPUs may share a leaf that an owner is charged. ``leaving``: how many workloads are so.
    ``unwell``: slots with leaves that are not good, or on nodes that are not open. ``freed``: slots
    where something became free, and owners of which a cell was unbound, since the cycle took them.
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.journal = Journal()
        self.patterns = Patterns()
        self.resources = Resources(distinct_limits(forest))
        self.nodes: dict[str, Node] = {}
        self.pools: list[Pool] = []
        self.models: tuple[Model, ...] = ()
        self.gpu_types = tuple(forest.racks)
        self.pools_of: dict[str, list[Pool]] = {name: [] for name in sorted(forest.racks)}
        self.buddies = {name: Buddy(c, self.journal) for name, c in forest.chains.items()}
        self.quotas: dict[str, list[QuotaLeft]] = {}
        self.owned: dict[Account, int] = {}
        self.charged: dict[Account, dict[int, int]] = {}
        self.sharing: dict[tuple[Pool, str], int] = {}
        self.leaving = 0
        self.unwell: dict[Slot, None] = {}
        self.freed: list[Slot | str] = []
        self._is_noticed = True
        self._slots_of: dict[Cell, list[Slot]] = {}
        self._racks_of: dict[Cell, int] = {}
        self._wants: dict[tuple[Kind, bool], Want] = {}
        self._views: dict[tuple[object, ...], View] = {}
        self._claims: dict[tuple[Pool, str, int, bool], View] = {}
        _Builder(self).build()

    def trial(self) -> Trial:
        """What is changed in the ``with`` block is undone, unless it is committed."""
        return self.journal.trial()

    # Questions.

    def want(self, kind: Kind, *, is_charged: bool) -> Want:
        """What pods of a kind want."""
        found = self._wants.get((kind, is_charged))
        if found is None:
            found = Want(kind, self.resources, self.patterns, is_charged=is_charged)
            self._wants[kind, is_charged] = found
        return found

    def slots_of(self, cell: Cell) -> list[Slot]:
        """The slots in a cell, in order."""
        return self._slots_of[cell]

    def slots_around(self, slot: Slot) -> Iterator[Slot]:
        """A slot, and all in the cells that are bound there."""
        yield slot
        for _, binding in slot.bindings:
            yield from self._slots_of[binding.cell]

    def spare(self, owner: str, gpu_types: Iterable[str], priority: int) -> int:
        """Leaves of an owner that no gang of this priority or a higher one is charged."""
        spare = 0
        for name in gpu_types:
            account = (owner, name)
            spare += self.owned.get(account, 0)
            for other, leaves in self.charged.get(account, {}).items():
                if other >= priority:
                    spare -= leaves
        return spare

    def joinable(self, slot: Slot, owner: str, amounts: tuple[int, ...], priority: int) -> int:
        """Leaves of which a pod without GPUs may share one that is charged. Pods that others may
        reclaim share nothing.
        """
        mine, leaves = slot.bound.get(owner, 0), 0
        for leaf, shares in slot.shares.items() if priority >= 0 else ():
            if leaf & mine and _may_join(shares) and self.has_room(slot, leaf, amounts):
                leaves |= leaf
        return leaves

    def has_room(self, slot: Slot, leaf: int, amounts: tuple[int, ...]) -> bool:
        """A leaf that pods without GPUs are charged goes with so much more."""
        shares = slot.shares.get(leaf)
        return shares is not None and slot.model.goes_with_leaf(
            tuple(map(add, shares.amounts, amounts))
        )

    def is_sharing(self, slot: Slot, owner: str) -> bool:
        """Some pod may share a leaf of a slot that an owner is charged."""
        mine = slot.bound.get(owner, 0)
        return any(
            leaf & mine and _may_join(shares) and not slot.model.is_leaf_full(shares.amounts)
            for leaf, shares in slot.shares.items()
        )

    def may_join_any(self, owner: str) -> bool:
        """One more pod without GPUs may share a leaf that an owner is charged, if it is small."""
        return any(self.sharing.get((pool, owner)) for pool in self.pools)

    def openable(self, pool: Pool, owner: str) -> int:
        """Racks in which an owner may bind more cells, as a bit set; in some of them it turns out
        not to be so.
        """
        if pool.chain is None:
            return 0
        chain, buddy, racks = pool.chain, self.buddies[pool.chain.name], 0
        for quota in self.quotas.get(owner, ()):
            if quota.chain is not chain or not quota.left:
                continue
            spare, most = buddy.spare(), quota.level  # larger free cells only if they may be split
            while most < chain.top and spare[most + 1] >= 1:
                most += 1
            if quota.level > chain.node_level or most < chain.top:
                racks |= self._racks_up_to(pool, quota.level, most)
            else:
                return -1
        return racks

    def unwell_racks(self, pool: Pool) -> int:
        """Racks of which some leaves are not good, as a bit set. Larger cells than nodes are bound
        there last: their owner could not use all of them.
        """
        racks = 0
        for slot in self.unwell:
            if slot.pool is pool:
                racks |= 1 << slot.rack
        return racks

    def _racks_up_to(self, pool: Pool, level: int, most: int) -> int:
        """Racks around or in free cells from one level to another; of quota of nodes or less all
        racks but those in larger free cells.
        """
        chain = pool.chain
        assert chain is not None
        buddy = self.buddies[chain.name]
        if level > chain.node_level:
            racks = 0
            for above in range(level, most + 1):
                racks |= self._racks_in(pool, above, buddy.free[above])
            return racks
        kept = 0
        for above in range(max(most, chain.node_level) + 1, chain.top + 1):
            kept |= self._racks_in(pool, above, buddy.free[above])
        return ~kept

    def _racks_in(self, pool: Pool, level: int, cells: int) -> int:
        """Racks with slots in these cells, of racks or above."""
        chain = pool.chain
        assert chain is not None
        if level <= min(chain.node_level + 1, chain.top):
            return cells  # a rack has its cell's number
        racks = 0
        while cells:
            low = cells & -cells
            cells ^= low
            racks |= self._racks_of[chain.cells[level][low.bit_length() - 1]]
        return racks

    def has_parts(self, pool: Pool, owner: str) -> bool:
        """An owner has quota inside the nodes of a pool."""
        return any(
            quota.chain is pool.chain and quota.level < quota.chain.node_level
            for quota in self.quotas.get(owner, ())
        )

    # Views.

    def own(self, pool: Pool, owner: str, when: When) -> View:
        """Free leaves in cells that are bound to an owner."""

        def now(slot: Slot) -> int:
            mine = slot.bound.get(owner, 0)
            return mine & slot.good & ~(slot.used | slot.held | slot.charged)

        def soon(slot: Slot) -> int:
            return slot.bound.get(owner, 0) & slot.good & ~(slot.staying | slot.charged)

        watchers = pool.dirty_of.setdefault(owner, [])
        return self._view(("own", pool, owner, when), soon if when is When.SOON else now, watchers)

    def unowned(self, pool: Pool, when: When) -> View:
        """Free leaves in no bound cell."""

        def now(slot: Slot) -> int:
            return slot.open & slot.good & ~(slot.used | slot.held)

        def soon(slot: Slot) -> int:
            return slot.open & slot.good & ~slot.staying

        mask = soon if when is When.SOON else now
        return self._view(("unowned", pool, when), mask, pool.dirty_open)

    def mixed(self, pool: Pool, owner: str, when: When) -> View:
        """Both together, for owners with quota inside nodes."""

        def mask(slot: Slot) -> int:
            busy = slot.staying if when is When.SOON else slot.used | slot.held
            return (slot.open | slot.bound.get(owner, 0)) & slot.good & ~(busy | slot.charged)

        return self._view(("mixed", pool, owner, when), mask, pool.dirty)

    def idle(self, pool: Pool, when: When) -> View:
        """Leaves that no workload uses or holds, in any cells."""

        def now(slot: Slot) -> int:
            return slot.good & ~(slot.used | slot.held)

        def soon(slot: Slot) -> int:
            return slot.good & ~slot.staying

        mask = soon if when is When.SOON else now
        return self._view(("idle", pool, when), mask, pool.dirty, shows_full=True)

    def uncharged(self, pool: Pool, when: When) -> View:
        """The same on slots on which nothing is charged: others are for small guaranteed pods."""

        idle = self.idle(pool, when).mask

        def mask(slot: Slot) -> int:
            return 0 if slot.charged else idle(slot)

        return self._view(("uncharged", pool, when), mask, pool.dirty)

    def claim(self, pool: Pool, owner: str, priority: int, *, may_bind: bool) -> View:
        """Leaves that a gang could have if all were gone that it can make leave."""

        def mask(slot: Slot) -> int:
            return claimable(slot, owner, priority, may_bind=may_bind)

        key = pool, owner, priority, may_bind
        found = self._claims.pop(key, None)
        if found is None:
            if len(self._claims) >= CLAIMS:
                self._drop_claim(*next(iter(self._claims)))
            found = View(pool, self.patterns, mask, When.CLAIM, shows_full=False)
            self._watchers(pool, owner, may_bind=may_bind).append(found.dirty)
        self._claims[key] = found
        return found

    def _drop_claim(self, pool: Pool, owner: str, priority: int, may_bind: bool) -> None:
        view = self._claims.pop((pool, owner, priority, may_bind))
        watchers = self._watchers(pool, owner, may_bind=may_bind)
        watchers[:] = [each for each in watchers if each is not view.dirty]

    def _watchers(self, pool: Pool, owner: str, *, may_bind: bool) -> list[_Dirty]:
        return pool.dirty if may_bind else pool.dirty_of.setdefault(owner, [])

    def _view(
        self,
        key: tuple[object, ...],
        mask: Callable[[Slot], int],
        watchers: list[_Dirty],
        *,
        shows_full: bool = False,
    ) -> View:
        found = self._views.get(key)
        if found is None:
            pool = key[1]
            assert isinstance(pool, Pool)
            when = When.SOON if key[-1] is When.SOON else When.NOW
            found = View(pool, self.patterns, mask, when, shows_full=shows_full)
            self._views[key] = found
            watchers.append(found.dirty)
        return found

    def views(self) -> Iterator[View]:
        """Those that were ever asked, for the audit."""
        yield from (*self._views.values(), *self._claims.values())

    def _touch(self, slot: Slot) -> None:
        """The slot, or its node's amounts, are about to change or have changed."""
        pool = slot.pool
        for owner in slot.bound:
            for dirty in pool.dirty_of.get(owner, ()):
                dirty[slot] = None
        for dirty in pool.dirty:
            dirty[slot] = None
        if slot.open:
            for dirty in pool.dirty_open:
                dirty[slot] = None
        self.journal.note(self._touch, slot)

    def _touch_node(self, place: Place) -> None:
        slot = place.slot
        if len(slot.node.slots) == 1 or not slot.model.limited:
            self._touch(slot)
            return
        for each in slot.node.slots:
            self._touch(each)

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """What becomes free in the ``with`` block is taken again in it: it helps nobody."""
        before, self._is_noticed = self._is_noticed, False
        try:
            yield
        finally:
            self._is_noticed = before

    def notice(self, slots: Iterable[Slot]) -> None:
        """Gangs that wait for something on these slots are to be tried."""
        for slot in slots:
            self._free(slot)

    def _free(self, what: Slot | str) -> None:
        if not self._is_noticed:
            return
        self.freed.append(what)
        self.journal.note(self._unfree, None)

    def _free_node(self, place: Place) -> None:
        """Leaves of a slot are free, or what all slots of its node share."""
        slots = place.slot.node.slots if place.slot.model.limited else (place.slot,)
        for slot in slots:
            self._free(slot)

    def _unfree(self, _: None) -> None:
        self.freed.pop()

    # Cells.

    def has_pins(self, owner: str, workload: Workload) -> bool:
        """Whether the pins that a workload names are the virtual cluster's."""
        pins = (want.kind.pin for want, _ in workload.wants)
        owners = self.forest.pin_owners
        return all(pin is None or owner_of(owners.get(pin, "")) == owner for pin in pins)

    def bind_around(self, owner: str, slot: Slot, leaves: int, floor: int = 0) -> bool:
        """Have these leaves in bound cells of the owner. What is missing is bound: the smallest
        cell of its quota that has all of it, else the one that has most, and so on; none of a level
        below ``floor``. False, with some perhaps bound, where that is not allowed.
        """
        rest = leaves & ~slot.bound.get(owner, 0)
        while rest:
            found = self._bindable(owner, slot, rest, floor)
            if found is None:
                return False
            self.bind(found)
            rest &= ~slot.bound[owner]
        return True

    def _bindable(self, owner: str, slot: Slot, rest: int, floor: int) -> Binding | None:
        chain = slot.model.chain
        if chain is None or slot.fixed is None:
            return None
        most, best, buddy = 0, None, self.buddies[chain.name]
        for quota in self.quotas.get(owner, ()):
            if quota.chain is not chain or not quota.left or quota.level < floor:
                continue
            if quota.level >= chain.node_level:
                cell = slot.fixed.cell
                while cell.level < quota.level and cell.parent is not None:
                    cell = cell.parent
                if cell.level == quota.level and buddy.may_bind(cell, None, slot):
                    return Binding(owner, quota, cell, None)
                continue
            for part in slot.shape.parts[quota.level]:
                count = (part.mask & rest).bit_count()
                if count > most and buddy.may_bind(slot.fixed.cell, part, slot):
                    if not rest & ~part.mask:
                        return Binding(owner, quota, slot.fixed.cell, part)
                    most, best = count, Binding(owner, quota, slot.fixed.cell, part)
        return best

    def may_bind_any(self, owner: str, slot: Slot) -> bool:
        """The owner may bind some cell with open leaves of a slot."""
        return slot.open > 0 and self._bindable(owner, slot, slot.open, 0) is not None

    def bind(self, binding: Binding) -> None:
        """The cell is its owner's. The caller has asked `Buddy.may_bind`."""
        set_, cell, part, owner = self.journal.set, binding.cell, binding.part, binding.owner
        buddy, slots = self.buddies[cell.chain.name], self._slots_of[cell]
        if (quota := binding.quota) is not None:
            set_(quota, "left", quota.left - 1)
            buddy.owe(quota.level, -1)
        buddy.begin_bind(cell, part, slots[0])
        for slot in slots:
            mask = mask_on(binding, slot)
            self._touch(slot)
            set_(slot, "open", slot.open & ~mask)
            set_(slot, "bound", {**slot.bound, owner: slot.bound.get(owner, 0) | mask})
            set_(slot, "bindings", (*slot.bindings, (mask, binding)))
            self._touch(slot)
        buddy.end_bind(part, slots[0])

    def _unbind(self, binding: Binding) -> None:
        set_, cell, part, owner = self.journal.set, binding.cell, binding.part, binding.owner
        buddy, slots, quota = self.buddies[cell.chain.name], self._slots_of[cell], binding.quota
        assert quota is not None
        set_(quota, "left", quota.left + 1)
        buddy.owe(quota.level, 1)
        buddy.begin_unbind(cell, part, slots[0])
        for slot in slots:
            self._touch(slot)
            mask = mask_on(binding, slot)
            bound = dict(slot.bound)
            bound[owner] &= ~mask
            if not bound[owner]:
                del bound[owner]
            set_(slot, "bound", bound)
            set_(slot, "bindings", tuple(each for each in slot.bindings if each[1] is not binding))
            set_(slot, "open", slot.open | mask)
            self._touch(slot)
            self._free(slot)
        buddy.end_unbind(cell, part, slots[0])
        self._free(owner)

    # Workloads.

    def take(self, workload: Workload, place: Place, phase: Phase) -> None:
        """A pod runs on its place, holds it until others have left, or runs there and leaves.
        `settle` says of whom all have one.
        """
        slot, gpus, set_ = place.slot, place.gpus, self.journal.set
        stays = phase is not Phase.PREEMPTED
        charge = place.charge if stays and not workload.is_opportunistic else 0
        if charge:
            self._charge(workload, place)
        if gpus:
            name = "held" if phase is Phase.NOMINATED else "used"
            set_(slot, name, getattr(slot, name) | gpus)
            if not stays:
                set_(slot, "leaving", slot.leaving | gpus)
        if place.ports:
            set_(slot.node, "ports", slot.node.ports | place.ports)
        before = slot.pods.get(workload, NOTHING)
        self.journal.put(slot.pods, workload, (before[0] | gpus, before[1] | charge))
        self._add_amounts(place, -1, left=True, soon=stays)
        self._touch_node(place)

    def settle(self, workload: Workload, places: Iterable[Place], phase: Phase) -> None:
        """The workload has these places, which its pods took."""
        if phase is Phase.PREEMPTED:
            self.journal.set(self, "leaving", self.leaving + 1)
        self.journal.set(workload, "places", tuple(places))
        self.journal.set(workload, "phase", phase)

    def start(self, workload: Workload) -> bool:
        """A nominated workload runs, if no other uses anything of its places any more. Its pods get
        their ports now. Nothing has changed where it does not.
        """
        places: list[Place] = []
        with self.trial() as trial:
            for place in workload.places:
                slot, gpus, node = place.slot, place.gpus, place.slot.node
                ports = node.choose_ports(place.amounts[self.resources.ports])
                if gpus & slot.used or min(node.left) < 0 or ports is None:
                    return False
                if gpus:
                    self.journal.set(slot, "used", slot.used | gpus)
                    self.journal.set(slot, "held", slot.held & ~gpus)
                    self._touch(slot)
                self.journal.set(node, "ports", node.ports | ports)
                places.append(place._replace(ports=ports))
            self.settle(workload, places, Phase.RUNNING)
            trial.commit()
        return True

    def evict(self, workload: Workload) -> None:
        """The workload is preempted: it is charged nothing from now on, and runs until it is
        removed. A nominated one waits again.
        """
        if workload.phase is Phase.NOMINATED:
            self.remove(workload, Phase.WAITING)
            return
        self._uncharge(workload)
        for place in workload.places:
            slot = place.slot
            if place.gpus:
                self.journal.set(slot, "leaving", slot.leaving | place.gpus)
            self._add_amounts(place, 1, left=False, soon=True)
            self._touch_node(place)
            self._free_node(place)
        self.journal.set(workload, "phase", Phase.PREEMPTED)
        self.journal.set(self, "leaving", self.leaving + 1)

    def remove(self, workload: Workload, phase: Phase = Phase.OVER) -> None:
        """The workload gives up its places: it is over, or waits again."""
        for place in workload.places:
            self._give_up(workload, place, ())
        if workload.phase is Phase.PREEMPTED:
            self.journal.set(self, "leaving", self.leaving - 1)
        self.journal.set(workload, "phase", phase)
        self.journal.set(workload, "places", ())

    def drop(self, workload: Workload, pod: str) -> None:
        """One pod is over, or not wanted any more."""
        rest = tuple(place for place in workload.places if place.pod != pod)
        for place in workload.places:
            if place.pod == pod:
                self._give_up(workload, place, [p for p in rest if p.slot is place.slot])
        self.journal.set(workload, "places", rest)
        self.journal.set(workload, "wants", without(workload.wants, pod))

    def pass_on(self, workload: Workload, others: Mapping[str, Workload]) -> None:
        """Pods, by name, are other workloads' from now on, where they are; these are in the phase
        of this one then. It is over when it has passed on all.
        """
        set_, places, wants = self.journal.set, workload.places, workload.wants
        rest = tuple(place for place in places if place.pod not in others)
        left: dict[Slot, list[Place]] = {place.slot: [] for place in places}
        for place in rest:
            left[place.slot].append(place)
        moved: dict[Workload, list[Place]] = {other: [] for other in others.values()}
        for place in places:
            if (other := others.get(place.pod)) is not None:
                self._pass_on(workload, other, place, left[place.slot])
                moved[other].append(place)
        for other, some in moved.items():
            pods = {pod for pod, each in others.items() if each is other}
            set_(other, "places", (*other.places, *some))
            set_(other, "wants", joined(other.wants, only(wants, pods)))
            set_(other, "phase", workload.phase)
        set_(workload, "places", rest)
        set_(workload, "wants", only(wants, set(pods_in(wants)).difference(others)))
        if not workload.wants:
            set_(workload, "phase", Phase.OVER)

    def _pass_on(
        self, workload: Workload, other: Workload, place: Place, rest: Collection[Place]
    ) -> None:
        slot, gpus, charge = place.slot, place.gpus, place.charge
        if workload.is_opportunistic or workload.phase is Phase.PREEMPTED:
            charge = 0
        if charge:
            self._account(workload, place, -1)
            self._account(other, place, 1)
        self._leave(workload, place, rest)
        others = slot.pods.get(other, NOTHING)
        self.journal.put(slot.pods, other, (others[0] | gpus, others[1] | charge))
        self._touch(slot)

    def _leave(self, workload: Workload, place: Place, rest: Collection[Place]) -> None:
        """The workload's pods on the slot are the rest from then on."""
        before = place.slot.pods.get(workload)
        if before is not None:
            kept = 0
            for each in rest:
                kept |= each.charge
            masks = before[0] & ~place.gpus, before[1] & ~(place.charge & ~kept)
            self.journal.put(place.slot.pods, workload, masks if any(masks) or rest else MISSING)

    def _give_up(self, workload: Workload, place: Place, rest: Collection[Place]) -> None:
        slot, gpus = place.slot, place.gpus
        set_, is_leaving = self.journal.set, workload.phase is Phase.PREEMPTED
        if place.charge and not is_leaving and workload.owner is not None:
            self._discharge(workload, place)
        if gpus:
            name = "held" if workload.phase is Phase.NOMINATED else "used"
            set_(slot, name, getattr(slot, name) & ~gpus)
            if is_leaving:
                set_(slot, "leaving", slot.leaving & ~gpus)
        if place.ports:
            set_(slot.node, "ports", slot.node.ports & ~place.ports)
        self._add_amounts(place, 1, left=True, soon=not is_leaving)
        self._leave(workload, place, rest)
        self._touch_node(place)
        self._free_node(place)

    def downgrade(self, workload: Workload) -> None:
        """A running workload goes on without cells."""
        self._uncharge(workload)
        for place in workload.places:
            self._free(place.slot)
        self.journal.set(workload, "owner", None)
        priority = OPPORTUNISTIC if workload.is_surplus else workload.gang.priority
        self.journal.set(workload, "priority", priority)  # it may have borrowed

    def be_opportunistic(self, workload: Workload) -> None:
        """A waiting workload asks for what is idle, in whosever cells."""
        wants = tuple((self.want(w.kind, is_charged=False), pods) for w, pods in workload.wants)
        self.journal.set(workload, "wants", wants)
        self.journal.set(workload, "owner", None)

    def ask_anew(self, workload: Workload) -> None:
        """A waiting workload asks for cells of its own again; what a gang grows by, for such as the
        gang has.
        """
        gang, parent = workload.gang, workload.parent
        owner = None if gang.priority == OPPORTUNISTIC else owner_of(gang.virtual_cluster)
        priority = OPPORTUNISTIC if workload.is_surplus else gang.priority
        if parent is not None and not workload.is_surplus:
            owner, priority = parent.owner, parent.priority
        is_charged = owner is not None
        wants = tuple((self.want(w.kind, is_charged=is_charged), p) for w, p in workload.wants)
        self.journal.set(workload, "wants", wants)
        self.journal.set(workload, "owner", owner)
        self.journal.set(workload, "priority", priority)

    def ask(self, workload: Workload, wants: Wants) -> None:
        """A workload wants these pods; those that have a place are among them."""
        self.journal.set(workload, "wants", wants)

    def borrow(self, workload: Workload, owner: str, priority: int) -> None:
        """A waiting workload asks for cells of another owner."""
        self.journal.set(workload, "owner", owner)
        self.journal.set(workload, "priority", priority)

    def set_priority(self, workload: Workload, priority: int) -> None:
        """Only gangs of a higher priority can have a running workload's cells from now on."""
        charged = [] if workload.is_opportunistic else [p for p in workload.places if p.charge]
        for place in charged:
            self._account(workload, place, -1)
        self.journal.set(workload, "priority", priority)
        for place in charged:
            self._account(workload, place, 1)
            self._touch(place.slot)

    def set_kept(self, workload: Workload, slots: Iterable[Slot]) -> None:
        """A workload's pods go to these slots, as far as they can."""
        self.journal.set(workload, "kept", tuple(slots))

    def set_near(self, workload: Workload, near: dict[Pool, int]) -> None:
        """A workload's pods go near these racks."""
        self.journal.set(workload, "near", near)

    def upgrade(
        self, workload: Workload, places: Sequence[Place], owner: str, priority: int
    ) -> None:
        """A running workload without cells gets an owner's around its places, which are bound."""
        self.journal.set(workload, "owner", owner)
        self.journal.set(workload, "priority", priority)
        self.journal.set(workload, "places", tuple(places))
        for place in places:
            if place.charge:
                self._charge(workload, place)
                gpus, charge = place.slot.pods.get(workload, NOTHING)
                self.journal.put(place.slot.pods, workload, (gpus, charge | place.charge))
                self._touch(place.slot)

    def _uncharge(self, workload: Workload) -> None:
        for place in workload.places:
            if place.charge and not workload.is_opportunistic:
                self._discharge(workload, place)
                gpus, charges = place.slot.pods[workload]
                self.journal.put(place.slot.pods, workload, (gpus, charges & ~place.charge))
                self._touch(place.slot)

    def _charge(self, workload: Workload, place: Place) -> None:
        slot, charge = place.slot, place.charge
        self.journal.set(slot, "charged", slot.charged | charge)
        for mask, binding in slot.bindings:
            if mask & charge:
                self.journal.set(binding, "users", binding.users + 1)
        self._account(workload, place, 1)

    def _discharge(self, workload: Workload, place: Place) -> None:
        slot, charge = place.slot, place.charge
        self._account(workload, place, -1)
        if charge not in slot.shares:
            self.journal.set(slot, "charged", slot.charged & ~charge)
        for mask, binding in slot.bindings:
            if mask & charge:
                self.journal.set(binding, "users", binding.users - 1)
                if not binding.users and binding.quota is not None:
                    self._unbind(binding)

    def _account(self, workload: Workload, place: Place, sign: int) -> None:
        """Count the leaves that a pod is charged, or that it is charged no more."""
        if place.is_shared:
            self._share(workload, place, sign)
        else:
            self._count(place, workload.priority, sign * place.charge.bit_count())

    def _share(self, workload: Workload, place: Place, sign: int) -> None:
        """One pod more or less is charged a leaf, which counts at the highest priority of all."""
        slot, leaf = place.slot, place.charge
        before = slot.shares.get(leaf, Shares((), (0,) * len(place.amounts), 0))
        priorities = [*before.priorities]
        if sign > 0:
            insort(priorities, workload.priority)
        else:
            priorities.remove(workload.priority)
        amounts = tuple(map(add if sign > 0 else sub, before.amounts, place.amounts))
        after = Shares(tuple(priorities), amounts, before.holds + sign * (not place.pod))
        for shares, leaves in ((before, -1), (after, 1)):
            if shares.priorities:
                self._count(place, shares.priorities[-1], leaves)
        self.journal.put(slot.shares, leaf, after if priorities else MISSING)
        key, bit = (slot.pool, place.owner), 1 << slot.number
        slots = self.sharing.get(key, 0) & ~bit
        if self.is_sharing(slot, place.owner):
            slots |= bit
        self.journal.put(self.sharing, key, slots)

    def _count(self, place: Place, priority: int, leaves: int) -> None:
        chain = place.slot.model.chain
        assert chain is not None
        account = self.charged[place.owner, chain.gpu_type]
        self.journal.put(account, priority, account.get(priority, 0) + leaves)

    def _add_amounts(self, place: Place, sign: int, *, left: bool, soon: bool) -> None:
        if not place.slot.model.limited:
            return
        node, amounts = place.slot.node, place.amounts
        if soon:
            values = tuple(a + sign * b for a, b in zip(node.soon, amounts, strict=True))
            self.journal.set(node, "soon", values)
        if left:
            values = tuple(a + sign * b for a, b in zip(node.left, amounts, strict=True))
            self.journal.set(node, "left", values)

    # Nodes.

    def set_good(self, slot: Slot, good: int) -> None:
        """Which leaves of a slot may be used."""
        if good == slot.good:
            return
        self.journal.set(slot, "good", good)
        self._note_well(slot)
        self._touch(slot)
        self._free(slot)

    def set_open(
        self, node: Node, *, is_healthy: bool, is_cordoned: bool, is_drained: bool
    ) -> None:
        """Whether new pods may come."""
        self.journal.set(node, "is_healthy", is_healthy)
        self.journal.set(node, "is_cordoned", is_cordoned)
        self.journal.set(node, "is_drained", is_drained)
        self._set_usable(node)
        for slot in node.slots:  # those without GPUs too
            self._free(slot)

    @contextmanager
    def unordered(self, nodes: Collection[Node]) -> Iterator[None]:
        """These nodes are neither cordoned nor drained in the ``with`` block."""
        orders = [
            (node, node.is_cordoned, node.is_drained)
            for node in nodes
            if node.is_cordoned or node.is_drained
        ]
        with self.unnoticed():
            for node, _, _ in orders:
                self.set_open(node, is_healthy=node.is_healthy, is_cordoned=False, is_drained=False)
            yield
            for node, is_cordoned, is_drained in orders:
                self.set_open(
                    node,
                    is_healthy=node.is_healthy,
                    is_cordoned=is_cordoned,
                    is_drained=is_drained,
                )

    def set_sick(self, slot: Slot, sick: int) -> None:
        """Which leaves are bad GPUs."""
        self.journal.set(slot, "sick", sick)
        self._set_usable(slot.node)
        if not slot.node.is_open:
            self._free(slot)  # for preflight gangs

    def block(
        self,
        node: Node,
        gpus: Collection[int],
        amounts: tuple[int, ...],
        ports: int,
        avoided: int = 0,
    ) -> bool:
        """Foreign pods hold these now: GPU indices, amounts by resource, ports as bits, which no
        pod of ours has. Whether they held something else before.
        """
        masks = [0 if s.fixed is None else s.fixed.mask_of(tuple(gpus)) for s in node.slots]
        old = node.blocked or (0,) * len(amounts)
        before = old, node.blocked_ports, node.avoided_ports, [slot.blocked for slot in node.slots]
        if before == (amounts, ports, avoided, masks):
            return False
        for name in ("left", "soon"):
            values = zip(getattr(node, name), old, amounts, strict=True)
            self.journal.set(node, name, tuple(left + a - b for left, a, b in values))
        self.journal.set(node, "blocked", amounts)
        self.journal.set(node, "blocked_ports", ports)
        self.journal.set(node, "avoided_ports", avoided)
        for slot, mask in zip(node.slots, masks, strict=True):
            self.journal.set(slot, "blocked", mask)
            self._touch(slot)
            self._free(slot)
        self._set_usable(node)
        return True

    def _set_usable(self, node: Node) -> None:
        for slot in node.slots:
            full = slot.shape.full if node.is_open else 0
            self.set_good(slot, full & ~slot.sick & ~slot.blocked)
            self._note_well(slot)

    def _note_well(self, slot: Slot) -> None:
        is_well = slot.node.is_open and slot.good == slot.shape.full
        self.journal.put(self.unwell, slot, MISSING if is_well else None)


def _may_join(shares: Shares) -> bool:
    """Nobody reclaims or awaits what these are charged."""
    return not shares.holds and shares.priorities[0] >= 0


def without(wants: Wants, pod: str) -> Wants:
    """The same without a pod."""
    left = ((want, tuple(each for each in pods if each != pod)) for want, pods in wants)
    return tuple((want, pods) for want, pods in left if pods)


def pods_in(wants: Wants) -> tuple[str, ...]:
    """The names of all pods."""
    return tuple(pod for _, pods in wants for pod in pods)


def only(wants: Wants, pods: Collection[str]) -> Wants:
    """Some of the pods."""
    some = ((want, tuple(each for each in names if each in pods)) for want, names in wants)
    return tuple((want, names) for want, names in some if names)


def joined(wants: Wants, more: Wants) -> Wants:
    """All pods of both; those that are in both are not wanted twice."""
    found = {want: dict.fromkeys(pods) for want, pods in wants}
    for want, pods in more:
        found.setdefault(want, {}).update(dict.fromkeys(pods))
    return tuple((want, tuple(pods)) for want, pods in found.items())


def claimable(slot: Slot, owner: str, priority: int, *, may_bind: bool) -> int:
    """Leaves of a slot that an owner's gang of a priority could have, whoever is preempted.
    ``may_bind``: those in no bound cell too.
    """
    mask = slot.bound.get(owner, 0)
    if mask & slot.charged:
        for other, (_, charge) in slot.pods.items():
            if charge and other.priority >= priority:
                mask &= ~charge
    if may_bind:
        mask |= slot.open
    return mask & slot.good


class _Builder:
    """Makes the state of a forest in which nothing runs."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.forest = state.forest
        self._models: dict[tuple[object, ...], Model] = {}

    def build(self) -> None:
        """Nodes, pools, quotas, pins."""
        for number, name in enumerate(self.forest.machines):
            limits = self.forest.limits(name)
            totals = self.state.resources.totals(limits)
            left = tuple(UNLIMITED if total is None else total for total in totals)
            self.state.nodes[name] = Node(name, number, limits, left, left)
        chains = self.forest.chains.values()  # pods fill small nodes first
        for chain in sorted(chains, key=lambda chain: chain.leaves(chain.node_level)):
            self._add_pool(Pool(chain))
        self._add_without_gpus()
        self.state.models = tuple(self._models.values())
        self._own()

    def _add_pool(self, pool: Pool) -> None:
        chain = pool.chain
        assert chain is not None
        for cell in chain.cells[min(chain.node_level + 1, chain.top)]:
            rack: list[Slot] = []
            for fixed in cell.slots():
                node = self.state.nodes[fixed.machine]
                model = self._model(pool, node, fixed.shape, self.forest.gpus_of(node.name))
                slot = Slot(
                    node, pool, fixed, model, fixed.shape, len(pool.slots), len(pool.racks),
                    1 << len(rack), fixed.shape.full, open=fixed.shape.full,
                )  # fmt: skip
                rack.append(slot)
                pool.slots.append(slot)
                node.slots = (*node.slots, slot)
                self._note_in_cells(slot, fixed.cell)
            pool.racks.append(rack)
        self.state.pools.append(pool)
        self.state.pools_of[chain.gpu_type].append(pool)

    def _note_in_cells(self, slot: Slot, cell: Cell) -> None:
        above: Cell | None = cell
        while above is not None:
            self.state._slots_of.setdefault(above, []).append(slot)
            self.state._racks_of[above] = self.state._racks_of.get(above, 0) | 1 << slot.rack
            above = above.parent

    def _add_without_gpus(self) -> None:
        pool = Pool(None)
        for node in self.state.nodes.values():
            if not node.slots:
                model = self._model(pool, node, WITHOUT_GPUS, 0)
                number = len(pool.slots)
                slot = Slot(node, pool, None, model, WITHOUT_GPUS, number, number, 1, 0)
                pool.slots.append(slot)
                pool.racks.append([slot])
                node.slots = (slot,)
        self.state.pools.append(pool)

    def _model(self, pool: Pool, node: Node, shape: Shape, gpus: int) -> Model:
        totals = self.state.resources.totals(node.limits)
        key = (pool.chain and pool.chain.name, shape, gpus, totals)
        model = self._models.get(key)
        if model is None:
            number = len(self._models)
            model = self._models[key] = Model(number, pool.chain, shape, gpus, totals)
            pool.models = (*pool.models, model)
        return model

    def _own(self) -> None:
        state = self.state
        for name, quotas in self.forest.quotas.items():
            owner = owner_of(name)
            lefts = [QuotaLeft(quota, quota.count) for quota in quotas]
            state.quotas[owner] = sorted(lefts, key=lambda left: left.level)
            for quota in quotas:
                state.buddies[quota.chain.name].owe(quota.level, quota.count)
                leaves = quota.count * quota.chain.leaves(quota.level)
                self._add_owned((owner, quota.chain.gpu_type), leaves)
        for pin, (place, part) in self.forest.pins.items():
            owner = pin_owner(pin)
            cell = place if isinstance(place, Cell) else place.cell
            binding = Binding(owner, None, cell, part)
            state.bind(binding)
            leaves = sum(mask_on(binding, s).bit_count() for s in state.slots_of(cell))
            self._add_owned((owner, cell.chain.gpu_type), leaves)

    def _add_owned(self, account: Account, leaves: int) -> None:
        state = self.state
        state.owned[account] = state.owned.get(account, 0) + leaves
        state.charged.setdefault(account, {})
