"""Whether a gang fits, tried in every way: pods on machines, and which cells to bind for them.

Two simplifications lose nothing. Leaves of one node cell that the gang may use are as good as one
another, so a machine needs only counts; and a cell is bound only when what is bound already isn't
enough there. Equal places (same state below, same parent) are tried once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.domain.core.model import Kind

from oracle.hardware import Path
from oracle.state import spare
from oracle.views import Spot, View, demands

STEPS = 20_000
"""Positions looked at before a search is given up as too hard."""


class TooHardError(Exception):
    """The search was given up: nothing is known."""


@dataclass(frozen=True)
class Want:
    """One pod to be placed. ``gpu_type`` None: it needs no GPU."""

    pod: str
    kind: Kind
    gpu_type: str | None


@dataclass(frozen=True)
class Fit:
    """One way in which all pods fit."""

    spots: dict[str, Spot]
    bindings: tuple[tuple[int, Path], ...]


class Search:
    """One search; ``found`` is its answer once `run` has said that there is one."""

    def __init__(self, view: View, wants: list[Want]) -> None:
        self._view = view
        self._wants = sorted(wants, key=lambda want: (-want.kind.gpus, -want.kind.cpu))
        self._spots: dict[str, Spot] = {}
        self._bindings: list[tuple[int, Path]] = []
        self._failed: set[object] = set()
        self._steps = 0
        self._names: dict[object, int] = {}
        self._untouched: dict[int, int] = {}
        self._plains: dict[str, object] = {}
        self.found: Fit | None = None

    def run(self) -> bool:
        """Whether there is a way. Raises TooHardError after too many steps."""
        return self._has_enough() and self._place(0)

    def _has_enough(self) -> bool:
        """A quick no: fewer GPUs than wanted, wherever they are."""
        view = self._view
        leaf_type = view.hardware.leaf_type
        for gpu_type in {want.gpu_type for want in self._wants} - {None}:
            wanted = sum(want.kind.gpus for want in self._wants if want.gpu_type == gpu_type)
            idle = [leaf for leaf in view.idle if leaf_type(leaf) == gpu_type]
            if view.is_guaranteed:
                pools = view.pools([])
                mine = sum(1 for leaf in idle if leaf in pools)
                for path, count in view.quota_left.items():
                    types = path.split("/")
                    if view.hardware.types_of(types[0])[-1] == gpu_type:
                        mine += max(count, 0) * view.hardware.leaves_per(types[0], types[-1])
                if mine < wanted:
                    return False
            if len(idle) < wanted:
                return False
        return True

    def _place(self, number: int) -> bool:
        if number == len(self._wants):
            self.found = Fit(dict(self._spots), tuple(self._bindings))
            return True
        self._steps += 1
        if self._steps > STEPS:
            raise TooHardError
        likeness = _Likeness(self)
        key = (number, likeness.of_all())
        if key in self._failed:
            return False
        want = self._wants[number]
        for spot in likeness.distinct_spots(want):
            machine = self._machine(spot)
            if machine not in self._view.usable or not self._has_resources(want, machine):
                continue
            self._spots[want.pod] = spot
            if self._bind_enough(number, spot, (-1, -1)):
                return True
            del self._spots[want.pod]
        self._failed.add(key)
        return False

    def _machine(self, spot: Spot) -> str:
        return spot if isinstance(spot, str) else str(self._view.hardware.cells[spot].node)

    def _has_resources(self, want: Want, machine: str) -> bool:
        if self._view.needed(want.kind, machine) is None:
            return False
        taken: dict[str, int] = dict(demands(want.kind))
        for other in self._wants:
            if other.pod in self._spots and self._machine(self._spots[other.pod]) == machine:
                for name, count in demands(other.kind):
                    taken[name] = taken.get(name, 0) + count
        left = self._view.left[machine]
        return all(count <= left[name] for name, count in taken.items() if count and name in left)

    def _bind_enough(self, number: int, spot: Spot, after: tuple[int, int]) -> bool:
        self._steps += 1
        if self._steps > STEPS:
            raise TooHardError
        if self._is_enough(spot):
            return self._place(number + 1)
        if not self._view.is_guaranteed or isinstance(spot, str) or self._wants[number].kind.pin:
            return False
        for rank, path, cell in self._options(spot):
            if (rank, cell) <= after:
                continue
            self._bindings.append((cell, path))
            bound = self._view.with_bound(self._bindings)
            if min(spare(self._view.hardware, bound).values()) >= 0 and self._bind_enough(
                number, spot, (rank, cell)
            ):
                return True
            self._bindings.pop()
        return False

    def _is_enough(self, spot: Spot) -> bool:
        """Whether all pods that were put there have their leaves."""
        view = self._view
        here = [want for want in self._wants if self._spots.get(want.pod) == spot]
        if isinstance(spot, str):
            return all(want.kind.gpus == 0 for want in here)
        leaves = set(view.hardware.leaves(spot))
        if not view.is_guaranteed:
            for pin in {want.kind.pin for want in here if want.kind.pin is not None}:
                cell = view.hardware.pins.get(pin)
                mine = set() if cell is None else leaves & set(view.hardware.leaves(cell))
                asked = sum(want.kind.gpus for want in here if want.kind.pin == pin)
                if cell is None or asked > len(mine & view.idle):
                    return False
            return sum(want.kind.gpus for want in here) <= len(leaves & view.idle)
        machine, pools = self._machine(spot), view.pools(self._bindings)
        for pin in {want.kind.pin or "" for want in here}:
            mine = {leaf for leaf in leaves if pools.get(leaf) == pin}
            pods = [want.kind for want in here if (want.kind.pin or "") == pin]
            needed = sum(view.needed(kind, machine) or 0 for kind in pods)
            if needed == 0:
                continue
            if sum(kind.gpus for kind in pods) > len(mine & view.idle & view.chargeable):
                return False
            if needed > len(mine & view.chargeable):
                return False
        return True

    def _options(self, spot: int) -> Iterator[tuple[int, Path, int]]:
        """What may be bound to have more leaves there, one of each likeness."""
        view = self._view
        free, likeness = view.free(self._bindings), _Likeness(self)
        around = [*view.hardware.path_up(spot), *list(view.hardware.below(spot))[1:]]
        for rank, path in enumerate(sorted(view.quota_left)):
            chain, cell_type = path.split("/")[0], path.split("/")[-1]
            used = sum(1 for _, other in self._bindings if other == path)
            if view.quota_left[path] <= used:
                continue
            seen = set()
            for cell in sorted(around):
                at = view.hardware.cells[cell]
                fits = at.chain == chain and at.type == cell_type
                if not fits or cell not in free or not at.is_complete:
                    continue
                if not set(view.hardware.leaves(cell)) & view.chargeable:
                    continue
                like = tuple(likeness.of(above) for above in view.hardware.path_up(cell))
                if like not in seen:
                    seen.add(like)
                    yield rank, path, cell


class _Likeness:
    """Which cells look the same at this position: a number for each look."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._view = view = search._view
        self._pools = view.pools(search._bindings) if view.is_guaranteed else {}
        self._free = view.free(search._bindings) if view.is_guaranteed else set()
        bound = view.with_bound(search._bindings)
        self._mine = {c for c, (vc, _) in bound.items() if vc == view.gang.virtual_cluster}
        self._known: dict[int, int] = {}
        touched = [cell for cell, _ in search._bindings]
        for spot in search._spots.values():
            node = None if isinstance(spot, str) else view.hardware.cells[spot].node
            touched += [
                c for c in view.hardware.node_cells() if view.hardware.cells[c].node == node
            ]
        self._touched = {view.hardware.path_up(cell)[-1] for cell in touched}

    def of(self, cell: int) -> int:
        """Trees in which nothing was bound or put look as they did at first."""
        is_touched = self._view.hardware.path_up(cell)[-1] in self._touched
        known = self._known if is_touched else self._search._untouched
        if cell not in known:
            names = self._search._names
            known[cell] = names.setdefault(self._look(cell), len(names))
        return known[cell]

    def of_all(self) -> object:
        hardware = self._view.hardware
        bare = [m for m in hardware.machines if not hardware.gpus_on[m]]
        used = sorted((m, self._used(m)) for m in bare)
        return (tuple(sorted(self.of(top) for top in hardware.tops)), tuple(used))

    def distinct_spots(self, want: Want) -> Iterator[Spot]:
        hardware = self._view.hardware
        yield from self._spots_in(hardware.tops, want)
        if want.gpu_type is None:
            looks = set()
            for machine in hardware.machines:
                look = (self._used(machine), self._plain(machine))
                if not hardware.gpus_on[machine] and look not in looks:
                    looks.add(look)
                    yield machine

    def _spots_in(self, cells: tuple[int, ...] | list[int], want: Want) -> Iterator[Spot]:
        hardware = self._view.hardware
        seen = set()
        for cell in cells:
            if want.gpu_type not in (None, hardware.leaf_type(cell)) or self.of(cell) in seen:
                continue
            seen.add(self.of(cell))
            if hardware.is_node_type(hardware.cells[cell].type):
                yield cell
            else:
                yield from self._spots_in(hardware.cells[cell].children, want)

    def _look(self, cell: int) -> object:
        view, at = self._view, self._view.hardware.cells[cell]
        if at.gpu is not None:
            pool = self._pools.get(cell)
            can = (cell in view.idle, cell in view.chargeable)
            return (at.type, can, pool, cell in self._free)
        inner = tuple(sorted(self.of(child) for child in at.children))
        here: object = None
        if view.hardware.is_node_type(at.type):
            machine = str(at.node)
            trees = [
                c for c in view.hardware.node_cells() if view.hardware.cells[c].node == machine
            ]
            name = machine if len(trees) > 1 else ""
            here = (name, self._used(cell), self._plain(machine))
        return (at.type, cell in self._free, at.is_complete, cell in self._mine, here, inner)

    def _plain(self, machine: str) -> object:
        view, plains = self._view, self._search._plains
        if machine not in plains:
            left = tuple(sorted(view.left[machine].items()))
            limits = view.hardware.limits(machine)
            has = (limits.cpu, limits.memory_mb, limits.ports, str(limits.resources))
            plains[machine] = (machine in view.usable, left, has)
        return plains[machine]

    def _used(self, spot: Spot) -> object:
        search = self._search
        pods = [w.kind for w in search._wants if search._spots.get(w.pod) == spot]
        return tuple(
            sorted((k.gpus, k.cpu, k.memory_mb, k.ports, k.resources, k.pin or "") for k in pods)
        )
