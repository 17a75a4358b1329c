"""Where a gang's pods go when it costs nobody anything: docs/scheduling.md, "Which place"."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.forest import Rack
from scheduler.domain.core.hardware import Hardware, pin_owner
from scheduler.domain.core.holdings import Pod
from scheduler.domain.core.machines import Machine, SlotState
from scheduler.domain.core.model import Kind, Role
from scheduler.domain.core.regions import NEVER_RANK, Needs, Rank, Region, View

TYPE_CHOICES = 64
"""Ways to give roles their GPU types that are tried, at the most."""

ORDERS = 24
"""Orders of a gang's kinds that are tried, at the most."""


class Seeker:
    """Finds places for the pods of one gang, and takes them as it goes.

    ``owner`` None: opportunistic. ``only``: these nodes. ``near``: racks to be tried first.
    """

    def __init__(
        self,
        hardware: Hardware,
        gang: str,
        owner: str | None,
        *,
        only: frozenset[str] | None = None,
        near: Sequence[Rack] = (),
        is_bare: bool = False,
    ) -> None:
        self.hardware = hardware
        self.gang = gang
        self.owner = owner
        self.only = only
        self.near = near
        self.is_bare = is_bare
        self.pods: list[Pod] = []

    # The gang.

    def place(self, roles: Sequence[Role]) -> bool:
        """Place all pods, or none."""
        kinds = merge(roles)
        if len(kinds) == 1:
            kind, names = kinds[0]
            return any(self._kind(kind, names, t) or self.undo() for t in self._types(kind))
        choices = [self._types(kind) for kind, _ in kinds]
        tries = 0
        for types in product(*choices):
            tries += 1
            if tries > TYPE_CHOICES:
                break
            for order in self._orders(kinds, types):
                if all(self._kind(*kinds[i], types[i]) for i in order):
                    return True
                self.undo()
        return False

    def undo(self) -> bool:
        """Give everything back."""
        while self.pods:
            pod = self.pods.pop()
            self.hardware.leave(pod, is_charged=self.owner is not None, is_reserved=False)
        return False

    def _types(self, kind: Kind) -> Sequence[str]:
        if kind.gpus == 0 or kind.pin is not None:
            return [""]
        return kind.gpu_types or self.hardware.forest.gpu_types

    def _orders(
        self, kinds: Sequence[tuple[Kind, list[str]]], types: Sequence[str]
    ) -> Iterator[Sequence[int]]:
        def size(index: int) -> tuple[int, int, int, int]:
            kind = kinds[index][0]
            leaves = min(self.hardware.needs(kind, is_charged=True), default=0)
            return (-max(leaves, kind.gpus), -kind.cpu, -kind.memory_mb, index)

        first = sorted(range(len(kinds)), key=size)
        yield first
        for shift in range(1, min(len(first), ORDERS)):
            yield first[shift:] + first[:shift]

    # One kind.

    def _kind(self, kind: Kind, names: Sequence[str], gpu_type: str) -> bool:
        needs = self.hardware.needs(kind, is_charged=self.owner is not None)
        if kind.gpus == 0 and (self.owner is None or (0 in needs and kind.pin is None)):
            return all(self._on_cpu(kind, name) for name in names)
        if kind.gpus == 0 and gpu_type == "" and kind.pin is None:
            return any(
                self._on_gpus(kind, names, needs, found) for found in self.hardware.forest.gpu_types
            )
        return self._on_gpus(kind, names, needs, gpu_type)

    def _on_gpus(self, kind: Kind, names: Sequence[str], needs: Needs, gpu_type: str) -> bool:
        ground = Ground(self, kind, needs, gpu_type)
        if len(names) == 1:
            return ground.one(names[0])
        return ground.many(names)

    def _on_cpu(self, kind: Kind, name: str) -> bool:
        """A pod that costs no GPU: nodes without, then those with the fewest free, the lowest."""
        best: tuple[int, int, int] | None = None
        chosen: Machine | None = None
        for machine in self.hardware.machines.values():
            if not machine.is_open or (self.only is not None and machine.name not in self.only):
                continue
            take = machine.sort.take(kind)
            if take is None or not machine.has(take):
                continue
            free = sum((s.usable & ~s.held & ~s.reserved).bit_count() for s in machine.slots)
            rank = (bool(machine.slots), free, machine.number)
            if best is None or rank < best:
                best, chosen = rank, machine
                if not machine.slots:
                    break
        if chosen is None:
            return False
        take = chosen.sort.take(kind)
        assert take is not None
        ports = chosen.choose_ports(kind.ports)
        pod = Pod(name, self.gang, kind, chosen, take, None, 0, 0, ports)
        self._enter(pod)
        return True

    def _enter(self, pod: Pod) -> None:
        self.hardware.enter(pod, is_charged=self.owner is not None, is_reserved=False)
        self.pods.append(pod)


