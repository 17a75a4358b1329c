"""When what a pod held is free again; ports."""

from typing import Any

from muster.contracts.gangs import PodRelease
from scheduler.domain.cycle import run_cycle
from scheduler.domain.model import Policy

Kit = Any


def _decide(cluster: Any, now: float) -> Any:
    """The only decision of a cycle."""
    (decision,) = run_cycle(cluster, now)
    return decision


def _one_pod(kit: Kit, **wants: Any) -> Any:
    cluster = kit.cluster(kit.report("n0", gpus=1))
    cluster.request(kit.gang("g", *kit.pods("g", 1, gpus=1, **wants)), 0.0)
    run_cycle(cluster, 0.0)
    assert cluster.free.gpus == 0
    return cluster


def _released(kit: Kit, revision: int, journal: str = "journal-of-n0") -> Any:
    return kit.gang(
        "g", released=(PodRelease(pod="g-w-0", journal=journal, report_revision=revision),)
    )


def test_a_gpu_is_free_from_the_report_that_the_pods_end_names(kit: Kit) -> None:
    cluster = _one_pod(kit)
    cluster.request(_released(kit, 3), 0.0)
    cluster.report(kit.report("n0", gpus=1, revision=2), 0.0)
    assert cluster.free.gpus == 0
    cluster.report(kit.report("n0", gpus=1, revision=3), 0.0)
    assert cluster.free.gpus == 1
    assert cluster.take_changes().gone == {"g-w-0"}


def test_a_report_that_came_before_the_release_counts(kit: Kit) -> None:
    cluster = _one_pod(kit)
    cluster.report(kit.report("n0", gpus=1, holding={"g-w-0": (0,)}, revision=2), 0.0)
    cluster.report(kit.report("n0", gpus=1, revision=3), 0.0)
    assert cluster.free.gpus == 0
    cluster.request(_released(kit, 3), 0.0)
    assert cluster.free.gpus == 1


def test_a_pod_that_is_still_listed_is_not_free(kit: Kit) -> None:
    cluster = _one_pod(kit)
    cluster.report(kit.report("n0", gpus=1, holding={"g-w-0": (0,)}, revision=9), 0.0)
    cluster.request(kit.gang("g"), 0.0)
    assert cluster.free.gpus == 0
    cluster.report(kit.report("n0", gpus=1, revision=8), 0.0)  # an old one, late
    assert cluster.free.gpus == 0


def test_another_journal_ends_what_the_former_ran(kit: Kit) -> None:
    cluster = _one_pod(kit)
    cluster.request(_released(kit, 99), 0.0)
    assert cluster.free.gpus == 0
    cluster.report(kit.report("n0", gpus=1, revision=2, journal="new"), 0.0)
    assert cluster.free.gpus == 1


def test_of_two_journals_the_one_that_the_heartbeat_names_counts(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=1, revision=5))
    cluster.report(kit.report("n0", gpus=2, revision=2, journal="other"), 0.0)
    assert cluster.free.gpus == 1
    cluster.hear("n0", "other", 0.0)
    assert cluster.free.gpus == 2


def test_a_lost_nodes_gpus_count_from_the_report_that_names_the_lease(kit: Kit) -> None:
    cluster = _one_pod(kit)
    assert cluster.lose("n0", 0.0) == ["g"]
    cluster.request(kit.gang("g"), 0.0)
    assert cluster.hear("n0", "", 0.0)
    cluster.take_back("n0")
    cluster.report(kit.report("n0", gpus=1, revision=2), 0.0)
    assert cluster.free.gpus == 0
    held = {"g-w-0": (0,)}
    cluster.report(kit.report("n0", gpus=1, revision=3, lease=1, holding=held), 0.0)
    assert cluster.free.gpus == 0
    cluster.report(kit.report("n0", gpus=1, revision=4, lease=1), 0.0)
    assert cluster.free.gpus == 1


