"""When what a pod held is free again; ports."""

from typing import Any

import pytest
from muster.contracts.gangs import PodRelease
from muster.contracts.nodes import PodOnNode
from scheduler.api import clusters
from scheduler.domain.core.model import Deferred, Placed
from scheduler.domain.messages import message_of
from scheduler.domain.nodes import nonsense
from scheduler.domain.rules import Rules
from snapshots import take

Kit = Any


def _one_pod(kit: Kit, **wants: Any) -> Any:
    state = kit.state(kit.report("n0", gpus=1))
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1, **wants)), 0.0, 0.0)
    assert kit.free(state) == 0
    return state


def _released(kit: Kit, revision: int, journal: str = "journal-of-n0") -> Any:
    return kit.gang(
        "g", released=(PodRelease(pod="g-w-0", journal=journal, report_revision=revision),)
    )


def test_a_gpu_is_free_from_the_report_that_the_pods_end_names(kit: Kit) -> None:
    state = _one_pod(kit)
    state.request(_released(kit, 3), 0.0, 0.0)
    state.report(kit.report("n0", gpus=1, revision=2), 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, revision=3), 0.0)
    assert kit.free(state) == 1
    assert state.take_changes().rows.gone == {"g-w-0"}


def test_a_report_that_came_before_the_release_counts(kit: Kit) -> None:
    state = _one_pod(kit)
    state.report(kit.report("n0", gpus=1, holding={"g-w-0": (0,)}, revision=2), 0.0)
    state.report(kit.report("n0", gpus=1, revision=3), 0.0)
    assert kit.free(state) == 0
    state.request(_released(kit, 3), 0.0, 0.0)
    assert kit.free(state) == 1


def test_a_pod_that_is_still_listed_is_not_free(kit: Kit) -> None:
    state = _one_pod(kit)
    state.report(kit.report("n0", gpus=1, holding={"g-w-0": (0,)}, revision=9), 0.0)
    state.request(kit.gang("g"), 0.0, 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, revision=8), 0.0)  # an old one, late
    assert kit.free(state) == 0


def test_another_journal_ends_what_the_former_ran(kit: Kit) -> None:
    state = _one_pod(kit)
    state.request(_released(kit, 99), 0.0, 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, revision=2, journal="new"), 0.0)
    assert kit.free(state) == 1


def test_of_two_journals_the_one_that_the_heartbeat_names_counts(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=1, revision=5))
    state.report(kit.report("n0", gpus=2, revision=2, journal="other"), 0.0)
    assert kit.free(state) == 1
    state.ledger.receive("n0", "other", 0.0)
    assert kit.free(state) == 2


def test_a_lost_nodes_gpus_count_from_the_report_that_names_the_lease(kit: Kit) -> None:
    state = _one_pod(kit)
    assert state.lose("n0", 0.0) == ["g"]
    state.request(kit.gang("g"), 0.0, 0.0)
    assert state.ledger.receive("n0", "", 0.0)
    state.ledger.take_back("n0")
    state.report(kit.report("n0", gpus=1, revision=2), 0.0)
    assert kit.free(state) == 0
    held = {"g-w-0": (0,)}
    state.report(kit.report("n0", gpus=1, revision=3, lease=1, holding=held), 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, revision=4, lease=1), 0.0)
    assert kit.free(state) == 1


def a_pod_and_a_lost_journal(kit: Kit, **more: Any) -> Any:
    """The node's agent has lost its journal while a pod was placed there."""
    state = _one_pod(kit)
    state.report(kit.report("n0", gpus=1, revision=2, journal="new", **more), 1.0)
    return state


def test_pods_that_another_journal_does_not_report_are_lost_and_hold_nothing(kit: Kit) -> None:
    state = a_pod_and_a_lost_journal(kit)
    assert (state.ledger.forgetful, kit.free(state, 1.0)) == ({"n0"}, 0)
    state.take_changes()
    assert state.lose_forgotten("n0", 1.0) == ["g"]
    (pod,) = message_of(state, state.gangs["g"], 1).pods
    assert (pod.state.value, pod.node, pod.journal) == ("lost", "n0", "journal-of-n0")
    assert not state.ledger.nodes["n0"].is_lost
    assert state.take_changes().rows.changed == {"g-w-0"}
    state.request(kit.gang("h", *kit.pods("h", 1, gpus=1), age=1), 2.0, 2.0)
    (waits,) = kit.decide(state, 2.0)  # the GPU is kept for g's next attempt
    assert (waits.gang, waits.reason.code) == ("h", "reservation")
    assert (state.ledger.forgetful, state.lose_forgotten("n0", 3.0)) == (set(), [])
    state.request(kit.gang("g"), 3.0, 3.0)
    assert state.ledger.hold_of("g-w-0") is None
    (placed,) = kit.decide(state, 3.0)
    assert (placed.gang, placed.pods[0].node) == ("h", "n0")
    assert state.ledger.hold_of("h-w-0").placement.journal == "new"


