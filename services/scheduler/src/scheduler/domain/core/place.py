"""Where pods go: the nearest, tightest places first.

Example: a gang of 16 pods with 4 GPUs each. The placer tries one rack that should hold all,
in cells that its virtual cluster has bound, then in such that it may bind; else rack after rack.
On success the gang has its places in the state; the caller's trial keeps or undoes them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from scheduler.domain.core.node_models import INEXACT, NEVER, Want
from scheduler.domain.core.nodes import Phase, Place, Pool, Slot, Workload
from scheduler.domain.core.state import State
from scheduler.domain.core.views import EVERYWHERE, View, When

TRIED_SLOTS = 16
"""Slots that are tried for one pod in one view, beyond the best."""

Layer = tuple[View, int]
"""A view, and those of its racks that count."""


class Placer:
    """Places one workload, all of its pods or none.

    ``when``: on what is free now; or on what will be so when those have left that leave (its places
    are then held); or only to see whether it could be placed, whomever that would cost.
    ``without``: pools where nothing is placed.
    """

    def __init__(
        self, state: State, workload: Workload, when: When, without: Collection[Pool] = ()
    ) -> None:
        self.taken: list[Place] = []
        self._without = without
        self._state = state
        self._workload = workload
        self._when = when
        self._phase = Phase.RUNNING if when is When.NOW else Phase.NOMINATED
        self._near: dict[Pool, int] = {}
        self._floor = 0
        self._owner: str | None = None

    def place(self) -> bool:
        """Whether it has its places now. Nothing has changed where it has not."""
        kept = self._workload.kept
        if kept and any(self._place(floor, kept) for floor in self._floors()):
            return True
        return any(self._place(floor) for floor in self._floors())

    def _floors(self) -> Iterator[int]:
        """Levels of the smallest cells to bind, the lowest first."""
        yield 0
        if self._workload.owner is not None:
            quotas = self._state.quotas.get(self._workload.owner, ())
            yield from sorted({quota.level for quota in quotas[1:] if quota.left})

    def _place(self, floor: int, kept: tuple[Slot, ...] = ()) -> bool:
        """With cells bound of a level from ``floor`` up: where the smallest do not serve, larger
        ones may. ``kept``: slots to which pods go first.
        """
        self._floor, self.taken, self._near = floor, [], dict(self._workload.near)
        with self._state.trial() as trial:
            for want, pods in self._workload.wants:
                self._owner = self._workload.owner_of(want)
                wanted = want.bare if self._when is When.CLAIM else want
                rest, pools = self._place_kept(kept, wanted, pods)
                if rest and not any(self._place_kind(some, wanted, rest) for some in pools):
                    return False
            self._settle()
            trial.commit()
        return True

    def _place_kept(
        self, kept: tuple[Slot, ...], want: Want, pods: tuple[str, ...]
    ) -> tuple[tuple[str, ...], list[list[Pool]]]:
        """Pods go to these slots as far as they can. Returns those that are left, and where to."""
        pools, rest = self.pools_for(want), pods
        for some in pools if kept else ():
            for slot in kept:
                while rest and slot.pool in some and self._take_on(want, slot, rest[0]):
                    rest = rest[1:]
            if len(rest) < len(pods):
                return rest, [some]
        return rest, pools

    def place_on(self, slots: Sequence[Slot]) -> bool:
        """The same with each pod on its slot."""
        self.taken = []
        pods = [(want, pod) for want, names in self._workload.wants for pod in names]
        with self._state.trial() as trial:
            for (want, pod), slot in zip(pods, slots, strict=True):
                if not self.take_on(want, slot, pod):
                    return False
            self._settle()
            trial.commit()
        return True

    def take_on(self, want: Want, slot: Slot, pod: str) -> bool:
        """One pod takes its place on a slot, if there is one; the smallest cells are bound."""
        self._floor, self._owner = 0, self._workload.owner_of(want)
        return self._take_on(want, slot, pod)

    def _take_on(self, want: Want, slot: Slot, pod: str) -> bool:
        *_, (view, _) = self._layers(slot.pool, want)
        return self._take(view, want, slot, pod)

    def _settle(self) -> None:
        self._state.settle(self._workload, self.taken, self._phase)

    # Views to try.

    def pools_for(self, want: Want) -> list[list[Pool]]:
        """In the order in which they are tried, those together in which a kind's pods may be; pods
        without GPUs go first where there are none.
        """
        state = self._state
        if not want.gpus:
            found = [[state.pools[-1], *state.pools[:-1]]]
        elif not want.gpu_types:
            found = list(state.pools_of.values())
        else:
            found = [state.pools_of.get(name, []) for name in want.gpu_types]
        if not self._without:
            return found
        return [[pool for pool in some if pool not in self._without] for some in found]

    def _layers(self, pool: Pool, want: Want) -> Iterator[Layer]:
        """Best first."""
        state, owner, when = self._state, self._owner, self._when
        if want.costs_no_leaves(pool.models):
            yield state.idle(pool, when), EVERYWHERE
        elif owner is None:
            yield state.unowned(pool, when), EVERYWHERE
            yield state.uncharged(pool, when), EVERYWHERE
            yield state.idle(pool, when), EVERYWHERE
        elif when is When.CLAIM:
            may_bind = state.openable(pool, owner) != 0
            yield state.claim(pool, owner, self._workload.priority, may_bind=may_bind), EVERYWHERE
        else:
            yield state.own(pool, owner, when), EVERYWHERE
            racks = state.openable(pool, owner)
            well = racks & ~state.unwell_racks(pool) if racks > 0 else 0
            for some in (well, racks) if well != racks else (racks,):
                if some and state.has_parts(pool, owner):
                    yield state.mixed(pool, owner, when), some
                elif some:
                    yield state.unowned(pool, when), some

    # One pod.

    def _place_kind(self, pools: list[Pool], want: Want, pods: tuple[str, ...]) -> bool:
        """All these pods in one of these pools, else in several, or none."""
        pools = [pool for pool in pools if want.least(pool.models) != NEVER]
        if len(pods) > 1 and pools and self._goes_first(pools[0]):
            pods = self._fill_first(pools[0], want, pods)
            pools = pools[1:]
        if not pods:
            return True
        if len(pods) == 1:
            return any(
                (not want.gpus and self._join(pool, want, pods[0]))
                or self._place_one(self._layers(pool, want), want, pods[0])
                for pool in pools
            )
        every: list[Layer] = []
        for pool in pools:
            layers = list(self._layers(pool, want))
            every += layers
            if self._place_in(layers, want, pods):
                return True
        return len(pools) > 1 and self._place_anywhere(every, want, pods)

    def _goes_first(self, pool: Pool) -> bool:
        """Pods go there as far as they can, wherever the others are: it has no GPUs, and the gang
        has none that should lie together.
        """
        is_without = pool is self._state.pools[-1]
        return is_without and all(want.kind.costs_nothing for want, _ in self._workload.wants)

    def _fill_first(self, pool: Pool, want: Want, pods: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the pods that are left."""
        near = dict(self._near)
        done = self._place_each(list(self._layers(pool, want)), want, pods)
        self._near = near
        return pods[done:]

    def _place_in(self, layers: list[Layer], want: Want, pods: tuple[str, ...]) -> bool:
        """All these pods in one pool, or none."""
        if want.kind.costs_nothing:
            return self._all(len(pods), lambda: self._place_each(layers, want, pods))
        return self._place_in_rack(layers, want, pods) or self._place_anywhere(layers, want, pods)

    def _place_each(self, layers: list[Layer], want: Want, pods: tuple[str, ...]) -> int:
        """As many as go into a pool, each on the node with the fewest free GPUs, so that idle racks
        stay whole.
        """
        mark, pool = len(self.taken), layers[0][0].pool
        for done, pod in enumerate(pods):
            if self.taken[mark:] and self._take_on(want, self.taken[-1].slot, pod):
                continue
            self._near = {}
            if not (self._join(pool, want, pod) or self._place_one(layers, want, pod)):
                return done
        return len(pods)

    def _join(self, pool: Pool, want: Want, pod: str) -> bool:
        """The pod shares a leaf that others are charged."""
        return any(self._take_on(want, slot, pod) for slot in self.joining(pool, want))

    def joining(self, pool: Pool, want: Want) -> Iterator[Slot]:
        """Slots where a pod may share a leaf, of the first ones where any pod may."""
        owner = self._workload.owner
        slots = 0 if want.gpus or owner is None else self._state.sharing.get((pool, owner), 0)
        tried = 0
        while slots and tried <= TRIED_SLOTS:
            slot = pool.slots[(slots & -slots).bit_length() - 1]
            slots &= slots - 1
            tried += 1
            if self.joinable(want, slot):
                yield slot

    def joinable(self, want: Want, slot: Slot) -> int:
        """Good leaves of a slot of which a pod may share one."""
        owner = self._workload.owner
        if owner is None or not want.may_share(slot.model):
            return 0
        priority = self._workload.priority
        return slot.good & self._state.joinable(slot, owner, want.amounts, priority)

    def _place_one(self, layers: Iterable[Layer], want: Want, pod: str) -> bool:
        """The nearest leaves first; of the same nearness in cells that are bound."""
        rest = iter(layers)
        while True:
            found = []
            for view, racks in rest:
                near = self._near.get(view.pool, 0)
                every = view.seek(
                    want, racks, near, is_opportunistic=self._workload.is_opportunistic
                )
                if self._workload.gang.allowed_nodes is None:
                    seen = every
                else:
                    seen = (each for each in every if self._is_allowed(each[1]))
                first = next(seen, None)
                if first is None:
                    continue
                rank, slot = first
                level = (rank >> 24 & 0xFF) + (rank >= INEXACT)
                found.append((level, view, slot, seen))
                if level == want.nearest(slot.shape):
                    break  # others are as good at the best
            if not found:
                return False
            if len(found) > 1:
                found.sort(key=itemgetter(0))
            for _, view, slot, seen in found:
                if self._try(view, want, slot, seen, pod):
                    return True

    def _try(
        self, view: View, want: Want, slot: Slot, others: Iterator[tuple[int, Slot]], pod: str
    ) -> bool:
        """The pod takes its place on this slot, else on one of the first others."""
        if self._take(view, want, slot, pod):
            return True
        first = islice(others, TRIED_SLOTS + 1)
        return any(self._take(view, want, other, pod) for _, other in first)

    def _is_allowed(self, slot: Slot) -> bool:
        allowed = self._workload.gang.allowed_nodes
        return allowed is None or slot.node.name in allowed

    def _take(self, view: View, want: Want, slot: Slot, pod: str) -> bool:
        """The pod takes its place on a slot, if there is one."""
        state, workload = self._state, self._workload
        leaves, _ = want.need(slot.model)
        if not self._is_allowed(slot) or not (leaves or slot.node.is_open):
            return False
        if not self._has_amounts(want, slot) or not self._will_have_ports(want, slot):
            return False
        ports = slot.node.choose_ports(want.kind.ports) if self._when is When.NOW else 0
        charge: int | None = None
        if ports is not None:
            joined = self.joinable(want, slot)
            charge = joined & -joined or self._charge(slot, view, leaves)
        if ports is None or charge is None:
            return False
        gpus = charge
        if want.gpus < leaves:
            inner = slot.shape.pick(gpus, want.gpus)
            assert inner is not None
            gpus = inner.leaves
        owner = self._owner
        is_shared = owner is not None and want.may_share(slot.model)
        charged = charge if owner else 0
        place = Place(pod, slot, gpus, want.amounts, charged, owner or "", ports, is_shared)
        state.take(workload, place, self._phase)
        self.taken.append(place)
        self._near[view.pool] = self._near.get(view.pool, 0) | 1 << slot.rack
        return True

    def _charge(self, slot: Slot, view: View, leaves: int) -> int | None:
        """So many of the free leaves, those that lie closest together, in cells of the owner; where
        none may be bound around these, of those that are bound. None: there are none.
        """
        free = self._free_of(slot, view)
        pick, bound = slot.shape.pick(free, leaves), slot.bound.get(self._owner or "", 0)
        if pick is None or self._owner is None or not pick.leaves & ~bound:
            return None if pick is None else pick.leaves
        with self._state.trial() as trial:
            if self._state.bind_around(self._owner, slot, pick.leaves, self._floor):
                trial.commit()
                return pick.leaves
        pick = slot.shape.pick(free & bound, leaves)
        return None if pick is None else pick.leaves

    def _has_amounts(self, want: Want, slot: Slot) -> bool:
        if self._when is When.CLAIM or not slot.model.limited:
            return True
        left = slot.node.soon if self._when is When.SOON else slot.node.left
        return all(left[i] >= want.amounts[i] for i in slot.model.limited)

    def _will_have_ports(self, want: Want, slot: Slot) -> bool:
        """Also where they are not limited: a node has one port of each number."""
        if self._when is not When.SOON or not want.kind.ports:
            return True
        node, index = slot.node, self._state.resources.ports
        pods = {w: None for each in node.slots for w in each.pods if w is not self._workload}
        places = [p for w in pods if w.phase is not Phase.PREEMPTED for p in w.places]
        mine = {p.pod: p for p in self.taken if self._workload in p.slot.pods}
        places += mine.values()
        held = sum(p.amounts[index] for p in places if p.slot.node is node)
        first, last = node.port_range
        blocked = node.blocked_ports.bit_count()
        return held + blocked + want.kind.ports <= last - first + 1

    def _free_of(self, slot: Slot, view: View) -> int:
        """Free leaves of a slot, with those in cells that were bound just now."""
        owner, mask = self._owner, view.mask(slot)
        if self._when is not When.CLAIM and owner is not None and owner in slot.bound:
            busy = slot.staying if self._when is When.SOON else slot.used | slot.held
            mask |= slot.bound[owner] & slot.good & ~(busy | slot.charged)
        return mask

    # Several equal pods.

    def _place_in_rack(self, layers: list[Layer], want: Want, pods: tuple[str, ...]) -> bool:
        """In one rack: in bound cells alone, then in these and others, then in others."""
        count, is_opportunistic = len(pods), self._workload.is_opportunistic
        view, racks = layers[0]
        near = self._near.get(view.pool, 0)
        for part in (near, ~near) if near else (EVERYWHERE,):
            for rack in view.racks_for(
                want, count, racks & part, is_opportunistic=is_opportunistic
            ):
                if self._fill(layers[:1], rack, want, pods):
                    return True
            for other, others in layers[1:]:
                for rack in self._shared(view, other, others & part, want, count):
                    if self._fill(layers, rack, want, pods):
                        return True
                for rack in other.racks_for(
                    want, count, others & part, is_opportunistic=is_opportunistic
                ):
                    if self._fill([(other, others)], rack, want, pods):
                        return True
        return False

    def _shared(self, view: View, other: View, racks: int, want: Want, count: int) -> list[int]:
        """Racks with some room in bound cells that should hold all together with others, those with
        the least room first.
        """
        if self._workload.is_opportunistic or racks >= 0:
            return []  # whole racks are bound: what is free in one is all bound, or nothing is
        found, tried = [], 0
        other.flush()
        for free in sorted(view.by_free, reverse=True):
            rest = view.by_free[free] & racks
            while rest and tried < TRIED_SLOTS:
                rack = (rest & -rest).bit_length() - 1
                rest &= rest - 1
                tried += 1
                room = view.room(rack, want) + other.room(rack, want)
                if room >= count:
                    found.append((room, rack))
        return [rack for _, rack in sorted(found)]

    def _fill(self, layers: list[Layer], rack: int, want: Want, pods: tuple[str, ...]) -> bool:
        """All these pods in a rack, or none."""
        return self._all(len(pods), lambda: self._place_some(layers, rack, want, pods))

    def _all(self, count: int, place: Callable[[], int]) -> bool:
        """It places so many pods, or none."""
        mark, near = len(self.taken), dict(self._near)
        with self._state.trial() as trial:
            if place() == count:
                trial.commit()
                return True
        del self.taken[mark:]
        self._near = near
        return False

    def _place_some(self, layers: list[Layer], rack: int, want: Want, pods: tuple[str, ...]) -> int:
        """As many as go into a rack: on the slot that holds all the rest with the fewest leaves,
        else on the one that holds most.
        """
        done = 0
        for view, _ in layers:
            view.flush()
            slots = view.in_rack(rack, want)
            while slots and done < len(pods):
                rest = len(pods) - done
                enough = [each for each in slots if each[0] >= rest]
                if enough:
                    best = min(enough, key=lambda each: (each[1], each[2].bit))
                else:
                    best = min(slots, key=lambda each: (-each[0], each[2].bit))
                slots.remove(best)
                while done < len(pods) and self._take(view, want, best[2], pods[done]):
                    done += 1
        return done

    def _place_anywhere(self, layers: list[Layer], want: Want, pods: tuple[str, ...]) -> bool:
        """Rack after rack: the one that should hold all the rest, else the one that should hold
        most; bound cells first.
        """
        mark, near, rest = len(self.taken), dict(self._near), pods
        with self._state.trial() as trial:
            while rest:
                rack, layer = self._next_rack(layers, want, len(rest))
                done = 0 if layer is None else self._place_some([layer], rack, want, rest)
                if not done and not self._place_one(layers, want, rest[0]):
                    break
                rest = rest[done or 1 :]
            if not rest:
                trial.commit()
                return True
        del self.taken[mark:]
        self._near = near
        return False

    def _next_rack(self, layers: list[Layer], want: Want, count: int) -> tuple[int, Layer | None]:
        best, best_rack, most = None, -1, 0
        for layer in layers:
            view, racks = layer
            rack = next(view.racks_for(want, count, racks, is_opportunistic=False), -1)
            if rack >= 0:
                return rack, layer
            rack, room = view.fullest(want, racks)
            if room > most:
                best, best_rack, most = layer, rack, room
        return best_rack, best
