"""The service takes what administrators set of virtual clusters and policy: from the bus, while
gangs run, over restarts and by who stands by.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.embedded.process import free_port
from muster.contracts.notices import SettingChanged
from muster.contracts.scheduling import SCHEDULING_SETTING, SchedulingConfig
from muster.service import Runtime
from scheduler_answers import asking
from scheduler_watched import measured, until

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]
RunAnother = Callable[..., AbstractAsyncContextManager[asyncio.subprocess.Process]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
FILE = """\
cellTypes: {node: {child: gpu, count: 2, node: true}}
physicalCells:
  - {type: node, name: n0}
  - {type: node, name: n1}
virtualClusters: {default: {cells: [{type: node, count: 2}]}}
"""


def owning(**nodes: int) -> dict[str, Any]:
    """Virtual clusters with so many nodes each."""
    return {
        "virtualClusters": {
            name: {"cells": [{"type": "node", "count": count}]} for name, count in nodes.items()
        }
    }


async def set_(others: Others, version: int, content: dict[str, Any] | None) -> None:
    """What REST says; None: it was removed."""
    message, revision = None, 100 + version
    if content is not None:
        value = SchedulingConfig(
            version=version, content=content, by="admin", at=datetime(2026, 1, 1, tzinfo=UTC)
        )
        message = SettingChanged(
            setting=SCHEDULING_SETTING,
            revision=revision,
            value=value.model_dump(mode="json", by_alias=True),
        )
    ident = f"rest/setting/{SCHEDULING_SETTING}/{revision}"
    await others.bus.broadcast(
        "settings-changed", SCHEDULING_SETTING, message, event_id=ident, at=0.0
    )


def asked(kit: Kit, name: str, vc: str, **more: Any) -> Any:
    message = kit.gang(name, *kit.pods(name, 1, gpus=2), **more)
    return message.model_copy(update={"virtual_cluster": vc})


def replace_file(path: Path, text: str) -> None:
    """At once, so that nobody reads half of it."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


async def shown(client: httpx2.AsyncClient) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.get("/configuration")).json()
    return answer


async def until_version(client: httpx2.AsyncClient, version: int | None) -> dict[str, Any]:
    """The cluster is made of this version."""
    async with asyncio.timeout(60):
        while (found := await shown(client)).get("version", 0) != version:
            await asyncio.sleep(0.02)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


