"""Virtual clusters set through REST, down to the job that runs in a new one, and back."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from cli.embedded.broker import EmbeddedBroker
from muster.contracts.topics import Service
from whole_muster import Muster, a_job, eventually, with_cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PATH = "/api/v2/cluster/config"
WAIT_S = 120.0
CLUSTER = """
cellTypes:
  node: {child: simulated, count: 4, node: true}
physicalCells:
  - {type: node, name: node-1}
nodes: {node-1: {cpu: 64}}
virtualClusters:
  default: {cells: [{type: node/simulated, count: 4}]}
"""
CONFIG = """
virtualClusters:
  default: {cells: [{type: node/simulated, count: 2}]}
  speech: {cells: [{type: node/simulated, count: 2}]}
policy: {graceSeconds: 3}
"""


def in_speech(name: str, command: str) -> str:
    return a_job(name, command, gpus=2) + "defaults: {virtualCluster: speech}\n"


async def answered(muster: Muster, method: str, path: str, after: int, **more: Any) -> Any:
    """As soon as it is known what it would have done."""
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = await muster.call(method, path, headers={"If-Match": str(after)}, **more)
            if answer.status_code != 409 or answer.json()["code"] != "WhatIfRunningError":
                return answer


async def changed(muster: Muster, method: str, path: str, after: int, **more: Any) -> Any:
    answer = await answered(muster, method, path, after, **more)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def is_taken(muster: Muster) -> bool:
    scheduler = (await muster.call("GET", PATH)).json()["scheduler"]
    return scheduler is not None and bool(scheduler["isTaken"])


async def submitted(muster: Muster, job: str) -> int:
    return int((await muster.call("POST", "/api/v2/jobs", content=job)).status_code)


async def test_a_job_runs_in_a_new_virtual_cluster_until_that_is_rolled_back(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with with_cluster(database_url, bootstrap, tmp_path, CLUSTER) as muster:

        async def names() -> set[str]:
            return set((await muster.call("GET", "/api/v2/virtual-clusters")).json())

        await eventually(names, lambda found: found == {"default"})
        assert await submitted(muster, in_speech("early", "true")) == 404
        bad = await muster.call(
            "PUT", PATH, content=CONFIG.replace("2", "3"), headers={"If-Match": "0"}
        )
        assert bad.status_code == 400
        assert {each["line"] for each in bad.json()["errors"]} <= {3, 4}
        first = CLUSTER.partition("virtualClusters")
        await changed(muster, "PUT", PATH, 0, content="".join(first[1:]))
        await changed(muster, "PUT", PATH, 1, content=CONFIG)
        await eventually(lambda: is_taken(muster), bool)
        held = await muster.submit(in_speech("held", "sleep 600"))
        await eventually(lambda: muster.state(held), lambda state: state == "RUNNING")

        await muster.stop(Service.SCHEDULER)
        await muster.start(Service.SCHEDULER)
        await eventually(lambda: is_taken(muster), bool)
        assert await names() == {"default", "speech"}

        back = {"version": 1}
        unmeant = await answered(muster, "POST", f"{PATH}/rollback", 2, json=back)
        assert (unmeant.status_code, unmeant.json()["code"]) == (409, "DelaysConfigError")
        assert "no longer starts 1 gang of speech" in unmeant.json()["message"]
        meant = {"json": back | {"acceptDelays": True}}
        await changed(muster, "POST", f"{PATH}/rollback", 2, **meant)
        await eventually(lambda: is_taken(muster), bool)
        await eventually(names, lambda found: found == {"default"})
        assert await muster.state(held) == "RUNNING"
        why = (await muster.call("GET", f"/api/v2/jobs/{held}/why")).json()
        (gang,) = why["scheduler"]["gangs"]
        assert (gang["class"], gang["downgrade"]["gang"]) == ("downgraded", None)

        async def refuses() -> int:
            return await submitted(muster, in_speech("late", "true"))

        await eventually(refuses, lambda status: status == 404, 15.0)
        audit = (await muster.call("GET", "/api/v2/audit")).json()["entries"]
        found = [e["action"] for e in audit if e["action"].startswith("config.")]
        assert found == ["config.rollback", "config.set", "config.set"]


async def released_pods(muster: Muster) -> int:
    """Pods whose end is in the Scheduler's record; it gets there after REST shows the job's end."""
    answer = await muster.call("GET", "/api/v2/cluster/export?since=2026-01-01T00:00:00Z")
    assert answer.status_code == 200, answer.text
    return sum(json.loads(line).get("event") == "pod-released" for line in answer.text.splitlines())


HALF = "virtualClusters: {default: {cells: [{type: node/simulated, count: 2}]}}\n"


async def test_a_change_that_would_have_delayed_recorded_gangs_needs_acceptance(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Four jobs run two at a time; with half of the node one at a time."""
    quick = {"scheduler": {"record_wait_s": 0.0}, "rest": {"config_delay_s": 0.5}}
    bootstrap = fresh_broker.bootstrap
    async with with_cluster(database_url, bootstrap, tmp_path, CLUSTER, **quick) as muster:
        jobs = [await muster.submit(a_job(f"job{n}", "sleep 4", gpus=2)) for n in range(4)]
        for job in jobs:
            await eventually(lambda job=job: muster.state(job), lambda state: state == "SUCCEEDED")
        await eventually(lambda: released_pods(muster), lambda pods: pods == len(jobs))
        refused = await answered(muster, "PUT", PATH, 0, content=HALF)
        assert (refused.status_code, refused.json()["code"]) == (409, "DelaysConfigError")
        (problem,) = refused.json()["errors"]
        assert problem["path"] == "virtualClusters.default"
        assert problem["message"].startswith("This delays 3 gangs of default by ")
        assert (await muster.call("GET", PATH)).json()["version"] == 0

        looked = (await muster.call("POST", f"{PATH}/what-if", content=HALF)).json()
        assert (looked["state"], looked["needsAcceptance"]) == ("done", True)
        assert looked["report"]["recorded"]["asRecorded"] == 4
        assert looked["report"]["all"]["later"]["gangs"] == 3
        made = await changed(muster, "PUT", f"{PATH}?acceptDelays=true", 0, content=HALF)
        assert made["whatIf"]["report"]["text"] == [problem["message"]]
        (entry, *_) = (await muster.call("GET", "/api/v2/audit")).json()["entries"]
        assert entry["detail"]["whatIf"]["text"] == [problem["message"]]
        assert entry["detail"]["whatIf"]["accepted"]
