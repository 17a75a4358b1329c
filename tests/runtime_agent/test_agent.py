"""The whole agent over a real broker, with real processes; the test plays the Launcher."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from cli.embedded.broker import EmbeddedBroker
from launcher_double import Launcher, agent_process, an_agent, settings_for, wanted
from muster.contracts.pods import PodState
from muster.errors import Broken
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from runtime_agent.pods import Phase, PodDirectories
from runtime_agent.settings import AgentSettings, OnStop
from runtime_agent.store import Journal
from runtime_agent.supervisor import lock, proc

pytestmark = pytest.mark.kafka


async def test_a_pod_runs_to_its_end_and_its_report_follows(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.run("pod-1", "echo hello; sleep 0.3", gpus=(1,))
        running = await launcher.status("pod-1", PodState.RUNNING)
        assert running.started_at is not None
        held = await launcher.report(lambda r: bool(r.pods))
        assert [gpu.pod for gpu in held.gpus] == [None, "pod-1"]
        assert all(gpu.simulated for gpu in held.gpus)
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
            await launcher.say(request, again=True)
        await launcher.ended("pod-1")
        await launcher.say(request)
        await launcher.until(lambda: any(a.revision == 2 for a in launcher.applied()))
    log = PodDirectories(settings.agent_home / "pods").logs_path("pod-1") / "stdout.log"
    assert log.read_text() == "ran\n"


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
        await launcher.say(request)
        await launcher.until(lambda: any(a.revision == 2 for a in launcher.applied()))
    assert PodDirectories(settings.agent_home / "pods").names() == []


async def test_a_pod_that_was_placed_for_another_journal_is_refused(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.report()
        await launcher.say(wanted("pod-1", "touch ran", "another journal"))
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
        for pod, word in (("same-gpu", "GPU 0"), ("same-port", "Port 25001")):
            ended = await launcher.ended(pod)
            assert ended.verdict is not None
            assert (ended.verdict.rule, ended.verdict.fault) == ("device-busy", "platform")
            assert word in ended.verdict.cause
        await launcher.run("other-gpu", "true", gpus=(1,))
        assert (await launcher.ended("other-gpu")).state is PodState.SUCCEEDED


async def test_a_port_that_a_stranger_holds_fails_the_pod_and_is_reported(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.report()
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", 0))
            port = stranger.getsockname()[1]
            stranger.listen()
            await launcher.run("pod-1", "true", ports={"http": (port,)})
            ended = await launcher.ended("pod-1")
            assert ended.verdict is not None
            assert (ended.verdict.code, ended.verdict.behavior) == (253, "transient")
            assert port in (await launcher.report(lambda r: bool(r.foreign_ports))).foreign_ports


async def test_a_record_that_cannot_be_read_is_a_dead_letter_and_its_neighbours_run(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.report()
        await launcher.send(b'{"pod": 7}', "launcher/pod/pod-0/1")
        await launcher.run("pod-1", "true")
        assert (await launcher.ended("pod-1")).state is PodState.SUCCEEDED
        await launcher.until(
            lambda: any(topic == "pod-requested.dead-letter" for topic, _ in launcher.words)
        )
        await launcher.until(
            lambda: any(a.subject == "pod-0" and a.dead for a in launcher.applied())
        )


async def test_stopping_the_agent_withdraws_its_pods_at_no_cost_to_the_user(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.run("pod-1", "sleep 300")
        await launcher.status("pod-1", PodState.RUNNING)
    ended = await launcher.ended("pod-1")
    assert ended.verdict is not None
    assert (ended.verdict.rule, ended.verdict.behavior) == ("withdrawn", "transient")
    assert (await launcher.report(lambda r: r.is_stopping)).is_stopping


async def test_pods_go_on_without_the_agent_where_it_is_told_to_keep_them(
    launcher: Launcher, settings: AgentSettings
) -> None:
    keeping = settings.model_copy(update={"agent_on_stop": OnStop.KEEP})
    gate = settings.agent_home / "gate"
    async with an_agent(keeping):
        await launcher.run("pod-1", f"until test -e {gate}; do sleep 0.01; done; exit 4")
        await launcher.status("pod-1", PodState.RUNNING)
    pods = PodDirectories(settings.agent_home / "pods")
    assert pods.observe("pod-1").phase is Phase.RUNNING
    gate.touch()
    await launcher.until(lambda: pods.observe("pod-1").phase is Phase.EXITED)
    async with an_agent(keeping):
        assert (await launcher.ended("pod-1")).exit_code == 4


async def test_an_agent_that_lost_its_journal_ends_what_it_finds_and_refuses_old_asks(
    launcher: Launcher, settings: AgentSettings
) -> None:
    keeping = settings.model_copy(update={"agent_on_stop": OnStop.KEEP})
    async with an_agent(keeping):
        request = await launcher.run("pod-1", "sleep 300")
        await launcher.status("pod-1", PodState.RUNNING)
    pods = PodDirectories(settings.agent_home / "pods")
    start = pods.observe("pod-1").start
    assert start is not None
    for file in settings.agent_home.glob("journal.sqlite*"):
        file.unlink()
    async with an_agent(keeping):
        assert proc.start_ticks(start.pid) is None
        await launcher.report(lambda r: r.journal != request.journal)
        await launcher.say(request)
        ended = await launcher.ended("pod-1")
        assert ended.verdict is not None
        assert ended.verdict.rule == "agent-reset"


async def test_an_older_journal_never_runs_a_pod_again(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.report()
    journal = settings.agent_home / "journal.sqlite"
    old = journal.read_bytes()
    async with an_agent(settings):
        request = await launcher.run("pod-1", "echo ran")
        await launcher.ended("pod-1")
    journal.write_bytes(old)
    before = len(launcher.statuses("pod-1"))
    async with an_agent(settings):
        await launcher.say(request)
        await launcher.until(lambda: len(launcher.statuses("pod-1")) > before)
    assert launcher.statuses("pod-1")[-1].exit_code == 0
    log = PodDirectories(settings.agent_home / "pods").logs_path("pod-1") / "stdout.log"
    assert log.read_text() == "ran\n"


async def test_a_new_bus_hears_again_what_was_not_acknowledged(
    fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with an_agent(settings_for(fresh_broker.bootstrap, tmp_path / "agent")):
        async with Launcher(fresh_broker.bootstrap) as launcher:
            await launcher.run("pod-1", "exit 9")
            await launcher.ended("pod-1")
        fresh_broker.kill()
        fresh_broker.start()
        async with Launcher(fresh_broker.bootstrap) as launcher:
            assert (await launcher.ended("pod-1")).exit_code == 9
            await launcher.run("pod-2", "true")
            assert (await launcher.ended("pod-2")).state is PodState.SUCCEEDED


async def test_the_pretending_agent_starts_nothing_and_shows_as_simulated(
    launcher: Launcher, settings: AgentSettings
) -> None:
    pretending = settings.model_copy(update={"agent_pretend": True})
    async with an_agent(pretending):
        await launcher.run("pod-1", "exit 1")
        assert (await launcher.ended("pod-1")).state is PodState.SUCCEEDED
        assert (await launcher.report()).simulated
    assert PodDirectories(settings.agent_home / "pods").names() == []


async def test_an_agent_that_is_killed_finds_its_pods_again_with_their_true_exit_codes(
    launcher: Launcher, settings: AgentSettings
) -> None:
    agent = agent_process(settings)
    try:
        gate = settings.agent_home / "gate"
        wait = f"until test -e {gate}; do sleep 0.01; done"
        await launcher.run("ends-meanwhile", "sleep 0.2; exit 5")
        await launcher.run("ends-later", f"{wait}; exit 6")
        await launcher.status("ends-later", PodState.RUNNING)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        pods = PodDirectories(settings.agent_home / "pods")
        await launcher.until(lambda: pods.observe("ends-meanwhile").phase is Phase.EXITED)
        assert pods.observe("ends-later").phase is Phase.RUNNING
        agent = agent_process(settings)
        assert (await launcher.ended("ends-meanwhile")).exit_code == 5
        gate.touch()
        assert (await launcher.ended("ends-later")).exit_code == 6
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(timeout=30)


async def test_a_lost_supervisor_is_told_and_costs_the_user_nothing(
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


async def test_only_one_agent_runs_over_a_home(settings: AgentSettings) -> None:
    command = [sys.executable, "-m", "runtime_agent"]
    async with an_agent(settings):
        environment = os.environ | {"MUSTER_AGENT_HOME": str(settings.agent_home)}
        second = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, timeout=60, check=False
        )
    assert second.returncode == 1
    assert b"another agent runs over" in second.stdout + second.stderr


async def test_pods_that_ran_before_the_machine_restarted_end_as_rebooted(
    launcher: Launcher, settings: AgentSettings
) -> None:
    keeping = settings.model_copy(update={"agent_on_stop": OnStop.KEEP})
    async with an_agent(keeping):
        await launcher.run("pod-1", "sleep 300")
        await launcher.status("pod-1", PodState.RUNNING)
    pods = PodDirectories(settings.agent_home / "pods")
    start = pods.path("pod-1") / "start.json"
    assert pods.kill_supervisor("pod-1")
    await launcher.until(lambda: pods.observe("pod-1").phase is Phase.SUPERVISOR_LOST)
    start.write_text(start.read_text().replace(proc.boot_id(), "another-boot"))
    async with an_agent(keeping):
        ended = await launcher.ended("pod-1")
    assert ended.verdict is not None
    assert (ended.verdict.rule, ended.verdict.behavior) == ("node-rebooted", "transient")


async def test_a_disk_that_takes_no_journal_holds_the_agent_up_and_loses_nothing(
    launcher: Launcher, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, failures = Journal.save, iter(range(6))

    def full_for_a_while(self: Journal, *what: Any) -> None:
        if next(failures, None) is not None:
            raise sqlite3.OperationalError("database or disk is full")
        save(self, *what)

    async with an_agent(settings.model_copy(update={"retry_s": 0.05})):
        await launcher.report()
        monkeypatch.setattr(Journal, "save", full_for_a_while)
        await launcher.run("pod-1", "exit 3")
        assert (await launcher.ended("pod-1")).exit_code == 3
        assert next(failures, None) is None


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
            await launcher.say(request, traceparent=f"00-{trace}-{1:016x}-01")
            await launcher.ended("pod-1")
    ours = [s for s in spans.get_finished_spans() if f"{s.context.trace_id:032x}" == trace]
    assert {s.name for s in ours} >= {
        "pod-requested process", "pod run", "pod-succeeded publish",
    }  # fmt: skip


async def test_logs_are_served_while_the_pod_runs_and_end_with_it(
    launcher: Launcher, settings: AgentSettings
) -> None:
    headers = {"Authorization": f"Bearer {settings.internal_token.get_secret_value()}"}
    async with an_agent(settings), httpx2.AsyncClient(headers=headers) as http:
        log_url = (await launcher.report()).log_url
        gate = settings.agent_home / "gate"
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


async def test_an_agent_that_comes_back_says_which_pods_are_still_there(
    launcher: Launcher, settings: AgentSettings
) -> None:
    keeping = settings.model_copy(update={"agent_on_stop": OnStop.KEEP})
    async with an_agent(keeping):
        await launcher.run("pod-1", "sleep 300")
        first = await launcher.status("pod-1", PodState.RUNNING)
        await launcher.acknowledge(first)
    before = max(status.revision for status in launcher.statuses("pod-1"))
    async with an_agent(keeping):
        await launcher.until(lambda: launcher.statuses("pod-1")[-1].revision > before)
        again = launcher.statuses("pod-1")[-1]
        assert (again.state, again.started_at) == (PodState.RUNNING, first.started_at)
        await launcher.returned(7)
        await launcher.until(lambda: launcher.statuses("pod-1")[-1].revision > again.revision)
        await launcher.report(lambda r: r.lease == 7)


async def test_a_refused_word_is_said_again_when_an_operator_redrives(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.run("pod-1", "exit 3")
        ended = await launcher.ended("pod-1")
        await launcher.acknowledge(ended, dead=True)
        asked = 0
        async with asyncio.timeout(30):  # the refusal comes on another topic, so maybe later
            while launcher.statuses("pod-1")[-1].revision == ended.revision:
                asked += 1
                await launcher.set("exchange/redrive", asked)
                await asyncio.sleep(0.02)
        again = launcher.statuses("pod-1")[-1]
        assert (again.state, again.exit_code) == (PodState.FAILED, 3)
        await launcher.acknowledge(again)
    async with an_agent(settings):
        await launcher.set("exchange/resync", 1)
        await launcher.until(lambda: launcher.statuses("pod-1")[-1].revision > 1_000_000)
        assert launcher.statuses("pod-1")[-1].exit_code == 3
    journal = Journal(settings.agent_home / "journal.sqlite", "unused")
    assert (journal.mark("exchange/redrive"), journal.mark("exchange/resync")) == (asked, 1)
    journal.close()


async def test_a_pod_that_dies_of_a_signal_without_a_name_ends_like_any_other(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.run("pod-1", "kill -40 $$")
        assert (await launcher.ended("pod-1")).signal == 40
        await launcher.run("pod-2", "true")
        assert (await launcher.ended("pod-2")).state is PodState.SUCCEEDED


async def test_a_damaged_journal_is_told_with_what_to_do(settings: AgentSettings) -> None:
    settings.agent_home.mkdir()
    (settings.agent_home / "journal.sqlite").write_bytes(b"no journal " * 1000)
    with pytest.raises(Broken, match="to begin anew"):
        async with an_agent(settings):
            pass
