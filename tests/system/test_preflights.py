"""Nodes that are cordoned or drained are tested, and come back, through all five services."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nvml_double
import pynvml
import pytest
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.process import free_port
from muster.contracts.topics import Service
from preflight_rules import repairing
from whole_muster import Muster, a_job, a_muster, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ORDER = "/api/v2/cluster/nodes/node-1/order"


async def order(muster: Muster, value: str) -> None:
    answer = await muster.call("PUT", ORDER, json={"value": value})
    assert answer.status_code == 202, answer.text


async def test_only_a_job_that_tests_a_drained_node_runs_there(muster: Muster) -> None:
    await order(muster, "drain")
    plain = await muster.submit(a_job("plain", gpus=1))

    async def reason() -> Any:
        return (await muster.job(plain))["jobStatus"].get("reason") or {}

    await eventually(reason, lambda it: it.get("code") == "health")
    text = {"Content-Type": "text/yaml"}
    asked = {"content": a_job("test", gpus=8), "headers": text}
    elsewhere = await muster.call("POST", "/api/v2/jobs?node=node-9", **asked)
    assert elsewhere.status_code == 404, elsewhere.text
    tested = await muster.call("POST", "/api/v2/jobs?node=node-1", **asked)
    assert tested.status_code == 202, tested.text
    assert await muster.end_of(tested.json()["name"]) == "SUCCEEDED"
    assert await muster.state(plain) == "WAITING"
    await order(muster, "none")
    assert await muster.end_of(plain) == "SUCCEEDED"
    await eventually(muster.unsettled, lambda count: count == 0)


EXAMPLE = Path(__file__).parents[2] / "examples/run_on_alert.py"
CARDS: dict[str, Any] = {"cards": {"GPU-a": None, "GPU-b": None}}
LOST = {"errors": {"GPU-b": pynvml.NVML_ERROR_GPU_IS_LOST}}
RULES = repairing(
    """
- {name: quarantine, alerts: [GpuMissing], do: cordon, mode: "on"}
- {name: empty, alerts: [GpuMissing], do: drain, mode: "on"}
- {name: reset, alerts: [GpuMissing], do: remediate, timeoutSeconds: 600, mode: "on"}
""",
    alert="GpuMissing",
    command="test $PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX = 0",
)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the GPU driver of agents without simulated GPUs answers."""
    script = tmp_path / "driver.json"
    play(script, CARDS)
    for name in vars(nvml_double.Driver):
        if name.startswith("nvml"):
            monkeypatch.setattr(pynvml, name, getattr(pynvml, name))
    nvml_double.install(script)
    return script


def play(driver: Path, script: dict[str, Any]) -> None:
    """From the driver's next call on."""
    written = driver.with_suffix(".new")
    written.write_text(json.dumps(script))
    written.replace(driver)


@asynccontextmanager
async def second_node(muster: Muster, home: Path) -> AsyncIterator[None]:
    """One more agent, whose GPUs are simulated."""
    service = Service.RUNTIME_AGENT
    first = muster.stacks.pop(service)
    muster.ports.pop(service)
    other = {"node": "node-2", "agent_home": home / "agent-2", "fake_gpus": 2}
    muster.settings[service] = muster.settings[service] | other
    await muster.start(service)
    try:
        yield
    finally:
        await first.aclose()


async def the_script(muster: Muster, command: str) -> asyncio.subprocess.Process:
    """The operator's receiver, which is subscribed to remediations."""
    address = f"127.0.0.1:{free_port()}"
    body = {"events": ["remediation-requested"], "webhookUrl": f"http://{address}/"}
    made = await muster.call("POST", "/api/v2/alerts/subscriptions", json=body)
    assert made.status_code == 201, made.text
    keys = {"MUSTER_HOOK_SECRET": made.json()["secrets"][0]}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLE), address, "sh", "-c", command),
        env=os.environ | keys | {"MUSTER_URL": muster.url},
    )


async def test_a_gpu_that_falls_off_is_remediated_and_its_node_comes_back(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path, driver: Path
) -> None:
    play(tmp_path / "fixed.json", CARDS)
    alerting = {
        "alert_timer_poll_s": 0.2,
        "order_settles_s": 0.5,
        "webhook_key": "key",
        "webhook_allow_networks": "127.0.0.0/8",
    }
    agent = {"fake_gpus": 0, "device_look_s": 0.1}
    settings = {"alerting": alerting, "runtime_agent": agent, "rest": {"webhook_key": "key"}}
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path, **settings) as muster:
        command = f"cat > {tmp_path}/got; mv {tmp_path}/fixed.json {driver}; echo GPU 1 was reset"
        script = await the_script(muster, command)
        answer = await muster.call("PUT", "/api/v2/alerts/rules", content=RULES)
        assert answer.status_code == 202, answer.text
        ran = tmp_path / "ran"
        busy = await muster.submit(
            a_job("busy", f"test -e {ran} || (touch {ran}; sleep 600)", gpus=1)
        )
        await eventually(lambda: muster.state(busy), lambda s: s == "RUNNING")
        async with second_node(muster, tmp_path):
            play(driver, CARDS | LOST)

            async def actions() -> dict[str, Any]:
                answer = await muster.call("GET", "/api/v2/alerts/actions")
                found = answer.json().get("actions", ())  # it may be busy for a moment
                return {it["rule"]: (it["state"], it["reason"]) for it in found}

            last = await eventually(actions, lambda it: it.get("back", ("",))[0] == "done")
            assert last["reset"] == ("done", "GPU 1 was reset")
            assert (last["quarantine"][0], last["empty"][0]) == ("undone", "undone")
            assert await muster.end_of(busy) == "SUCCEEDED"  # on the other node
            assert (await muster.job(busy))["jobStatus"]["retryDetails"]["user"] == 0
            gpu_s = "SELECT (status #>> '{gpuTime,refundedS}')::float8 FROM job WHERE name = 'busy'"
            assert await muster.runtimes[Service.REST].pool.fetchval(gpu_s) > 0
            node = (await muster.call("GET", "/api/v2/cluster/nodes/node-1")).json()
            assert node["order"] is None
            jobs = {it["name"]: it for it in (await muster.call("GET", "/api/v2/jobs")).json()}
            (test,) = [it for name, it in jobs.items() if name.startswith("preflight-node-1")]
            assert (test["state"], test["totalGpuNumber"]) == ("SUCCEEDED", 2)
            told = json.loads((tmp_path / "got").read_text())
            assert (told["node"], told["name"]) == ("node-1", "GpuMissing")
            entries = (await muster.call("GET", "/api/v2/audit")).json()["entries"]
            script.kill()
            await script.wait()
    done = {(it["username"], it["action"]) for it in entries if it["object"] == "node-1"}
    assert {
        ("(alerting)", "node.drain"),
        ("(alerting)", "node.remediate"),
        ("(alerting)", "node.remediate.succeeded"),
        ("(alerting)", "node.release"),
        ("(alerting)", "node.release.succeeded"),
        ("(alerting)", "node.uncordon"),
    } <= done
