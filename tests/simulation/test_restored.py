"""Gangs that were placed before: what of it they keep after a restart."""

from dataclasses import replace

import pytest
from scenes import Scene, config, gang, owning, reserved_place
from scheduler.domain.core.model import GangClass, Placed, PreemptionCancelled, Refused


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


@pytest.mark.parametrize("gang_class", [GangClass.OPPORTUNISTIC, GangClass.DOWNGRADED])
def test_a_reservation_of_a_gang_without_cells_is_none(gang_class: GangClass) -> None:
    """Nobody has to leave for it, so it could wait for ever."""
    scene = reserved_place()
    late = scene.core.exported("late")
    again = Scene(config(x=owning(("rack", 1))))
    again.core.restore(replace(late, gang_class=gang_class, cells=()), scene.now)
    cancelled, placed = again.cycle()
    assert cancelled == PreemptionCancelled("late")
    assert isinstance(placed, Placed)


def test_who_ends_before_it_is_told_is_not_told() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("a", "x", 4))
    scene.core.change(config(x=owning()), scene.now)
    scene.core.release("a")
    assert scene.cycle() == []