@pytest.mark.parametrize("pods", [(PodOnNode(pod="g-w-0", gpus=(0,)),), ()])
def test_a_pod_that_another_journal_reports_stays(kit: Kit, pods: tuple[PodOnNode, ...]) -> None:
    """Also where only a GPU names it."""
    held = {"holding": {"g-w-0": (0,)}, "pods": pods}
    state = a_pod_and_a_lost_journal(kit, **held)
    assert (state.ledger.forgetful, state.lose_forgotten("n0", 1.0)) == (set(), [])
    state.report(kit.report("n0", gpus=1, revision=3, journal="new"), 2.0)
    assert state.lose_forgotten("n0", 2.0) == ["g"]


def test_a_pod_lives_on_where_its_journal_reports_again(kit: Kit) -> None:
    state = a_pod_and_a_lost_journal(kit)
    state.report(kit.report("n0", gpus=1, revision=3, holding={"g-w-0": (0,)}), 2.0)
    assert (state.ledger.forgetful, state.lose_forgotten("n0", 2.0)) == (set(), [])


def test_a_pod_that_was_lost_with_its_journal_and_runs_all_the_same_is_not_free(kit: Kit) -> None:
    state = a_pod_and_a_lost_journal(kit)
    state.lose_forgotten("n0", 1.0)
    state.report(kit.report("n0", gpus=1, revision=3, holding={"g-w-0": (0,)}), 2.0)
    assert kit.free(state, 2.0) == 0
    assert message_of(state, state.gangs["g"], 1).pods[0].state.value == "lost"


def test_a_new_journal_that_does_not_know_the_lease_yet_frees_nothing_before(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=1))
    state.lose("n0", 0.0)
    state.ledger.take_back("n0")
    state.report(kit.report("n0", gpus=1, revision=2, lease=1), 0.0)
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 0.0, 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, revision=3, journal="new"), 1.0)
    assert state.lose_forgotten("n0", 1.0) == ["g"]
    assert kit.free(state, 1.0) == 0
    state.report(kit.report("n0", gpus=1, revision=4, journal="new", lease=1), 2.0)
    assert kit.free(state, 2.0) == 1


def test_a_lease_is_above_those_that_a_restored_store_has_forgotten(kit: Kit) -> None:
    hour_ms = 3_600_000
    state = kit.state(kit.report("n0", gpus=1, lease=hour_ms))
    state.lose("n0", 0.0, 2 * hour_ms)
    state.ledger.receive("n0", "", 0.0)
    state.ledger.take_back("n0")
    state.report(kit.report("n0", gpus=1, revision=2, lease=hour_ms), 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, revision=3, lease=2 * hour_ms), 0.0)
    assert kit.free(state) == 1


def test_a_lost_pod_that_came_back_holds_its_gpu_though_nobody_wants_it(kit: Kit) -> None:
    state = _one_pod(kit)
    state.lose("n0", 0.0)
    state.ledger.take_back("n0")
    held = {"g-w-0": (0,)}
    state.report(kit.report("n0", gpus=1, revision=2, lease=1, holding=held), 0.0)
    state.request(kit.gang("g"), 0.0, 0.0)
    assert state.ledger.hold_of("g-w-0") is None
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, revision=3, lease=1), 0.0)
    assert kit.free(state) == 1


def test_a_node_that_is_back_takes_nothing_before_it_names_its_lease(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=1))
    state.lose("n0", 0.0)
    state.ledger.take_back("n0")
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 0.0, 0.0)
    state.report(kit.report("n0", gpus=1, revision=2), 0.0)
    (waits,) = kit.decide(state, 0.0)
    assert isinstance(waits, Deferred)
    assert waits.reason.code == "health"
    state.report(kit.report("n0", gpus=1, revision=3, lease=1), 0.0)
    (placed,) = kit.decide(state, 0.0)
    assert isinstance(placed, Placed)
    assert placed.pods[0].gpus == (0,)


def test_what_an_unknown_pod_holds_is_not_free(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=2, holding={"stranger": (1,)}))
    assert kit.free(state) == 1
    state.report(kit.report("n0", gpus=2, revision=2), 0.0)
    assert kit.free(state) == 2


def test_a_node_is_used_only_when_it_has_been_heard(kit: Kit) -> None:
    state = kit.state()
    state.report(kit.report("n0", gpus=2), 0.0)
    assert kit.free(state) == 0
    state.ledger.receive("n0", "", 0.0)
    assert kit.free(state) == 2
    state.report(kit.report("n0", gpus=2, revision=2, is_stopping=True), 0.0)
    assert kit.free(state) == 0


