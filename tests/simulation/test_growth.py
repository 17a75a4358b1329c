"""Gangs that grow, and elastic gangs, in the core: all new pods or none; surplus is
what is idle, and leaves before any gang does.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from scenes import config, gang, nodes_of, owning, racks
from scheduler.domain.core.audit import drifts
from scheduler.domain.core.config import ClusterConfig, NodeLimits, Policy
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.model import (
    NO_ONE,
    OPPORTUNISTIC,
    Decision,
    Deferred,
    Gang,
    GangClass,
    Grown,
    Kind,
    Placed,
    PodPlace,
    Preempted,
    PreemptionCancelled,
    Refused,
    Reserved,
    Restored,
    Role,
    Shrunk,
    Upgraded,
)


class Scene:
    """A core to which things happen one by one, audited after every cycle."""

    def __init__(self, configuration: ClusterConfig) -> None:
        self.config = configuration
        self.core = Core(configuration)
        self.now = 0.0

    def cycle(self) -> list[Decision]:
        self.now += 1.0
        decided = self.core.cycle(self.now)
        assert list(drifts(self.core.state, [*self.core.workloads()])) == []
        return decided

    def asks(self, *gangs: Gang) -> list[Decision]:
        for each in gangs:
            self.core.request(each)
        return self.cycle()

    def ends(self, *names: str) -> list[Decision]:
        for name in names:
            self.core.release(name)
        return self.cycle()

    def again(self) -> "Scene":
        """After a restart."""
        fresh = Scene(self.config)
        fresh.now = self.now
        for name in self.core.gangs:
            fresh.core.restore(self.core.exported(name))
            assert fresh.core.exported(name) == self.core.exported(name)
        return fresh


def a_scene(policy: Policy = Policy(), nodes: int = 4) -> Scene:  # noqa: B008  (a frozen value)
    """Four machines of four GPUs, all of one virtual cluster, or fewer of them."""
    return Scene(config(policy=policy, x=owning(("rack/node", nodes))))


def elastic(name: str, least: int, most: int, **more: object) -> Gang:
    """One that takes whole machines."""
    pods = tuple(f"p{number}" for number in range(most))
    fields: dict[str, object] = {"priority": 0, **more}
    return Gang(name, "x", "user", roles=(Role(Kind(4), pods, "p", least),), **fields)  # type: ignore[arg-type]


def more(*pods: str, gpus: int = 4) -> tuple[Role, ...]:
    """Pods that a gang wants beside those that it has."""
    return (Role(Kind(gpus), pods, "more"),)


def about(decided: Iterable[Decision], what: type, name: str) -> list[str]:
    """The pods of a gang that such decisions are about."""
    found: list[str] = []
    for each in decided:
        if type(each) is what and each.gang == name:
            pods: Iterable[str | PodPlace] = getattr(each, "pods", ())
            found += [pod if isinstance(pod, str) else pod.pod for pod in pods]
    return found


def codes(decided: Iterable[Decision], name: str) -> list[str]:
    """Why a gang is told to wait."""
    return [d.reason.code for d in decided if isinstance(d, Deferred) and d.gang == name]


def kinds(decided: Iterable[Decision]) -> list[type]:
    return [type(each) for each in decided]


# Growth.


def test_a_gang_grows_by_all_or_none() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4), gang("other", "x", 4, pods=2))
    scene.core.grow("a", more("q0", "q1"))
    assert codes(scene.cycle(), "a") == ["quota"]
    decided = scene.ends("other")
    assert about(decided, Grown, "a") == ["q0", "q1"]
    assert {place.pod for place in scene.core.exported("a").places} == {"p0", "q0", "q1"}


def test_it_grows_near_its_pods() -> None:
    """Though a lower machine of the other rack is free, and that rack is as full."""
    scene = a_scene()
    scene.asks(gang("f0", "x", 4), gang("f1", "x", 4))
    scene.asks(gang("a", "x", 4))
    scene.core.release("f0")
    scene.core.grow("a", more("q0"))
    scene.cycle()
    assert nodes_of(scene.core.exported("a").places) == {"n2", "n3"}


def a_full_scene(priority: int) -> Scene:
    """``a`` of this priority could grow where ``low`` is."""
    scene = a_scene()
    scene.asks(gang("other", "x", 4, pods=2, priority=3))
    scene.asks(gang("a", "x", 4, priority=priority), gang("low", "x", 4))
    return scene


def test_others_leave_for_what_a_gang_grows_by() -> None:
    scene = a_full_scene(priority=2)
    scene.core.grow("a", more("q0"))
    decided = scene.cycle()
    assert [d.for_gang for d in decided if isinstance(d, Preempted)] == ["a"]
    assert codes(decided, "a") == ["preempting"]
    assert about(scene.ends("low"), Grown, "a") == ["q0"]


def test_what_is_too_large_waits_with_numbers_and_the_gang_runs_on() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4))
    scene.core.grow("a", more("q0", "q1", "q2", "q3", "q4"))
    (told,) = scene.cycle()
    assert isinstance(told, Deferred)
    assert (told.reason.code, told.reason.numbers["gpus"]) == ("quota", 20)
    assert scene.core.exported("a").places
    for pod in ("q1", "q2", "q3", "q4"):
        scene.core.release_pod("a", pod)
    assert about(scene.cycle(), Grown, "a") == ["q0"]


def test_a_wrong_name_is_refused_and_the_gang_runs_on() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4))
    scene.core.grow("a", (Role(Kind(1, ("unheard-of",)), ("q0",)),))
    (refused,) = scene.cycle()
    assert isinstance(refused, Refused)
    assert refused.reason.code == "unknown-gpu-type"
    assert "a" in scene.core.gangs


def test_it_is_withdrawn_with_its_gang() -> None:
    scene = a_scene(nodes=2)
    scene.asks(gang("a", "x", 4, priority=2), gang("low", "x", 4))
    scene.core.grow("a", more("q0"))
    scene.cycle()
    assert scene.ends("a") == []
    assert about(scene.asks(gang("b", "x", 4, pods=2)), Placed, "b") == ["p0", "p1"]


def test_what_is_asked_for_twice_is_wanted_once_and_more_of_it_with_it() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4), gang("other", "x", 4, pods=3))
    for pods in (("q0",), ("q0",), ("q1",)):
        scene.core.grow("a", more(*pods))
    scene.cycle()
    assert about(scene.ends("other"), Grown, "a") == ["q0", "q1"]


def test_a_pod_that_is_wanted_no_more_is_not_waited_for() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4), gang("other", "x", 4, pods=2))
    scene.core.grow("a", more("q0", "q1"))
    scene.cycle()
    scene.core.release_pod("a", "q0")
    assert about(scene.cycle(), Grown, "a") == ["q1"]


def test_a_gang_that_waits_wants_all_at_once() -> None:
    scene = a_scene()
    scene.asks(gang("other", "x", 4, pods=3))
    scene.asks(gang("a", "x", 4, pods=2))
    scene.core.grow("a", more("q0"))
    scene.cycle()
    scene.core.release_pod("other", "p0")
    assert about(scene.cycle(), Placed, "a") == []
    assert about(scene.ends("other"), Placed, "a") == ["p0", "p1", "q0"]


def test_a_gang_that_leaves_does_not_grow() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4))
    node = scene.core.exported("a").places[0].node
    scene.core.grow("a", more("q0", "q1", "q2", "q3"))
    scene.core.nodes.drain(node)
    scene.cycle()
    scene.core.release_pod("a", "q3")
    assert scene.cycle() == []


def test_when_its_pods_have_ended_it_begins_anew_with_what_it_was_to_grow_by() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4), gang("other", "x", 4, pods=3))
    scene.core.grow("a", more("q0", "q1"))
    scene.cycle()
    scene.core.release_pod("a", "p0")
    scene.cycle()
    assert about(scene.ends("other"), Placed, "a") == ["q0", "q1"]
    scene.core.release("a")
    assert not scene.core.gangs


def test_a_pod_is_replaced_by_another() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4, pods=3), gang("other", "x", 4))
    scene.core.release_pod("a", "p1")
    scene.core.grow("a", more("p1-again"))
    assert about(scene.cycle(), Grown, "a") == ["p1-again"]


def test_who_loses_a_reserved_place_to_grow_waits_again() -> None:
    scene = a_full_scene(priority=1)
    scene.core.grow("a", more("q0"))
    scene.cycle()
    decided = scene.asks(gang("high", "x", 4, priority=2))
    assert PreemptionCancelled("a") in decided
    assert about(scene.ends("low"), Placed, "high") == ["p0"]
    assert about(scene.ends("high"), Grown, "a") == ["q0"]


def test_a_gang_that_has_its_cells_again_grows_in_the_same_cycle() -> None:
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.asks(gang("low", "x", 2, is_lazy=True, allowed_nodes=frozenset({"n0"})))
    scene.asks(gang("guest", "x", 2, priority=-1, allowed_nodes=frozenset({"n0"})))
    scene.asks(gang("high", "x", 4, priority=5))
    scene.core.grow("low", more("q0", gpus=2))
    assert codes(scene.cycle(), "low") != []
    decided = scene.ends("high")
    assert kinds(decided)[:2] == [Upgraded, Preempted]
    assert codes(decided, "low") == ["preempting"]


def test_what_a_downgraded_gang_grows_by_is_charged_when_it_has_its_cells_again() -> None:
    scene = Scene(config(x=owning(("rack/node", 2))))
    low = gang("low", "x", 4, is_lazy=True, allowed_nodes=frozenset({"n0", "n1", "n2"}))
    scene.asks(low)
    scene.asks(gang("high", "x", 4, pods=2, priority=5, allowed_nodes=frozenset({"n1", "n3"})))
    assert scene.core.exported("low").gang_class == "downgraded"
    scene.core.grow("low", more("q0"))
    assert about(scene.cycle(), Grown, "low") == ["q0"]
    assert Upgraded("low") in scene.ends("high")
    assert codes(scene.asks(gang("late", "x", 4)), "late") == ["quota"]


# Elastic gangs.


def test_it_starts_whole_where_there_is_room() -> None:
    decided = a_scene().asks(elastic("e", 1, 4))
    assert about(decided, Placed, "e") == ["p0", "p1", "p2", "p3"]
    assert len(decided) == 1


def test_it_starts_with_the_least_and_grows() -> None:
    scene = a_scene()
    scene.asks(gang("half", "x", 4, pods=2))
    decided = scene.asks(elastic("e", 1, 4))
    assert about(decided, Placed, "e") == ["p0"]
    assert about(decided, Grown, "e") == ["p1"]
    assert about(scene.ends("half"), Grown, "e") == ["p2", "p3"]


def test_it_shrinks_before_anybody_is_killed_even_for_a_lower_priority() -> None:
    scene = a_scene()
    scene.asks(gang("low", "x", 4))
    scene.asks(elastic("e", 1, 3, priority=5))
    decided = scene.asks(gang("middle", "x", 4, priority=1))
    (shrunk,) = [each for each in decided if isinstance(each, Shrunk)]
    assert shrunk.pods in (("p1",), ("p2",))
    assert (shrunk.for_gang, shrunk.reason.code) == ("middle", "surplus")
    assert Preempted not in kinds(decided)


def test_what_it_needs_is_not_given_back() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 2, 4))
    decided = scene.asks(gang("three", "x", 4, pods=3))
    assert {Shrunk, Placed, Preempted}.isdisjoint(kinds(decided))


def test_what_has_left_may_be_wanted_again() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 4))
    (shrunk,) = [each for each in scene.asks(gang("a", "x", 4)) if isinstance(each, Shrunk)]
    scene.core.release_pod("e", *shrunk.pods)
    scene.core.want_more("e", more(*shrunk.pods))
    decided = scene.cycle()
    assert about(decided, Placed, "a") == ["p0"]
    assert about(decided, Grown, "e") == []
    assert about(scene.ends("a"), Grown, "e") == list(shrunk.pods)


def test_it_grows_where_guests_were_and_makes_none_leave() -> None:
    scene = Scene(config(x=owning(("rack/node", 3)), y=owning(("rack/node", 1))))
    scene.asks(gang("guest", "y", 4, pods=2, priority=-1))
    assert about(scene.asks(elastic("e", 1, 3)), Grown, "e") == ["p1"]
    assert scene.cycle() == []
    assert about(scene.ends("guest"), Grown, "e") == ["p2"]


def test_it_grows_after_those_that_wait() -> None:
    scene = a_scene()
    scene.asks(gang("half", "x", 4, pods=2), gang("other", "x", 4))
    scene.asks(elastic("e", 1, 3))
    scene.asks(gang("late", "x", 4, pods=2))
    decided = scene.ends("half")
    assert about(decided, Placed, "late") == ["p0", "p1"]
    assert about(decided, Grown, "e") == []


def test_it_does_not_grow_on_reserved_cells_however_short_it_runs() -> None:
    scene = a_scene(Policy(is_backfilling=True))
    scene.asks(gang("half", "x", 4, pods=2, expected_s=100.0), gang("one", "x", 4, limit_s=50.0))
    scene.asks(elastic("e", 1, 2, expected_s=10.0))
    assert Reserved in kinds(scene.asks(gang("large", "x", 4, pods=3)))
    assert about(scene.ends("one"), Grown, "e") == []


def test_it_grows_before_opportunistic_gangs_of_the_same_cycle() -> None:
    scene = a_scene()
    scene.asks(gang("one", "x", 4))
    decided = scene.asks(elastic("e", 1, 4), gang("guest", "x", 4, priority=-1))
    assert about(decided, Grown, "e") == ["p1", "p2"]
    assert about(decided, Placed, "guest") == []


def test_what_it_has_grown_by_on_reserved_cells_it_gives_back_to_nobody_else() -> None:
    scene = a_scene(Policy(is_backfilling=True))
    scene.asks(gang("half", "x", 4, pods=2, expected_s=100.0), elastic("e", 1, 2))
    assert Reserved in kinds(scene.asks(gang("large", "x", 4, pods=3)))
    assert {Shrunk, Placed}.isdisjoint(kinds(scene.asks(gang("small", "x", 4))))
    decided = scene.ends("half")
    assert [each.for_gang for each in decided if isinstance(each, Shrunk)] == ["large"]


def test_a_gang_that_is_preempted_leaves_whole() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 4))
    decided = scene.asks(gang("all", "x", 4, pods=4, priority=1))
    assert [each.gang for each in decided if isinstance(each, Preempted)] == ["e"]
    assert about(decided, Shrunk, "e") == []
    assert about(scene.ends("e"), Placed, "all") == ["p0", "p1", "p2", "p3"]


def test_a_gang_that_is_preempted_for_less_leaves_whole_too() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 2, 4, allowed_nodes=None))
    scene.asks(gang("one", "x", 4, priority=1))
    decided = scene.asks(gang("two", "x", 4, pods=2, priority=1))
    assert [each.gang for each in decided if isinstance(each, Preempted)] == ["e"]
    assert scene.core.exported("e").extra
    assert all(each.preempted_until for each in scene.core.exported("e").extra)


def test_when_what_it_needed_has_ended_it_needs_what_it_had_grown_by() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 2))
    scene.core.release_pod("e", "p0")
    assert "e" in scene.core.gangs
    decided = scene.asks(gang("all", "x", 4, pods=4))
    assert Shrunk not in kinds(decided)
    scene.core.release_pod("e", "p1")
    assert "e" not in scene.core.gangs


def test_opportunistic_gangs_are_elastic_too() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 4, priority=-1))
    decided = scene.asks(gang("one", "x", 4))
    assert len(about(decided, Shrunk, "e")) == 1
    assert Preempted not in kinds(decided)


def test_what_a_drained_node_has_of_it_leaves_alone() -> None:
    scene = a_scene()
    scene.asks(elastic("e", 1, 2))
    kept = scene.core.exported("e")
    (node,) = [place.node for place in kept.places if place.pod == "p1"]
    scene.core.nodes.drain(node)
    (shrunk,) = scene.cycle()
    assert isinstance(shrunk, Shrunk)
    assert (shrunk.pods, shrunk.for_gang) == (("p1",), None)


def test_who_is_left_with_pods_that_leave_does_not_grow() -> None:
    scene = a_scene()
    here = frozenset({"n0", "n1"})
    scene.asks(elastic("e", 1, 4, allowed_nodes=here))
    scene.asks(gang("other", "x", 4, pods=2))
    decided = scene.asks(gang("first", "x", 4, priority=1, allowed_nodes=here))
    (leaves,) = about(decided, Shrunk, "e")
    (stays,) = {"p0", "p1"} - {leaves}
    scene.core.release_pod("e", stays)
    assert about(scene.cycle(), Grown, "e") == []
    scene.core.release_pod("e", leaves)
    assert about(scene.cycle(), Placed, "first") == ["p0"]
    assert "e" not in scene.core.gangs


def test_a_gang_that_leaves_asks_for_no_surplus() -> None:
    scene = a_scene()
    scene.asks(gang("other", "x", 4, pods=3))
    scene.asks(elastic("e", 1, 2))
    (place,) = scene.core.exported("e").places
    scene.core.nodes.drain(place.node)
    assert kinds(scene.cycle()) == [Preempted]
    assert scene.ends("other") == []


def lent(name: str, least: int, most: int) -> Gang:
    return elastic(name, least, most, is_borrowing=True)


def a_lending_scene() -> Scene:
    """``x`` owns one machine, ``y`` two, ``z`` one."""
    one, two = owning(("rack/node", 1)), owning(("rack/node", 2))
    return Scene(config(x=one, y=two, z=one))


def test_it_grows_by_what_others_lend_and_shrinks_first() -> None:
    scene = a_lending_scene()
    decided = scene.asks(lent("e", 1, 3))
    assert [each.lender for each in decided if isinstance(each, Grown)] == ["y", "y"]
    decided = scene.asks(gang("own", "y", 4, pods=2))
    assert len(about(decided, Shrunk, "e")) == 2
    assert Preempted not in kinds(decided)


def test_what_a_gang_on_borrowed_capacity_grows_by_is_of_the_same_lender() -> None:
    scene = a_lending_scene()
    scene.asks(lent("a", 1, 1))
    scene.asks(lent("b", 1, 1))
    scene.core.grow("b", more("q0"))
    (grown,) = scene.cycle()
    assert isinstance(grown, Grown)
    assert grown.lender == "y"
    scene.core.grow("b", more("r0"))
    assert codes(scene.cycle(), "b") == ["quota"]


def test_what_was_lent_comes_home() -> None:
    scene = a_lending_scene()
    scene.asks(gang("busy", "x", 4))
    scene.asks(lent("e", 1, 2))
    assert scene.core.exported("e").lender == "y"
    scene.ends("busy")
    kept = scene.core.exported("e")
    assert kept.lender is None or kept.extra[0].lender is None


def test_what_a_pod_holds_that_has_ended_is_nobodys_until_it_is_free() -> None:
    """What elastic gangs had grown by too: it is taken in as a gang of its own that leaves."""
    scene = a_scene()
    scene.asks(elastic("e", 1, 4))
    (place,) = [each for each in scene.core.exported("e").places if each.pod == "p3"]
    scene.core.release_pod("e", "p3")
    rest = Gang("left", NO_ONE, NO_ONE, OPPORTUNISTIC, (Role(Kind(4), ("p3",)),))
    scene.core.restore(Restored(rest, (place,), GangClass.OPPORTUNISTIC, (), 0.0, 0.0))
    assert kinds(scene.asks(gang("a", "x", 4))) == [Deferred]
    assert about(scene.ends("left"), Placed, "a") == ["p0"]


# After a restart.


@pytest.mark.parametrize("least", [1, 2])
def test_after_a_restart_it_shrinks_and_grows_as_before(least: int) -> None:
    scene = a_scene()
    scene.asks(elastic("e", least, 4))
    fresh = scene.again()
    assert fresh.asks(gang("a", "x", 4)) == scene.asks(gang("a", "x", 4))
    again = scene.again()
    assert again.asks(gang("b", "x", 4)) == scene.asks(gang("b", "x", 4))


def test_after_a_restart_a_place_to_grow_is_still_reserved() -> None:
    scene = a_full_scene(priority=2)
    scene.core.grow("a", more("q0"))
    scene.cycle()
    fresh = scene.again()
    assert fresh.core.exported("a").reserved == ("q0",)
    assert about(fresh.ends("low"), Grown, "a") == ["q0"]


def test_pods_that_a_gang_can_do_without_are_shown_with_its_priority() -> None:
    scene = a_scene(nodes=2)
    scene.asks(elastic("e", 1, 2, priority=10))
    slots = {slot for slot, _, _ in scene.core.cells.free()}
    shown = [scene.core.cells.slot(slot).gangs for slot in slots]
    assert sorted(shown) == [(), (), ((0b1111, 10),), ((0b1111, 10),)]


def test_it_grows_at_once_on_idle_gpus_where_quota_alone_is_wanting() -> None:
    scene = a_scene(nodes=2)
    scene.asks(gang("a", "x", 4, priority=2), gang("low", "x", 4))
    scene.core.grow("a", more("q0"))
    decided = scene.cycle()
    assert kinds(decided) == [Preempted, Grown]
    assert not nodes_of(scene.core.exported("low").places) & nodes_of(
        scene.core.exported("a").places
    )


def test_no_more_surplus_pods_leave_than_have_to() -> None:
    scene = Scene(config(racks(40), x=owning(("rack/node", 80))))
    for n in range(0, 80, 2):
        scene.asks(gang(f"g{n}", "x", 4, allowed_nodes=frozenset({f"n{n}"})))
    scene.asks(elastic("grows", 1, 40))
    decided = scene.asks(gang("asks", "x", 4, pods=2, priority=1))
    assert [d.gang for d in decided if isinstance(d, Preempted)] == []
    assert len([d for d in decided if isinstance(d, Shrunk)]) == 2


def test_who_runs_beside_its_cells_and_grows_by_gpus_gets_cells_at_once() -> None:
    limits = {node: NodeLimits(cpu=8) for node in ("n0", "n1", "n2", "n3")}
    scene = Scene(replace(config(x=owning(("rack/node", 1))), nodes=limits))
    scene.asks(gang("all", "x", 4))
    scene.asks(gang("cpus", "x", 0, cpu=1))
    scene.ends("all")
    scene.core.grow("cpus", (Role(Kind(4), ("more",)),))
    assert kinds(scene.cycle()) == [Grown, Upgraded]


def test_a_new_pod_in_place_of_a_lost_one_has_the_cells_that_are_kept_for_it() -> None:
    scene = Scene(config(x=owning(("rack/node", 2))))
    (starts,) = [e for e in scene.asks(gang("job", "x", 4, pods=2)) if isinstance(e, Placed)]
    scene.asks(gang("waits", "x", 4))
    (node,) = [place.node for place in starts.pods if place.pod == "p0"]
    scene.core.nodes.set_node_health(node, False)
    scene.core.release_pod("job", "p0", is_lost=True)
    assert not any(isinstance(each, Placed) for each in scene.cycle())
    scene.core.grow("job", (Role(Kind(4), ("again",)),))
    (grown,) = [each for each in scene.cycle() if isinstance(each, Grown)]
    assert grown.gang == "job"