class Ground:
    """The regions in which pods of one kind may be: bound cells first, then what may be bound."""

    def __init__(self, seeker: Seeker, kind: Kind, needs: Needs, gpu_type: str) -> None:
        self.seeker = seeker
        self.hardware = hardware = seeker.hardware
        self.kind = kind
        self.needs = needs
        self.owner = seeker.owner
        self.bound: Region | None
        self.empty: Region | None = None
        if self.owner is None:
            self.bound = hardware.physical.get(gpu_type)
            return
        if kind.pin is not None:
            self.owner = pin_owner(kind.pin)
            self.bound = next(iter(hardware.regions.get(self.owner, {}).values()), None)
            return
        self.bound = hardware.regions.get(self.owner, {}).get(gpu_type)
        if any(
            hardware.unbound[self.owner][quota.path]
            for quota in hardware.quotas.get(self.owner, ())
            if quota.chain.leaf == gpu_type
        ):
            self.empty = hardware.empty.get(gpu_type)

    # One pod.

    def one(self, name: str) -> bool:
        """Place one pod."""
        found = self._first(self.bound)
        if self.empty is not None:
            fresh = self._fresh(found[0] if found is not None else NEVER_RANK, name)
            if fresh:
                return True
        return found is not None and self._put(self.hardware.states[found[1]], name)

    def _first(self, region: Region | None) -> "tuple[Rank, int] | None":
        """The best node in bound cells."""
        if region is None:
            return None
        is_guest = self.seeker.owner is None
        if is_guest:
            found = self._guest(region)
        else:
            found = region.best(self.needs)
        if found is None or (self._fits(found[1]) and not self.seeker.near):
            return found
        near = {rack.number for rack in self.seeker.near}
        best: tuple[Rank, int] | None = None
        for rank, number in region.ranked(self.needs, is_guest=is_guest):
            if best is not None and rank[0] > best[0][0]:
                break
            if self._fits(number):
                if not near or region.places[number][0] in near:
                    return rank, number
                best = best or (rank, number)
        return best

    def _guest(self, region: Region) -> "tuple[Rank, int] | None":
        """For an opportunistic pod: outside of bound cells, where that is as good."""
        found = region.best(self.needs, is_guest=True)
        for empty in self.hardware.empty.values():
            if found is not None and empty.racks is region.racks:
                other = empty.best(self.needs, is_guest=True)
                if other is not None and other[0][0] <= found[0][0]:
                    return other
        return found

    def _fits(self, number: int) -> bool:
        machine = self.hardware.states[number].machine
        if self.seeker.only is not None and machine.name not in self.seeker.only:
            return False
        if not machine.sort.names or self.seeker.is_bare:
            return True
        take = machine.sort.take(self.kind)
        return take is not None and machine.has(take)

    def _fresh(self, rank: Rank, name: str) -> bool:
        """Place a pod in a cell that is bound for it, where that is nearer than ``rank``."""
        assert self.empty is not None and self.owner is not None
        if rank is not NEVER_RANK and rank[0] <= self.hardware.least_level(self.needs):
            return False
        for found, number in self._fresh_nodes():
            if found[0] >= rank[0]:
                continue
            if self._fits(number) and self._put(self.hardware.states[number], name):
                return True
        return False

    def _fresh_nodes(self) -> "Iterator[tuple[Rank, int]]":
        """Nodes in cells that may be bound: of small quota cells first, best first in each."""
        assert self.empty is not None and self.owner is not None
        hardware, empty = self.hardware, self.empty
        left = hardware.unbound[self.owner]
        for quota in sorted(hardware.quotas[self.owner], key=lambda q: q.level):
            if not left[quota.path] or hardware.forest.racks[quota.chain.leaf] is not empty.racks:
                continue
            if quota.level <= quota.chain.node_level:
                yield from list(empty.ranked(self.needs))
                continue
            for cell in hardware.cells[quota.chain.name].free_cells(quota.level):
                numbers = [slot.number for slot in cell.slots()]
                found = [
                    (rank, number)
                    for number in numbers
                    if (rank := empty.rank_of(number, self.needs)) is not None
                ]
                if found:
                    yield min(found, key=lambda each: (each[0], each[1]))

    def _put(self, state: SlotState, name: str) -> bool:
        """Put a pod on this node if it fits there."""
        hardware, kind = self.hardware, self.kind
        take = state.machine.sort.take(kind)
        need = self.needs[state.sort]
        if take is None or not self._fits(state.slot.number):
            return False
        free = state.usable & ~state.held & ~state.reserved
        if self.owner is None:
            pick = state.slot.shape.pick(free, need)
            return pick is not None and self._enter(state, name, pick.leaves, ())
        free &= ~state.charged
        mine = free & state.bound.get(self.owner, 0)
        masks = [mine]
        if self.empty is not None:
            space = hardware.cells[state.slot.chain.name].space[state.slot.number]
            masks.append(mine | (free & space))
        for mask in masks:
            for leaves in _choices(state, mask, need):
                bindings = hardware.cover(self.owner, state, leaves)
                if bindings is not None:
                    return self._enter(state, name, leaves, bindings)
                if mask == mine:
                    break
        return False

    def _enter(
        self, state: SlotState, name: str, leaves: int, bindings: tuple[Binding, ...]
    ) -> bool:
        machine, kind = state.machine, self.kind
        take = machine.sort.take(kind)
        assert take is not None
        gpus = state.slot.shape.pick(leaves, kind.gpus) if kind.gpus else None
        mask = leaves if self.owner is not None else 0
        pod = Pod(
            name,
            self.seeker.gang,
            kind,
            machine,
            take,
            state,
            mask,
            0 if gpus is None else gpus.leaves,
            machine.choose_ports(kind.ports),
            bindings,
        )
        self.seeker._enter(pod)
        return True

    # Several pods.

    def many(self, names: Sequence[str]) -> bool:
        """Place equal pods on the fewest racks, and there on the fewest nodes."""
        left = list(names)
        barred: set[int] = set()
        while left:
            rack = self._rack(len(left), barred)
            if rack is None:
                return False
            count = self._fill(rack, left)
            if count == 0:
                barred.add(rack.number)
            left = left[count:]
        return True

    def _rack(self, count: int, barred: set[int]) -> Rack | None:
        """The rack that holds them all with the least left, else the one that holds most."""
        if not barred and not self.seeker.near and self.seeker.only is None:
            quick = self._quick(count)
            if quick is not None:
                return quick
        caps = self._caps(barred)
        if not caps:
            return None
        near = {rack.number for rack in self.seeker.near}
        enough = [
            (number not in near, cap, is_fresh, number)
            for number, (cap, is_fresh) in caps.items()
            if cap >= count
        ]
        if self.seeker.owner is None and enough:
            chosen = min((far, -cap, fresh, number) for far, cap, fresh, number in enough)[3]
        elif enough:
            chosen = min(enough)[3]
        else:
            caps = self._nearest(caps, count)
            chosen = min((-cap, is_fresh, number) for number, (cap, is_fresh) in caps.items())[2]
        region = self.bound or self.empty
        assert region is not None
        return region.racks[chosen]

    def _quick(self, count: int) -> Rack | None:
        """Whole nodes in one rack of bound cells: the index knows it."""
        region = self.bound
        if region is None or self.seeker.owner is None:
            return None
        if any(
            need != self.hardware.sorts[sort].gpus for sort, need in enumerate(self.needs)
        ) or any(sort.names for sort in self.hardware.sorts):
            return None
        enough = [whole for whole in region.whole if whole >= count]
        if not enough:
            return None
        racks = region.whole[min(enough)]
        return region.racks[(racks & -racks).bit_length() - 1]

    def _caps(self, barred: set[int]) -> dict[int, tuple[int, bool]]:
        """By rack's number: how many of the pods fit, and whether only in cells to be bound."""
        caps: dict[int, tuple[int, bool]] = {}
        if self.bound is not None:
            for number, view in self.bound.views.items():
                cap = self._cap(self.bound, view)
                if cap and number not in barred:
                    caps[number] = (cap, False)
        if self.empty is not None:
            for number, cap in self._fresh_caps().items():
                if cap and number not in barred:
                    before = caps.get(number)
                    caps[number] = (cap + before[0], False) if before else (cap, True)
        return caps

    def _cap(self, region: Region, view: View) -> int:
        if self.seeker.only is None and (self.seeker.is_bare or not self._has_limits()):
            return view.cap(self.needs)
        return sum(
            self._fits_on(tag[0].count, self.hardware.states[slot.number])
            for tag, slot in region.slots_of(view)
        )

    def _has_limits(self) -> bool:
        return any(sort.names for sort in self.hardware.sorts)

    def _fits_on(self, free: int, state: SlotState) -> int:
        """How many of the pods this node takes, by its free leaves and all else."""
        need = self.needs[state.sort]
        count = free // need if need else 0
        if count and not self._fits(state.slot.number):
            return 0
        take = state.machine.sort.take(self.kind)
        if count and take is not None and not self.seeker.is_bare:
            for have, amount in zip(state.machine.free, take.amounts, strict=True):
                if amount:
                    count = min(count, max(have, 0) // amount)
        return count

    def _fresh_caps(self) -> dict[int, int]:
        assert self.empty is not None and self.owner is not None
        hardware, empty = self.hardware, self.empty
        caps: dict[int, int] = {}
        for quota in hardware.quotas[self.owner]:
            left = hardware.unbound[self.owner][quota.path]
            if not left or hardware.forest.racks[quota.chain.leaf] is not empty.racks:
                continue
            chain, cells = quota.chain, hardware.cells[quota.chain.name]
            if quota.level > chain.node_level:
                for cell in cells.free_cells(quota.level):
                    for slot in cell.slots():
                        number = empty.places[slot.number][0]
                        if number not in caps and number in empty.views:
                            caps[number] = self._cap(empty, empty.views[number])
                continue
            per_cell = max(chain.leaves(quota.level) // max(min(self.needs), 1), 1)
            most = left * per_cell if quota.level == chain.node_level else left
            for number, view in empty.views.items():
                if view.rack.cell.chain is chain:
                    cap = min(self._cap(empty, view), most)
                    caps[number] = max(caps.get(number, 0), cap)
        return caps

    def _nearest(
        self, caps: dict[int, tuple[int, bool]], count: int
    ) -> dict[int, tuple[int, bool]]:
        """The racks of the smallest cell above racks that holds all; every rack, if none does."""
        region = self.bound or self.empty
        assert region is not None
        above: dict[int, tuple[int, int, list[int]]] = {}
        cells = {number: region.racks[number].cell.parent for number in caps}
        while any(cell is not None for cell in cells.values()):
            above.clear()
            for number, cell in cells.items():
                if cell is not None:
                    total, at, inside = above.get(id(cell), (0, cell.number, []))
                    above[id(cell)] = (total + caps[number][0], at, [*inside, number])
            enough = [(total, at, inside) for total, at, inside in above.values() if total >= count]
            if enough:
                return {number: caps[number] for number in min(enough)[2]}
            cells = {n: None if cell is None else cell.parent for n, cell in cells.items()}
        return caps

    def _fill(self, rack: Rack, names: Sequence[str]) -> int:
        """Put as many as possible on a rack's nodes; how many that were."""
        done = 0
        barred: set[int] = set()
        while done < len(names):
            state = self._node(rack, len(names) - done, barred)
            if state is None:
                break
            before = done
            while done < len(names) and self._put(state, names[done]):
                done += 1
            barred.add(state.slot.number)
            if done == before:
                continue
        return done

    def _node(self, rack: Rack, count: int, barred: set[int]) -> SlotState | None:
        """The node that holds all the rest with the least left, else the one that holds most."""
        best: tuple[int, int, int, int] | None = None
        chosen: SlotState | None = None
        for region, is_fresh in ((self.bound, 0), (self.empty, 1)):
            view = None if region is None else region.views.get(rack.number)
            if region is None or view is None:
                continue
            for tag, slot in region.slots_of(view):
                if slot.number in barred:
                    continue
                state = self.hardware.states[slot.number]
                fits = self._fits_on(tag[0].count, state)
                if not fits:
                    continue
                rest = tag[0].count if fits >= count else -fits
                rank = (fits < count, rest, is_fresh, slot.number)
                if best is None or rank < best:
                    best, chosen = rank, state
        return chosen


def _choices(state: SlotState, mask: int, need: int) -> "Iterator[int]":
    """The best leaves, then every other choice of so many."""
    pick = state.slot.shape.pick(mask, need)
    if pick is None:
        return
    yield pick.leaves
    for leaves in state.slot.shape.choices(mask, need):
        if leaves != pick.leaves:
            yield leaves


def merge(roles: Iterable[Role]) -> list[tuple[Kind, list[str]]]:
    """Pods by what they want, in the gang's order."""
    kinds: dict[Kind, list[str]] = {}
    for role in roles:
        kinds.setdefault(role.kind, []).extend(role.pods)
    return list(kinds.items())
