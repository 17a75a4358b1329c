"""Nobody is refused who has a place, or was not sought one in every way."""

import pytest
from scenes import Scene, code_of, config, gang, nodes_of, owning
from scheduler.domain.core.config import NodeLimits, PhysicalCell
from scheduler.domain.core.model import Gang, Kind, Placed, Refused, Role

WANTS = {"a": "t", "b": "r", "c": "s", "d": "u"}
"""What else than a node's GPUs each role wants."""

HAVE = {"w": ("u",), "x": ("t", "r", "s"), "y": ("t", "r"), "z": ("t",)}
"""Of each node: so that three roles have a place in one way only."""


def scene_of(nodes: dict[str, NodeLimits], pins: tuple[str, ...] = ()) -> Scene:
    """Nodes with two GPUs each, of which ``x`` owns those without a pin and the pins."""
    cells = [
        PhysicalCell("old-node", name=name, pin=name if name in pins else None) for name in nodes
    ]
    scene = Scene(config(cells, nodes, x=owning(("old-node", len(cells) - len(pins)), pins=pins)))
    for name in nodes:
        scene.core.set_node_health(name, True)
    return scene


def picky(priority: int, *names: str) -> Gang:
    """A role of one pod, for a whole node, for each of these wants."""
    kinds = {name: Kind(2, resources=((WANTS[name], 1),)) for name in names}
    roles = tuple(Role(kind, (name,), name=name) for name, kind in kinds.items())
    return Gang("a", "x", "user", priority, roles)


def limits_of() -> dict[str, NodeLimits]:
    """As `HAVE` says."""
    every = dict.fromkeys(WANTS.values(), 0)
    return {
        name: NodeLimits(resources={**every, **dict.fromkeys(have, 1)})
        for name, have in HAVE.items()
    }


@pytest.mark.parametrize(("cpu", "charged"), [(8, 1)])
@pytest.mark.parametrize("beside", [0, 1])
def test_pods_without_gpus_have_a_place_in_their_pinned_cell(
    cpu: int | None, charged: int, beside: int
) -> None:
    """Also where they take nothing that is limited; and beside pods that want GPUs elsewhere."""
    scene = scene_of({"n0": NodeLimits(), "n1": NodeLimits(cpu=cpu)}, pins=("n1",))
    pinned = Role(Kind(0, pin="n1", cpu=2), ("p", "q"), name="pinned")
    others = (Role(Kind(2), ("g",), name="others"),) * beside
    places = scene.places(Gang("a", "x", "user", 0, (pinned, *others)))
    mine = [each for each in places if each.pod != "g"]
    assert nodes_of(mine) == {"n1"}
    assert [(each.gpus, len(each.charged)) for each in mine] == [((), charged)] * 2


def test_pods_that_need_more_ports_than_their_nodes_have_hold_no_place() -> None:
    nodes = ("n0", "n1")
    rack = PhysicalCell("rack", name="r", nodes=nodes, pin="lab")
    scene = Scene(config([rack], x=owning(pins=("lab",))))
    roles = tuple(
        Role(Kind(0, pin="lab", ports=ports), (f"p{ports}",), name=f"r{ports}")
        for ports in (25_000, 25_001, 25_002)
    )
    assert code_of(scene.asks(Gang("a", "x", "user", 0, roles)), "a") == "resource"
    places = scene.places(Gang("b", "x", "user", 0, roles[:2]))
    assert nodes_of(places) == set(nodes)


def test_who_is_too_large_is_told_of_ports_and_counted_resources() -> None:
    limits = NodeLimits(ports=(20_000, 20_003), resources={"rdma": 4})
    scene = Scene(config([PhysicalCell("node", name="n0")], {"n0": limits}, x=owning(("node", 1))))
    (refused,) = scene.asks(gang("a", "x", 1, pods=2, ports=3, resources=(("rdma", 1),)))
    assert isinstance(refused, Refused)
    assert "2 pods with 2 GPUs, 0 CPUs, 6 ports, 2 rdma and 0 MB at once" in refused.reason.text
    (refused,) = scene.asks(gang("b", "x", 1, ports=1, cpu=1, resources=(("rdma", 5),)))
    assert isinstance(refused, Refused)
    assert "1 pod with 1 GPU, 1 CPU, 1 port, 5 rdma and 0 MB at once" in refused.reason.text


def test_who_is_too_large_for_all_nodes_together_is_told_what_they_have() -> None:
    limits = dict.fromkeys(("n0", "n1"), NodeLimits(cpu=8, memory_mb=1000))
    cells = [PhysicalCell("node", name=name) for name in limits]
    scene = Scene(config(cells, limits, x=owning(("node", 2))))
    (refused,) = scene.asks(gang("a", "x", 1, pods=3, memory_mb=700))
    assert isinstance(refused, Refused)
    assert "All nodes together have 2000 MB of memory. Ask for fewer" in refused.reason.text
    (refused,) = scene.asks(gang("b", "x", 1, pods=3, memory_mb=600))
    assert isinstance(refused, Refused)  # one pod fits each node
    assert "All nodes together" not in refused.reason.text


def test_gpu_types_of_pods_without_gpus_have_no_effect() -> None:
    cells = [PhysicalCell("old-node", name="m0"), PhysicalCell("k80-node", name="n0")]
    limits = dict.fromkeys(("m0", "n0"), NodeLimits(cpu=8))
    scene = Scene(config(cells, limits, x=owning(("k80-node", 1))))
    roles = (Role(Kind(1), ("g",), name="g"), Role(Kind(0, ("v100",), cpu=2), ("c",), name="c"))
    assert nodes_of(scene.places(Gang("a", "x", "user", 0, roles))) == {"n0"}


