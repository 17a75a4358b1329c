"""Debian's Alertmanager, configured as the page on alerts says: it makes Muster cordon a node, and
gets Muster's alerts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from cli.embedded.process import free_port
from muster.contracts.nodes import NodeReport, ProblemKind
from real_alertmanager import running_alertmanager

pytestmark = [pytest.mark.prometheus, pytest.mark.postgres, pytest.mark.kafka]

PAGE = Path(__file__).parents[2] / "services/alerting/docs/alerts.md"
TOKEN = "a-token-of-this-test"
RULES = """
actions:
- {name: hot, alerts: [GpuHot], do: cordon, mode: "on"}
"""


@pytest.mark.timeout(240)
async def test_debians_alertmanager_makes_muster_cordon_a_node(
    cluster: Any, with_rest: Callable[..., Any], tmp_path: Path
) -> None:
    async with with_rest(alertmanager_token=TOKEN) as api:
        (await api.admin.put("/api/v2/alerts/rules", content=RULES)).raise_for_status()
        await cluster.publish("node-reported", "gpu-7", report("gpu-7"))
        async with alertmanager(tmp_path, api.url) as sender:
            posted = [{"labels": {"alertname": "GpuHot", "node": "gpu-7", "severity": "critical"}}]
            await until(lambda: ordered(api, "gpu-7"), "ready")
            (await sender.post("/api/v2/alerts", json=posted)).raise_for_status()
            await until(lambda: ordered(api, "gpu-7"), "cordon")
            (routed,) = (await sender.get("/api/v2/alerts")).json()
            assert {it["name"] for it in routed["receivers"]} == {"muster", "operators"}
            firing = {it["name"]: it["source"] for it in await api.alerts(state="firing")}
            assert firing["GpuHot"] == "alertmanager"
            posted[0]["endsAt"] = datetime.now(UTC).isoformat()  # type: ignore[assignment]  # noqa: TID251
            (await sender.post("/api/v2/alerts", json=posted)).raise_for_status()
            await until(lambda: ordered(api, "gpu-7"), "ready")
        await api.until_alerts([], "name", state="firing")


@pytest.mark.timeout(240)
async def test_debians_alertmanager_gets_musters_alerts_and_sends_none_back(
    cluster: Any, with_rest: Callable[..., Any], tmp_path: Path
) -> None:
    port = free_port()
    there = {"alertmanager_urls": f"http://127.0.0.1:{port}", "alertmanager_wait_s": 10.0}
    async with (
        with_rest(alertmanager_token=TOKEN, **there) as api,
        alertmanager(tmp_path, api.url, port) as its,
    ):

        async def listed() -> list[tuple[str, str]]:
            labels = [it["labels"] for it in (await its.get("/api/v2/alerts")).json()]
            return sorted((it["alertname"], it["source"]) for it in labels)

        async def known() -> set[tuple[str, str]]:
            return {(it["name"], it["source"]) for it in await api.alerts()}

        full = {"problem": "Only 1 MB are free.", "problem_kind": ProblemKind.DISK}
        await cluster.publish("node-reported", "gpu-7", report("gpu-7", **full))
        await until(listed, [("NodeDiskFull", "muster/node")])
        other = [{"labels": {"alertname": "Other", "source": "elsewhere"}}]
        (await its.post("/api/v2/alerts", json=other)).raise_for_status()
        await until(known, {("NodeDiskFull", "node"), ("Other", "alertmanager")})
        await cluster.publish("node-reported", "gpu-7", report("gpu-7", revision=2))
        await until(listed, [("Other", "elsewhere")])
        await cluster.publish("node-reported", "gpu-7", report("gpu-7", revision=3, **full))
        await until(listed, [("NodeDiskFull", "muster/node"), ("Other", "elsewhere")])


async def ordered(api: Any, node: str) -> str:
    found = await api.admin.get(f"/api/v2/cluster/nodes/{node}")
    return (found.json()["order"] or "ready") if found.status_code == 200 else "unknown"


async def until(look: Callable[[], Any], wanted: object) -> None:
    found = None
    try:
        async with asyncio.timeout(90):
            while (found := await look()) != wanted:
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"{found}, not {wanted}")


@asynccontextmanager
async def alertmanager(
    folder: Path, rest_url: str, port: int | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """Alertmanager with the page's configuration, but REST's address and short waits."""
    text = PAGE.read_text().split("## Alertmanager")[1].split("```yaml\n")[1].split("```")[0]
    token = folder / "token"
    token.write_text(TOKEN)
    text = text.replace("http://rest:8080", rest_url)
    config = yaml.safe_load(text.replace("/run/secrets/alertmanager-token", str(token)))
    config["route"] |= {"group_wait": "100ms", "group_interval": "200ms"}
    async with running_alertmanager(folder, config, port) as (client, _):
        yield client


def report(node: str, **fields: Any) -> NodeReport:
    return NodeReport(
        node=node,
        journal="j",
        boot="b",
        at=datetime.now(UTC),  # noqa: TID251 - as an agent reports
        address="10.0.0.1",
        version="1",
        cpu=8,
        memory_mb=1024,
        **{"revision": 1, **fields},
    )
