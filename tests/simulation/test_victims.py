"""Whom a place costs: docs/scheduling.md, "At whose cost", where the random histories seldom go."""

from collections.abc import Iterable, Sequence

import pytest
from scenes import Scene, code_of, config, gang, nodes_of, owning, racks
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    Policy,
)
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Gang,
    GangClass,
    Kind,
    Placed,
    PodPlace,
    Preempted,
    PreemptionCancelled,
    Restored,
    Role,
)

NODE = (0, 1, 2, 3)


def running(one: Gang, *places: tuple[str, tuple[int, ...]]) -> Restored:
    """A gang that runs since the same time as all others, there."""
    pods = [pod for role in one.roles for pod in role.pods]
    at = tuple(PodPlace(pod, node, gpus) for pod, (node, gpus) in zip(pods, places, strict=True))
    own = GangClass.GUARANTEED if one.priority >= 0 else GangClass.OPPORTUNISTIC
    return Restored(one, at, own, started_at=0.0)


def guest(name: str, node: str, *gpus: int) -> Restored:
    """An opportunistic gang of y's with one pod."""
    return running(gang(name, "y", len(gpus), priority=-1), (node, gpus))


def scene_with(*gangs: Restored, **owned: tuple[str, int]) -> Scene:
    """Two racks of two machines."""
    scene = Scene(config(**{name: owning(cells) for name, cells in owned.items()}))
    restore(scene, gangs)
    return scene


def restore(scene: Scene, gangs: Iterable[Restored], *, bad: Iterable[str] = ()) -> None:
    """Gangs run from the beginning, and stay; these machines are bad since."""
    for restored in gangs:
        scene.core.restore(restored, scene.now)
    for node in bad:
        scene.core.set_node_health(node, False)
    assert scene.cycle() == []


def machines(count: int, cell_type: str = "node") -> list[PhysicalCell]:
    """Machines in no rack: n00, n01, …"""
    return [PhysicalCell(cell_type, name=f"n{number:02}") for number in range(count)]


def nodes_by_themselves(
    cells: Sequence[PhysicalCell], *owned: tuple[str, int], is_lazy: bool = False
) -> Scene:
    """Machines in no rack, all of them healthy, of which x owns these."""
    scene = Scene(config(cells, policy=Policy(is_lazy=is_lazy), x=owning(*owned)))
    for cell in cells:
        assert cell.name is not None
        scene.core.set_node_health(cell.name, True)
    return scene


def victims(decisions: list[Decision]) -> list[str]:
    """Who has to leave."""
    return [decision.gang for decision in decisions if isinstance(decision, Preempted)]


def test_of_victims_that_cost_the_same_those_leave_whose_gpus_are_near_one_another() -> None:
    """On n0 what is not in use is in both switches."""
    whole = [
        running(gang("k0", "x", 2, priority=9), ("n0", (0, 3))),
        running(gang("v0", "x", 2, priority=1), ("n0", (1, 2))),
        running(gang("k1", "x", 2, priority=9), ("n1", (2, 3))),
        running(gang("v1", "x", 2, priority=1), ("n1", (0, 1))),
    ]
    scene = scene_with(*whole, x=("rack", 1))
    assert victims(scene.asks(gang("high", "x", 2, priority=5))) == ["v1"]


def test_of_victims_that_cost_the_same_those_leave_that_are_in_one_rack() -> None:
    owner = running(gang("owner", "y", 1, priority=9), ("n1", (0,)))
    others = (guest("v0", "n0", *NODE), guest("v2", "n2", *NODE), guest("v3", "n3", *NODE))
    scene = scene_with(owner, *others, x=("rack/node", 2), y=("rack/node", 1))
    assert victims(scene.asks(gang("high", "x", 4, pods=2, priority=5))) == ["v2", "v3"]


@pytest.mark.parametrize(("runs", "grows"), [("n0", "n1"), ("n1", "n0")])
def test_what_a_gang_has_reserved_to_grow_by_is_taken_before_it_has_to_leave(
    runs: str, grows: str
) -> None:
    low = running(gang("low", "x", 4, priority=1), (runs, NODE))
    scene = scene_with(low, guest("guest", grows, *NODE), x=("rack", 1))
    scene.core.grow("low", (Role(Kind(4), ("more",)),))
    assert victims(scene.cycle()) == ["guest"]
    decided = scene.asks(gang("high", "x", 4, priority=5))
    assert decided[0] == PreemptionCancelled("low")
    assert [type(each) for each in decided[1:]] == [Deferred, Deferred]
    assert {place.pod for place in scene.core.exported("low").places} == {"p0"}
    scene.leave("guest")
    (placed,) = scene.cycle()
    assert placed.gang == "high"


