"""Which moves are advised: whose, from where to where, and why there are none."""

from dataclasses import replace

import pytest
from moves import is_free, restored, spots_of
from scenes import RACKS, Scene, config, gang, owning
from scheduler.domain.core.advising import Advice, advise
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.config import Policy
from scheduler.domain.core.model import Gang, Kind, Role
from scheduler.domain.core.moving import lost_gpu_s
from scheduler.domain.core.wishes import Wish, wishes
from unchanged import changed, fingerprint


def advice(scene: Scene, cell: str | None = None, cells: int = 1) -> Advice:
    """What is advised of a scene."""
    core: Cluster = scene.core.core
    return advise(core, wishes(core.hardware.forest, None, cell, cells))


def moved(found: Advice) -> dict[str, set[str]]:
    """Where each gang would go to."""
    return {each.live.id: {place.node for place in each.after.values()} for each in found.moves}


def placed(scene: Scene, **nodes: tuple[str, int]) -> None:
    """Gangs of one pod with so many GPUs on these machines; they may go anywhere from then on."""
    for name, (node, gpus) in nodes.items():
        scene.asks(gang(name, "x", gpus, allowed_nodes=frozenset({node})))
    for name in nodes:
        live = scene.core.core.gangs[name]
        live.gang = replace(live.gang, allowed_nodes=None)


def test_the_gangs_with_the_fewest_gpus_move() -> None:
    scene = Scene(config(x=owning(("rack/node", 4))))
    placed(scene, a=("n0", 2), b=("n1", 1), c=("n2", 2), d=("n3", 2))
    found = advice(scene)
    assert found.cells == ("r0",)
    assert {each.live.id for each in found.moves} == {"a", "b"}
    assert found.price[0] == 3
    assert set.union(*moved(found).values()) <= {"n2", "n3"}


@pytest.mark.parametrize("number", [1, 2])
def test_a_cell_that_is_free_already_needs_no_move(number: int) -> None:
    scene = Scene(config(x=owning(("rack", 2))))
    found = advice(scene, "rack", number)
    assert found.cells == ("r0", "r1")[:number]
    assert (found.already, found.moves, found.reason) == (number, (), None)


def two_gangs() -> Scene:
    """``young`` in one rack, ``old`` in the other, of as many GPUs."""
    scene = Scene(config(x=owning(("rack/node", 4))))
    placed(scene, young=("n0", 2), old=("n2", 2))
    scene.cycle(100.0)
    return scene


def test_of_as_many_gpus_those_move_that_lose_the_least_work() -> None:
    scene = two_gangs()
    scene.core.checkpointed("old", scene.now - 10.0)
    (found,) = advice(scene).moves
    assert (found.live.id, found.lost_gpu_s) == ("old", 20.0)
    scene.core.checkpointed("young", scene.now - 5.0)
    (found,) = advice(scene).moves
    assert (found.live.id, found.lost_gpu_s) == ("young", 10.0)
    assert {place.node for place in found.before.values()} == {"n0"}
    assert {place.node for place in found.after.values()} <= {"n2", "n3"}


def test_who_may_be_nowhere_else_is_told_why_not() -> None:
    scene = Scene(config(x=owning(("rack/node", 4))))
    scene.asks(*(gang(f"g{n}", "x", 3) for n in range(4)))
    found = advice(scene)
    assert found.moves == found.cells == ()
    assert found.reason is not None
    assert found.reason.code == "room"
    assert found.reason.numbers["room"] == 2
    assert "4 GPUs of type v100 are free" in found.reason.text


def test_bad_nodes_pins_and_kept_cells_are_in_the_way() -> None:
    pinned = (RACKS[0], replace(RACKS[1], pin="mine"))
    scene = Scene(config(cells=pinned, x=owning(("rack", 1), pins=("mine",))))
    scene.core.set_gpu_health("n1", 2, False)
    found = advice(scene)
    assert found.reason is not None
    assert (found.reason.code, found.reason.numbers["unwell"]) == ("cells", 1)
    assert found.reason.numbers["pinned"] == 1
    keeping = Policy(is_backfilling=True, assumed_s=1_000.0)
    scene = Scene(config(policy=keeping, x=owning(("rack/node", 4))))
    scene.asks(gang("half", "x", 3), gang("rest", "x", 3))
    scene.asks(gang("large", "x", 4, pods=4))
    assert list(scene.core.core.reservations.by_gang) == ["large"]
    found = advice(scene, "node")
    assert found.reason is not None
    assert found.reason.numbers["kept"] == 4


