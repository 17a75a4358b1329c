"""Preemption, drain and virtual clusters through all five services."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.embedded.broker import EmbeddedBroker
from muster.contracts.topics import Service
from scheduler_watched import until
from whole_muster import Muster, a_job, a_muster, eventually, with_cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

QUICK = {"stop_grace_s": 2.0, "retry_backoff_first_s": 0.1}
ON_TERM = (
    'trap "until test -e {gate}; do sleep 0.1; done; exit 0" TERM; touch {gate}.awaited;'
    " while true; do sleep 0.1; done"
)

CLUSTER = """
cellTypes:
  node: {child: simulated, count: 4, node: true}
physicalCells:
  - {type: node, name: node-1}
nodes: {node-1: {cpu: 64}}
virtualClusters:
  default: {cells: [{type: node/simulated, count: 1}]}
  lab: {cells: [{type: node/simulated, count: 3}]}
policy: {graceSeconds: 20}
"""


def a_job_of(name: str, command: str, gpus: int, priority: int, **more: Any) -> str:
    """A job file with a priority."""
    text = a_job(name, command, gpus=gpus, **more)
    return text + f"extras: {{muster: {{priority: {priority}}}}}\n"


async def gang_of(muster: Muster, name: str) -> dict[str, Any]:
    """The Scheduler's answer about the job's only gang."""
    answer = await muster.call("GET", f"/api/v2/jobs/{name}/why")
    found = answer.json() if answer.status_code == 200 else {}
    return found if isinstance(found, dict) else {}


def long_at_first(folder: Path) -> str:
    """A command that runs until it is stopped, and ends at once when it is run again."""
    return f"test -e {folder}/ran && exit 0; touch {folder}/ran; sleep 600"


async def preempting(muster: Muster) -> list[dict[str, Any]]:
    """The rows of gangs that are preempted or have a nominated placement."""
    rows = await muster.runtimes[Service.REST].pool.fetch(
        "SELECT gang, preempted_for, nominated FROM scheduler.gang"
        " WHERE preempted_until IS NOT NULL OR nominated <> '[]'"
    )
    return [dict(row) for row in rows]


async def test_a_preempted_opportunistic_job_runs_again_at_no_cost(
    muster: Muster, tmp_path: Path
) -> None:
    victim = await muster.submit(a_job_of("victim", long_at_first(tmp_path), 6, -1))
    await eventually(lambda: muster.state(victim), lambda s: s == "RUNNING")
    await until((tmp_path / "ran").exists)
    owner = await muster.submit(a_job_of("owner", "sleep 2", 8, 10))
    assert await muster.end_of(owner) == "SUCCEEDED"
    assert await muster.end_of(victim) == "SUCCEEDED"
    status = (await muster.job(victim))["jobStatus"]
    assert status["retryDetails"]["user"] == 0
    assert status["attemptId"] == 1
    assert (await muster.job(owner))["jobStatus"]["attemptId"] == 0
    await eventually(muster.unsettled, lambda count: count == 0)


@pytest.mark.parametrize("away", [Service.SCHEDULER, Service.LAUNCHER])
async def test_a_restart_amid_a_preemption_changes_nothing(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path, away: Service
) -> None:
    """The victim takes its time; the preemption and its cause are known afterwards."""
    gate = tmp_path / "gate"
    async with a_muster(
        database_url,
        fresh_broker.bootstrap,
        tmp_path,
        launcher={"stop_grace_s": 20.0, "retry_backoff_first_s": 0.1},
    ) as muster:
        slow = ON_TERM.format(gate=gate)
        victim = await muster.submit(a_job_of("victim", slow, 6, -1))
        await eventually(lambda: muster.state(victim), lambda s: s == "RUNNING")
        await until((tmp_path / "gate.awaited").exists)
        other = await muster.submit(a_job_of("other", "sleep 600", 2, 10))
        await eventually(lambda: muster.state(other), lambda s: s == "RUNNING")
        owner = await muster.submit(a_job_of("owner", "sleep 600", 6, 10))
        before = await eventually(lambda: preempting(muster), lambda rows: len(rows) == 2)
        await muster.stop(away)
        assert await preempting(muster) == before
        await muster.start(away)
        gate.touch()
        await eventually(lambda: muster.state(owner), lambda s: s == "RUNNING")
        assert await muster.state(other) == "RUNNING"
        assert (await muster.job(other))["jobStatus"]["attemptId"] == 0
        assert (await muster.job(owner))["jobStatus"]["attemptId"] == 0
        rows = await muster.runtimes[Service.REST].pool.fetch(
            "SELECT node, gpu, count(*) FROM scheduler.held_gpu GROUP BY node, gpu"
        )
        assert sorted(row["gpu"] for row in rows) == list(range(8))


async def test_a_drained_nodes_jobs_leave_and_come_again_when_it_may_be_used(
    muster: Muster, tmp_path: Path
) -> None:
    name = await muster.submit(a_job("long", long_at_first(tmp_path), gpus=4))
    await eventually(lambda: muster.state(name), lambda s: s == "RUNNING")
    await until((tmp_path / "ran").exists)
    answer = await muster.call("PUT", "/api/v2/cluster/nodes/node-1/order", json={"value": "drain"})
    assert answer.status_code in (200, 202), answer.text
    await eventually(lambda: muster.state(name), lambda s: s == "WAITING")
    why = await eventually(
        lambda: gang_of(muster, name), lambda found: "health" in json.dumps(found)
    )
    assert why
    assert (await muster.job(name))["jobStatus"]["retryDetails"]["user"] == 0
    await muster.call("PUT", "/api/v2/cluster/nodes/node-1/order", json={"value": "none"})
    assert await muster.end_of(name) == "SUCCEEDED"


async def test_a_virtual_cluster_gets_back_what_others_borrow(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with with_cluster(database_url, bootstrap, tmp_path, CLUSTER, launcher=QUICK) as muster:
        await eventually(
            lambda: muster.call("GET", "/api/v2/virtual-clusters"),
            lambda r: r.status_code == 200 and set(r.json()) == {"default", "lab"},
        )
        victim = await muster.submit(a_job_of("victim", "sleep 600", 3, -1))
        await eventually(lambda: muster.state(victim), lambda s: s == "RUNNING")
        lab = a_job_of("lab", "sleep 1", 3, 10) + "defaults: {virtualCluster: lab}\n"
        owner = await muster.submit(lab)
        assert await muster.end_of(owner) == "SUCCEEDED"
        await eventually(lambda: muster.state(victim), lambda s: s == "RUNNING")
        too_many = await muster.submit(a_job_of("greedy", "true", 2, 10))
        assert await muster.end_of(too_many) == "FAILED"
        shown = (await muster.call("GET", "/api/v2/virtual-clusters")).json()
        assert shown["lab"]["gpus"] == {
            "quota": 3,
            "guaranteed": 0,
            "opportunistic": 0,
            "free": 3,
            "usable": 3,
            "lent": 0,
            "borrowed": 0,
        }
        assert shown["default"]["gpus"]["opportunistic"] == 3
