"""The service with a cluster's file: virtual clusters, preemption, orders, changes; what it tells,
and what of it survives a restart and a change of leader.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli.embedded.process import free_port
from muster.contracts.gangs import PodRelease
from muster.contracts.node_orders import NODE_SETTING
from muster.contracts.notices import SettingChanged
from muster.service import Runtime
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.events import read_events
from scheduler.domain.simulation.run import Simulation
from scheduler_answers import asking
from scheduler_watched import DEADLINE_S, until_alive

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

CLUSTER = """
cellTypes:
  node: {{child: t, count: 2, node: true}}
physicalCells:
  - {{type: node, name: n0}}
  - {{type: node, name: n1}}
virtualClusters:
  default: {{cells: [{{type: node, count: {default}}}]}}
  lab: {{cells: [{{type: node, count: {lab}}}]}}
policy: {{lazyPreemption: {lazy}, graceSeconds: 20}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A cluster of two nodes, one for each virtual cluster."""
    path = tmp_path / "cluster.yaml"
    write(path)
    return path


def write(path: Path, default: int = 1, lab: int = 1, lazy: str = "false") -> None:
    path.write_text(CLUSTER.format(default=default, lab=lab, lazy=lazy))


async def nodes_come(kit: Kit, others: Others) -> None:
    for node in ("n0", "n1"):
        await others.report(kit.report(node, gpus=2))


def wanted(kit: Kit, name: str, count: int, gpus: int, **more: Any) -> Any:
    """A gang's word; ``vc`` is its virtual cluster."""
    vc = more.pop("vc", "default")
    message = kit.gang(name, *kit.pods(name, count, gpus=gpus), **more)
    return message.model_copy(update={"virtual_cluster": vc})


async def give_back(kit: Kit, others: Others, name: str, pods: int) -> None:
    """The Launcher's answer to a preemption; the node's agent has ended the pods by then."""
    ends = tuple(
        PodRelease(pod=f"{name}-w-{n}", journal="journal-of-n0", report_revision=1)
        for n in range(pods)
    )
    await others.ask(kit.gang(name, released=ends))


async def order(others: Others, node: str, what: str, revision: int) -> None:
    value = {"node": node, "order": what, "by": "admin", "at": datetime(2026, 1, 1, tzinfo=UTC)}
    setting = f"{NODE_SETTING}{node}"
    message = SettingChanged(
        setting=setting, revision=revision, value=json.loads(json.dumps(value, default=str))
    )
    await others.bus.broadcast(
        "settings-changed", setting, message, event_id=f"rest/{revision}", at=0.0
    )


async def a_guest_is_preempted(kit: Kit, others: Others) -> None:
    """`guest` runs on what is idle, until `owner` wants what it owns."""
    await nodes_come(kit, others)
    await others.ask(wanted(kit, "guest", 2, 2, priority=-1))
    await others.until(lambda: others.states("guest") == ["placed", "placed"])
    assert others.decisions["guest"].gang_class == "opportunistic"
    await others.ask(wanted(kit, "owner", 1, 2, vc="lab"))
    await others.until(lambda: others.states("guest") == ["preempted", "preempted"])


async def test_a_guest_is_told_to_leave_for_whom_it_is_and_the_owner_starts_when_it_has(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    async with scheduler(cluster_file=file):
        await a_guest_is_preempted(kit, others)
        told = others.decisions["guest"].preemption
        assert (told.gang, told.reason.code) == ("owner", "guarantee")
        assert ("gang-preempted", "guest") in others.topics
        await others.until(lambda: others.states("owner") == ["waiting"])
        assert others.decisions["owner"].reason.code == "preempting"
        await give_back(kit, others, "guest", 2)
        await others.until(lambda: others.states("owner") == ["placed"])
        assert others.decisions["owner"].gang_class == "guaranteed"


async def test_a_restart_amid_a_preemption_goes_on_with_it(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    async with scheduler(cluster_file=file):
        await a_guest_is_preempted(kit, others)
        before = others.decisions["guest"].preemption
    async with scheduler(cluster_file=file) as runtime:
        await until_alive(runtime, 2)
        await others.ask(wanted(kit, "next", 1, 2, age=1))
        await others.until(lambda: others.states("next") == ["waiting"])
        assert others.decisions["guest"].preemption == before
        assert others.decisions["next"].reason.code == "preempting"
        await give_back(kit, others, "guest", 2)
        await others.until(lambda: others.states("owner") == others.states("next") == ["placed"])
        rows = await runtime.pool.fetch("SELECT pod, node FROM placement ORDER BY pod")
        assert {row["pod"] for row in rows} == {"next-w-0", "owner-w-0"}
        assert len({row["node"] for row in rows}) == 2


async def test_lazy_gangs_lose_their_cells_run_on_and_get_them_again(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    """For whom and since when they have none is told as long as that is so."""
    write(file, lazy="true")
    port, before = free_port(), int(time.time())
    async with scheduler(port, cluster_file=file), asking(port) as client:
        await nodes_come(kit, others)
        await others.ask(wanted(kit, "low", 1, 2, priority=1))
        await others.until(lambda: others.states("low") == ["placed"])
        await others.ask(wanted(kit, "high", 1, 2, priority=5))
        await others.until(lambda: others.states("high") == ["placed"])
        await others.until(lambda: others.decisions["low"].gang_class == "downgraded")
        assert others.states("low") == ["placed"]
        told = (await client.get("/gangs/low")).json()["downgrade"]
        assert told["gang"] == "high"
        assert before <= datetime.fromisoformat(told["since"]).timestamp() <= time.time() + 1
        assert (await client.get("/gangs/high")).json()["downgrade"] is None
    async with scheduler(port, cluster_file=file), asking(port) as client:
        await others.ask(wanted(kit, "next", 1, 2, priority=-1))
        await others.until(lambda: others.states("next") == ["waiting"])
        (why,) = (await client.get("/jobs/low/why")).json()["gangs"]
        assert why["downgrade"] == told
        await give_back(kit, others, "high", 1)
        await others.until(lambda: others.decisions["low"].gang_class == "guaranteed")
        assert others.states("low") == ["placed"]
        assert (await client.get("/gangs/low")).json()["downgrade"] is None


async def test_orders_about_nodes_are_heard_from_the_start_and_while_it_runs(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    await order(others, "n0", "cordon", 1)
    async with scheduler(cluster_file=file):
        await nodes_come(kit, others)
        await others.ask(wanted(kit, "a", 1, 2))
        await others.until(lambda: others.states("a") == ["placed"])
        assert others.decisions["a"].pods[0].node == "n1"
        await order(others, "n1", "drain", 1)
        await others.until(lambda: others.states("a") == ["preempted"])
        told = others.decisions["a"].preemption
        assert (told.gang, told.reason.code) == (None, "drain")
        await order(others, "n0", "none", 2)
        await others.ask(wanted(kit, "b", 1, 2))
        await others.until(lambda: others.states("b") == ["placed"])
        assert others.decisions["b"].pods[0].node == "n0"


async def test_the_files_changes_are_taken_while_gangs_run_and_a_bad_one_is_refused(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    async with scheduler(cluster_file=file, cluster_file_poll_s=0.05) as runtime:
        await nodes_come(kit, others)
        await others.ask(wanted(kit, "a", 1, 2))
        await others.until(lambda: others.states("a") == ["placed"])
        await others.ask(wanted(kit, "b", 2, 2))
        await others.until(lambda: others.states("b") == ["refused", "refused"])
        write(file, default=2, lab=1)

        async def counted(outcome: str) -> None:
            name = "muster_scheduler_configurations_total"
            async with asyncio.timeout(60):
                while not runtime.registry.get_sample_value(name, {"outcome": outcome}):
                    await asyncio.sleep(0.02)

        await counted("refused")
        await others.ask(wanted(kit, "c", 1, 2, age=1))
        await others.until(lambda: others.states("c") == ["waiting"])
        write(file, default=2, lab=0)
        await others.until(lambda: others.states("c") == ["placed"])
        write(file, default=0, lab=2)
        await others.until(lambda: {others.decisions[g].gang_class for g in "ac"} == {"downgraded"})
        assert others.states("a") == others.states("c") == ["placed"]


def test_a_bad_file_ends_the_process_with_every_problem(file: Path) -> None:
    file.write_text("cellTypes: {node: {child: t, count: 2, noode: true}}\nphysicalCels: []\n")
    done = subprocess.run(
        [sys.executable, "-m", "scheduler"],
        env=os.environ | {"MUSTER_CLUSTER_FILE": str(file)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    problems = done.stderr.splitlines()
    assert len(problems) == 2
    assert all(line.startswith(f"MUSTER_CLUSTER_FILE: {file}:") for line in problems)
    assert "noode" in done.stderr
    assert "physicalCels" in done.stderr


async def test_virtual_clusters_are_told_and_a_running_system_is_exported(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    port = free_port()
    async with scheduler(port, cluster_file=file) as runtime, asking(port) as client:
        await nodes_come(kit, others)
        await until_alive(runtime, 2)
        await others.ask(wanted(kit, "guest-0", 1, 2, priority=-1))
        await others.until(lambda: others.states("guest-0") == ["placed"])
        await others.ask(wanted(kit, "a-0", 1, 2, priority=20, age=1))
        await others.until(lambda: others.states("a-0") == ["placed"])
        await others.ask(wanted(kit, "b-0", 1, 2, age=2))
        await others.until(lambda: others.states("b-0") == ["waiting"])
        told = (await client.get("/virtual-clusters")).json()
        assert told["gpuTypes"] == ["t"]
        assert told["virtualClusters"]["default"] == {
            "cells": [{"quota": "node", "count": 1, "bound": 1}],
            "pins": [],
            "gpus": {
                "quota": 2,
                "guaranteed": 2,
                "opportunistic": 2,
                "free": 0,
                "usable": 0,
                "lent": 0,
                "borrowed": 0,
            },
            "gpuTypes": ["t"],
        }
        (why,) = (await client.get("/jobs/a-0/why")).json()["gangs"]
        assert (why["class"], why["state"]) == ("guaranteed", "placed")
        assert why["cells"] == [{"cell": why["pods"][0]["node"], "quota": "node"}]
        exported = (await client.get("/export")).json()
    config = read_cluster(json.dumps(exported["cluster"]).encode()).config
    later = exported["events"][-1]["at"] + 60
    ended = [{"at": later, "event": "gang-released", "gang": "a-0"}]
    lines = [json.dumps(each).encode() for each in [*exported["events"], *ended]]
    decisions = [
        (at, type(decision).__name__, decision.gang)
        for at, decision in Simulation(config, lambda _: None).run(read_events(iter(lines)))
    ]
    assert (later, "Placed", "b-0") in decisions
    assert not [each for each in decisions if each[2] in ("a-0", "guest-0")]


async def test_a1_everything_about_gangs_virtual_clusters_and_cells_can_be_asked(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    """What HiveD's inspection tells. Muster has no virtual cells beside the physical ones: what is
    bound to a virtual cluster is asked for by its name. An opportunistic gang has no cells; here it
    is told to leave for another, which HiveD forgets at a restart.
    """
    port = free_port()
    async with scheduler(port, cluster_file=file), asking(port) as client:
        await a_guest_is_preempted(kit, others)
        await others.until(lambda: others.states("owner") == ["waiting"])

        async def told(path: str) -> Any:
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text
            assert answer.json()["asOf"] > 0
            return answer.json()

        await order(others, "n1", "cordon", 1)
        async with asyncio.timeout(DEADLINE_S):
            while (await told("/cells?address=n1"))["cells"][0]["order"] != "cordon":
                await asyncio.sleep(0.02)
        await others.ask(wanted(kit, "next", 1, 1, age=1))
        await others.until(lambda: others.states("next") == ["waiting"])
        gangs = await told("/gangs")
        assert [(gang["gang"], gang["state"]) for gang in gangs["gangs"]] == [
            ("guest", "preempted")
        ]
        guest = await told("/gangs/guest")
        assert (guest["virtualCluster"], guest["priority"]) == ("default", -1)
        assert guest["preemption"]["gang"] == "owner"
        assert {pod["node"]: pod["gpus"] for pod in guest["pods"]} == {"n0": [0, 1], "n1": [0, 1]}
        owner = await told("/gangs/owner")
        (held,) = owner["cells"]
        assert (owner["state"], held["quota"]) == ("waiting", "node")
        clusters = (await told("/virtual-clusters"))["virtualClusters"]
        assert clusters["lab"]["cells"] == [{"quota": "node", "count": 1, "bound": 1}]
        cells = {cell["cell"]: cell for cell in (await told("/cells"))["cells"]}
        assert list(cells) == ["n0", "n1"]
        reserved = cells[held["cell"]]
        assert (reserved["gpusUsed"], reserved["gpusNominated"], reserved["gpusFree"]) == (2, 2, 0)
        assert (reserved["health"], reserved["priority"]) == ("healthy", 10)
        assert reserved["binding"] == held | {"virtualCluster": "lab", "pin": None}
        assert {name: cell["order"] for name, cell in cells.items()} == {"n0": None, "n1": "cordon"}
        (bound,) = (await told("/cells?virtualCluster=lab"))["cells"]
        assert bound == reserved
        top, *gpus = (await told(f"/cells?address={held['cell']}"))["cells"]
        assert top == reserved
        assert [(gpu["cell"], gpu["gpu"]) for gpu in gpus] == [
            (f"{held['cell']}/{index}", index) for index in (0, 1)
        ]
    async with scheduler(port, cluster_file=file) as runtime, asking(port) as client:
        await until_alive(runtime, 2)
        await others.ask(wanted(kit, "again", 1, 1, age=2))
        await others.until(lambda: others.states("again") == ["waiting"])
        (after,) = (await told("/cells?virtualCluster=lab"))["cells"]
        assert after == reserved
