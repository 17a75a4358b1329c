"""What is answered to "why": who has to end, with how many pods it would start, who is ahead, when
it is expected; and what came of earlier expectations.
"""

from dataclasses import replace

import pytest
from scenes import Scene, config, gang, owning, racks
from scheduler.domain.core.answers import Answer, answer
from scheduler.domain.core.auditing import audited
from scheduler.domain.core.calibration import LEAST, NEWEST, PRIOR, Calibration
from scheduler.domain.core.config import Policy
from scheduler.domain.core.forecast import COUNTED, KEPT, Expected
from scheduler.domain.core.model import Gang, Kind, Placed, Role, Shrunk

KEEPING = Policy(is_backfilling=True, assumed_s=1_000.0, max_pass_s=500.0)


def a_scene(policy: Policy = Policy()) -> Scene:  # noqa: B008  (a frozen value)
    """Four machines of four GPUs, all of one virtual cluster."""
    return Scene(config(policy=policy, x=owning(("rack/node", 4))))


def a_gang(name: str, machines: int, **more: object) -> Gang:
    """One that takes whole machines."""
    return gang(name, "x", 4, pods=machines, **more)


def why(scene: Scene, name: str) -> Answer:
    """What is answered about a gang."""
    found = answer(scene.core.core, scene.core.gangs[name])
    assert isinstance(found, Answer)
    return found


def ends(scene: Scene, name: str) -> tuple[set[str], float]:
    """Who has to end, and when that is expected."""
    found = why(scene, name).ends
    assert found is not None
    return {other.id for other in found.gangs}, found.at


def expected(scene: Scene, name: str) -> Expected | None:
    """When it starts."""
    core = scene.core.core
    found = core.forecast.expected(core, core.gangs[name])
    assert found is None or isinstance(found, Expected)
    return found


def test_who_may_not_be_made_to_leave_has_to_end() -> None:
    scene = a_scene(Policy(preemptions_per_hour=0))
    scene.asks(a_gang("low", 4, expected_s=50.0))
    scene.asks(a_gang("high", 1, priority=1))
    assert ends(scene, "high") == ({"low"}, 51.0)


def test_who_has_to_end_is_not_made_to_leave_beside_that() -> None:
    """Of a budget of one it may have one of the two that it needs."""
    scene = Scene(config(policy=Policy(preemptions_per_hour=1), x=owning(("rack/node", 4))))
    scene.asks(*(gang(name, "x", 4) for name in "abcd"))
    scene.asks(gang("high", "x", 4, pods=2, priority=1))
    assert ends(scene, "high")[0] == {"a"}


def test_who_has_a_reservation_and_is_protected_as_soon_as_it_starts_has_to_end_too() -> None:
    scene = Scene(config(racks(1), policy=Policy(min_run_s=100.0), x=owning(("rack/node", 1))))
    elastic = replace(gang("grows", "x", 2, priority=1), roles=(Role(Kind(2), ("a", "b"), "a", 1),))
    scene.asks(elastic)
    assert isinstance(scene.asks(gang("low", "x", 2))[0], Shrunk)
    scene.asks(gang("high", "x", 2, pods=2, priority=2))
    assert ends(scene, "high")[0] == {"grows", "low"}
    scene.leave("grows")
    (started,) = [each for each in scene.cycle() if isinstance(each, Placed)]
    assert started.gang == "low"


def test_who_has_to_end_is_thought_away_once_where_a_budget_is_too_small() -> None:
    scene = Scene(config(policy=Policy(preemptions_per_hour=1), x=owning(("rack/node", 2))))
    scene.asks(*(gang(f"low{number}", "x", 2, expected_s=50.0) for number in range(3)))
    scene.asks(gang("high", "x", 2, pods=4, priority=1))
    gangs, at = ends(scene, "high")
    assert (len(gangs), at) == (2, 51.0)  # one more may leave for it
    assert audited(scene.core.core) == []


def test_it_starts_when_the_fewest_have_ended_and_no_others_are_named() -> None:
    scene = a_scene()
    scene.asks(
        a_gang("short", 1, expected_s=50.0),
        gang("tiny", "x", 1, expected_s=10.0),
        a_gang("long", 2, expected_s=100.0),
    )
    scene.asks(a_gang("waits", 2))
    # tiny ends first and leaves a whole machine, short the other one.
    assert ends(scene, "waits") == ({"short", "tiny"}, 51.0)
    scene.asks(a_gang("larger", 4))
    assert ends(scene, "larger") == ({"short", "tiny", "long"}, 101.0)


def test_who_ends_sooner_and_does_not_help_is_not_named() -> None:
    scene = Scene(config(x=owning(("rack/node", 2))))
    scene.asks(gang("pair", "x", 2, expected_s=10.0), a_gang("whole", 1, expected_s=20.0))
    scene.asks(gang("rest", "x", 2, expected_s=99.0))
    scene.asks(a_gang("waits", 1))
    assert ends(scene, "waits") == ({"whole"}, 21.0)


def test_a_gang_that_could_start_but_for_those_before_it_waits_for_nobody_else() -> None:
    scene = a_scene(KEEPING)
    scene.asks(a_gang("half", 2, expected_s=100.0))
    scene.asks(a_gang("large", 4))
    scene.asks(a_gang("small", 1))
    assert ends(scene, "small") == (set(), scene.now)


def test_with_fewer_pods_it_would_start_now() -> None:
    scene = a_scene()
    scene.asks(a_gang("one", 1))
    scene.asks(a_gang("waits", 4))
    fewer = why(scene, "waits").fewer
    assert fewer is not None
    assert (fewer.pods, fewer.wanted) == (3, 4)
    scene.asks(a_gang("rest", 3))
    assert why(scene, "waits").fewer is None


