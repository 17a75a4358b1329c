"""Of victims with as many GPUs those of the lowest priority leave; of these, those that lose the
least work since it was saved last.
"""

from scenes import Scene, config, gang, owning, racks
from scheduler.domain.core.config import NodeLimits
from scheduler.domain.core.model import Decision, Gang, Preempted


def a_scene(*gangs: Gang) -> Scene:
    """Gangs that began one after the other, a minute apart, on the machines of x."""
    scene = Scene(config(x=owning(("rack/node", 4))))
    for one in gangs:
        scene.now += 59.0
        scene.places(one)
    return scene


def whole(name: str, **more: object) -> Gang:
    """One that takes a machine."""
    return gang(name, "x", 4, **more)


FOUR = [whole(name) for name in "abcd"]


def victims(decisions: list[Decision]) -> list[str]:
    """Who has to leave."""
    return [each.gang for each in decisions if isinstance(each, Preempted)]


def test_who_began_last_leaves_where_nobody_saves_anything() -> None:
    assert victims(a_scene(*FOUR).asks(whole("high", priority=1))) == ["d"]


def test_the_lowest_priority_leaves_whatever_it_loses() -> None:
    scene = a_scene(whole("low"), *(whole(name, priority=20) for name in "bcd"))
    assert victims(scene.asks(whole("high", priority=30))) == ["low"]


def test_as_many_gpus_of_lower_priorities_leave() -> None:
    halves = [gang(f"half{n}", "x", 2, priority=n) for n in (1, 8)]
    scene = a_scene(
        *halves, *(whole(name, priority=n) for name, n in zip("bcd", (4, 5, 6), strict=True))
    )
    assert victims(scene.asks(whole("high", priority=30))) == ["b"]


def test_who_saved_its_work_last_leaves() -> None:
    scene = a_scene(*FOUR)
    scene.core.checkpointed("c", 200.0)
    scene.core.checkpointed("a", 250.0)
    assert victims(scene.asks(whole("high", priority=1))) == ["a"]


def test_what_was_saved_before_it_began_counts_for_nothing() -> None:
    scene = a_scene(*FOUR)
    scene.core.checkpointed("d", 100.0)
    scene.core.checkpointed("c", 100.0)
    assert victims(scene.asks(whole("high", priority=1))) == ["d"]


def test_who_saves_from_time_to_time_has_lost_nothing_then() -> None:
    scene = a_scene(whole("a", checkpoint_s=100.0), *FOUR[1:])
    scene.now = 359.0  # it began at 60
    assert victims(scene.asks(whole("high", priority=1))) == ["a"]


def test_what_it_saves_is_looked_at_when_a_cycle_begins() -> None:
    scene = a_scene(whole("a", checkpoint_s=100.0), *FOUR[1:])
    scene.asks(whole("before", priority=-1))
    scene.now = 269.0  # it saved at 260
    assert victims(scene.asks(whole("high", priority=1))) == ["a"]


def test_the_work_of_all_victims_counts_times_their_gpus() -> None:
    """One has run for long on one GPU; two of the others for less, but on more."""
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("long", "x", 1))
    scene.now = 100.0
    scene.places(gang("three", "x", 3))
    scene.places(gang("two", "x", 2))
    scene.places(gang("other", "x", 2))
    scene.now = 1_000.0
    scene.core.checkpointed("three", 990.0)
    assert sorted(victims(scene.asks(whole("high", priority=1)))) == ["long", "three"]
    # 1 GPU for 1,000 s and 3 for 11 s, against 4 for 900 s: the longest run is not what counts.


def test_what_is_kept_of_a_gang_tells_what_it_saved() -> None:
    scene = a_scene(whole("a", checkpoint_s=100.0), *FOUR[1:])
    scene.core.checkpointed("c", 300.0)
    again = Scene(config(x=owning(("rack/node", 4))))
    for name in "abcd":
        again.core.restore(scene.core.exported(name), 310.0)
    for each in (scene, again):
        each.now = 310.0
        assert victims(each.asks(whole("high", priority=1))) == ["c"]
        assert victims(each.asks(whole("higher", priority=2))) == ["a"]


def test_gangs_without_gpus_leave_where_nobody_with_gpus_has_to() -> None:
    """It costs as much as one GPU, and more than nobody."""
    limits = {"n0": NodeLimits(cpu=8), "n1": NodeLimits(cpu=8)}
    scene = Scene(config(racks(1), limits, x=owning(("rack", 1))))
    only = frozenset({"n0"})
    scene.places(gang("plain", "x", 0, priority=-1, cpu=8, allowed_nodes=only))
    scene.places(gang("busy", "x", 2, priority=-1, cpu=1, allowed_nodes=frozenset({"n1"})))
    asks = gang("asks", "x", 4, pods=1, priority=1, cpu=8)
    assert victims(scene.asks(asks)) == ["plain"]
