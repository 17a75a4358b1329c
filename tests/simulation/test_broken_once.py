"""What the core did against docs/scheduling.md once, each in the smallest cluster that shows it."""

from scenes import Scene, code_of, config, gang, nodes_of, owning, racks
from scheduler.domain.core.config import NodeLimits, PhysicalCell
from scheduler.domain.core.model import (
    Deferred,
    Downgraded,
    Gang,
    Kind,
    Placed,
    Preempted,
    PreemptionCancelled,
    Role,
    Upgraded,
)

MANY_RACKS = racks(20)
"""So many nodes that not every way is tried at first."""


def guest(name: str, gpus: int, *nodes: str, pods: int = 1, ports: int = 0) -> Gang:
    """An opportunistic gang that stays on these nodes."""
    where = frozenset(nodes)
    return gang(name, "x", gpus, pods, priority=-1, allowed_nodes=where, ports=ports)


def test_a_gang_that_leaves_does_not_grow_when_a_pod_that_waits_is_dropped() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("busy", "x", 4, priority=2))
    (place,) = scene.places(gang("a", "x", 1, priority=1))
    scene.core.grow("a", (Role(Kind(4), ("more-0", "more-1")),))
    (waits,) = scene.cycle()
    assert isinstance(waits, Deferred)
    scene.core.drain(place.node)
    scene.cycle()
    scene.leave("busy")
    scene.core.release_pod("a", "more-1")
    assert scene.cycle() == []


def test_a_lazy_gang_in_a_pinned_cell_is_downgraded_where_gpus_are_free() -> None:
    nodes = (PhysicalCell("node", name="n0", pin="lab"), PhysicalCell("node", name="n1"))
    rack = PhysicalCell("rack", name="r0", children=nodes)
    scene = Scene(config(cells=(rack,), nodes={"n0": NodeLimits(cpu=4)}, x=owning(pins=("lab",))))
    scene.places(gang("low", "x", 1, pin="lab", cpu=4, is_lazy=True))
    decided = scene.asks(gang("high", "x", 1, pin="lab", priority=1))
    assert [type(d) for d in decided] == [Downgraded, Placed]


def test_the_cell_that_is_bound_for_one_pod_is_the_one_with_the_nearest_leaves() -> None:
    scene = Scene(config(x=owning(("rack", 2))))
    for name in ("g0", "g1", "g2", "g3"):
        scene.places(guest(name, 1, "n0"))
    scene.places(guest("full", 4, "n1"))
    scene.leave("g0", "g3")
    (place,) = scene.places(gang("a", "x", 2))
    assert (place.node, place.gpus) == ("n2", (0, 1))


def test_a_gang_that_has_its_cells_again_grows_in_the_same_cycle() -> None:
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.places(gang("low", "x", 2, is_lazy=True, allowed_nodes=frozenset({"n0"})))
    scene.places(guest("guest", 2, "n0"))
    scene.asks(gang("high", "x", 4, priority=5))
    scene.core.grow("low", (Role(Kind(2), ("more",)),))
    (waits,) = scene.cycle()
    assert isinstance(waits, Deferred)
    scene.leave("high")
    decided = scene.cycle()
    assert [type(d) for d in decided] == [Upgraded, Preempted, Deferred]
    assert code_of(decided, "low") == "preempting"


def test_pods_by_which_a_gang_grows_that_are_asked_for_twice_are_wanted_once() -> None:
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.places(gang("a", "x", 1))
    scene.places(guest("guest", 3, "n0"))
    for _ in range(2):
        scene.core.grow("a", (Role(Kind(3), ("more",)),))
    assert code_of(scene.cycle(), "a") == "preempting"
    scene.core.set_node_health("n0", False)
    cancelled, waits = scene.cycle()
    assert isinstance(cancelled, PreemptionCancelled)
    assert isinstance(waits, Deferred)
    assert waits.reason.numbers["pods"] == 1


def test_ports_of_a_machine_without_a_range_are_used_up() -> None:
    scene = Scene(config(x=owning()))
    (place,) = scene.places(guest("most", 1, "n0", ports=45_534))
    waits = guest("late", 1, "n0", ports=2, pods=2)
    assert code_of(scene.asks(waits), "late") == "resource"
    assert code_of(scene.asks(guest("bare", 0, "n0", ports=3)), "bare") == "resource"
    (other,) = scene.places(guest("small", 1, "n0", ports=2))
    assert {*other.ports}.isdisjoint(place.ports)
    scene.leave("small", "most")
    assert [type(decision) for decision in scene.cycle()] == [Placed, Placed]


def test_every_way_is_tried_on_many_nodes_too_before_a_gang_waits_or_is_refused() -> None:
    """Two of the pods without GPUs cost the one's leaves, the third the other's."""
    names = ["m0", *(f"n{number}" for number in range(40))]
    nodes = {name: NodeLimits(cpu=2 if name == "m0" else 4) for name in names}
    cells = [*MANY_RACKS, PhysicalCell("k80-node", name="m0")]
    x = owning(("rack/node/switch", 1), ("k80-node", 1))
    scene = Scene(config(cells=cells, nodes=nodes, x=x))
    for name in names:
        scene.core.set_node_health(name, True)
    roles = (Role(Kind(1, ("k80",), cpu=1), ("a0",)), Role(Kind(0, cpu=1), ("b0", "b1", "b2")))
    wish = Gang("g", "x", "user", 0, roles)
    on = [place.node for place in scene.places(wish)]
    assert sorted(on).count("m0") == 2
    scene.leave("g")
    scene.places(guest("guest", 2, "m0"))
    preempted, waits = scene.asks(wish)
    assert isinstance(preempted, Preempted)
    assert code_of([waits], "g") == "preempting"


def test_so_it_does_when_the_node_turns_bad_while_it_waits_for_quota() -> None:
    """Nothing became free that could help it, and its quota is as short as it was."""
    nodes = {name: NodeLimits(cpu=8) for name in ("n0", "n1", "n2", "n3")}
    scene = Scene(config(nodes=nodes, x=owning(), y=owning(("rack/node", 1))))
    only = frozenset({"n0"})
    scene.places(gang("busy", "y", 0, cpu=6, allowed_nodes=only))
    wish = gang("bare", "x", 0, cpu=4, allowed_nodes=only)
    assert code_of(scene.asks(wish), "bare") == "quota"
    scene.core.cordon("n0")
    scene.core.release("busy")
    assert code_of(scene.cycle(), "bare") == "health"


def test_a_pinned_cell_that_is_not_complete_takes_nothing_from_other_cells() -> None:
    """In the first rack a machine has one switch of two."""
    half = PhysicalCell("node", name="n1", children=(PhysicalCell("switch"),))
    nodes = (PhysicalCell("node", name="n0"), half)
    cells = (PhysicalCell("rack", "r0", children=nodes, pin="lab"), racks(2)[1])
    for owned in ("rack", "rack/node", "rack/node/switch"):
        scene = Scene(config(cells=cells, x=owning((owned, 1), pins=("lab",))))
        assert nodes_of(scene.places(gang("own", "x", 2))) == {"n2"}
        assert nodes_of(scene.places(gang("pinned", "x", 2, pods=3, pin="lab"))) == {"n0", "n1"}