def test_with_fewer_it_does_not_start_before_one_for_which_others_leave_already() -> None:
    scene = a_scene(Policy(is_strict=True))
    half = frozenset({"n0", "n1"})
    scene.places(a_gang("guest", 2, priority=-1, allowed_nodes=half))
    scene.asks(a_gang("first", 2, allowed_nodes=half))
    scene.asks(a_gang("second", 3))
    assert why(scene, "second").fewer is None


def test_without_a_guarantee_it_would_start_on_idle_cells_of_others() -> None:
    scene = Scene(config(x=owning(("rack", 1)), y=owning(("rack", 1))))
    scene.asks(a_gang("own", 2))
    scene.asks(a_gang("waits", 2))
    assert why(scene, "waits").is_opportunistic is True
    scene.asks(gang("other", "y", 4, pods=2))
    assert why(scene, "waits").is_opportunistic is False


def test_the_nodes_that_would_have_to_be_well_are_named() -> None:
    scene = a_scene()
    for node in ("n1", "n2", "n3"):
        scene.core.set_node_health(node, False)
    scene.asks(a_gang("waits", 2))
    assert why(scene, "waits").nodes == ("n1",)


def test_who_is_ahead_is_counted_and_named() -> None:
    scene = a_scene()
    scene.asks(a_gang("all", 4))
    scene.asks(
        a_gang("first", 1, submitted_at=1.0),
        a_gang("second", 2, submitted_at=2.0),
        a_gang("guest", 1, submitted_at=0.0, priority=-1),
        a_gang("third", 1, submitted_at=3.0),
    )
    core = scene.core.core
    ahead = core.forecast.ahead(core, core.gangs["third"])
    assert ahead is not None
    assert (ahead.position, ahead.waiting, ahead.gpus) == (3, 3, 12)
    assert [each for each, _ in ahead.first] == ["first", "second"]


def test_those_that_wait_are_expected_one_after_the_other() -> None:
    scene = a_scene()
    scene.asks(a_gang("all", 4, expected_s=100.0))
    scene.asks(
        *(a_gang(f"w{n}", 3, submitted_at=float(n), expected_s=50.0) for n in range(3)),
        a_gang("never", 5, submitted_at=9.0),
    )
    starts = [expected(scene, f"w{n}") for n in range(3)]
    assert [(each.at, each.source) for each in starts if each] == [
        (101.0, KEPT),
        (151.0, COUNTED),
        (201.0, COUNTED),
    ]
    assert expected(scene, "all") is None


@pytest.mark.parametrize("asked", [(2, 0, 1), (1, 2, 0), (2, 2, 2)])
def test_what_is_expected_does_not_depend_on_who_was_asked_about_before(
    asked: tuple[int, ...],
) -> None:
    scene = a_scene()
    scene.asks(a_gang("all", 4, expected_s=100.0))
    scene.asks(*(a_gang(f"w{n}", 3, submitted_at=float(n), expected_s=50.0) for n in range(3)))
    found = [expected(scene, f"w{n}") for n in asked]
    assert [each and each.at for each in found] == [101.0 + 50.0 * n for n in asked]
    scene.leave("w0")
    scene.cycle()
    second = expected(scene, "w1")
    assert second is not None
    assert second.at == 101.0


def test_a_gang_for_which_cells_are_kept_is_expected_when_these_are_free() -> None:
    scene = a_scene(KEEPING)
    scene.asks(a_gang("half", 2, expected_s=100.0))
    scene.asks(a_gang("large", 4))
    found = expected(scene, "large")
    assert found is not None
    assert (found.at, found.source, found.error) == (101.0, KEPT, None)


def test_what_came_of_expectations_scales_the_next_ones() -> None:
    scene = a_scene()
    for number in range(LEAST):
        name = f"runs{number}"
        scene.asks(a_gang(name, 4, expected_s=100.0))
        scene.asks(a_gang(f"waits{number}", 4))
        assert expected(scene, f"waits{number}") is not None
        scene.now += 48.0
        scene.leave(name)
        scene.cycle()  # it waited for 49 s; 99 were expected
        scene.leave(f"waits{number}")
    scene.asks(a_gang("runs", 4, expected_s=100.0))
    scene.asks(a_gang("waits", 4))
    found = expected(scene, "waits")
    assert found is not None
    scale = (49 / 99) ** (LEAST / (LEAST + PRIOR))
    assert found.at == pytest.approx(scene.now + 99.0 * scale)
    assert found.error == pytest.approx(1 - 49 / 99 / scale)
    assert found.known == LEAST
    scene.now += 30.0
    scene.cycle()
    later = expected(scene, "waits")
    assert later is not None
    assert later.at == found.at, "it does not move with the clock"
    scene.now = found.at + 1.0
    scene.cycle()
    late = expected(scene, "waits")
    assert late is not None
    assert late.at > scene.now, "what was scaled has passed"


def test_the_newest_waits_count() -> None:
    calibration = Calibration()
    for _ in range(NEWEST):
        calibration.note("x", 10.0, 10.0)
    assert calibration.factor("y") == 1.0
    for waited_s in (5.0, 20.0, 40.0) * NEWEST:
        calibration.note("x", 10.0, waited_s)
    scale = 2.0 ** (NEWEST / (NEWEST + PRIOR))
    assert (calibration.known("x"), calibration.factor("x")) == (NEWEST, scale)
    assert calibration.error("x") == pytest.approx(1 - 0.5 / scale)


def test_in_the_midst_of_a_cycle_nothing_is_tried() -> None:
    scene = a_scene()
    scene.asks(a_gang("all", 4))
    scene.asks(a_gang("waits", 4))
    scene.core.core.under_way = iter(())
    found = why(scene, "waits")
    assert found.ends is None
    assert "ends" in found.left_out
