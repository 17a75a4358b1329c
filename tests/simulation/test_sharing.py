"""Small pods without GPUs share what they are charged: the CPU and memory of one GPU cell.

Each node has four GPUs and 16 CPUs, so four CPUs go with a GPU cell.
"""

from dataclasses import replace

import pytest
from core_door import CoreDoor
from histories import history
from random_clusters import Traits
from scenes import FREE, Scene, code_of, config, gang, owning
from scheduler.domain.core.config import NodeLimits, PhysicalCell, Policy
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Gang,
    GangClass,
    Kind,
    Placed,
    Preempted,
    Role,
)

KEEPING = replace(FREE, is_backfilling=True, assumed_s=1_000.0)


def one_node(policy: Policy = FREE, **quota: tuple[str, int]) -> Scene:
    """A node, of which x has all unless said otherwise."""
    owned = {name: owning(each) for name, each in (quota or {"x": ("node", 1)}).items()}
    cells = (PhysicalCell("node", name="n0"),)
    return Scene(config(cells, {"n0": NodeLimits(cpu=16, memory_mb=4_000)}, policy, **owned))


def small(name: str, cpu: int = 1, **more: object) -> Gang:
    """A gang without GPUs."""
    return gang(name, "x", 0, cpu=cpu, **more)


def charged(scene: Scene, asked: Gang) -> list[tuple[int, ...]]:
    """GPUs that a gang's pods are charged, which starts at once."""
    return [pod.charged for pod in scene.places(asked)]


def left(scene: Scene, vc: str = "x") -> int:
    """GPUs of a virtual cluster that nobody is charged."""
    quota = scene.core.cells.quotas()[vc]
    return quota.owned - quota.charged


def of(
    decisions: list[Decision], kind: type[Placed] | type[Preempted] | type[Downgraded]
) -> list[str]:
    return [each.gang for each in decisions if isinstance(each, kind)]


def test_as_many_share_as_go_with_one_gpu() -> None:
    scene = one_node()
    found = [charged(scene, small(f"c{number}")) for number in range(5)]
    assert found == [[(0,)]] * 4 + [[(1,)]]
    assert left(scene) == 2
    assert of(scene.asks(gang("trains", "x", 2, cpu=8)), Placed) == ["trains"]


def test_the_scarcest_resource_counts() -> None:
    scene = one_node()
    assert charged(scene, small("a", memory_mb=900)) == [(0,)]
    assert charged(scene, small("b", memory_mb=200)) == [(1,)]
    assert charged(scene, small("c", memory_mb=100)) == [(0,)]


def test_pods_of_one_gang_share() -> None:
    scene = one_node()
    assert charged(scene, small("many", pods=6)) == [(0,)] * 4 + [(1,)] * 2
    roles = Role(Kind(2, cpu=2), ("gpus",)), Role(Kind(0, cpu=1), ("a", "b"))
    mixed = scene.places(Gang("mixed", "x", "user", 0, roles))
    assert {pod.pod: pod.charged for pod in mixed} == {"gpus": (), "a": (1,), "b": (1,)}


def test_a_gang_waits_for_quota_only_if_it_can_share_nothing() -> None:
    scene = one_node()
    scene.places(gang("trains", "x", 3, cpu=3))
    roles = Role(Kind(1, cpu=1), ("gpu",)), Role(Kind(0, cpu=1), ("a", "b"))
    asked = Gang("mixed", "x", "user", 0, roles)
    decided = scene.asks(asked)
    (told,) = [each for each in decided if isinstance(each, Deferred)]
    assert (told.reason.code, told.reason.numbers["cellsWanted"]) == ("quota", 2)


def test_what_goes_with_more_than_one_gpu_is_shared_with_nobody() -> None:
    scene = one_node()
    assert charged(scene, small("wide", cpu=5)) == [(0, 1)]
    assert charged(scene, small("small")) == [(2,)]


def test_a_gpu_is_charged_until_the_last_has_ended() -> None:
    scene = one_node()
    for name in ("a", "b"):
        scene.places(small(name))
    scene.leave("a")
    scene.cycle()
    assert left(scene) == 3
    scene.leave("b")
    scene.cycle()
    assert left(scene) == 4


def test_a_gpu_is_charged_until_the_last_pod_of_a_gang_has_ended() -> None:
    scene = one_node()
    scene.places(small("two", pods=2))
    scene.core.release_pod("two", "p0")
    scene.cycle()
    assert (left(scene), scene.core.drifts()) == (3, [])


def test_an_ended_gang_makes_room_for_another() -> None:
    scene = one_node()
    for number in range(4):
        scene.places(small(f"c{number}"))
    scene.leave("c2")
    assert charged(scene, small("next")) == [(0,)]


def test_who_needs_the_gpu_takes_it_from_all_who_share_it_and_nobody_else() -> None:
    """They run on: nobody needs more than the GPU that they are charged."""
    scene = one_node()
    scene.places(gang("trains", "x", 2, cpu=2))
    for number in range(6):
        scene.places(small(f"c{number}"))
    assert left(scene) == 0
    decided = scene.asks(gang("large", "x", 1, cpu=1, priority=1))
    assert of(decided, Downgraded) == ["c4", "c5"]
    assert of(decided, Placed) == ["large"]


def test_all_who_share_it_are_preempted_where_their_cpu_is_needed_or_they_want_it_so() -> None:
    for cpu, is_lazy in ((12, None), (1, False)):
        scene = one_node()
        scene.places(gang("trains", "x", 2, cpu=2))
        for number in range(6):
            scene.places(small(f"c{number}", is_lazy=is_lazy))
        decided = scene.asks(gang("large", "x", 1, cpu=cpu, priority=1))
        assert set(of(decided, Preempted)) >= {"c4", "c5"}
        assert not of(decided, Downgraded)


