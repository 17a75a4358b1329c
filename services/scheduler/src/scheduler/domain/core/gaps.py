"""What of a configuration could not be read: nothing is said that may come of that alone.

A file with such gaps is refused already. The rest of it is checked all the same, so that
everything that is wrong with it is told at once.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from scheduler.domain.core.config import ClusterConfig, Finding, UnreadPath

CELLS, TYPES = "physicalCells", "cellTypes"

_CELL = re.compile(r"physicalCells\[(\d+)\](\.children\[\d+\])*")


class Gaps:
    """``types``: cell types that are not known whole. ``has_all_types``, ``has_all_pins``: of those
    that there are every name is known; ``has_all_trees``: the list of cells was read.
    """

    def __init__(self, config: ClusterConfig) -> None:
        types = [path for path in config.unread if path[:1] == (TYPES,)]
        self.types = {path[1] for path in types if len(path) > 1}
        self.has_all_types = all(
            len(path) > 2 and path[2] != "child" and path[1] in config.cell_types for path in types
        )
        gaps = [_cell_and_field(path) for path in config.unread if path[:1] == (CELLS,)]
        self.has_all_trees = all(cell for cell, _ in gaps)
        self.has_all_pins = not any(field in ("", "pin", "children") for _, field in gaps)
        self._cells = {cell for cell, _ in gaps}
        self._around = {above for cell in self._cells for above in _up(cell)}

    def told(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those that don't come of cells that could not be read, in or above their own."""
        return [each for each in findings if not self._hides(each.path)]

    def _hides(self, path: str) -> bool:
        found = _CELL.match(path)
        if found is None:
            return False
        return found[0] in self._around or not self._cells.isdisjoint(_up(found[0]))

    def doubtful_trees(self, findings: Iterable[Finding]) -> set[int]:
        """Trees in which something is wrong, by their number in the file."""
        paths = [*(each.path for each in findings), *self._cells]
        return {int(found[1]) for found in map(_CELL.match, paths) if found is not None}


def _cell_and_field(path: UnreadPath) -> tuple[str, str]:
    """The cell that a field is of, empty: none; and the field, empty: the whole cell."""
    end = 2
    while path[end : end + 1] == ("children",) and len(path) > end + 1:
        end += 2
    cell = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[:end])
    rest: Sequence[str | int] = path[end:]
    return (cell.removeprefix("."), str(rest[0]) if rest else "") if len(path) > 1 else ("", "")


def _up(cell: str) -> Iterator[str]:
    """A cell and all above it."""
    while cell:
        yield cell
        cell = cell.rpartition(".")[0]
