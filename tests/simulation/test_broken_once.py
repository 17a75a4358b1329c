"""What the core did against docs/scheduling.md once, each in the smallest cluster that shows it."""

from scenes import Scene, config, gang, nodes_of, owning
from scheduler.domain.core.model import Deferred, Gang, Kind, Preempted, Role


def guest(name: str, gpus: int, *nodes: str, pods: int = 1) -> Gang:
    """An opportunistic gang that stays on these nodes."""
    return gang(name, "x", gpus, pods, priority=-1, allowed_nodes=frozenset(nodes))


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
