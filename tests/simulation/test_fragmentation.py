"""How far what is free is in pieces, by chain and type of cell; and that what is kept up to date is
what can be counted anew.
"""

from collections.abc import Mapping
from random import Random

import pytest
from core_door import CoreDoor
from histories import history
from random_clusters import Traits
from runs import Run
from scenes import Scene, config, gang, owning
from scheduler.domain.core.config import PhysicalCell
from scheduler.domain.core.forest import Cell, Slot
from scheduler.domain.core.fragmentation import FreeCells, share
from scheduler.domain.core.interface import Core
from seeds import how_many

SEEDS = how_many(4, deep=10)


def fragments(scene: Scene) -> dict[str, float | None]:
    """By type of cell, in the one chain."""
    core = scene.core.core
    cells = FreeCells(core.forest)
    read(core, cells)
    (pieces,) = cells.pieces.values()
    types = pieces.chain.types
    return {types[n]: share(pieces.free, whole) for n, whole in enumerate(pieces.whole)}


def read(core: Core, into: FreeCells) -> None:
    """What is free now."""
    for slot, _, free in core.cells.free():
        into.set(slot, free)


def test_each_level_has_its_own_share() -> None:
    scene = Scene(config(x=owning(("rack", 2))))
    assert fragments(scene) == {"v100": 0, "switch": 0, "node": 0, "rack": 0}
    scene.asks(gang("one", "x", 1))
    # 15 are free: 14 in whole switches, 12 in whole nodes, 8 in the whole rack.
    assert fragments(scene) == {"v100": 0, "switch": 1 / 15, "node": 3 / 15, "rack": 7 / 15}


def test_what_is_not_well_or_reserved_is_not_free() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    scene.core.set_gpu_health("n0", 0, False)
    scene.core.cordon("n3")
    # 11 are free: n1 and n2 are whole, of n0 one switch is.
    assert fragments(scene) == {"v100": 0, "switch": 1 / 11, "node": 3 / 11, "rack": 1}


def test_where_nothing_is_free_there_is_no_share() -> None:
    scene = Scene(config(x=owning(("rack", 2))))
    scene.asks(gang("all", "x", 4, pods=4))
    assert set(fragments(scene).values()) == {None}


def test_a_cell_that_is_not_complete_is_never_whole() -> None:
    rack = PhysicalCell("rack", name="r", nodes=("n0",))
    scene = Scene(config(cells=(rack,), x=owning(("rack/node", 1))))
    assert fragments(scene)["rack"] == 1
    assert fragments(scene)["node"] == 0


def counted(core: Core) -> dict[tuple[str, int], int]:
    """Leaves in wholly free complete cells, each cell looked at by itself."""
    free = {slot: mask for slot, _, mask in core.cells.free()}
    found: dict[tuple[str, int], int] = {}
    for name, chain in core.forest.chains.items():
        for level in range(len(chain.types)):
            found[name, level] = 0
        for cells in chain.cells:
            for cell in cells:
                if cell.is_complete and all(free[slot] == slot.shape.full for slot in cell.slots()):
                    found[name, cell.level] += chain.leaves(cell.level)
                count_in_node(free, cell, found)
    return found


def count_in_node(free: Mapping[Slot, int], cell: Cell, found: dict[tuple[str, int], int]) -> None:
    """The same of the cells inside of a node."""
    for level, parts in enumerate(cell.slot.shape.parts[: cell.level] if cell.slot else ()):
        for part in parts:
            assert cell.slot is not None
            if part.is_complete and part.mask & free[cell.slot] == part.mask:
                found[cell.chain.name, level] += part.mask.bit_count()


@pytest.mark.parametrize("is_large", [False, True])
def test_what_is_kept_up_to_date_is_what_there_is(is_large: bool) -> None:
    for seed in range(41000, 41000 + SEEDS):
        kept: dict[int, FreeCells] = {}

        def watch(run: Run) -> None:
            core: Core = run.core.core  # type: ignore[attr-defined]
            cells = kept.setdefault(id(core.forest), FreeCells(core.forest))  # noqa: B023
            read(core, cells)
            told = {
                (name, level): whole
                for name, pieces in cells.pieces.items()
                for level, whole in enumerate(pieces.whole)
            }
            assert told == counted(core), (seed, run.now)  # noqa: B023
            assert all(pieces.free == pieces.whole[0] for pieces in cells.pieces.values())

        history(seed, CoreDoor, Traits(judges="", restarts=0.0, is_large=is_large), watch=watch)


def test_random_masks_come_and_go() -> None:
    """In any order, and as if each were the first."""
    forest = Scene(config(x=owning(("rack", 2)))).core.core.forest
    kept, lot = FreeCells(forest), Random(1)
    masks = [0] * len(forest.slots)
    for _ in range(500):
        number = lot.randrange(len(masks))
        masks[number] = lot.choice((0, 15, 15, lot.randrange(16)))
        kept.set(forest.slots[number], masks[number])
        fresh = FreeCells(forest)
        for slot, mask in zip(forest.slots, masks, strict=True):
            fresh.set(slot, mask)
        assert {n: (p.free, p.whole) for n, p in kept.pieces.items()} == {
            n: (p.free, p.whole) for n, p in fresh.pieces.items()
        }
