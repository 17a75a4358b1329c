"""Gangs that were placed before: what of it they keep after a restart."""

from dataclasses import replace

from scenes import Scene, config, owning, reserved_place
from scheduler.domain.core.model import Placed, PreemptionCancelled, Refused


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
