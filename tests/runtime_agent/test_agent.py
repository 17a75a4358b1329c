"""The whole agent over a real broker, with real processes; the test plays the Launcher.

What becomes of the pods that it is asked for; test_agent_again.py has its own ends and starts.
"""

from __future__ import annotations

import os
import signal
import socket
from unittest.mock import patch

import httpx2
import pytest
from launcher_double import Launcher, an_agent, wanted
from muster.contracts.pods import PodState, PodStatus
from muster.service_keys import agent
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from runtime_agent.pods import PodDirectories
from runtime_agent.settings import AgentSettings, RunnerKind
from runtime_agent.store import Journal
from runtime_agent.supervisor import lock
from service_auth import ServiceAuth

pytestmark = pytest.mark.kafka


async def test_a_pod_runs_to_its_end_and_its_report_follows(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        gate = settings.agent_home.parent / "gate"
        wait = f"until test -e {gate}; do sleep 0.01; done"
        await launcher.run("pod-1", f"echo hello; {wait}", gpus=(1,))
        running = await launcher.status("pod-1", PodState.RUNNING)
        assert running.started_at is not None
        held = await launcher.report(lambda r: bool(r.pods))
        assert [gpu.pod for gpu in held.gpus] == [None, "pod-1"]
        assert all(gpu.simulated for gpu in held.gpus)
        gate.touch()
        ended = await launcher.ended("pod-1")
        assert (ended.state, ended.exit_code, ended.signal) == (PodState.SUCCEEDED, 0, None)
        free = await launcher.report(lambda r: r.revision >= ended.report_revision)
        assert (free.pods, [gpu.pod for gpu in free.gpus]) == ((), [None, None])


async def test_an_end_is_repeated_until_it_is_acknowledged_and_not_after(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        request = await launcher.run("pod-1", "exit 3")
        ended = await launcher.ended("pod-1")
        assert ended.verdict is not None
        assert (ended.exit_code, ended.verdict.code) == (3, 255)
        await launcher.until(
            lambda: [s.state for s in launcher.statuses("pod-1")].count(PodState.FAILED) >= 2
        )
        await launcher.forget(request)
        await launcher.until(
            lambda: any(a.subject == "pod-1" and a.revision == 2 for a in launcher.applied())
        )
    journal = Journal(settings.agent_home / "journal.sqlite", "unused")
    assert journal.active() == []
    journal.close()


async def test_asking_twice_runs_once(launcher: Launcher, settings: AgentSettings) -> None:
    async with an_agent(settings):
        request = await launcher.run("pod-1", "echo ran")
        for _ in range(5):
            await launcher.publish(request, again=True)
        await launcher.ended("pod-1")
        await launcher.publish(request)
        await launcher.until(lambda: launcher.has_applied("pod-1", 2))
    log = PodDirectories(settings.agent_home / "pods").logs_path("pod-1") / "stdout.log"
    assert log.read_text() == "ran\n"


async def test_a_launcher_that_asks_again_for_an_ended_pod_gets_its_end(
    launcher: Launcher, settings: AgentSettings
) -> None:
    """As after a restored backup: it has applied the end, and does not remember."""
    async with an_agent(settings):
        request = await launcher.run("pod-1", "echo ran")
        ended = await launcher.ended("pod-1")
        await launcher.publish(request)

        def republished() -> PodStatus | None:
            return next((s for s in launcher.statuses("pod-1") if s.seen == 2), None)

        again = await launcher.until(republished)
    assert again.revision > ended.revision
    assert (again.state, again.ended_at) == (PodState.SUCCEEDED, ended.ended_at)


async def test_a_stop_ends_a_pod_with_its_reason(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        request = await launcher.run("pod-1", "sleep 300")
        await launcher.status("pod-1", PodState.RUNNING)
        await launcher.stop(request)
        ended = await launcher.ended("pod-1")
    assert ended.verdict is not None
    assert (ended.state, ended.verdict.rule, ended.signal) == (PodState.FAILED, "stopped", 15)


@pytest.mark.parametrize("action", ["stop", "forget"])
async def test_an_unknown_pod_is_answered_as_ended_and_never_runs(
    launcher: Launcher, settings: AgentSettings, action: str
) -> None:
    async with an_agent(settings):
        request = wanted("pod-1", "touch ran", (await launcher.report()).journal)
        await (launcher.stop(request) if action == "stop" else launcher.forget(request))
        ended = await launcher.ended("pod-1")
        assert ended.verdict is not None
        assert ended.verdict.rule == "never-ran"
        await launcher.publish(request)
        await launcher.until(lambda: launcher.has_applied("pod-1", 2))
    assert PodDirectories(settings.agent_home / "pods").names() == []


async def test_a_pod_that_was_placed_for_another_journal_is_refused(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.report()
        await launcher.publish(wanted("pod-1", "touch ran", "another journal"))
        ended = await launcher.ended("pod-1")
    assert ended.verdict is not None
    assert (ended.verdict.rule, ended.verdict.behavior) == ("agent-reset", "transient")
    assert PodDirectories(settings.agent_home / "pods").names() == []


async def test_no_pod_starts_while_a_live_one_holds_its_gpu_or_port(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.run("holder", "sleep 300", gpus=(0,), ports={"http": (25001,)})
        await launcher.status("holder", PodState.RUNNING)
        await launcher.run("same-gpu", "true", gpus=(0,))
        await launcher.run("same-port", "true", ports={"x": (25001,)})
        for pod, message in (("same-gpu", "GPU 0"), ("same-port", "Port 25001")):
            ended = await launcher.ended(pod)
            assert ended.verdict is not None
            assert (ended.verdict.rule, ended.verdict.fault) == ("device-busy", "platform")
            assert message in ended.verdict.cause
        await launcher.run("other-gpu", "true", gpus=(1,))
        assert (await launcher.ended("other-gpu")).state is PodState.SUCCEEDED


async def test_a_port_that_a_foreign_process_holds_fails_the_pod_and_is_reported(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.report()
        with socket.socket() as foreign:
            foreign.bind(("127.0.0.1", 0))
            port = foreign.getsockname()[1]
            foreign.listen()
            await launcher.run("pod-1", "true", ports={"http": (port,)})
            ended = await launcher.ended("pod-1")
            assert ended.verdict is not None
            assert (ended.verdict.code, ended.verdict.behavior) == (253, "transient")
            await launcher.report(lambda r: port in r.foreign_ports)


async def test_a_record_that_cannot_be_read_is_a_dead_letter_and_its_neighbours_run(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.report()
        await launcher.send(b'{"pod": 7}', "launcher/pod/pod-0/1")
        await launcher.run("pod-1", "true")
        assert (await launcher.ended("pod-1")).state is PodState.SUCCEEDED
        await launcher.until(
            lambda: any(topic == "pod-requested.dead-letter" for topic, _ in launcher.messages)
        )
        await launcher.until(
            lambda: any(a.subject == "pod-0" and a.is_rejected for a in launcher.applied())
        )


async def test_a_node_whose_bus_has_no_log_in_is_for_a_single_user(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        report = await launcher.report()
        why = "Kafka has no log-in" if os.geteuid() == 0 else "the agent is not root"
        assert (report.single_user or "").startswith(why)


async def test_the_pretending_agent_starts_nothing_and_shows_as_simulated(
    launcher: Launcher, settings: AgentSettings
) -> None:
    pretending = settings.model_copy(update={"runner": RunnerKind.PRETENDED})
    async with an_agent(pretending):
        await launcher.run("pod-1", "exit 1")
        assert (await launcher.ended("pod-1")).state is PodState.SUCCEEDED
        assert (await launcher.report()).simulated
    assert PodDirectories(settings.agent_home / "pods").names() == []


async def test_a_lost_supervisor_is_reported_and_costs_the_user_nothing(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.run("pod-1", "sleep 300")
        await launcher.status("pod-1", PodState.RUNNING)
        pods = PodDirectories(settings.agent_home / "pods")
        pid = lock.holder(pods.path("pod-1") / "lock")
        assert pid
        os.kill(pid, signal.SIGKILL)
        ended = await launcher.ended("pod-1")
    assert ended.verdict is not None
    assert (ended.verdict.rule, ended.verdict.behavior) == ("supervisor-lost", "transient")


async def test_a_job_can_be_followed_in_one_trace_through_its_pod(
    launcher: Launcher, settings: AgentSettings
) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with (
        patch("muster.telemetry.TRACER", provider.get_tracer("test")),
        patch("runtime_agent.step.TRACER", provider.get_tracer("test")),
    ):
        async with an_agent(settings):
            report = await launcher.report()
            request = wanted("pod-1", "true", report.journal)
            trace = f"{0xABC:032x}"
            await launcher.publish(request, traceparent=f"00-{trace}-{1:016x}-01")
            await launcher.ended("pod-1")
    ours = [s for s in spans.get_finished_spans() if f"{s.context.trace_id:032x}" == trace]
    assert {s.name for s in ours} >= {
        "pod-requested process", "pod run", "pod-succeeded publish",
    }  # fmt: skip


async def test_logs_are_served_while_the_pod_runs_and_end_with_it(
    launcher: Launcher, settings: AgentSettings
) -> None:
    auth = ServiceAuth(agent(settings.node))
    async with an_agent(settings), httpx2.AsyncClient(auth=auth, timeout=60) as http:
        log_url = (await launcher.report()).log_url
        gate = settings.agent_home.parent / "gate"
        wait = f"until test -e {gate}; do sleep 0.01; done"
        await launcher.run("pod-1", f"echo first; {wait}; echo last")
        await launcher.status("pod-1", PodState.RUNNING)
        url = f"{log_url}/logs/pod-1/stdout?follow=1"
        got = b""
        async with http.stream("GET", url) as answer:
            async for chunk in answer.aiter_bytes():
                got += chunk
                gate.touch()
        assert got == b"first\nlast\n"


async def test_a_node_without_room_for_pods_reports_itself_as_unhealthy(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings.model_copy(update={"disk_min_mb": 10**9})):
        report = await launcher.report()
    assert not report.is_healthy
    assert "MB are free" in str(report.problem)


async def test_a_pod_that_dies_of_a_signal_without_a_name_ends_like_any_other(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.run("pod-1", "kill -40 $$")
        assert (await launcher.ended("pod-1")).signal == 40
        await launcher.run("pod-2", "true")
        assert (await launcher.ended("pod-2")).state is PodState.SUCCEEDED