def test_a_strangers_port_is_avoided_for_ten_minutes(kit: Kit) -> None:
    few = {"port_range": (20000, 20003)}
    state = kit.state(kit.report("n0", foreign_ports=(20001,), **few))
    state.request(kit.gang("g", *kit.pods("g", 1, ports={"a": 3})), 0.0, 0.0)
    kit.decide(state, 0.0)
    assert sorted(kit.ports(state, "g-w-0")) == [20000, 20002, 20003]
    state.request(kit.gang("h", *kit.pods("h", 1, ports={"a": 1})), 0.0, 0.0)
    (waits,) = kit.decide(state, 599.0)
    assert isinstance(waits, Deferred)
    kit.decide(state, 600.0)
    assert kit.ports(state, "h-w-0") == (20001,)


def test_a_freed_port_rests_while_others_are_free(kit: Kit) -> None:
    state = kit.state(
        kit.report("n0", port_range=(20000, 20001)), rules=Rules(settle_s=0.0, port_rest_s=60.0)
    )
    used: list[int] = []
    for n in range(3):
        state.request(kit.gang(f"g{n}", *kit.pods(f"g{n}", 1, ports={"a": 1})), n, n)
        kit.decide(state, n)
        used += kit.ports(state, f"g{n}-w-0")
        state.request(kit.gang(f"g{n}"), n, n)
    assert used[0] != used[1]
    assert used[2] in (20000, 20001)


def test_what_an_ended_pod_holds_for_too_long_is_worked_around(kit: Kit) -> None:
    """A gang has its place on a GPU that should be free soon; when it is not, it takes another."""
    rules = Rules(settle_s=0.0, overdue_s=60.0)
    state = kit.state(kit.report("n0", gpus=1), kit.report("n1", gpus=1), rules=rules)
    for name in "ab":
        state.request(kit.gang(name, *kit.pods(name, 1, gpus=1)), 0.0, 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, revision=2, holding={"a-w-0": (0,)}), 1.0)
    state.request(kit.gang("a"), 1.0, 1.0)
    state.request(kit.gang("c", *kit.pods("c", 1, gpus=1), age=1), 1.0, 1.0)
    (waits,) = kit.decide(state, 1.0)
    assert waits.reason.code == "preempting"
    state.request(kit.gang("b"), 2.0, 2.0)
    state.report(kit.report("n1", gpus=1, revision=2), 2.0)
    assert kit.decide(state, 2.0) == []  # it waits for n0 still
    kit.decide(state, 61.0)
    hold = state.ledger.hold_of("c-w-0")
    assert hold is not None
    assert hold.placement.node == "n1"
    assert kit.free(state, 62.0) == 0
    state.report(kit.report("n0", gpus=1, revision=3), 63.0)
    assert kit.free(state, 63.0) == 1


def test_a_pods_gpus_stay_its_own_when_one_of_them_is_gone(kit: Kit) -> None:
    """A GPU falls off the bus, so that the node is another one."""
    state = kit.state(kit.report("n0", gpus=2))
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=2)), 0.0, 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, holding={"g-w-0": (0,)}, revision=2), 0.0)
    state.change(state.file, 1.0)
    state.request(kit.gang("h", *kit.pods("h", 1, gpus=1)), 1.0, 1.0)
    assert not [d for d in kit.decide(state, 1.0) if isinstance(d, Placed)]
    state.request(_released(kit, 3), 2.0, 2.0)
    state.report(kit.report("n0", gpus=1, revision=3), 2.0)
    assert [d.gang for d in kit.decide(state, 2.0) if isinstance(d, Placed)] == ["h"]


@pytest.mark.parametrize("name", ["", "n" * 257, "n\n0", "n\ud800"])
def test_a_name_that_no_file_can_have_is_no_nodes(kit: Kit, name: str) -> None:
    """Else no export that has the node could be read."""
    assert nonsense(kit.report("n" * 256)) is None
    assert "name" in (nonsense(kit.report(name)) or "")


def test_what_an_ended_pod_holds_is_no_gang_of_the_clusters_export(kit: Kit) -> None:
    """However long its name is."""
    pod = f"g-{'w' * 254}"
    state = kit.state(kit.report("n0", gpus=1))
    ask = kit.pods("g", 1, gpus=1)[0].model_copy(update={"pod": pod})
    state.request(kit.gang("g", ask), 0.0, 0.0)
    assert kit.free(state) == 0
    state.report(kit.report("n0", gpus=1, holding={pod: (0,)}, revision=9), 0.0)
    state.request(kit.gang("g"), 0.0, 0.0)
    assert kit.free(state) == 0
    assert list(clusters.export(state, take(state.core), 1.0)["events"]) == []