def test_a_gang_is_not_downgraded_for_one_that_needs_victims_too() -> None:
    """Who is lazy has all of the quota; in the other rack one GPU is in use."""
    low = running(gang("low", "x", 4, pods=2, priority=1, is_lazy=True), ("n0", NODE), ("n1", NODE))
    scene = scene_with(low, guest("guest", "n2", 0), x=("rack", 1), y=("rack/node", 2))
    decided = scene.asks(gang("high", "x", 4, pods=2, priority=5))
    assert victims(decided) == ["low"]
    scene.leave("low")
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)
    assert nodes_of(placed.pods) == {"n0", "n1"}


def test_gangs_keep_what_they_have_reserved_to_grow_by_where_it_is_not_in_the_way() -> None:
    """Of two that grow one is in the way; all of the cluster is x's."""
    gangs = [
        running(gang("one", "x", 4, priority=2), ("n0", NODE)),
        guest("g1", "n1", *NODE),
        running(gang("other", "x", 4, priority=2), ("n2", NODE)),
        guest("g3", "n3", *NODE),
    ]
    scene = scene_with(*gangs, x=("rack", 2))
    for name in ("one", "other"):
        scene.core.grow(name, (Role(Kind(4), ("more",)),))
    assert sorted(victims(scene.cycle())) == ["g1", "g3"]
    decided = scene.asks(gang("high", "x", 4, priority=5))
    (lost,) = [d.gang for d in decided if isinstance(d, PreemptionCancelled)]
    (kept,) = {"one", "other"} - {lost}
    assert scene.core.gang(kept).is_nominated


@pytest.mark.parametrize("has_plain", [False, True])
@pytest.mark.parametrize("gpus", [0, 1])
def test_a_share_of_the_cpu_makes_room_whatever_other_nodes_are_like(
    gpus: int, has_plain: bool
) -> None:
    """On n1 three of four leaves are charged; another node has more CPU, or costs no GPU. A gang
    without GPUs takes CPU that is idle beside its virtual cluster's cells, and ends nobody.
    """
    nodes = {"n0": NodeLimits(cpu=16 if has_plain and gpus else 8), "n1": NodeLimits(cpu=8)}
    if has_plain and not gpus:
        nodes["m0"] = NodeLimits(cpu=8)
    scene = Scene(config(racks(1), nodes, x=owning(("rack", 1))))
    full = gang("full", "x", 4, priority=3, allowed_nodes=frozenset({"n0"}))
    low = gang("low", "x", 1, pods=2, priority=2, is_lazy=True)
    for one in (full, gang("high", "x", 1, priority=3), low):
        scene.places(one)
    if "m0" in nodes:
        scene.core.cordon("m0")
    decided = scene.asks(gang("asks", "x", gpus, priority=3, cpu=3 + gpus))
    expected = ["low"] if gpus else []
    assert victims(decided) == expected
    scene.leave(*expected)
    assert [type(each) for each in (*decided, *scene.cycle())].count(Placed) == 1


@pytest.mark.parametrize("leaves", ["first", "second"])
def test_a_guest_leaves_for_a_share_of_the_cpu_wherever_it_is(leaves: str) -> None:
    """A guest is in the one switch or in the other; each pod is charged one switch."""
    limits = {"n0": NodeLimits(cpu=8)}
    scene = Scene(config((PhysicalCell("node", name="n0"),), limits, x=owning(("node/switch", 2))))
    for name in ("first", "second"):
        scene.places(gang(name, "x", 2, priority=-1))
    scene.leave(leaves)
    (stays,) = {"first", "second"} - {leaves}
    assert victims(scene.asks(gang("asks", "x", 1, pods=2, priority=1, cpu=4))) == [stays]
    scene.leave(stays)
    assert [type(each) for each in scene.cycle()] == [Placed]


def test_who_uses_no_gpu_runs_on_without_cells() -> None:
    types = {"a-node": CellType("a", 2, is_node=True), "b-node": CellType("b", 2, is_node=True)}
    second = tuple(PhysicalCell("b", index=index) for index in (16, 17))
    trees = (
        PhysicalCell("a-node", name="n0"),
        PhysicalCell("b-node", name="n0", children=second),
    )
    owners = {"x": owning(("a-node", 1), ("b-node", 1))}
    limits = {"n0": NodeLimits(cpu=8)}
    scene = Scene(ClusterConfig(types, trees, limits, owners, Policy(is_lazy=True)))
    scene.places(gang("plain", "x", 0, priority=1, cpu=4))
    decided = scene.asks(gang("high", "x", 2, priority=5, gpu_types=("a",)))
    assert [type(each) for each in decided] == [Downgraded, Placed]


def test_it_is_not_for_their_health_that_a_guest_waits_for_ports() -> None:
    """Of each node most ports are held; one node is bad."""
    cells = (PhysicalCell("node", name="n0"), PhysicalCell("node", name="n1"))
    scene = Scene(config(cells, x=owning(("node", 2))))
    for name in ("a", "b"):
        scene.places(gang(name, "x", 1, priority=1, ports=40_000))
    scene.core.set_node_health("n1", False)
    decided = scene.asks(gang("guest", "x", 1, priority=-1, ports=10_000))
    assert code_of(decided, "guest") == "resource"


