"""The agent stops, is killed, comes back, meets another bus or a bad journal: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.embedded.broker import EmbeddedBroker
from launcher_double import Launcher, agent_process, an_agent, settings_for
from muster.contracts.pods import PodState
from muster.errors import Broken
from runtime_agent.pods import Phase, PodDirectories
from runtime_agent.settings import AgentSettings, OnStop
from runtime_agent.store import Journal
from runtime_agent.supervisor import proc

pytestmark = pytest.mark.kafka


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


async def test_pods_go_on_without_the_agent_where_a_setting_keeps_them(
    launcher: Launcher, settings: AgentSettings
) -> None:
    keeping = settings.model_copy(update={"agent_on_stop": OnStop.KEEP})
    gate = settings.agent_home.parent / "gate"
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
        await launcher.report(lambda r: r.journal != request.journal)
        assert proc.start_ticks(start.pid) is None
        await launcher.publish(request)
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
    before = launcher.newest("pod-1").revision
    async with an_agent(settings):
        await launcher.publish(request)
        await launcher.until(lambda: launcher.newest("pod-1").revision > before)
    assert launcher.newest("pod-1").exit_code == 0
    log = PodDirectories(settings.agent_home / "pods").logs_path("pod-1") / "stdout.log"
    assert log.read_text() == "ran\n"


async def test_a_new_bus_gets_unacknowledged_messages_again(
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


async def test_an_agent_that_is_killed_finds_its_pods_again_with_their_true_exit_codes(
    launcher: Launcher, settings: AgentSettings
) -> None:
    agent = agent_process(settings)
    try:
        gate = settings.agent_home.parent / "gate"
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


async def test_a_home_that_was_open_shows_nothing_to_others(
    launcher: Launcher, settings: AgentSettings
) -> None:
    settings.agent_home.mkdir(mode=0o755)
    agent = agent_process(settings)
    try:
        await launcher.report()
        files = [settings.agent_home, *settings.agent_home.glob("journal.sqlite*")]
        assert len(files) > 1
        assert [oct(file.stat().st_mode & 0o077) for file in files] == ["0o0"] * len(files)
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(timeout=30)


async def test_only_one_agent_runs_over_a_home(settings: AgentSettings) -> None:
    command = [sys.executable, "-m", "runtime_agent"]
    async with an_agent(settings):
        environment = os.environ | {
            "MUSTER_AGENT_HOME": str(settings.agent_home),
            "MUSTER_HTTP_PORT": "0",
        }
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


async def test_an_agent_stops_in_order_though_its_journal_takes_nothing_any_more(
    launcher: Launcher, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with an_agent(settings):
        await launcher.run("pod-1", "sleep 300")
        await launcher.status("pod-1", PodState.RUNNING)
        monkeypatch.setattr(Journal, "save", full)
        monkeypatch.setattr(Journal, "take_report", full)
    monkeypatch.undo()
    pods = PodDirectories(settings.agent_home / "pods")
    assert pods.observe("pod-1").phase is Phase.RUNNING
    async with an_agent(settings):
        await launcher.until(lambda: len(launcher.statuses("pod-1")) > 1)
    assert (await launcher.ended("pod-1")).verdict is not None


async def test_an_agent_that_comes_back_publishes_which_pods_are_there_and_no_new_revision(
    launcher: Launcher, settings: AgentSettings
) -> None:
    """A Launcher that has stopped such a pod meanwhile repeats its stop when it receives that."""
    keeping = settings.model_copy(update={"agent_on_stop": OnStop.KEEP})

    async def acknowledged(http: httpx2.AsyncClient) -> int:
        """How often the agent has published the pod by the time it has nothing to repeat."""
        await launcher.acknowledge(launcher.newest("pod-1"))
        metrics = f"http://127.0.0.1:{settings.http_port}/metrics"
        async with asyncio.timeout(60):
            while "muster_unacknowledged_messages 0.0" not in (await http.get(metrics)).text:
                await asyncio.sleep(0.01)
        return len(launcher.statuses("pod-1"))

    async with httpx2.AsyncClient(timeout=60) as http:
        async with an_agent(keeping):
            await launcher.run("pod-1", "sleep 300")
            first = await launcher.status("pod-1", PodState.RUNNING)
            before = await acknowledged(http)
        async with an_agent(keeping):
            await launcher.until(lambda: len(launcher.statuses("pod-1")) > before)
            before = await acknowledged(http)
            await launcher.returned(7)
            await launcher.until(lambda: len(launcher.statuses("pod-1")) > before)
            await launcher.report(lambda r: r.lease == 7)
    running = [s for s in launcher.statuses("pod-1") if s.state is PodState.RUNNING]
    assert {status.revision for status in running} == {first.revision}


def operator_now() -> int:
    """The revision of an operator's request: above those of tests before on this broker."""
    return int(time.time() * 1000)


async def test_a_rejected_message_is_republished_when_an_operator_redrives(
    launcher: Launcher, settings: AgentSettings
) -> None:
    async with an_agent(settings):
        await launcher.run("pod-1", "exit 3")
        ended = await launcher.ended("pod-1")
        await launcher.acknowledge(ended, dead=True)
        first_asked = asked = operator_now()
        async with asyncio.timeout(60):  # the refusal comes on another topic, so maybe later
            while launcher.newest("pod-1").revision == ended.revision:
                asked += 1
                await launcher.set("exchange/redrive", asked)
                await asyncio.sleep(0.02)
        again = launcher.newest("pod-1")
        assert (again.state, again.exit_code) == (PodState.FAILED, 3)
        await launcher.acknowledge(again)
    resynced = operator_now()
    async with an_agent(settings):
        await launcher.set("exchange/resync", resynced)
        await launcher.until(lambda: launcher.newest("pod-1").revision > 1_000_000)
        assert launcher.newest("pod-1").exit_code == 3
    journal = Journal(settings.agent_home / "journal.sqlite", "unused")
    assert journal.mark("exchange/resync") == resynced
    assert first_asked < journal.mark("exchange/redrive") <= asked
    journal.close()


async def test_a_damaged_journal_is_an_error_with_its_fix(settings: AgentSettings) -> None:
    settings.agent_home.mkdir(mode=0o700)
    (settings.agent_home / "journal.sqlite").write_bytes(b"no journal " * 1000)
    with pytest.raises(Broken, match="to begin anew"):
        async with an_agent(settings):
            pass