def test_several_cells_are_freed_together() -> None:
    scene = Scene(config(x=owning(("rack/node", 4))))
    placed(scene, **{f"g{number}": (f"n{number}", 1) for number in range(4)})
    found = advice(scene, "node", 3)
    assert len(found.cells) == len(found.moves) == 3
    (node,) = set.union(*moved(found).values())
    assert node not in {cell.rpartition("/")[2] for cell in found.cells}
    assert advice(scene, "node", 4).reason is not None


def test_more_cells_than_there_are_are_not_looked_for() -> None:
    scene = Scene(config(x=owning(("rack/node", 4))))
    found = advice(scene, "rack", 3)
    assert found.reason is not None
    assert found.reason.text == "There are 2 complete cells rack, not 3."


def test_cells_inside_nodes_can_be_freed() -> None:
    scene = Scene(config(x=owning(("rack/node/switch", 8))))
    placed(scene, **{f"g{number}": (f"n{number}", 1) for number in range(4)})
    core: Cluster = scene.core.core
    found = advice(scene, "switch", 6)
    assert len(found.moves) == 2
    restored(core, found)
    spots = spots_of(core, found.wish)
    assert all(is_free(core, spots[cell]) for cell in found.cells)


def elastic(*bad: str) -> Scene:
    """A gang that could do without one of its two pods, on a machine each."""
    scene = Scene(config(x=owning(("rack/node", 4))))
    for node in bad:
        scene.core.set_node_health(node, False)
    scene.asks(Gang("e", "x", "user", 0, (Role(Kind(4), ("p0", "p1"), "p", 1),)))
    assert len(scene.core.core.extras["e"]) == 1
    return scene


def test_a_pod_that_a_gang_can_do_without_is_given_back_where_it_fits_nowhere_else() -> None:
    scene = elastic("n3")
    core: Cluster = scene.core.core
    before = fingerprint(core)
    (found,) = advice(scene, "node", 2).moves
    assert not changed(before, fingerprint(core))
    assert (found.live.id, found.is_extra, found.gpus) == ("e\np1", True, 4)
    assert (found.lost_gpu_s, found.after) == (0.0, {})


def test_an_elastic_gang_moves_with_all_that_it_has_grown_by() -> None:
    scene = elastic()
    other = advice(scene, "rack")
    assert other.already == 1
    scene.asks(gang("f", "x", 4, allowed_nodes=frozenset({"n2"})))
    core: Cluster = scene.core.core
    before = fingerprint(core)
    found = advise(core, [Wish(core.hardware.forest.chains["rack"], 2, 2)])
    assert not changed(before, fingerprint(core))
    assert [each.live.id for each in found.moves] == ["e\np1"]
    scene.core.checkpointed("e", scene.now)
    scene.leave("f")
    scene.asks(gang("f", "x", 3, pods=2, allowed_nodes=frozenset({"n2", "n3"})))
    assert advice(scene, "rack").reason is not None
    scene.leave("f")
    scene.asks(gang("f", "x", 3, priority=-1, allowed_nodes=frozenset({"n2"})))
    (found,) = advise(core, wishes(core.hardware.forest, None, "node", 2)).moves
    assert (found.live.id, found.gpus) == ("e\np1", 4)


def test_nothing_is_tried_in_the_midst_of_a_cycle() -> None:
    scene = two_gangs()
    scene.core.core.under_way = iter(())
    found = advice(scene)
    assert found.reason is not None
    assert (found.reason.code, found.is_cut) == ("busy", True)


def test_what_a_type_of_cell_is_called_is_looked_up_in_each_chain() -> None:
    forest = Scene(config(x=owning(("rack", 1)))).core.core.hardware.forest
    assert [(wish.chain.name, wish.cell_type) for wish in wishes(forest, None, None, 1)] == [
        ("rack", "rack")
    ]
    assert wishes(forest, None, "shelf", 1) == wishes(forest, "shelf", None, 1) == []
    assert [wish.level for wish in wishes(forest, "rack", "v100", 1)] == [0]


def test_work_is_counted_since_it_was_saved() -> None:
    scene = two_gangs()
    live = scene.core.core.gangs["young"]
    assert lost_gpu_s(live, scene.now) == 2 * (scene.now - 1.0)
