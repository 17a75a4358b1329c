"""Which cells can hold a gang that has its GPUs already: for upgrades, restoring and changes."""

from collections import Counter
from collections.abc import Iterator
from itertools import product

from oracle.hardware import Path
from oracle.state import Record, State, kinds_of, spare
from oracle.views import Terms, View, look

Bindings = tuple[tuple[int, Path], ...]


def cells_for(state: State, record: Record, with_bad_ones: bool = False) -> Bindings | None:
    """Cells to be bound beside those that are bound already; None: there is no way.

    ``with_bad_ones``: whether it runs on hardware that is well plays no part.
    """
    if not state.is_whole(record):
        return None
    others = State(state.hardware, dict(state.records))
    del others.records[record.gang.id]
    if not with_bad_ones:
        others.bad_nodes, others.bad_gpus = state.bad_nodes, state.bad_gpus
        others.cordoned, others.drained = state.cordoned, state.drained
    view = look(others, record.gang, Terms())
    for trees in _trees_of(state, record):
        found = _Cover(view, state, record, trees).search([])
        if found is not None:
            return found
    return None


def _trees_of(state: State, record: Record) -> Iterator[dict[str, int]]:
    """A pod is in one node cell: that of its GPUs; without any in any of its machine's."""
    hardware, ways = state.hardware, []
    for place in record.places.values():
        own = [hardware.node_cell_of(hardware.leaf_at[place.node, gpu]) for gpu in place.gpus[:1]]
        machine = [at for at in hardware.node_cells() if hardware.cells[at].node == place.node]
        ways.append(own or machine or [-1])
    return (dict(zip(record.places, way, strict=True)) for way in product(*ways))


class _Cover:
    def __init__(self, view: View, state: State, record: Record, trees: dict[str, int]) -> None:
        self._view = view
        self._record = record
        self._hardware = state.hardware
        self._leaves: dict[int, str] = {}
        self._extras: Counter[tuple[int, str]] = Counter()
        kinds = kinds_of(record.gang.roles)
        for pod, place in record.places.items():
            kind, pin = kinds[pod], kinds[pod].pin or ""
            leaves = [self._hardware.leaf_at[place.node, gpu] for gpu in place.gpus]
            self._leaves.update(dict.fromkeys(leaves, pin))
            needed = self._hardware.leaves_needed(kind, place.node) or 0
            if needed > kind.gpus:
                self._extras[trees[pod], pin] += needed - kind.gpus

    def search(self, bindings: list[tuple[int, Path]]) -> Bindings | None:
        """Bind for the lowest GPU that is in no cell yet, in every way."""
        view, hardware = self._view, self._hardware
        pools = view.pools(bindings)
        if any(leaf not in view.chargeable for leaf in self._leaves):
            return None
        missing = [leaf for leaf, pin in sorted(self._leaves.items()) if pools.get(leaf) != pin]
        if not missing and self._has_extras(pools):
            return tuple(bindings)
        around: set[int] = set(hardware.path_up(missing[0])) if missing else self._near_extras()
        free = view.free(bindings)
        for path, count in sorted(view.quota_left.items()):
            types = path.split("/")
            if count <= sum(1 for _, other in bindings if other == path):
                continue
            for cell in sorted(around & free):
                at = hardware.cells[cell]
                if (at.chain, at.type) != (types[0], types[-1]) or not at.is_complete:
                    continue
                more = [*bindings, (cell, path)]
                if min(spare(hardware, view.with_bound(more)).values()) < 0:
                    continue
                if (found := self.search(more)) is not None:
                    return found
        return None

    def _near_extras(self) -> set[int]:
        hardware = self._hardware
        leaves = [leaf for tree, _ in self._extras for leaf in hardware.leaves(tree)]
        return {at for leaf in leaves for at in hardware.path_up(leaf)}

    def _has_extras(self, pools: dict[int, str]) -> bool:
        for (tree, pin), extra in self._extras.items():
            here = {
                leaf
                for leaf in self._hardware.leaves(tree)
                if pools.get(leaf) == pin and leaf in self._view.chargeable
            }
            if len(here - self._leaves.keys()) < extra:
                return False
        return True
