"""Buddy allocation in one chain: which cells may be bound so that all that is owned can be had.

Source: HiveD (Zhao et al., OSDI 2020), section 4, as docs/scheduling.md has it. ``S`` below is what
that page calls S: what is left to spare of each level when all that is owned were bound.
"""

from scheduler.domain.core.forest import Cell, Chain
from scheduler.domain.core.journal import Journal
from scheduler.domain.core.nodes import Slot
from scheduler.domain.core.shapes import Part


class Buddy:
    """``free[level]``: free complete cells whose parent is not both, as a bit set of their numbers,
    for nodes and above. ``counts[level]``: how many such cells, parts of nodes too.
    ``owed[level]``: cells that are owned and not bound.
    """

    def __init__(self, chain: Chain, journal: Journal) -> None:
        self.chain = chain
        self.free = [0] * len(chain.types)
        self.counts = [0] * len(chain.types)
        self.owed = [0] * len(chain.types)
        self._journal = journal
        self._bound_inside = [[0] * len(cells) for cells in chain.cells]
        self._bound = [0] * len(chain.types)
        for cell in chain.cells[chain.top]:
            self._count_free(cell, 1)

    def _count_free(self, cell: Cell, by: int) -> None:
        """Count the largest complete cells in one of which nothing is bound."""
        if cell.is_complete:
            self._count(cell, by)
            return
        for child in cell.children:
            self._count_free(child, by)
        if cell.slot is not None:
            shape = cell.slot.shape
            for part in shape.whole(shape.full):
                self._count_level(part.level, by)

    # Questions.

    def spare(self) -> list[int]:
        """S by level."""
        chain, left = self.chain, 0
        spare = [0] * len(self.counts)
        for level in range(chain.top, -1, -1):
            times = chain.counts[level + 1] if level < chain.top else 1
            left = spare[level] = self.counts[level] + times * left - self.owed[level]
        return spare

    def is_free(self, cell: Cell) -> bool:
        """The cell is complete, and nothing in it or above it is bound."""
        if not cell.is_complete or self._bound_inside[cell.level][cell.number]:
            return False
        above = cell.parent
        while above is not None:
            if self._bound[above.level] >> above.number & 1:
                return False
            above = above.parent
        return True

    def may_bind(self, cell: Cell, part: Part | None, slot: Slot) -> bool:
        """Whether all that the others own could still be had. ``slot``: one in the cell."""
        if part is None:
            if not self.is_free(cell):
                return False
            level, top = cell.level, self._largest(cell).level
        else:
            if not part.is_complete or part.mask & ~slot.open:
                return False
            level = part.level
            if self.is_free(cell):
                top = self._largest(cell).level
            else:
                wholes = slot.shape.whole(slot.open)
                top = next(each.level for each in wholes if each.mask & part.mask)
        if level == top:
            return True
        spare = self.spare()
        return all(spare[above] >= 1 for above in range(level + 1, top + 1))

    # Changes. `State.bind` and `State.unbind` call these around their own.

    def begin_bind(self, cell: Cell, part: Part | None, slot: Slot) -> None:
        """A cell is about to be bound."""
        if self.is_free(cell):
            self._split(cell)
        elif part is not None:
            self._count_parts(slot, -1)
        else:  # a pinned cell that is not complete
            self._count_free(cell, -1)
        self._note(cell, 1)
        if part is None:
            self._flip(cell)

    def end_bind(self, part: Part | None, slot: Slot) -> None:
        """The slots of the bound cell have changed."""
        if part is not None:
            self._count_parts(slot, 1)

    def begin_unbind(self, cell: Cell, part: Part | None, slot: Slot) -> None:
        """A cell is about to be unbound."""
        self._note(cell, -1)
        if part is None:
            self._flip(cell)
        else:
            self._count_parts(slot, -1)

    def end_unbind(self, cell: Cell, part: Part | None, slot: Slot) -> None:
        """The slots of the cell have changed."""
        if self.is_free(cell):
            self._join(cell)
        elif part is not None:
            self._count_parts(slot, 1)

    def owe(self, level: int, by: int) -> None:
        """So many more cells of a level are owned and not bound."""
        self._journal.put_at(self.owed, level, self.owed[level] + by)

    def _largest(self, cell: Cell) -> Cell:
        """The largest free complete cell around a free one."""
        above = cell.parent
        while (
            above is not None
            and above.is_complete
            and not self._bound_inside[above.level][above.number]
        ):
            cell, above = above, above.parent
        return cell

    def _split(self, cell: Cell) -> None:
        largest = self._largest(cell)
        self._count(largest, -1)
        while cell is not largest:
            assert cell.parent is not None
            for other in cell.parent.children:
                if other is not cell:
                    self._count(other, 1)
            cell = cell.parent

    def _join(self, cell: Cell) -> None:
        largest = self._largest(cell)
        while cell is not largest:
            assert cell.parent is not None
            for other in cell.parent.children:
                if other is not cell:
                    self._count(other, -1)
            cell = cell.parent
        self._count(largest, 1)

    def _count(self, cell: Cell, by: int) -> None:
        self._journal.put_at(self.free, cell.level, self.free[cell.level] ^ 1 << cell.number)
        self._count_level(cell.level, by)

    def _count_level(self, level: int, by: int) -> None:
        self._journal.put_at(self.counts, level, self.counts[level] + by)

    def _count_parts(self, slot: Slot, by: int) -> None:
        for part in slot.shape.whole(slot.open):
            self._count_level(part.level, by)

    def _flip(self, cell: Cell) -> None:
        self._journal.put_at(self._bound, cell.level, self._bound[cell.level] ^ 1 << cell.number)

    def _note(self, cell: Cell, by: int) -> None:
        above: Cell | None = cell
        while above is not None:
            inside = self._bound_inside[above.level]
            self._journal.put_at(inside, above.number, inside[above.number] + by)
            above = above.parent