def test_one_of_those_who_share_leaves_for_a_pod_that_may_take_its_part() -> None:
    """It alone, though the four together count more than the training."""
    scene = one_node()
    scene.places(gang("trains", "x", 3, cpu=12))
    for number in range(4):
        scene.places(small(f"c{number}"))
    assert of(scene.asks(small("urgent", priority=1)), Preempted) == ["c3"]
    scene.leave("c3")
    (placed,) = [each for each in scene.cycle() if isinstance(each, Placed)]
    assert (placed.gang, placed.pods[0].charged) == ("urgent", (3,))


def test_a_gpu_counts_at_the_highest_priority_of_those_who_share_it() -> None:
    scene = one_node()
    scene.places(gang("trains", "x", 3, cpu=3, priority=2))
    assert charged(scene, small("low")) == [(3,)]
    assert charged(scene, small("high", priority=2)) == [(3,)]
    assert code_of(scene.asks(gang("middle", "x", 1, priority=1)), "middle") == "quota"
    scene.leave("high")
    assert of(scene.cycle(), Downgraded) == ["low"]


def test_virtual_clusters_share_nothing() -> None:
    scene = one_node(x=("node/switch", 1), y=("node/switch", 1))
    assert charged(scene, small("mine")) == [(0,)]
    assert charged(scene, replace(small("theirs"), virtual_cluster="y")) == [(2,)]


def test_opportunistic_gangs_leave_for_who_shares() -> None:
    scene = one_node()
    scene.places(gang("trains", "x", 3, cpu=3))
    scene.places(small("first"))
    scene.places(small("guest", cpu=12, priority=-1))
    decided = scene.asks(small("second"))
    assert of(decided, Preempted) == ["guest"]
    scene.leave("guest")
    (placed,) = [each for each in scene.cycle() if isinstance(each, Placed)]
    assert placed.pods[0].charged == (3,)


def test_nobody_joins_those_whose_end_is_awaited() -> None:
    """Else a large gang would wait for ever, while small ones come and go."""
    scene = one_node(KEEPING)
    scene.places(small("first"))
    scene.asks(gang("large", "x", 4, cpu=4))
    assert code_of(scene.asks(small("second")), "second") == "reservation"
    scene.leave("first")
    assert "large" in of(scene.cycle(), Placed)


def test_who_ends_in_time_joins_them() -> None:
    scene = one_node(KEEPING)
    scene.places(small("first", expected_s=100.0))
    scene.asks(gang("large", "x", 4, cpu=4))
    assert charged(scene, small("quick", expected_s=10.0)) == [(0,)]


@pytest.mark.parametrize("seed", range(500_000, 500_020))
def test_random_histories_of_such_pods(seed: int) -> None:
    told = history(seed, CoreDoor, Traits(without_gpus=0.6, restarts=0.1, judges=""))
    problems = [each for each in told.problems if not each.startswith("restart: ")]
    assert not problems, f"seed {seed}"


def test_a_restart_changes_nothing_though_several_may_be_shared() -> None:
    """The first has left room on the lower GPU since the others came. No node is heard yet."""
    scene = one_node()
    for number in range(8):
        scene.places(small(f"c{number}"))
    scene.leave("c0")
    scene.cycle()
    again = one_node()
    again.core.set_node_health("n0", False)
    for name in scene.core.gang_ids():
        again.core.restore(scene.core.exported(name))
    assert again.cycle() == []
    assert [again.core.exported(name) for name in scene.core.gang_ids()] == [
        scene.core.exported(name) for name in scene.core.gang_ids()
    ]


def downgraded() -> Scene:
    """Four small gangs have lost the GPU that they shared to ``gpu``."""
    scene = one_node(replace(FREE, is_lazy=True))
    scene.places(gang("trains", "x", 3, cpu=3, priority=5))
    for number in range(4):
        scene.places(small(f"c{number}"))
    decided = scene.asks(gang("gpu", "x", 1, cpu=1, priority=2))
    assert sorted(e.gang for e in decided if isinstance(e, Downgraded)) == ["c0", "c1", "c2", "c3"]
    return scene


@pytest.mark.parametrize(("ends", "rest"), [("gpu", 0), ("trains", 2)])
def test_all_who_were_downgraded_share_a_gpu_again(ends: str, rest: int) -> None:
    """Which one it is counts not, as they use none."""
    scene = downgraded()
    scene.leave(ends)
    scene.cycle()
    classes = [scene.core.gang(f"c{number}").gang_class for number in range(4)]
    assert classes == [GangClass.GUARANTEED] * 4
    assert (left(scene), scene.core.drifts()) == (rest, [])


def test_a_downgraded_pod_gets_no_gpu_of_its_own_gang() -> None:
    scene = one_node(replace(FREE, is_lazy=True))
    scene.places(gang("trains", "x", 2, cpu=2, priority=5))
    roles = Role(Kind(1, cpu=1), ("gpu",)), Role(Kind(0, cpu=1), ("cpu",))
    scene.places(Gang("mixed", "x", "user", 0, roles))
    decided = scene.asks(gang("gpu", "x", 1, cpu=1, priority=2))
    assert [each.gang for each in decided if isinstance(each, Downgraded)] == ["mixed"]
    scene.leave("trains")
    scene.cycle()
    assert scene.core.gang("mixed").gang_class is GangClass.GUARANTEED
    places = scene.core.exported("mixed").places
    assert {each.pod: (each.gpus, each.charged) for each in places} == {
        "gpu": ((2,), ()),
        "cpu": ((), (0,)),
    }
    assert scene.core.drifts() == []
