"""How good a node is for one pod: the order of docs/scheduling.md, "Which place"."""

from scheduler.domain.core.tags import Tag

Needs = tuple[int, ...]
"""Leaves that a pod needs, by the sort of node; more than any has: it can't be there."""

Wish = tuple[Needs, bool]
"""Needs, and whether the pod is opportunistic."""

Form = tuple[object, ...]
"""How free leaves lie (`shapes.Free`)."""

Rank = tuple[int, bool, int, int, int, Form]
"""Lowest common cell, whether a guest would be among guaranteed gangs, block broken, free leaves,
free nodes of the rack, form. Of nodes that share one the lowest is the best.
"""

Front = tuple[int, bool, int, int]
"""The first of a rank, which a tag says."""

NEVER_RANK: Rank = (1 << 30, False, 0, 0, 0, ())
"""Worse than any place."""


def front_of(tag: Tag, wish: Wish) -> Front | None:
    """The first of the rank of nodes with a tag; None where the pod does not fit there."""
    need = wish[0][tag.sort]
    if not 0 < need <= tag.count:
        return None
    pick = tag.free.picks[need]
    return pick.level, tag.is_shared, pick.block, tag.count


class Order:
    """Tags by rank, for one wish. ``read``: so many of the region's tags were looked at."""

    __slots__ = ("ranked", "read")

    def __init__(self) -> None:
        self.ranked: list[tuple[Front, int, Tag]] = []
        self.read = 0
