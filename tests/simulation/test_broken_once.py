"""What the core did against docs/scheduling.md once, each in the smallest cluster that shows it."""

from dataclasses import replace

from scenes import Scene, config, gang, owning, reserved_place
from scheduler.domain.core.model import (
    Deferred,
    Kind,
    Placed,
    PreemptionCancelled,
    Refused,
    Role,
)


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


def test_a_restored_reservation_that_can_not_be_kept_is_asked_for_anew() -> None:
    scene = reserved_place()
    late, guest = (scene.core.exported(name) for name in ("late", "guest"))
    again = Scene(config(x=owning(("rack", 1))))
    again.core.restore(replace(late, places=(replace(late.places[0], node="gone"),)), scene.now)
    cancelled, placed = again.cycle()
    assert cancelled == PreemptionCancelled("late")
    assert isinstance(placed, Placed)
    again = Scene(config(x=owning(("rack/node/switch/v100", 1))))
    for one in (late, guest):
        again.core.restore(one, scene.now)
    cancelled, refused = again.cycle()
    assert cancelled == PreemptionCancelled("late")
    assert isinstance(refused, Refused)
