"""Gangs that were placed before: what of it they keep after a restart or another configuration."""

from dataclasses import replace

import pytest
from scenes import RACKS, Scene, code_of, config, gang, nodes_of, owning, reserved_place
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    Policy,
)
from scheduler.domain.core.model import (
    Deferred,
    Downgraded,
    Gang,
    GangClass,
    Kind,
    Placed,
    Preempted,
    PreemptionCancelled,
    Refused,
    Role,
    Upgraded,
)


def test_a_restored_reservation_that_can_not_be_kept_is_asked_for_anew() -> None:
    scene = reserved_place()
    late, guest = (scene.core.exported(name) for name in ("late", "guest"))
    again = Scene(config(x=owning(("rack", 1))))
    again.core.restore(replace(late, places=(late.places[0]._replace(node="gone"),)), scene.now)
    cancelled, placed = again.cycle()
    assert cancelled == PreemptionCancelled("late")
    assert isinstance(placed, Placed)
    again = Scene(config(x=owning(("rack/node/switch/v100", 1))))
    for one in (late, guest):
        again.core.restore(one, scene.now)
    cancelled, refused = again.cycle()
    assert cancelled == PreemptionCancelled("late")
    assert isinstance(refused, Refused)


@pytest.mark.parametrize("gang_class", [GangClass.OPPORTUNISTIC, GangClass.DOWNGRADED])
def test_a_nominated_placement_without_cells_is_kept(gang_class: GangClass) -> None:
    """It has its place, and starts as nobody is there."""
    scene = reserved_place()
    late = scene.core.exported("late")
    again = Scene(config(x=owning(("rack", 1))))
    again.core.restore(replace(late, gang_class=gang_class, cells=()), scene.now)
    again.core.all_tried()
    assert [type(each) for each in again.cycle()] == [Placed, Upgraded]


def test_who_ends_before_it_is_told_is_not_told() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("a", "x", 4))
    scene.core.change(config(x=owning()), scene.now)
    scene.core.release("a")
    assert scene.cycle() == []


def smaller() -> ClusterConfig:
    """Two racks that are owned, but each machine has one switch."""
    whole = config(x=owning(("rack", 2)))
    types = {**whole.cell_types, "node": CellType("switch", 1, is_node=True)}
    return replace(whole, cell_types=types)


def test_gpus_of_a_pod_are_nobody_elses_when_others_of_its_gpus_are_gone() -> None:
    scene = Scene(config(x=owning(("rack", 2))))
    (place,) = scene.places(gang("runs", "x", 4))
    scene.core.change(smaller(), scene.now)
    assert scene.cycle() == [Downgraded("runs", None)]
    others = scene.places(gang("others", "x", 1, pods=6, priority=-1))
    assert place.node not in nodes_of(others)
    late = gang("late", "x", 1, priority=-1, submitted_at=1.0)
    assert code_of(scene.asks(late), "late") == "shape"
    assert scene.core.exported("runs").places == (place,)
    scene.core.release_pod("runs", "p0")
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)
    assert nodes_of(placed.pods) == {place.node}


def test_a_gang_whose_gpus_are_gone_in_part_leaves_for_who_owns_the_rest() -> None:
    scene = Scene(config(x=owning(("rack", 2))))
    scene.places(gang("runs", "x", 4, pods=4, priority=-1))
    scene.core.change(smaller(), scene.now)
    decided = scene.asks(gang("owner", "x", 2, pods=4))
    assert [d.gang for d in decided if isinstance(d, Preempted)] == ["runs"]
    scene.leave("runs")
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)


def test_a_gang_has_its_cells_again_when_its_gpus_are_there_again() -> None:
    scene = Scene(config(x=owning(("rack", 2))))
    before = scene.places(gang("runs", "x", 4))
    scene.core.change(smaller(), scene.now)
    scene.cycle()
    scene.core.change(config(x=owning(("rack", 2))), scene.now)
    assert scene.cycle() == [Upgraded("runs")]
    assert scene.core.exported("runs").places == before