def test_a_lease_is_above_those_that_a_restored_store_has_forgotten(kit: Kit) -> None:
    hour_ms = 3_600_000
    cluster = kit.cluster(kit.report("n0", gpus=1, lease=hour_ms))
    cluster.lose("n0", 0.0, 2 * hour_ms)
    cluster.hear("n0", "", 0.0)
    cluster.take_back("n0")
    cluster.report(kit.report("n0", gpus=1, revision=2, lease=hour_ms), 0.0)
    assert cluster.free.gpus == 0
    cluster.report(kit.report("n0", gpus=1, revision=3, lease=2 * hour_ms), 0.0)
    assert cluster.free.gpus == 1


def test_a_lost_pod_that_came_back_holds_its_gpu_though_nobody_wants_it(kit: Kit) -> None:
    cluster = _one_pod(kit)
    cluster.lose("n0", 0.0)
    cluster.take_back("n0")
    held = {"g-w-0": (0,)}
    cluster.report(kit.report("n0", gpus=1, revision=2, lease=1, holding=held), 0.0)
    cluster.request(kit.gang("g"), 0.0)
    assert cluster.hold_of("g-w-0") is None
    assert cluster.free.gpus == 0
    cluster.report(kit.report("n0", gpus=1, revision=3, lease=1), 0.0)
    assert cluster.free.gpus == 1


def test_a_node_that_is_back_takes_nothing_before_it_names_its_lease(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=1))
    cluster.lose("n0", 0.0)
    cluster.take_back("n0")
    cluster.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 0.0)
    cluster.report(kit.report("n0", gpus=1, revision=2), 0.0)
    assert _decide(cluster, 0.0).reason.code == "health"
    cluster.report(kit.report("n0", gpus=1, revision=3, lease=1), 0.0)
    assert _decide(cluster, 0.0).placements[0].gpus == (0,)


def test_what_an_unknown_pod_holds_is_not_free(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=2, holding={"stranger": (1,)}))
    assert cluster.free.gpus == 1
    cluster.report(kit.report("n0", gpus=2, revision=2), 0.0)
    assert cluster.free.gpus == 2


def test_a_node_is_used_only_when_it_has_been_heard(kit: Kit) -> None:
    cluster = kit.cluster()
    cluster.report(kit.report("n0", gpus=2), 0.0)
    assert cluster.free.gpus == 0
    cluster.hear("n0", "", 0.0)
    assert cluster.free.gpus == 2
    cluster.report(kit.report("n0", gpus=2, revision=2, is_stopping=True), 0.0)
    assert cluster.free.gpus == 0


def test_a_strangers_port_is_avoided_for_ten_minutes(kit: Kit) -> None:
    few = {"port_range": (20000, 20003)}
    cluster = kit.cluster(kit.report("n0", foreign_ports=(20001,), **few))
    cluster.request(kit.gang("g", *kit.pods("g", 1, ports={"a": 3})), 0.0)
    placed = _decide(cluster, 0.0)
    assert sorted(placed.placements[0].port_numbers) == [20000, 20002, 20003]
    cluster.request(kit.gang("h", *kit.pods("h", 1, ports={"a": 1})), 0.0)
    assert _decide(cluster, 599.0).reason.code == "resource"
    assert _decide(cluster, 600.0).placements[0].port_numbers == (20001,)


def test_a_freed_port_rests_while_others_are_free(kit: Kit) -> None:
    cluster = kit.cluster(
        kit.report("n0", port_range=(20000, 20001)), policy=Policy(port_rest_s=60.0)
    )
    used: list[int] = []
    for n in range(3):
        cluster.request(kit.gang(f"g{n}", *kit.pods(f"g{n}", 1, ports={"a": 1})), n)
        used += _decide(cluster, n).placements[0].port_numbers
        cluster.request(kit.gang(f"g{n}"), n)
    assert used[0] != used[1]
    assert used[2] in (20000, 20001)