def test_a_type_of_gpu_that_is_named_twice_is_named_once() -> None:
    scene = Scene(config(racks(1), x=owning(("rack", 1))))
    scene.places(gang("runs", "x", 4))
    decided = scene.asks(gang("asks", "x", 4, pods=2, gpu_types=("v100", "v100")))
    assert code_of(decided, "asks") == "quota"


def test_what_is_reserved_is_taken_first_also_where_its_cell_has_to_be_bound_again() -> None:
    """Nobody but who waits has cells in the second rack: without it that is bound to nobody."""
    gangs = [
        running(gang("runs", "x", 3, priority=9), ("n0", (0, 1, 2))),
        running(gang("small", "x", 1, priority=0), ("n0", (3,))),
        running(gang("busy", "x", 4, priority=9), ("n1", NODE)),
        running(gang("low", "x", 4, priority=0), ("n2", NODE)),
    ]
    scene = scene_with(*gangs, x=("rack", 2))
    assert victims(scene.asks(gang("waits", "x", 4, pods=2, priority=1))) == ["low"]
    scene.leave("busy")
    scene.places(gang("guest", "x", 1, priority=-1, allowed_nodes=frozenset({"n1"})))
    decided = scene.asks(gang("high", "x", 4, priority=5, allowed_nodes=frozenset({"n1", "n3"})))
    assert PreemptionCancelled("waits") in decided
    assert not [d for d in decided if isinstance(d, Preempted) and d.for_gang == "high"]
    assert nodes_of(scene.core.exported("high").places) == {"n3"}


def test_a_gang_is_downgraded_and_smaller_ones_with_other_gpus_are_not() -> None:
    cells = [PhysicalCell("k80-node", name=f"k{number}") for number in range(10)]
    cells += [PhysicalCell("old-node", name=f"o{number}") for number in range(2)]
    scene = nodes_by_themselves(cells, ("k80-node/k80", 20), ("old-node", 1), is_lazy=True)
    scene.asks(*(gang(f"small{n}", "x", 1, gpu_types=("k80",)) for n in range(20)))
    scene.places(gang("large", "x", 2, gpu_types=("v100",)))
    high, placed = scene.asks(gang("high", "x", 2, priority=5, gpu_types=("v100",)))
    assert isinstance(placed, Placed)
    assert high == Downgraded("large", "high")


def test_as_many_lazy_gangs_are_downgraded_as_are_in_the_way() -> None:
    scene = nodes_by_themselves(machines(80), ("node", 40), is_lazy=True)
    scene.asks(*(gang(f"small{number:03}", "x", 1) for number in range(160)))
    decided = scene.asks(gang("high", "x", 4, pods=32, priority=5))
    kinds = [type(each) for each in decided if not isinstance(each, Deferred)]
    assert kinds == [Downgraded] * 128 + [Placed]


def test_those_that_need_only_what_another_has_reserved_start_when_that_is_lost() -> None:
    """Of 32 CPUs 24 are the guest's, which runs on, and 16 are reserved."""
    cells = (PhysicalCell("node", name="n0"),)
    scene = Scene(config(cells, {"n0": NodeLimits(cpu=32)}, x=owning(("node/switch", 2))))
    scene.places(gang("guest", "x", 1, priority=-1, cpu=24))
    assert victims(scene.asks(gang("large", "x", 2, priority=1, cpu=16))) == ["guest"]
    assert code_of(scene.asks(gang("small", "x", 1, priority=1, cpu=4)), "small") == "preempting"
    decided = scene.asks(gang("high", "x", 2, priority=3, cpu=4))
    assert [each.gang for each in decided if isinstance(each, Placed)] == ["high", "small"]


def test_for_a_gang_of_many_pods_those_leave_that_cost_least_too() -> None:
    """The large gang has 14 machines, each small one a half of one: 66 machines are wanted."""
    scene = nodes_by_themselves(machines(80, "old-node"), ("old-node", 80))
    scene.places(gang("large", "x", 2, pods=14))
    small = [gang(f"small{n}", "x", 1, allowed_nodes=frozenset({f"n{n}"})) for n in range(14, 80)]
    scene.asks(*small)
    decided = scene.asks(gang("high", "x", 2, pods=66, priority=5))
    assert victims(decided) == [one.id for one in small]


def test_none_of_many_victims_could_stay() -> None:
    """There is room for all pods where one of them leaves."""
    scene = nodes_by_themselves(machines(80), ("node", 80))
    large = [guest(f"large{number:02}", f"n{number:02}", *NODE) for number in range(79)]
    restore(scene, [*large, guest("small", "n79", 0), guest("other", "n79", 1, 2, 3)])
    decided = scene.asks(gang("high", "x", 1, pods=2, priority=5))
    assert len(victims(decided)) == 1