def test_gpus_that_are_in_two_trees_now_are_held_in_both() -> None:
    """A pod would not be placed so, but it runs."""
    sizes = {"whole": 4, "left": 2, "right": 2}
    types = {name: CellType("v100", count, is_node=True) for name, count in sizes.items()}
    pairs = {"left": (0, 1), "right": (2, 3)}
    halves = tuple(
        PhysicalCell(name, "n0", children=tuple(PhysicalCell("v100", index=i) for i in pair))
        for name, pair in pairs.items()
    )
    one = ClusterConfig(types, (PhysicalCell("whole", "n0"),), virtual_clusters={"x": owning()})
    scene = Scene(one)
    scene.places(gang("runs", "x", 4, priority=-1))
    scene.core.change(replace(one, physical_cells=halves), scene.now)
    assert code_of(scene.asks(gang("late", "x", 1, priority=-1)), "late") == "shape"
    scene.leave("runs")
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)


def limited(cpu: int, *owned: tuple[str, int]) -> ClusterConfig:
    """Two racks of two machines with so many CPUs each."""
    nodes = {name: NodeLimits(cpu=cpu) for name in ("n0", "n1", "n2", "n3")}
    return config(nodes=nodes, x=owning(*(owned or (("rack", 2),))))


def test_who_needs_a_smaller_share_of_its_node_after_a_change_is_charged_as_before() -> None:
    scene = Scene(limited(16))
    (before,) = scene.places(gang("runs", "x", 1, cpu=12))
    assert len(before.charged) == 2
    scene.core.change(limited(48), scene.now)
    assert scene.cycle() == []
    assert scene.core.exported("runs").places == (before,)


def test_who_runs_on_a_node_that_has_less_than_it_wants_keeps_its_cells() -> None:
    scene = Scene(limited(16))
    (before,) = scene.places(gang("runs", "x", 1, cpu=12))
    scene.core.change(limited(8), scene.now)
    assert scene.cycle() == []
    assert scene.core.exported("runs").places == (before,)
    only = frozenset({before.node})
    late = gang("late", "x", 1, cpu=1, priority=-1, allowed_nodes=only)
    assert code_of(scene.asks(late), "late") == "shape"
    scene.core.change(limited(16), scene.now)
    assert [type(decision) for decision in scene.cycle()] == [Placed]


def test_a_leaf_that_is_gone_and_that_no_pod_uses_is_charged_no_more() -> None:
    whole = limited(16, ("rack/node/switch/v100", 2))
    scene = Scene(whole)
    (before,) = scene.places(gang("runs", "x", 1, cpu=8))
    assert (before.node, before.gpus, before.charged) == ("n0", (0,), (1,))
    switches = tuple(
        PhysicalCell("switch", children=tuple(PhysicalCell("v100", index=gpu) for gpu in gpus))
        for gpus in ((0,), (2, 3))
    )
    nodes = (PhysicalCell("node", "n0", children=switches), PhysicalCell("node", "n1"))
    cells = (PhysicalCell("rack", "r0", children=nodes), *whole.physical_cells[1:])
    scene.core.change(replace(whole, physical_cells=cells), scene.now)
    assert scene.cycle() == []
    assert scene.core.exported("runs").places == (before._replace(charged=()),)


def test_a_pod_without_gpus_that_costs_nothing_after_a_change_draws_its_group_nowhere() -> None:
    """As after a restart, when nothing is known of the leaf that it was charged."""
    scene = Scene(limited(16))
    only = frozenset({"n3"})
    scene.places(gang("bare", "x", 0, cpu=4, group="g", job="j", allowed_nodes=only))
    without = config(x=owning(("rack", 2)))
    scene.core.change(without, scene.now)
    again = Scene(without)
    again.core.restore(scene.core.exported("bare"), scene.now)
    roles = (Role(Kind(1), ("a0",)), Role(Kind(2), ("b0",)))
    late = Gang("late", "x", "user", 1, roles, job="j", group="g")
    assert scene.places(late) == again.places(late)