def test_a_pinned_cell_of_another_type_than_the_role_wants_is_not_used() -> None:
    scene = scene_of({"n0": NodeLimits(), "n1": NodeLimits()}, pins=("n1",))
    (refused,) = scene.asks(gang("a", "x", 1, gpu_types=("k80",), pin="n1"))
    assert isinstance(refused, Refused)
    assert refused.reason.code == "unknown-gpu-type"
    assert nodes_of(scene.places(gang("b", "x", 1, gpu_types=("v100",), pin="n1"))) == {"n1"}


def test_a_pinned_cell_with_gpus_of_a_type_that_the_role_does_not_want_is_told() -> None:
    cells = [PhysicalCell("old-node", name="m0", pin="lab"), PhysicalCell("k80-node", name="n0")]
    scene = Scene(config(cells, x=owning(("k80-node", 1), pins=("lab",))))
    (refused,) = scene.asks(gang("a", "x", 1, gpu_types=("k80",), pin="lab"))
    assert isinstance(refused, Refused)
    assert refused.reason.code == "pin"
    assert "lab has GPUs of type v100, not k80" in refused.reason.text


def test_a_gang_without_gpus_but_with_a_pin_is_never_sought_a_place_as_opportunistic() -> None:
    """Which it can't have."""
    cells = [PhysicalCell("old-node", name="m0"), PhysicalCell("old-node", name="m1", pin="lab")]
    limits = {"m0": NodeLimits(resources={"r": 1}), "m1": NodeLimits(cpu=8, resources={"r": 0})}
    scene = Scene(config(cells, limits, x=owning(pins=("lab",)), y=owning(("old-node", 1))))
    kinds = (Kind(0, pin="lab", cpu=1), Kind(0, cpu=2, resources=(("r", 1),)))
    roles = tuple(Role(kind, (f"p{n}",), name=f"r{n}") for n, kind in enumerate(kinds))
    (refused,) = scene.asks(Gang("a", "x", "user", 0, roles))
    assert isinstance(refused, Refused)


@pytest.mark.parametrize("only", [None, frozenset({"n0", "n1"})])
@pytest.mark.parametrize("priority", [-1, 1])
def test_more_pods_without_gpus_than_all_nodes_hold_are_refused(
    priority: int, only: frozenset[str] | None
) -> None:
    nodes = [f"n{number}" for number in range(12)]
    scene = scene_of(dict.fromkeys(nodes, NodeLimits(cpu=16)))
    most = 16 * len(only or nodes)
    asks = {"priority": priority, "cpu": 1, "allowed_nodes": only}
    (refused,) = scene.asks(gang("more", "x", 0, pods=most + 1, **asks))
    assert isinstance(refused, Refused)
    scene.places(gang("all", "x", 0, pods=most, **asks))


def test_who_names_no_pin_is_told_of_those_of_its_virtual_cluster() -> None:
    rack = PhysicalCell("rack", name="r", nodes=("n0", "n1"), pin="lab")
    scene = Scene(config([rack], x=owning(pins=("lab",))))
    (refused,) = scene.asks(gang("a", "x", 1))
    assert isinstance(refused, Refused)
    assert refused.reason.text.endswith("Or name a pin of x: lab.")
    (refused,) = scene.asks(gang("b", "x", 1, pods=9))
    assert isinstance(refused, Refused)
    assert "name a pin" not in refused.reason.text  # it has 8 GPUs


def test_what_only_nodes_without_its_gpus_have_is_told() -> None:
    nodes = {"n0": NodeLimits(cpu=8), "c0": NodeLimits(cpu=32)}
    scene = Scene(config([PhysicalCell("old-node", name="n0")], nodes, x=owning(("old-node", 1))))
    (refused,) = scene.asks(gang("a", "x", 1, cpu=17))
    assert isinstance(refused, Refused)
    text = "No node has 17 CPUs beside such GPUs, the most is 8. Ask for less in each task."
    assert refused.reason.text.endswith(text)


@pytest.mark.parametrize("priority", [0, -1])
@pytest.mark.parametrize(("pods", "is_refused"), [(16, False), (17, True)])
def test_nobody_is_refused_for_a_rounded_share(priority: int, pods: int, is_refused: bool) -> None:
    """A pod wants half of what comes with a GPU."""
    scene = scene_of({"n0": NodeLimits(cpu=8), "n1": NodeLimits(cpu=8)})
    scene.places(gang("busy", "x", 2, pods=2, cpu=8, priority=1))
    decided = scene.asks(gang("waits", "x", 0, pods, cpu=1, priority=priority))
    assert any(isinstance(each, Refused) for each in decided) == is_refused


def test_nobody_is_refused_whose_pods_share_a_gpu() -> None:
    scene = scene_of({"n0": NodeLimits(cpu=8), "n1": NodeLimits(cpu=8)})
    scene.places(gang("busy", "x", 2, pods=2, cpu=8, priority=1))
    wish = gang("waits", "x", 1)
    wish = Gang("waits", "x", "user", 0, (*wish.roles, Role(Kind(0, cpu=1), tuple("abcdefgh"))))
    assert code_of(scene.asks(wish), "waits") == "quota"
    scene.leave("busy")
    assert any(isinstance(each, Placed) for each in scene.cycle())
