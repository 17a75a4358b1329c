"""What the core did against docs/scheduling.md once, each in the smallest cluster that shows it."""

from scenes import Scene, config, gang, owning
from scheduler.domain.core.model import Deferred, Kind, Role


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
