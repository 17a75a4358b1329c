"""What the core did against docs/scheduling.md once, each in the smallest cluster that shows it."""

from scenes import Scene, code_of, config, gang, nodes_of, owning, racks
from scheduler.domain.core.config import CellType, ClusterConfig, NodeLimits, PhysicalCell
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


def test_the_fewest_gpus_of_victims_are_found_among_eight_gangs() -> None:
    """Pod by pod the gangs that have run least would be taken, one for each."""
    scene = Scene(config(x=owning(("rack", 1))))
    for name, node in (("f0", "n0"), ("f1", "n1")):
        scene.places(guest(name, 3, node))
    assert nodes_of(scene.places(guest("both", 1, "n0", "n1", pods=2))) == {"n0", "n1"}
    scene.leave("f0", "f1")
    for number, node in enumerate(("n0", "n1", "n2", "n2", "n3", "n3")):
        scene.places(guest(f"g{number}", 2, node))
    decided = scene.asks(gang("late", "x", 2, pods=2, priority=1))
    assert [d.gang for d in decided if isinstance(d, Preempted)] == ["both"]


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


def test_the_first_gpu_type_counts_more_than_who_is_downgraded() -> None:
    cells = [PhysicalCell("node", name=name) for name in ("n0", "n1")]
    cells += [PhysicalCell("k80-node", name=name) for name in ("m0", "m1")]
    scene = Scene(config(cells=cells, x=owning(("node", 1), ("k80-node", 1))))
    scene.places(gang("small", "x", 1, is_lazy=True, gpu_types=("k80",)))
    scene.places(gang("large", "x", 4, is_lazy=True, gpu_types=("v100",)))
    scene.core.set_gpu_health("m0", 0, False)
    scene.core.set_gpu_health("m0", 1, False)
    wish = gang("late", "x", 2, priority=1, gpu_types=("v100", "k80"))
    downgraded, placed = scene.asks(wish)
    assert downgraded == Downgraded("large", "late")
    assert isinstance(placed, Placed)
    assert nodes_of(placed.pods) == {"n1"}


def test_the_cells_that_are_bound_are_those_with_most_room_where_that_alone_does() -> None:
    """Rack by rack a cell would go to the node that a guest has a part of."""
    scene = Scene(config(x=owning(("rack/node", 2))))
    scene.core.set_node_health("n3", False)
    scene.places(guest("guest", 1, "n0"))
    assert nodes_of(scene.places(gang("a", "x", 1, pods=8))) == {"n1", "n2"}


def test_so_it_is_in_a_cluster_that_is_too_large_to_try_every_way() -> None:
    scene = Scene(config(cells=MANY_RACKS, x=owning(("rack/node", 2))))
    for number in range(40):
        scene.core.set_node_health(f"n{number}", True)
        if number not in (36, 38):
            scene.places(guest(f"g{number}", 1 if number < 36 else 4, f"n{number}"))
    assert nodes_of(scene.places(gang("a", "x", 1, pods=8))) == {"n36", "n38"}


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


def test_a_place_is_found_that_leaves_small_cells_for_where_no_large_one_can_be_bound() -> None:
    """The same leaves bound as two switches leave less than bound as one node."""
    halves = (
        PhysicalCell("node", name=n, children=(PhysicalCell("switch"),)) for n in ("n1", "n2")
    )
    cells = (PhysicalCell("node", name="n0"), *halves, PhysicalCell("node", name="n3"))
    nodes = {name: NodeLimits(resources={}) for name in ("n1", "n2")}
    scene = Scene(config(cells=cells, nodes=nodes, x=owning(("node", 1), ("node/switch", 2))))
    scene.core.set_node_health("n3", False)
    roles = (Role(Kind(2, resources=(("rdma", 1),)), ("a0", "a1")), Role(Kind(2), ("b0", "b1")))
    assert len(scene.places(Gang("g", "x", "user", 0, roles))) == 4


def test_codes_of_many_lines_change_in_the_same_cycles_after_a_restart() -> None:
    """Two GPUs of n3 are bad: 40 wishes would be placed there if all were well, until a gang takes
    the other two. Nothing becomes free, so the reasons are looked at again one by one.
    """
    scene, again = (Scene(config(x=owning(("rack", 2)))) for _ in range(2))
    for one in (scene, again):
        for gpu in (0, 1):
            one.core.set_gpu_health("n3", gpu, False)
    wishes = [gang(f"g{number}", "x", 4, priority=-1, cpu=number) for number in range(40)]
    scene.places(gang("busy", "x", 4, pods=3))
    assert {code_of(scene.asks(wish), wish.id) for wish in wishes} == {"health"}
    again.core.restore(scene.core.exported("busy"), scene.now)
    for wish in reversed(wishes):
        again.core.request(wish, "health")
    again.core.all_tried()
    again.now = scene.now
    decided = []
    for one in (scene, again):
        decided.append([one.asks(gang("small", "x", 2)), *(one.cycle() for _ in range(30))])
    assert repr(decided[0]) == repr(decided[1])
    assert sum(map(len, decided[0])) > 10


