"""A cluster of two chains: cells are kept in each of them."""

from dataclasses import replace

from scenes import Scene, config, gang, owning, racks
from scheduler.domain.core.config import PhysicalCell, Policy, VirtualCluster
from scheduler.domain.core.model import (
    Decision,
    Gang,
    Kind,
    Placed,
    Reserved,
    Role,
)

NEW, OLD = ("v100",), ("k80",)


def a_scene(policy: Policy, old: int = 2, **virtual_clusters: VirtualCluster) -> Scene:
    """Two machines of four GPUs, and some of two older ones."""
    cells = [*racks(1), *(PhysicalCell("k80-node", name=f"m{n}") for n in range(old))]
    return Scene(config(cells, policy=policy, **virtual_clusters))


def owns(new: int, old: int) -> VirtualCluster:
    """So many machines of each type."""
    return owning(("rack/node", new), ("k80-node", old))


def kept(decisions: list[Decision]) -> dict[str, tuple[set[str], float | None]]:
    """On which machines cells are kept from now on, and until when."""
    return {
        each.gang: ({node for node, _ in each.cells}, each.starts_at)
        for each in decisions
        if isinstance(each, Reserved)
    }


def on_both(name: str, **more: object) -> Gang:
    """A machine of each type."""
    roles = (Role(Kind(4, NEW), ("a0",), "a"), Role(Kind(2, OLD), ("b0",), "b"))
    return replace(gang(name, "x", 1, **more), roles=roles)


def test_who_is_protected_and_on_cells_that_are_kept_for_another_ends_once() -> None:
    """In thought: as what it would be in each of the two ways it was taken away twice."""
    scene = a_scene(Policy(is_backfilling=True, min_run_s=100.0), x=owns(1, 2))
    scene.asks(on_both("young"))
    scene.asks(gang("long", "x", 2, gpu_types=OLD, priority=2, expected_s=1e6))
    assert kept(scene.asks(gang("high", "x", 4, gpu_types=NEW, priority=2)))
    found = kept(scene.asks(gang("mid", "x", 2, pods=2, gpu_types=OLD, priority=1)))
    assert found == {"mid": ({"m0", "m1"}, 1_000_002.0)}


def test_nobody_gets_kept_cells_in_a_chain_in_which_some_are_kept_for_another() -> None:
    scene = a_scene(Policy(is_backfilling=True), old=1, x=owns(1, 1))
    scene.asks(gang("new", "x", 4, gpu_types=NEW, expected_s=100.0))
    scene.asks(gang("old", "x", 2, gpu_types=OLD, expected_s=150.0))
    assert kept(scene.asks(gang("first", "x", 2, gpu_types=OLD))) == {"first": ({"m0"}, 152.0)}
    either = gang("either", "x", 2, gpu_types=NEW + OLD)
    assert kept(scene.asks(either)) == {"either": ({"n0"}, 101.0)}
    # "new" runs for longer than it expected: the older machine would be free before.
    assert kept(scene.cycle(98.0)) == {"either": ({"n0"}, 201.0)}


def test_who_has_a_choice_of_chains_has_cells_in_the_one_in_which_none_are_kept() -> None:
    scene = a_scene(Policy(is_backfilling=True), old=1, x=owns(1, 1))
    scene.asks(gang("new", "x", 4, gpu_types=NEW, expected_s=100.0))
    scene.asks(gang("old", "x", 2, gpu_types=OLD, expected_s=50.0))
    assert kept(scene.asks(gang("first", "x", 2, gpu_types=OLD))) == {"first": ({"m0"}, 52.0)}
    either = gang("either", "x", 2, gpu_types=NEW + OLD)
    assert kept(scene.asks(either)) == {"either": ({"n0"}, 101.0)}


def test_the_chain_that_it_prefers_may_be_kept_for_another() -> None:
    scene = a_scene(Policy(is_backfilling=True), old=1, x=owns(1, 1))
    scene.asks(gang("new", "x", 4, gpu_types=NEW, expected_s=100.0))
    scene.asks(gang("old", "x", 2, gpu_types=OLD, expected_s=150.0))
    assert kept(scene.asks(gang("first", "x", 4, gpu_types=NEW))) == {"first": ({"n0"}, 101.0)}
    either = gang("either", "x", 2, gpu_types=NEW + OLD)
    assert kept(scene.asks(either)) == {"either": ({"m0"}, 152.0)}


def test_chains_of_one_gpu_type_are_two_all_the_same() -> None:
    """What a gang gets that is planned anew is what it would have got at once."""
    cells = [*racks(1), PhysicalCell("old-node", name="m0")]
    owned = owning(("rack/node", 1), ("old-node", 1))
    scene = Scene(config(cells, policy=Policy(is_backfilling=True), x=owned))
    scene.asks(gang("new", "x", 4, expected_s=100.0))
    scene.asks(gang("old", "x", 2, expected_s=150.0))
    assert kept(scene.asks(gang("first", "x", 4))) == {"first": ({"n0"}, 101.0)}
    assert kept(scene.asks(gang("second", "x", 2))) == {"second": ({"m0"}, 152.0)}


def test_who_starts_with_fewer_goes_where_nothing_is_kept() -> None:
    scene = a_scene(Policy(is_backfilling=True), old=3, x=owns(1, 3))
    scene.asks(gang("new", "x", 4, gpu_types=NEW, expected_s=100.0))
    grows = (Role(Kind(2, OLD), ("a", "b"), "a", 1),)
    scene.asks(replace(gang("grows", "x", 2), roles=grows))
    assert kept(scene.asks(on_both("first"))) == {"first": ({"n0", "m1"}, 101.0)}
    late = gang("late", "x", 2, pods=2, gpu_types=OLD, limit_s=10.0)
    assert not any(isinstance(each, Placed) for each in scene.asks(late))
    fewer = scene.core.questions.counterfactual("late").fewer
    assert fewer is not None
    assert fewer.pods == 1
    scene.core.release("late")
    (started,) = scene.asks(gang("late", "x", 2, gpu_types=OLD, limit_s=10.0))
    assert isinstance(started, Placed)
    assert {place.node for place in started.pods} == {"m2"}


def test_cells_are_kept_in_a_chain_however_many_wait_for_another() -> None:
    scene = a_scene(Policy(is_backfilling=True), x=owns(2, 2))
    scene.asks(gang("new", "x", 4, pods=2, gpu_types=NEW, expected_s=5_000.0))
    scene.asks(gang("old", "x", 2, gpu_types=OLD, expected_s=100.0))
    scene.asks(*(gang(f"next{n}", "x", 4, gpu_types=NEW, expected_s=10.0**n) for n in range(5)))
    decided = scene.asks(gang("large", "x", 2, pods=2, gpu_types=OLD, submitted_at=1.0))
    assert kept(decided) == {"large": ({"m0", "m1"}, 102.0)}


def test_a_wait_names_the_reservation_that_is_in_its_way() -> None:
    scene = a_scene(Policy(is_backfilling=True), x=owns(2, 2))
    scene.asks(gang("new", "x", 4, pods=2, gpu_types=NEW, expected_s=5_000.0))
    scene.asks(gang("old", "x", 2, gpu_types=OLD, expected_s=100.0))
    scene.asks(gang("next", "x", 4, gpu_types=NEW))
    scene.asks(gang("large", "x", 2, pods=2, gpu_types=OLD))
    scene.asks(gang("small", "x", 2, gpu_types=OLD, expected_s=9_000.0))
    told = scene.core.questions.reason_of("small")
    assert (told.code, told.numbers["for"]) == ("reservation", "large")
    assert told.numbers["startsAt"] == 102.0
