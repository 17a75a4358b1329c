"""The tree of cells inside a node: which leaves a pod takes, and how free leaves compare.

A set of leaves is a bit mask, bit i is the node's i-th leaf in the order of the file. Nodes of one
shape share one `Shape`, which remembers what it has worked out for each mask.
"""

from collections.abc import Sequence
from typing import NamedTuple

REMEMBERED = 200_000
"""Answers that a shape keeps, at the most; then it begins anew. A node of 8 GPUs has 2,048."""

Tree = tuple["Tree", ...]
"""A cell as the tuple of its children; a leaf is the empty tuple."""


class Pick(NamedTuple):
    """Leaves for one pod. ``level``: of their lowest common cell, a leaf's is 0. ``block``: leaves
    of the largest wholly free cell that is broken for it.
    """

    level: int
    block: int
    leaves: int


class Part:
    """A cell inside the node."""

    __slots__ = ("children", "is_complete", "level", "mask")

    def __init__(self, level: int, mask: int, children: "tuple[Part, ...]", is_complete: bool):
        self.level = level
        self.mask = mask
        self.children = children
        self.is_complete = is_complete


class Free:
    """Free leaves up to symmetry: nodes with the same are as good as one another.

    ``form`` orders them. ``picks``: by number of leaves, None where they don't fit.
    """

    __slots__ = ("count", "form", "is_whole", "picks")

    def __init__(self, form: tuple[object, ...], count: int, is_whole: bool, picks: list[Pick]):
        self.form = form
        self.count = count
        self.is_whole = is_whole
        self.picks = picks


class Shape:
    """A node's inside. ``counts[level]``: how many children a complete cell of that level has;
    ``levels``: the node's own level. ``indices``: by the GPU index of each leaf, those of masks.
    """

    def __init__(self, tree: Tree, counts: Sequence[int]) -> None:
        self.tree = tree
        self.counts = tuple(counts)
        self.levels = len(counts) - 1
        self.parts: list[list[Part]] = [[] for _ in counts]
        self.root, self.leaves = self._part(tree, self.levels, 0)
        self.full = self.root.mask
        self.indices: dict[tuple[int, ...], dict[int, tuple[int, ...]]] = {}
        self._free: dict[int, Free] = {}
        self._forms: dict[tuple[object, ...], Free] = {}
        self._picks: dict[tuple[int, int], Pick | None] = {}
        self._tops: dict[int, tuple[Part, ...]] = {}

    def _part(self, tree: Tree, level: int, first: int) -> tuple[Part, int]:
        children, mask, at = [], 0, first
        if level == 0:
            mask, at = 1 << first, first + 1
        for child in tree:
            part, at = self._part(child, level - 1, at)
            children.append(part)
            mask |= part.mask
        is_complete = level == 0 or (
            len(children) == self.counts[level] and all(child.is_complete for child in children)
        )
        part = Part(level, mask, tuple(children), is_complete)
        self.parts[level].append(part)
        return part, at

    def free(self, mask: int) -> Free:
        """What these free leaves are worth."""
        found = self._free.get(mask)
        if found is None:
            form = _form(self.root, mask)
            found = self._forms.get(form)
            if found is None:
                count = mask.bit_count()
                picks = [Pick(0, 0, 0)]
                picks += [p for n in range(1, count + 1) if (p := self.pick(mask, n)) is not None]
                found = self._forms[form] = Free(form, count, mask == self.full, picks)
            if len(self._free) >= REMEMBERED:
                self._free.clear()
            self._free[mask] = found
        return found

    def pick(self, mask: int, count: int) -> Pick | None:
        """The best ``count`` of the free leaves; None where there are too few.

        Smallest common cell first, then the smallest whole block broken, then the fewest free
        leaves beside them, then the lowest.
        """
        if not count:
            return Pick(0, 0, 0)
        key = (mask, count)
        if key not in self._picks:
            if len(self._picks) >= REMEMBERED:
                self._picks.clear()
            found = _best(self.root, mask, _blocks(self.root, mask, {}), count)
            self._picks[key] = None if found is None else Pick(found[0], found[1], found[3])
        return self._picks[key]

    def has_whole(self, mask: int, level: int) -> bool:
        """Whether a complete cell of a level is wholly within the mask."""
        return any(part.is_complete and not part.mask & ~mask for part in self.parts[level])

    def whole(self, mask: int) -> tuple[Part, ...]:
        """The largest complete cells that are wholly within the mask, in order."""
        found = self._tops.get(mask)
        if found is None:
            if len(self._tops) >= REMEMBERED:
                self._tops.clear()
            found = self._tops[mask] = tuple(_whole(self.root, mask))
        return found


def _form(part: Part, mask: int) -> tuple[object, ...]:
    if part.mask & mask == 0:
        return (0,)
    if part.mask & mask == part.mask and part.is_complete:
        return (part.mask.bit_count(),)
    forms = sorted(_form(child, mask) for child in part.children)
    return ((part.mask & mask).bit_count(), *forms)


def _whole(part: Part, mask: int) -> list[Part]:
    if part.mask & mask == 0:
        return []
    if part.is_complete and part.mask & mask == part.mask:
        return [part]
    return [found for child in part.children for found in _whole(child, mask)]


def _blocks(part: Part, mask: int, found: dict[int, int]) -> dict[int, int]:
    """For each free leaf how many leaves the largest wholly free cell around it has."""
    if part.mask & mask == part.mask:
        size, rest = part.mask.bit_count(), part.mask
        while rest:
            found[rest & -rest] = size
            rest &= rest - 1
    elif part.mask & mask:
        for child in part.children:
            _blocks(child, mask, found)
    return found


def _best(
    part: Part, mask: int, blocks: dict[int, int], count: int
) -> tuple[int, int, int, int] | None:
    """The best pick within a cell: level, block, free leaves in the child of this cell that it is
    in (in this cell, where it needs several children), leaves.
    """
    free = (part.mask & mask).bit_count()
    if free < count:
        return None
    best: tuple[int, int, int, int] | None = None
    for child in part.children:
        found = _best(child, mask, blocks, count)
        if found is not None:
            inside = (found[0], found[1], (child.mask & mask).bit_count(), found[3])
            if best is None or inside[:3] < best[:3]:
                best = inside
    if best is not None:
        return best
    leaves = _take(part, mask, count)
    block = max(size for leaf, size in blocks.items() if leaf & leaves)
    return part.level, block, free, leaves


def _take(part: Part, mask: int, count: int) -> int:
    """Exactly ``count`` of the cell's free leaves: whole children first, the rest best fit."""
    if not part.children:
        return part.mask & mask
    taken = 0
    left = sorted(
        (child for child in part.children if child.mask & mask),
        key=lambda child: -(child.mask & mask).bit_count(),
    )
    while count:
        sizes = [(child.mask & mask).bit_count() for child in left]
        enough = [i for i, size in enumerate(sizes) if size >= count]
        index = min(enough, key=lambda i: (sizes[i], left[i].mask)) if enough else 0
        child = left.pop(index)
        some = min(count, sizes[index])
        taken |= _take(child, mask, some)
        count -= some
    return taken
