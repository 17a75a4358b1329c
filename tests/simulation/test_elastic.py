"""Elastic gangs: they start with fewer pods, grow into idle cells, and shrink before anybody is
killed.
"""

from scenes import Scene, config, gang, owning
from scheduler.domain.core.config import Policy
from scheduler.domain.core.model import (
    Decision,
    Downgraded,
    Gang,
    GangClass,
    Grown,
    Kind,
    Placed,
    Preempted,
    Reserved,
    Role,
    Shrunk,
    Upgraded,
)


def a_scene(policy: Policy = Policy()) -> Scene:  # noqa: B008  (a frozen value)
    """Four machines of four GPUs, all of one virtual cluster."""
    return Scene(config(policy=policy, x=owning(("rack/node", 4))))


def elastic(name: str, least: int, most: int, **more: object) -> Gang:
    """One that takes whole machines."""
    pods = tuple(f"p{number}" for number in range(most))
    fields: dict[str, object] = {"priority": 0, **more}
    return Gang(name, "x", "user", roles=(Role(Kind(4), pods, "p", least),), **fields)  # type: ignore[arg-type]


def pods_of(decisions: list[Decision], what: type, name: str) -> list[str]:
    """The pods of a gang that such decisions are about."""
    found: list[str] = []
    for each in decisions:
        if isinstance(each, what) and each.gang == name:
            pods = each.pods  # type: ignore[attr-defined]
            found += [pod if isinstance(pod, str) else pod.pod for pod in pods]
    return found


def test_it_starts_whole_where_there_is_room() -> None:
    decided = a_scene().asks(elastic("e", 1, 4))
    assert pods_of(decided, Placed, "e") == ["p0", "p1", "p2", "p3"]


def test_it_starts_with_the_least_and_grows() -> None:
    scene = a_scene()
    scene.asks(gang("half", "x", 4, pods=2))
    decided = scene.asks(elastic("e", 1, 4))
    assert pods_of(decided, Placed, "e") == ["p0"]
    assert pods_of(decided, Grown, "e") == ["p1"]
    scene.leave("half")
    assert pods_of(scene.cycle(), Grown, "e") == ["p2", "p3"]


def of_two_roles() -> Gang:
    """It needs one of its machines, and can do without the role that takes others."""
    roles = (Role(Kind(4), ("main",), "main"), Role(Kind(4), ("w0", "w1"), "w", 0))
    return Gang("e", "x", "user", 0, roles)


def test_a_role_of_which_none_is_needed_starts_with_the_others() -> None:
    assert pods_of(a_scene().asks(of_two_roles()), Placed, "e") == ["main", "w0", "w1"]


def test_a_role_of_which_none_is_needed_is_grown_by() -> None:
    scene = a_scene()
    scene.asks(gang("most", "x", 4, pods=3))
    assert pods_of(scene.asks(of_two_roles()), Placed, "e") == ["main"]
    scene.leave("most")
    assert pods_of(scene.cycle(), Grown, "e") == ["w0", "w1"]


def test_it_shrinks_before_anybody_is_killed() -> None:
    """Even for a gang of a lower priority."""
    scene = a_scene()
    scene.asks(gang("low", "x", 4, priority=0))
    scene.asks(elastic("e", 1, 3, priority=5))
    decided = scene.asks(gang("middle", "x", 4, priority=1))
    assert pods_of(decided, Shrunk, "e") == ["p1"] or pods_of(decided, Shrunk, "e") == ["p2"]
    assert [each for each in decided if isinstance(each, Preempted)] == []
    (shrunk,) = [each for each in decided if isinstance(each, Shrunk)]
    assert (shrunk.for_gang, shrunk.reason.code) == ("middle", "surplus")


def test_what_it_needs_is_not_given_back() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 2, 4))
    decided = scene.asks(gang("three", "x", 4, pods=3))
    assert [each for each in decided if isinstance(each, Shrunk | Placed | Preempted)] == []


def test_what_has_left_may_be_wanted_again() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 4))
    (shrunk,) = [each for each in scene.asks(gang("a", "x", 4)) if isinstance(each, Shrunk)]
    scene.core.release_pod("e", *shrunk.pods)
    assert pods_of(scene.cycle(), Placed, "a") == ["p0"]
    assert scene.core.exported("e").extra  # the others go on


def test_it_grows_where_guests_were() -> None:
    """It had the quota for that before, and none of them had to go for it."""
    scene = Scene(config(x=owning(("rack/node", 3)), y=owning(("rack/node", 1))))
    scene.asks(gang("guest", "y", 4, pods=2, priority=-1))
    assert pods_of(scene.asks(elastic("e", 1, 3)), Grown, "e") == ["p1"]
    assert scene.cycle() == []
    scene.leave("guest")
    assert pods_of(scene.cycle(), Grown, "e") == ["p2"]


def test_it_grows_after_those_that_wait() -> None:
    scene = a_scene()
    scene.asks(gang("half", "x", 4, pods=2), gang("other", "x", 4))
    scene.asks(elastic("e", 1, 3))
    scene.core.request(gang("late", "x", 4, pods=2))
    scene.cycle()
    scene.leave("half")
    decided = scene.cycle()
    assert pods_of(decided, Placed, "late") == ["p0", "p1"]
    assert pods_of(decided, Grown, "e") == []


