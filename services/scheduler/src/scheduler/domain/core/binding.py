"""Which physical cells are bound to whose quota, and what may still be bound: buddy allocation.

Health plays no part here. What may be bound is decided by counts alone (``spare``), so a bind costs
what the tree is deep.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler.domain.core.forest import Cell, Chain, Quota, Slot
from scheduler.domain.core.shapes import Part


@dataclass(slots=True, eq=False)
class Binding:
    """A physical cell that its owner's gangs use. ``part``: inside a node, of ``cell``'s slot.

    ``quota`` None: a pinned cell, bound for ever. ``users``: gang → how many of its pods.
    """

    owner: str
    quota: Quota | None
    cell: Cell
    part: Part | None
    users: dict[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The physical cell's full address."""
        if self.part is None:
            return self.cell.address
        assert self.cell.slot is not None
        return self.cell.slot.address(self.part)

    def masks(self) -> Iterator[tuple[Slot, int]]:
        """The leaves that it covers."""
        for slot in self.cell.slots():
            yield slot, slot.shape.full if self.part is None else self.part.mask


class Cells:
    """The cells of one chain: bound, or free to be bound.

    ``free[level]``: complete free cells whose parent is not one, as a bit set of their numbers
    (nodes and above); ``counts[level]``: how many. ``owed[level]``: owned and not bound.
    ``space``: by slot number, the leaves in no bound cell.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.node_level = chain.node_level
        self.free = [0] * len(chain.types)
        self.counts = [0] * len(chain.types)
        self.owed = [0] * len(chain.types)
        self.space: dict[int, int] = {}
        self._bound_in = [[0] * len(cells) for cells in chain.cells]
        self._is_bound = [[False] * len(cells) for cells in chain.cells]
        self._spare: list[int] | None = None
        for cell in chain.cells[chain.top]:
            self._free_from(cell)

    def _free_from(self, cell: Cell) -> None:
        """At the start everything is free."""
        if cell.is_complete:
            self._set(cell)
        for child in () if cell.is_complete else cell.children:
            self._free_from(child)
        for slot in cell.slots() if cell.is_complete else ():
            self.space[slot.number] = slot.shape.full
        if cell.slot is not None and not cell.is_complete:
            self.space[cell.slot.number] = cell.slot.shape.full
            self._count_parts(cell.slot, 1)

    def _take_from(self, cell: Cell) -> None:
        """Nothing of a cell that is not complete is free any more."""
        if cell.is_complete:
            self._clear(cell)
            return
        for child in cell.children:
            self._take_from(child)
        if cell.slot is not None:
            self._count_parts(cell.slot, -1)

    # What may be bound.

    def spare(self) -> list[int]:
        """By level: what is left when all that is owned were bound."""
        if self._spare is None:
            chain, left = self.chain, 0
            spare = [0] * len(chain.types)
            for level in range(chain.top, -1, -1):
                times = chain.counts[level + 1] if level < chain.top else 1
                left = spare[level] = self.counts[level] + times * left - self.owed[level]
            self._spare = spare
        return self._spare

    def is_free(self, cell: Cell) -> bool:
        """Complete, with nothing bound in it or above it."""
        if not cell.is_complete or self._bound_in[cell.level][cell.number]:
            return False
        above = cell.parent
        while above is not None:
            if self._is_bound[above.level][above.number]:
                return False
            above = above.parent
        return True

    def may_bind(self, cell: Cell, part: Part | None) -> bool:
        """Whether this complete cell can be bound to an unbound quota cell of its level, with
        everybody else's still to be had.
        """
        if part is None:
            if not self.is_free(cell):
                return False
            level, top = cell.level, self._largest(cell).level
        else:
            slot, level = self._slot(cell), part.level
            if not part.is_complete or part.mask & ~self.space[slot.number]:
                return False
            if self.is_free(cell):
                top = self._largest(cell).level
            else:
                whole = slot.shape.whole(self.space[slot.number])
                top = next(found.level for found in whole if found.mask & part.mask)
        spare = self.spare()
        return all(spare[above] >= 1 for above in range(level + 1, top + 1))

    # Binding.

    def bind(self, cell: Cell, part: Part | None) -> None:
        """The cell is bound; the caller has asked ``may_bind``."""
        self._spare = None
        if part is None:
            if cell.is_complete:
                self._split(cell)
            else:  # a pinned one: its complete parts are not free any more
                self._take_from(cell)
            self._is_bound[cell.level][cell.number] = True
            for slot in cell.slots():
                self.space[slot.number] = 0
        else:
            slot = self._slot(cell)
            if self.is_free(cell):
                self._split(cell)
            else:
                self._count_parts(slot, -1)
            self.space[slot.number] &= ~part.mask
            self._count_parts(slot, 1)
        self._note(cell, 1)

    def unbind(self, cell: Cell, part: Part | None) -> None:
        """It is free again, and joins its free neighbours."""
        self._spare = None
        self._note(cell, -1)
        if part is None:
            self._is_bound[cell.level][cell.number] = False
            for slot in cell.slots():
                self.space[slot.number] = slot.shape.full
            self._join(cell)
            return
        slot = self._slot(cell)
        self._count_parts(slot, -1)
        self.space[slot.number] |= part.mask
        if self.is_free(cell):
            self._join(cell)
        else:
            self._count_parts(slot, 1)

    def free_cells(self, level: int) -> Iterator[Cell]:
        """Free complete cells of a level that may be bound, the least costly split first."""
        spare = self.spare()
        for top in range(level, self.chain.top + 1):
            if top > level and spare[top] < 1:
                return
            numbers = self.free[top]
            while numbers:
                lowest = numbers & -numbers
                numbers ^= lowest
                yield from _inside(self.chain.cells[top][lowest.bit_length() - 1], level)

    @staticmethod
    def _slot(cell: Cell) -> Slot:
        assert cell.slot is not None
        return cell.slot

    def _note(self, cell: Cell, by: int) -> None:
        above: Cell | None = cell
        while above is not None:
            self._bound_in[above.level][above.number] += by
            above = above.parent

    def _largest(self, cell: Cell) -> Cell:
        """The largest free complete cell around a free one."""
        while (above := cell.parent) is not None and above.is_complete:
            if self._bound_in[above.level][above.number]:
                break
            cell = above
        return cell

    def _split(self, cell: Cell) -> None:
        """Take a free cell out of the largest one around it."""
        largest = self._largest(cell)
        self._clear(largest)
        while cell is not largest:
            assert cell.parent is not None
            for other in cell.parent.children:
                if other is not cell:
                    self._set(other)
            cell = cell.parent

    def _join(self, cell: Cell) -> None:
        largest = self._largest(cell)
        while cell is not largest:
            assert cell.parent is not None
            for other in cell.parent.children:
                if other is not cell:
                    self._clear(other)
            cell = cell.parent
        self._set(largest)

    def _set(self, cell: Cell) -> None:
        self.free[cell.level] |= 1 << cell.number
        self.counts[cell.level] += 1

    def _clear(self, cell: Cell) -> None:
        self.free[cell.level] &= ~(1 << cell.number)
        self.counts[cell.level] -= 1

    def _count_parts(self, slot: Slot, by: int) -> None:
        for part in slot.shape.whole(self.space[slot.number]):
            self.counts[part.level] += by


def _inside(cell: Cell, level: int) -> Iterator[Cell]:
    if cell.level == level:
        yield cell
    else:
        for child in cell.children:
            yield from _inside(child, level)


def cell_key(cell: Cell, part: Part | None) -> tuple[str, int, int, int]:
    """What is the same for the same cell."""
    if part is None:
        return cell.chain.name, cell.level, cell.number, 0
    return cell.chain.name, part.level, cell.number, part.mask