def test_a_gang_starts_with_other_ports_where_one_that_leaves_has_the_reserved_ones() -> None:
    nodes = {"n0": NodeLimits(ports=(20_000, 20_003))}
    scene = Scene(config(nodes=nodes, x=owning(("rack", 1))))
    (old,) = scene.places(guest("old", 0, "n0", ports=2))
    scene.core.drain("n0")
    scene.cycle()
    scene.core.uncordon("n0")
    scene.places(guest("victim", 4, "n0"))
    scene.asks(gang("late", "x", 4, priority=1, ports=2, allowed_nodes=frozenset({"n0"})))
    (reserved,) = scene.core.exported("late").places
    assert reserved.ports == old.ports
    scene.leave("victim")
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)
    (place,) = placed.pods
    assert place.gpus == reserved.gpus
    assert len({*place.ports, *old.ports}) == 4


def test_who_takes_a_reservation_starts_at_once_where_gpus_are_free() -> None:
    """The lowest of what was reserved is in use still."""
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("low", "x", 4))
    assert code_of(scene.asks(gang("next", "x", 4, pods=2, priority=5)), "next") == "preempting"
    placed, cancelled, waits = scene.asks(gang("first", "x", 1, priority=7))
    assert isinstance(placed, Placed)
    assert nodes_of(placed.pods) == {"n1"}
    assert cancelled == PreemptionCancelled("next")
    assert code_of([waits], "next") in ("quota", "shape")


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


def test_one_pod_costs_an_own_gang_where_that_is_cheaper_than_a_guest() -> None:
    """Without the own gang another node can be bound."""
    cells = [PhysicalCell("node", name=name) for name in ("n0", "n1")]
    scene = Scene(config(cells=cells, x=owning(("node", 1))))
    scene.places(gang("low", "x", 1, allowed_nodes=frozenset({"n0"})))
    scene.places(guest("guest", 3, "n0"))
    decided = scene.asks(gang("high", "x", 3, priority=5))
    assert [d.gang for d in decided if isinstance(d, Preempted)] == ["low"]


def test_a_gang_without_gpus_waits_for_health_where_a_node_that_is_well_would_do() -> None:
    """Its virtual cluster owns too little for it, but it would run as an opportunistic one."""
    scene = Scene(config(nodes={"n0": NodeLimits(cpu=8)}, x=owning(("rack/node/switch", 1))))
    for node in ("n1", "n2", "n3"):
        scene.core.cordon(node)
    scene.places(gang("own", "x", 2))
    scene.core.set_node_health("n0", False)
    only = frozenset({"n0"})
    wish = gang("bare", "x", 0, cpu=8, allowed_nodes=only)
    assert code_of(scene.asks(wish), "bare") == "health"
    scene.core.set_node_health("n0", True)
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)


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


def test_free_gpus_of_all_trees_of_a_machine_count_for_pods_without_gpus() -> None:
    """n0 has one GPU in one tree and four in another, n1 has two."""
    types = {
        f"{n}-node": CellType(leaf, n, is_node=True) for n, leaf in ((1, "a"), (4, "b"), (2, "a"))
    }
    cells = [PhysicalCell("1-node", name="n0"), PhysicalCell("2-node", name="n1")]
    more = tuple(PhysicalCell("b", index=4 + number) for number in range(4))
    cells.append(PhysicalCell("4-node", name="n0", children=more))
    scene = Scene(ClusterConfig(types, tuple(cells), {}, {"x": owning()}))
    for priority in (-1, 1):
        placed = scene.places(gang(f"bare{priority}", "x", 0, priority=priority))
        assert nodes_of(placed) == {"n1"}


def test_a_pinned_cell_that_is_not_complete_takes_nothing_from_other_cells() -> None:
    """In the first rack a machine has one switch of two."""
    half = PhysicalCell("node", name="n1", children=(PhysicalCell("switch"),))
    nodes = (PhysicalCell("node", name="n0"), half)
    cells = (PhysicalCell("rack", "r0", children=nodes, pin="lab"), racks(2)[1])
    for owned in ("rack", "rack/node", "rack/node/switch"):
        scene = Scene(config(cells=cells, x=owning((owned, 1), pins=("lab",))))
        assert nodes_of(scene.places(gang("own", "x", 2))) == {"n2"}
        assert nodes_of(scene.places(gang("pinned", "x", 2, pods=3, pin="lab"))) == {"n0", "n1"}


def test_a_gang_is_in_the_rack_of_its_group_where_its_pods_must_be_bound_together() -> None:
    """Its quota is one switch; on the tightest node of the rack one with a GPU in use would do for
    its first pod only.
    """
    scene = Scene(config(x=owning(("rack/node/switch", 1))))
    (first,) = scene.places(gang("a", "x", 1, group="g", job="j", is_lazy=True))
    downgraded, placed = scene.asks(gang("b", "x", 1, pods=2, group="g", job="j", priority=1))
    assert isinstance(downgraded, Downgraded)
    assert isinstance(placed, Placed)
    assert nodes_of((first, *placed.pods)) <= {"n0", "n1"}