def test_it_does_not_grow_on_cells_that_are_kept() -> None:
    scene = a_scene(Policy(is_backfilling=True))
    scene.asks(gang("half", "x", 4, pods=2, expected_s=100.0), gang("one", "x", 4, limit_s=50.0))
    scene.asks(elastic("e", 1, 2))
    assert [e for e in scene.asks(gang("large", "x", 4, pods=3)) if isinstance(e, Reserved)]
    scene.leave("one")
    assert pods_of(scene.cycle(), Grown, "e") == []


def test_it_does_not_grow_on_cells_that_are_kept_however_short_it_runs() -> None:
    scene = a_scene(Policy(is_backfilling=True))
    scene.asks(gang("half", "x", 4, pods=2, expected_s=100.0), gang("one", "x", 4, limit_s=50.0))
    scene.asks(elastic("e", 1, 2, expected_s=10.0))
    assert [e for e in scene.asks(gang("large", "x", 4, pods=3)) if isinstance(e, Reserved)]
    scene.leave("one")
    assert pods_of(scene.cycle(), Grown, "e") == []


def test_what_it_has_grown_by_on_kept_cells_it_gives_back_to_nobody_else() -> None:
    scene = a_scene(Policy(is_backfilling=True))
    scene.asks(gang("half", "x", 4, pods=2, expected_s=100.0), elastic("e", 1, 2))
    assert [e for e in scene.asks(gang("large", "x", 4, pods=3)) if isinstance(e, Reserved)]
    decided = scene.asks(gang("small", "x", 4))
    assert [each for each in decided if isinstance(each, Shrunk | Placed)] == []
    scene.leave("half")
    decided = scene.cycle()
    assert [each.for_gang for each in decided if isinstance(each, Shrunk)] == ["large"]


def test_a_gang_that_is_killed_leaves_whole() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 4))
    decided = scene.asks(gang("all", "x", 4, pods=4, priority=1))
    (told,) = [each for each in decided if isinstance(each, Preempted)]
    assert told.gang == "e"
    assert pods_of(decided, Shrunk, "e") == []
    scene.leave("e")
    assert pods_of(scene.cycle(), Placed, "all") == ["p0", "p1", "p2", "p3"]


def test_when_what_it_needed_has_ended_it_needs_what_it_had_grown_by() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 2))
    scene.core.release_pod("e", "p0")
    assert "e" in scene.core.gangs
    decided = scene.asks(gang("all", "x", 4, pods=4))
    assert [each for each in decided if isinstance(each, Shrunk)] == []
    scene.core.release_pod("e", "p1")
    assert "e" not in scene.core.gangs


def test_opportunistic_gangs_are_elastic_too() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 4, priority=-1))
    decided = scene.asks(gang("one", "x", 4))
    assert len(pods_of(decided, Shrunk, "e")) == 1
    assert [each for each in decided if isinstance(each, Preempted)] == []


def test_pods_that_leave_are_not_counted_as_gangs() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 4))
    scene.asks(gang("late", "x", 4, pods=2))
    reason = scene.core.questions.reason_of("late")
    assert (reason.numbers["victims"], reason.numbers["surplusPods"]) == (0, 2)
    assert reason.text == "It starts when 2 pods of 1 elastic gang have left, by 32 at the latest."


def test_gangs_and_pods_that_leave_are_told_apart() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 2))
    scene.asks(gang("low", "x", 4, pods=2))
    scene.asks(gang("late", "x", 4, pods=3, priority=5))
    reason = scene.core.questions.reason_of("late")
    assert (reason.numbers["victims"], reason.numbers["surplusPods"]) == (1, 1)
    assert reason.text == (
        "It starts when 1 gang and 1 pod of 1 elastic gang have left, by 33 at the latest."
    )


def test_one_gang_that_leaves_with_its_surplus_is_one() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 3, 4))
    scene.asks(gang("late", "x", 4, pods=4, priority=5))
    reason = scene.core.questions.reason_of("late")
    assert reason.text == "It starts when 1 gang has left, by 32 at the latest."


def test_a_gang_that_would_rather_lose_its_cells_loses_those_of_its_surplus_too() -> None:
    """Its rack is another's then, which has the idle one."""
    scene = Scene(config(policy=Policy(is_lazy=True), x=owning(("rack", 1)), y=owning(("rack", 1))))
    scene.asks(elastic("e", 1, 2))
    decided = scene.asks(gang("high", "x", 4, pods=2, priority=1))
    assert [type(each) for each in decided] == [Downgraded, Placed]
    assert [each.gang_class for each in scene.core.exported("e").extra] == [GangClass.DOWNGRADED]
    scene.leave("high")
    assert [type(each) for each in scene.cycle()] == [Upgraded]
    assert [each.gang_class for each in scene.core.exported("e").extra] == [GangClass.GUARANTEED]
    assert scene.core.drifts() == []


def test_who_is_left_with_pods_that_leave_does_not_grow() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 4, allowed_nodes=frozenset({"n0", "n1"})))
    scene.places(gang("other", "x", 4, pods=2))
    decided = scene.asks(gang("first", "x", 4, priority=1, allowed_nodes=frozenset({"n0", "n1"})))
    (leaves,) = pods_of(decided, Shrunk, "e")
    (stays,) = {"p0", "p1"} - {leaves}
    scene.core.release_pod("e", stays)
    assert pods_of(scene.cycle(), Grown, "e") == []
    scene.core.release_pod("e", leaves)
    assert pods_of(scene.cycle(), Placed, "first") == ["p0"]