def test_a_reservation_whose_role_would_get_gpus_of_two_types_by_a_change_is_lost() -> None:
    """m1 becomes a machine of another type; its GPUs are owned and would be free in time."""
    cells = [PhysicalCell("old-node", name="m0"), PhysicalCell("old-node", name="m1")]
    scene = Scene(config(cells, x=owning(("old-node", 2))))
    scene.places(gang("guest", "x", 2, pods=2, priority=-1))
    scene.asks(gang("late", "x", 2, pods=2, priority=1))
    other = (cells[0], PhysicalCell("k80-node", name="m1"))
    owned = owning(("old-node", 1), ("k80-node", 1))
    scene.core.change(config(other, x=owned), scene.now)
    decided = scene.cycle()
    assert [type(each) for each in decided] == [PreemptionCancelled, Deferred]
    assert [each.gang for each in decided] == ["late", "late"]


def test_a_reservation_to_grow_by_gpus_of_another_type_is_kept() -> None:
    cells = [PhysicalCell("old-node", name="m0"), PhysicalCell("k80-node", name="m1")]
    whole = config(cells, x=owning(("old-node", 1), ("k80-node", 1)))
    scene = Scene(whole)
    runs = Gang("runs", "x", "user", 1, (Role(Kind(2), ("w-0",), "w"),))
    for one in (runs, gang("guest", "x", 2, priority=-1)):
        scene.places(one)
    scene.core.grow("runs", (Role(Kind(2), ("w-1",), "w"),))
    assert [type(each) for each in scene.cycle()] == [Preempted, Deferred]
    scene.core.change(replace(whole, policy=Policy(is_lazy=True)), scene.now)
    assert scene.cycle() == []


def test_a_gang_of_which_only_a_reservation_is_left_does_not_run() -> None:
    """As its pods are over it is what it would be had it never run: also when it is restored. A
    restart keeps its nominated placement.
    """
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("own", "x", 4))
    scene.places(gang("guest", "x", 4, pods=3, priority=-1))
    scene.core.grow("own", (Role(Kind(4), ("more",)),))
    assert [type(each) for each in scene.cycle()] == [Preempted, Deferred]
    before = scene.core.exported("own")
    assert (before.started_at, before.reserved) == (1.0, ("more",))
    scene.core.release_pod("own", "p0")
    kept = scene.core.exported("own")
    assert (kept.started_at, kept.reserved) == (None, ())
    alone = tuple(place for place in before.places if place.pod == "more")
    again = Scene(config(x=owning(("rack", 1))))
    again.core.restore(scene.core.exported("guest"), scene.now)
    again.core.restore(replace(before, places=alone), scene.now)
    assert again.core.exported("own").started_at is None
    again.now = scene.now
    for each, expected in ((scene, [PreemptionCancelled, Placed]), (again, [Placed])):
        each.leave("guest")
        assert [type(decision) for decision in each.cycle()] == expected


def test_a_gang_without_any_place_does_not_run_when_its_reservation_is_lost() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("own", "x", 4))
    scene.places(gang("guest", "x", 4, pods=3, priority=-1))
    scene.core.grow("own", (Role(Kind(4), ("more",)),))
    scene.cycle()
    scene.core.release_pod("own", "p0")
    for node in ("n0", "n1", "n2", "n3"):
        scene.core.set_node_health(node, False)
    assert scene.cycle()[0] == PreemptionCancelled("own")
    assert scene.core.gang("own").started_at is None


def test_who_runs_in_a_pinned_cell_that_is_another_virtual_clusters_now_is_downgraded() -> None:
    cells = (replace(RACKS[0], pin="lab"), RACKS[1])
    scene = Scene(config(cells, x=owning(pins=("lab",)), y=owning()))
    scene.places(gang("before", "x", 4, pods=2, pin="lab"))
    scene.core.change(config(cells, x=owning(), y=owning(pins=("lab",))), scene.now)
    assert scene.cycle() == [Downgraded("before", None)]
    decided = scene.asks(gang("owner", "y", 4, pin="lab"))
    assert [each.gang for each in decided if isinstance(each, Preempted)] == ["before"]
