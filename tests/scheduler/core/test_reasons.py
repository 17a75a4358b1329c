"""What a gang is told: whom it waits for, and what can never be."""

from dataclasses import replace

import pytest
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.config import CellType, ClusterConfig, PhysicalCell, QuotaCells
from scheduler.domain.core.config import VirtualCluster as Owner
from scheduler.domain.core.cycle import run_cycle
from scheduler.domain.core.model import (
    NO_ONE,
    OPPORTUNISTIC,
    Deferred,
    Gang,
    GangClass,
    Kind,
    Placed,
    PodPlace,
    Reason,
    Refused,
    Restored,
    Role,
)

CONFIG = ClusterConfig(
    cell_types={
        "node": CellType("v100", 2, is_node=True),
        "old-node": CellType("k80", 2, is_node=True),
    },
    physical_cells=(
        PhysicalCell("node", "n0"),
        PhysicalCell("old-node", "k0"),
        PhysicalCell("old-node", "k1", pin="lab"),
    ),
    virtual_clusters={
        "x": Owner((QuotaCells("node", 1), QuotaCells("old-node", 1)), ("lab",)),
        "y": Owner(),
    },
)
ONE = Gang("one", "x", "u", 1, (Role(Kind(2, ("v100",)), ("w-0",)),))


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes whose virtual cluster is x, and a pinned one."""
    return Cluster(CONFIG)


def told(cluster: Cluster, gang: Gang, at: float) -> Reason:
    """Why a gang is not placed."""
    cluster.request(gang)
    (said,) = [each for each in run_cycle(cluster, at) if each.gang == gang.id]
    assert isinstance(said, Deferred | Refused)
    return said.reason


def test_who_takes_what_others_leave_is_told_for_whom_it_waits(cluster: Cluster) -> None:
    cluster.request(replace(ONE, id="guest", priority=-1))
    run_cycle(cluster, 0.0)
    assert told(cluster, ONE, 10.0).numbers["victims"] == 1
    cluster.withdraw("one")
    reason = told(cluster, replace(ONE, id="two"), 20.0)
    assert (reason.code, reason.numbers["victims"], reason.numbers["until"]) == (
        "preempting",
        1,
        40,
    )
    assert reason.text == "It starts when 1 gang has left, by 40 at the latest."


def test_pods_that_ended_are_no_victims(cluster: Cluster) -> None:
    ended = Gang("ended", NO_ONE, NO_ONE, OPPORTUNISTIC, (Role(Kind(2), ("e-0",)),))
    place = PodPlace("e-0", "n0", (0, 1))
    cluster.restore(Restored(ended, (place,), GangClass.OPPORTUNISTIC, (), 0.0, 100.0), 100.0)
    reason = told(cluster, ONE, 200.0)
    assert reason.code == "preempting"
    assert (reason.numbers["victims"], reason.numbers["until"]) == (0, None)
    assert "left" not in reason.text


def test_one_of_its_gpu_types_is_enough_not_to_be_refused(cluster: Cluster) -> None:
    cluster.request(ONE)
    run_cycle(cluster, 0.0)
    either = replace(ONE, id="two", roles=(Role(Kind(2, ("h100", "v100")), ("w-0",)),))
    assert told(cluster, either, 10.0).code == "quota"
    neither = replace(ONE, id="three", roles=(Role(Kind(2, ("h100", "a100")), ("w-0",)),))
    assert told(cluster, neither, 20.0).text == (
        "There is no GPU type h100 or a100; there are k80, v100."
    )


def test_nobody_gets_fewer_ports_than_a_node_can_give(cluster: Cluster) -> None:
    many = replace(ONE, roles=(Role(Kind(2, ("v100",), ports=45_537), ("w-0",)),))
    assert told(cluster, many, 0.0).code == "too-large"
    most = replace(ONE, id="most", roles=(Role(Kind(2, ("v100",), ports=45_536), ("w-0",)),))
    cluster.request(most)
    (placed,) = run_cycle(cluster, 1.0)
    assert isinstance(placed, Placed)
    assert len(placed.pods[0].ports) == 45_536


@pytest.mark.parametrize(
    ("gang", "code"),
    [
        (replace(ONE, virtual_cluster="z"), "unknown-virtual-cluster"),
        (replace(ONE, roles=(Role(Kind(2, ("h100",)), ("w-0",)),)), "unknown-gpu-type"),
        (replace(ONE, roles=(Role(Kind(2, pin="lob"), ("w-0",)),)), "unknown-pin"),
        (
            replace(ONE, virtual_cluster="y", roles=(Role(Kind(2, pin="lab"), ("w-0",)),)),
            "unknown-pin",
        ),
        (replace(ONE, priority=-1, roles=(Role(Kind(2, pin="lab"), ("w-0",)),)), "pin"),
        (replace(ONE, roles=(Role(Kind(2, ("v100",)), ("w-0", "w-1")),)), "too-large"),
        (replace(ONE, allowed_nodes=frozenset({"k0"})), "too-large"),
        (replace(ONE, virtual_cluster="y"), "too-large"),
    ],
)
def test_what_can_never_be_is_refused_with_what_was_wanted(
    cluster: Cluster, gang: Gang, code: str
) -> None:
    reason = told(cluster, gang, 0.0)
    assert reason.code == code
    pods = sum(len(role.pods) for role in gang.roles)
    assert dict(reason.numbers) == {"pods": pods, "gpus": 2 * pods, "cpu": 0, "memoryMB": 0}