async def test_what_is_set_is_taken_refused_where_it_cannot_be_and_removed(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    port = free_port()
    async with scheduler(port, cluster_file=file) as runtime, asking(port) as client:
        await others.report(kit.report("n0", gpus=2))
        await others.report(kit.report("n1", gpus=2))
        await others.ask(asked(kit, "a", "default"))
        await others.until(lambda: others.states("a") == ["placed"])
        before = await shown(client)
        assert (before["version"], before["newest"]["revision"]) == (None, None)
        assert before["inForce"]["virtualClusters"] == {
            "default": {"cells": [{"type": "node", "count": 2}], "pins": []}
        }
        await set_(others, 1, owning(default=1, speech=1) | {"policy": {"graceSeconds": 5}})
        found = await until_version(client, 1)
        assert (found["revision"], found["isHonoured"], found["problems"]) == (101, True, [])
        assert found["inForce"]["policy"]["graceSeconds"] == 5
        await others.ask(asked(kit, "b", "speech"))
        await others.until(lambda: others.states("b") == ["placed"])
        assert others.states("a") == ["placed"]
        assert measured(runtime, "configuration_version") == 1
        alone = await client.post("/configuration/check", content="policy: {graceSeconds: 6}\n")
        (warning,) = alone.json()["warnings"]
        assert "leaves out speech, which has gangs (1)" in warning["message"]

        await set_(others, 2, owning(default=3))
        await until(lambda: measured(runtime, "configuration_behind") == 1)
        found = await shown(client)
        assert (found["version"], found["newest"]) == (1, {"revision": 102, "version": 2})
        assert [each["path"] for each in found["problems"]] == [
            "virtualClusters.default.cells[0].count"
        ]
        await set_(others, 3, {"policy": {"graceSeconds": "soon"}})
        async with asyncio.timeout(60):
            while (await shown(client))["problems"][0]["path"] != "policy.graceSeconds":
                await asyncio.sleep(0.02)
        assert (await shown(client))["version"] == 1

        await set_(others, 4, None)
        found = await until_version(client, None)
        assert (found["revision"], found["problems"]) == (104, [])
        assert set(found["inForce"]["virtualClusters"]) == {"default"}
        assert measured(runtime, "configuration_behind") == 0
        assert measured(runtime, "configuration_version") == 0
        assert others.states("a") == others.states("b") == ["placed"]


async def test_a_change_is_in_the_record(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    port = free_port()
    at_once = {"cluster_file": file, "record_wait_s": 0.0}
    async with scheduler(port, **at_once) as runtime, asking(port) as client:
        await until(lambda: measured(runtime, "is_leader") == 1)
        await set_(others, 1, owning(default=1, speech=1))
        await until_version(client, 1)

        async def changes() -> list[dict[str, Any]]:
            answer = await client.get("/export", params={"since": "0"})
            events = [json.loads(line) for line in answer.text.splitlines()[1:]]
            return [each for each in events if each["event"] == "cluster-changed"]

        async with asyncio.timeout(60):
            while not (found := await changes()):
                await asyncio.sleep(0.05)
        assert set(found[-1]["cluster"]["virtualClusters"]) == {"default", "speech"}


async def test_a_restart_has_what_was_taken_whatever_the_bus_has_kept(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    port = free_port()
    async with scheduler(cluster_file=file) as runtime:
        await until(lambda: measured(runtime, "is_leader") == 1)
        await runtime.pool.execute(
            "INSERT INTO configuration (revision, version, content) VALUES (107, 7, $1)",
            json.dumps(owning(speech=2)),
        )
    async with scheduler(port, cluster_file=file) as runtime, asking(port) as client:
        await until(lambda: measured(runtime, "is_leader") == 1)
        found = await shown(client)
        assert (found["version"], found["newest"]["version"]) == (7, 7)
        assert set(found["inForce"]["virtualClusters"]) == {"speech"}
        await set_(others, 8, owning(default=2))
        await until_version(client, 8)
        async with asyncio.timeout(60):
            while await runtime.pool.fetchval("SELECT version FROM configuration") != 8:
                await asyncio.sleep(0.02)
    async with scheduler(port, cluster_file=file) as runtime, asking(port) as client:
        await until(lambda: measured(runtime, "is_leader") == 1)
        assert (await shown(client))["version"] == 8


async def test_a_changed_file_that_is_wrong_is_shown_until_it_is_right(
    scheduler: RunScheduler, file: Path
) -> None:
    port = free_port()
    async with (
        scheduler(port, cluster_file=file, cluster_file_poll_s=0.02) as runtime,
        asking(port) as client,
    ):
        await until(lambda: measured(runtime, "is_leader") == 1)
        assert (await shown(client))["rejectedFile"] is None
        replace_file(file, FILE + "nods: {}\n")
        async with asyncio.timeout(60):
            while (found := (await shown(client))["rejectedFile"]) is None:
                await asyncio.sleep(0.02)
        assert found["problems"] == [f"{file}:6: nods: is unknown; is it `nodes`?"]
        assert datetime.fromisoformat(found["since"])
        replace_file(file, FILE)
        async with asyncio.timeout(60):
            while (await shown(client))["rejectedFile"] is not None:
                await asyncio.sleep(0.02)


async def test_a_start_with_less_hardware_leaves_out_what_is_set_and_refuses_nobody_for_it(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    """The nodes make the cluster; of those that the setting was made for one has not come."""
    port, node = free_port(), "t-2"
    cells = {"speech": {"cells": [{"type": node, "count": 2}]}}
    async with scheduler(port) as runtime, asking(port) as client:
        await until(lambda: measured(runtime, "is_leader") == 1)
        await runtime.pool.execute(
            "INSERT INTO configuration (revision, version, content) VALUES (101, 1, $1)",
            json.dumps({"virtualClusters": cells}),
        )
    async with scheduler(port, settle_s=0.0) as runtime, asking(port) as client:
        await others.report(kit.report("n0", gpus=2))
        await until(lambda: measured(runtime, "is_leader") == 1)
        await others.ask(asked(kit, "a", "speech"))
        await others.until(lambda: others.states("a") == ["waiting"])
        found = await shown(client)
        assert (found["version"], found["isHonoured"]) == (1, False)
        assert found["problems"][0]["path"].startswith("virtualClusters.speech")
        assert measured(runtime, "configuration_behind") == 1
        await others.report(kit.report("n1", gpus=2))
        await others.until(lambda: others.states("a") == ["placed"])
        assert others.decisions["a"].gang_class == "guaranteed"
        assert (await shown(client))["isHonoured"]
        assert measured(runtime, "configuration_behind") == 0


async def test_who_stands_by_follows_it(
    kit: Kit, another_scheduler: RunAnother, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    quick, port = {"cluster_file": file, "remake_share": 1.0}, free_port()
    async with (
        another_scheduler(cluster_file=file, http_port=port) as leader,
        asking(port) as client,
    ):
        await others.report(kit.report("n0", gpus=2))
        await others.report(kit.report("n1", gpus=2))
        await others.ask(asked(kit, "a", "default"))
        await others.until(lambda: others.states("a") == ["placed"])
        async with scheduler(**quick) as standby:
            await until(lambda: measured(standby, "is_warm") == 1)
            await set_(others, 1, owning(default=1, speech=1))
            await until_version(client, 1)
            await others.ask(asked(kit, "b", "speech"))
            await others.until(lambda: others.states("b") == ["placed"])
            await until(lambda: measured(standby, "configuration_version") == 1)
            await until(lambda: measured(standby, "is_warm") == 1)
            leader.kill()
            await others.ask(kit.gang("a"))
            await others.until(lambda: others.is_over("a"))
            await others.report(kit.report("n0", gpus=2, revision=2))
            await others.report(kit.report("n1", gpus=2, revision=2))
            await others.ask(asked(kit, "c", "default"))
            await others.until(lambda: others.states("c") == ["placed"])
            assert others.decisions["c"].epoch == 2
            assert measured(standby, "takeover_seconds_count") == 1
            assert measured(standby, "configuration_version") == 1


async def test_a_text_is_checked_against_the_hardware_and_nothing_is_changed(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    port = free_port()
    small = {"cluster_file": file, "configuration_bytes": 1000}
    async with scheduler(port, **small) as runtime, asking(port) as client:
        await until(lambda: measured(runtime, "is_leader") == 1)
        await others.report(kit.report("n0", gpus=2))
        await others.ask(asked(kit, "a", "default"))
        await others.until(lambda: others.states("a") == ["placed"])

        async def check(text: str) -> dict[str, Any]:
            answer = await client.post("/configuration/check", content=text)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        good = await check("virtualClusters:\n  speech:\n    cells: [{type: node, count: 2}]\n")
        assert (good["content"], good["errors"]) == (owning(speech=2), [])
        (warning,) = good["warnings"]
        assert warning["path"] == "virtualClusters"
        assert "leaves out default, which has gangs (1)" in warning["message"]
        bad = await check("virtualClusters:\n  speech:\n    cells: [{type: node, count: 3}]\n")
        assert bad["content"] is None
        assert [(each["path"], each["line"]) for each in bad["errors"]] == [
            ("virtualClusters.speech.cells[0].count", 3)
        ]
        large = await client.post("/configuration/check", content=b" " * 1001)
        assert large.status_code == 413
        assert (await client.get("/configuration/check")).status_code == 405
        client.auth = None
        assert (await client.post("/configuration/check", content="")).status_code == 401
        assert (await client.get("/configuration")).status_code == 401
