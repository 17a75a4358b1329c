"""What advice is asked for: cells of one type, free as a whole."""

from typing import NamedTuple

from scheduler.domain.core.forest import Chain, Forest


class Wish(NamedTuple):
    """``cells`` of one level of a chain."""

    chain: Chain
    level: int
    cells: int

    @property
    def cell_type(self) -> str:
        """What the cells are called."""
        return self.chain.types[self.level]


def wishes(forest: Forest, chain: str | None, cell: str | None, cells: int) -> list[Wish]:
    """What is asked for, in each chain that it may be in; a rack, where nothing is said."""
    found: list[Wish] = []
    for each in forest.chains.values():
        if chain not in (None, each.name):
            continue
        if cell is None:
            found.append(Wish(each, min(each.node_level + 1, each.top), cells))
        elif cell in each.types:
            found.append(Wish(each, each.types.index(cell), cells))
    return found
