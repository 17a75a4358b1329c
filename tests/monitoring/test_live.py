"""Every query of the dashboards and alert rules has data on a Prometheus that scrapes a Muster with
jobs: what asks for nothing looks healthy.
"""

import asyncio
import itertools
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.embedded.broker import EmbeddedBroker
from documents.monitoring.dashboards import DASHBOARDS
from documents.monitoring.plots import Series, plot
from documents.monitoring.rules import GROUPS
from documents.monitoring.spec import Dashboard, Panel, metrics_of
from muster.contracts.topics import Service
from nvml_recording import Recording
from played_agent import played_agent
from real_prometheus import MONITORING, Prometheus
from whole_muster import Muster, a_job, a_muster, eventually, until_there

pytestmark = [pytest.mark.prometheus, pytest.mark.system]

SCRAPE_S = 1
DATA_S = 120.0
FELL_OFF_THE_BUS = 79
"""An Xid."""
POINTS = 100
"""Of a line of a picture."""
NUMBERS = itertools.count()
QUIET = {"__range_s": "15", "__rate_interval": "15s", "__range": "15s"}
"""Grafana's own variables, for a run that is some seconds long."""


def configured(folder: Path, muster: Muster, token: str, played: int) -> None:
    """What an operator does, with a shorter interval."""
    shutil.copytree(MONITORING / "rules", folder / "rules")
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "token").write_text(token)
    (folder / "targets").mkdir()
    targets = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"service": str(service)}
            | ({"node": "node-1"} if service is Service.RUNTIME_AGENT else {}),
        }
        for service, port in muster.ports.items()
    ]
    labels = {"service": "runtime-agent", "node": "node-2"}
    targets.append({"targets": [f"127.0.0.1:{played}"], "labels": labels})
    (folder / "targets/all.yaml").write_text(yaml.safe_dump(targets))


def queries() -> Iterator[tuple[str, str]]:
    """Each panel's query, with everything chosen."""
    for board in DASHBOARDS:
        for panel in board.panels:
            yield f"{board.title}: {panel.title}", chosen(board, panel)


def chosen(board: Dashboard, panel: Panel) -> str:
    query = panel.query
    for variable in board.variables:
        query = query.replace(f'"${variable.name}"', '".+"')
    for name, value in QUIET.items():
        query = query.replace(f"${name}", value)
    return query


def draw(prometheus: Prometheus, begun: float, folder: Path) -> None:
    """Draw the dashboards as they are now."""
    folder.mkdir(exist_ok=True)
    for board in DASHBOARDS:
        answers = []
        for panel in board.panels:
            now = time.time()
            span = (chosen(board, panel), begun, now, max(SCRAPE_S, (now - begun) / POINTS))
            found = prometheus.query_range(*span)
            answers.append(
                [
                    Series(it["metric"], [(float(at), float(value)) for at, value in it["values"]])
                    for it in found
                ]
            )
        (folder / f"{board.uid}.svg").write_text(plot(board, answers))


def selectors() -> Iterator[tuple[str, str]]:
    """Each series that a rule asks for; none is optional on this cluster."""
    for group in GROUPS:
        for rule in group.rules:
            for metric in sorted(metrics_of(rule.expr) - rule.optional.keys()):
                for found in re.findall(rf"\b{metric}\b(?:\{{[^}}]*\}})?", rule.expr):
                    yield f"{rule.name}: {found}", found


async def until_all_have_data(
    muster: Muster, asked: list[tuple[str, str]], has_data: Callable[[str], Awaitable[bool]]
) -> None:
    """Ask each until it has data. Fails with the names of those that have none. Jobs come and fail
    meanwhile: what happened before the first scrape has no rate.
    """
    deadline = time.monotonic() + DATA_S
    while asked and time.monotonic() < deadline:
        await muster.end_of(await muster.submit(a_job(f"fails-{next(NUMBERS)}", "exit 3")))
        asked = [(name, query) for name, query in asked if not await has_data(query)]
    assert not asked, "\n".join(f"{name}\n    {query}" for name, query in asked)


async def answer_well(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A receiver of webhooks."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    await reader.readexactly(int(length.group(1)) if length else 0)
    writer.write(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()
    writer.close()


async def a_busy_cluster(muster: Muster, receiver: str, gate: Path) -> str:
    """A job that runs until the gate is there, and one that waits for it. Who wants to know of a
    failure is notified. Returns the running job.
    """
    subscription = {"events": ["job-failed"], "webhookUrl": receiver}
    made = await muster.call("POST", "/api/v2/alerts/subscriptions", json=subscription)
    assert made.status_code == 201, made.text
    running = await muster.submit(a_job("runs", until_there(gate), gpus=1))
    await eventually(lambda: muster.state(running), lambda state: state == "RUNNING")
    await muster.submit(a_job("waits", "true", gpus=1))
    return running


async def test_every_panel_and_every_rule_has_data_and_a_fatal_xid_is_an_alert(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording = Recording()
    recording.at = 8  # matrix products
    monkeypatch.setitem(sys.modules, "pynvml", recording)
    token = secrets.token_hex(16)
    each: dict[str, dict[str, Any]] = {
        str(service).replace("-", "_"): {"metrics_token": token} for service in Service
    }
    each["runtime_agent"] |= {"fake_gpus": None, "device_look_s": 1.0, "cpu": 64}
    each["rest"] |= {"webhook_key": "key"}
    each["launcher"] |= {"count_jobs_every_s": 1.0}
    each["alerting"] |= {"webhook_key": "key", "webhook_allow_networks": "127.0.0.0/8"}
    folder, gate, begun = tmp_path / "prometheus", tmp_path / "gate", time.time()
    folder.mkdir()
    async with (
        a_muster(database_url, fresh_broker.bootstrap, tmp_path, **each) as muster,
        await asyncio.start_server(answer_well, "127.0.0.1", 0) as receiver,
    ):
        with played_agent("node-2") as played:
            configured(folder, muster, token, played)
            with Prometheus(folder) as prometheus:
                hook = f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/"
                running = await a_busy_cluster(muster, hook, gate)

                async def has_range(query: str) -> bool:
                    span = (query, begun, time.time(), SCRAPE_S)
                    found = await asyncio.to_thread(prometheus.query_range, *span)
                    return any(value != "NaN" for series in found for _, value in series["values"])

                async def has_series(query: str) -> bool:
                    return bool(await asyncio.to_thread(prometheus.query, query))

                await until_all_have_data(muster, list(queries()), has_range)
                await until_all_have_data(muster, list(selectors()), has_series)
                if plots := os.environ.get("MUSTER_PLOTS"):
                    await asyncio.to_thread(draw, prometheus, begun, Path(plots))
                recording.xids.append(FELL_OFF_THE_BUS)
                fires = 'ALERTS{alertname="GpuXidFatal", alertstate="firing"}'
                (alert,) = await eventually(
                    lambda: asyncio.to_thread(prometheus.query, fires), bool, DATA_S
                )
                assert (alert["metric"]["node"], alert["metric"]["gpu"]) == ("node-1", "0")
                groups = (await asyncio.to_thread(prometheus.ask, "rules"))["groups"]
                rules = [rule for group in groups for rule in group["rules"]]
                assert len(rules) >= sum(len(group.rules) for group in GROUPS)
                assert {rule.get("lastError", "") for rule in rules} == {""}
        gate.touch()
        await muster.end_of(running)
