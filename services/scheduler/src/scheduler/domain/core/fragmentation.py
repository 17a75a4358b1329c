"""How far what is free is in pieces: of each chain and type of cell, which share of the free GPUs
is of no use to who wants whole cells of it.

F GPUs of a chain are free, W(t) of them in complete cells of type t that are free as a whole: the
share is (F - W(t)) / F. For buddy allocation of memory this is the kernel's "unusable free space
index" (M. Gorman, A. Whitcroft, OLS 2006); for GPUs the measure of "Fragmentation Gradient Descent"
(Q. Weng et al., USENIX ATC 2023) comes to the same where all who come want whole cells of one type.
"""

from dataclasses import dataclass

from scheduler.domain.core.forest import Cell, Chain, Forest, Slot
from scheduler.domain.core.shapes import Shape

REMEMBERED = 100_000
"""Masks of nodes of which it is known what is whole of them, at the most."""


@dataclass(slots=True)
class Pieces:
    """Of a chain: ``free`` GPUs, and how many of them are in wholly free cells, by level."""

    chain: Chain
    free: int
    whole: list[int]

    def cells(self, level: int) -> int:
        """Wholly free ones of a level."""
        return self.whole[level] // self.chain.leaves(level)


def share(free: float, whole: float) -> float | None:
    """Of what is free, how much is of no use; None: nothing is free."""
    return None if not free else (free - whole) / free


class FreeCells:
    """What is free and what of that is whole, kept up to date node by node. In the beginning
    nothing is.
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.pieces = {
            name: Pieces(chain, 0, [0] * len(chain.types)) for name, chain in forest.chains.items()
        }
        self._masks = [0] * len(forest.slots)
        self._free_children: dict[Cell, int] = {}
        self._known: dict[tuple[Shape, int], tuple[int, ...]] = {}

    def set(self, slot: Slot, mask: int) -> None:
        """These leaves of a node are free now, and no others."""
        before = self._masks[slot.number]
        if mask == before:
            return
        self._masks[slot.number] = mask
        pieces, full = self.pieces[slot.chain.name], slot.shape.full
        pieces.free += mask.bit_count() - before.bit_count()
        were, are = self._whole(slot.shape, before), self._whole(slot.shape, mask)
        for level, (old, new) in enumerate(zip(were, are, strict=True)):
            pieces.whole[level] += new - old
        if slot.cell.is_complete and full in (mask, before):
            self._rise(pieces, slot.cell, 1 if mask == full else -1)

    def _whole(self, shape: Shape, mask: int) -> tuple[int, ...]:
        """Leaves in whole cells of a node, by level."""
        found = self._known.get((shape, mask))
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[shape, mask] = tuple(
                sum(p.mask.bit_count() for p in parts if p.is_complete and not p.mask & ~mask)
                for parts in shape.parts
            )
        return found

    def _rise(self, pieces: Pieces, cell: Cell, step: int) -> None:
        """A cell is free as a whole (1), or not any more (-1): so may be those above it."""
        above = cell.parent
        while above is not None and above.is_complete:
            before = self._free_children.get(above, 0)
            self._free_children[above] = before + step
            if len(above.children) not in (before, before + step):
                return
            pieces.whole[above.level] += step * pieces.chain.leaves(above.level)
            above = above.parent
