"""What must hold at rest: all parts agree, secrets are nowhere, nothing flows."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.process import free_port
from everywhere import everything_in_the_database, everything_on_the_bus, files_below
from muster.contracts.topics import Service
from muster.service_keys import SCHEDULER, service_key
from plain_http import NO_TLS
from service_auth import ServiceAuth
from whole_muster import PASSWORD, Muster, a_job, a_muster, eventually

pytestmark = pytest.mark.system

MARKER = "marker-f3a91c"


async def test_at_rest_all_parts_agree_on_the_gpus_of_each_pod(muster: Muster) -> None:
    names = [await muster.submit(a_job(f"long-{n}", "exec sleep 600", gpus=2)) for n in range(3)]
    for name in names:
        await eventually(lambda name=name: muster.state(name), lambda s: s == "RUNNING")
    await eventually(muster.unsettled, lambda count: count == 0)
    pool = muster.runtimes[Service.REST].pool
    placed = {
        row["pod"]: sorted(row["gpus"])
        for row in await pool.fetch("SELECT pod, gpus FROM scheduler.placement WHERE is_wanted")
    }
    wanted = {
        pod["pod"]
        for row in await pool.fetch("SELECT request FROM scheduler.gang")
        for pod in _json(row["request"])["pods"]
    }
    details = [await muster.job(name) for name in names]
    shown = {
        task["taskUid"]: bin(int(task["containerGpus"])).count("1")
        for detail in details
        for role in detail["taskRoles"].values()
        for task in role["taskStatuses"]
    }
    await eventually(lambda: _reported(muster), lambda reported: reported == placed)
    assert set(placed) == wanted
    assert shown == {pod: len(gpus) for pod, gpus in placed.items()}
    memory = await _scheduler_nodes(muster)
    assert sum(node["gpusFree"] for node in memory) == 2


async def _reported(muster: Muster) -> dict[str, list[int]]:
    """The GPUs of each pod, as its node reports."""
    nodes = (await muster.call("GET", "/api/v2/cluster/nodes")).json()["nodes"]
    reported: dict[str, list[int]] = {}
    for gpu in (gpu for node in nodes for gpu in node["gpus"] if gpu.get("pod")):
        reported.setdefault(gpu["pod"], []).append(gpu["index"])
    return {pod: sorted(gpus) for pod, gpus in reported.items()}


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


async def _scheduler_nodes(muster: Muster) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{muster.ports[Service.SCHEDULER]}/nodes"
    auth = ServiceAuth(SCHEDULER, muster.cluster_key)
    async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=NO_TLS) as client:
        answer = await client.get(url, auth=auth)
    found = answer.json()["nodes"]
    assert isinstance(found, list)
    return found


async def test_passwords_and_keys_are_in_no_topic_table_or_log(
    muster: Muster, fresh_broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    name = await muster.submit(a_job("plain"))
    assert await muster.end_of(name) == "SUCCEEDED"
    await muster.call(
        "POST", "/api/v2/users", json={"username": "eve", "password": MARKER, "email": "e@x.org"}
    )
    await eventually(muster.unsettled, lambda count: count == 0)
    secrets = [MARKER, PASSWORD, muster.token, muster.cluster_key]
    secrets.append(service_key(muster.cluster_key, SCHEDULER))
    places = {
        "the bus": (await everything_on_the_bus(fresh_broker.bootstrap)).decode(errors="replace"),
        "the database": await everything_in_the_database(muster),
        "the journal": files_below(muster.home / "agent"),
        "the logs": "".join(capfd.readouterr()),
    }
    found = [(place, s[:6]) for place, text in places.items() for s in secrets if s in text]
    assert found == []


async def test_a_get_at_any_replica_shows_the_write(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path) as muster:
        first = muster.ports[Service.REST]
        one = muster.runtimes.pop(Service.REST), muster.stacks.pop(Service.REST)
        muster.ports[Service.REST] = free_port()
        await muster.start(Service.REST)
        second = muster.ports[Service.REST]
        for turn in range(5):
            muster.ports[Service.REST] = (first, second)[turn % 2]
            name = await muster.submit(a_job(f"j{turn}", "sleep 5"))
            muster.ports[Service.REST] = (second, first)[turn % 2]
            assert (await muster.job(name))["name"] == f"j{turn}"
            await muster.call("PUT", f"/api/v2/jobs/{name}/executionType", json={"value": "STOP"})
            muster.ports[Service.REST] = (first, second)[turn % 2]
            assert (await muster.job(name))["jobStatus"]["executionType"] == "STOP"
        await one[1].aclose()
