"""What waits on the bus for an agent that was away: all of it is read before any pod starts."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import pytest
from cli.embedded.broker import EmbeddedBroker
from launcher_double import Launcher, agent_process, an_agent, settings_for, wanted
from muster.contracts.pods import PodRequest, PodState
from runtime_agent.domain.pods import Phase
from runtime_agent.fork_server import ForkServer
from runtime_agent.pods import PodDirectories
from runtime_agent.settings import AgentSettings, OnStop
from runtime_agent.store import Journal

pytestmark = pytest.mark.kafka

BETWEEN = 300
"""Records between a start and its stop. Each is a batch and a step of the journal of its own, so
that a pod launched too early has begun long before its stop is read.
"""


@pytest.fixture
def slow(settings: AgentSettings) -> AgentSettings:
    """Of an agent that reads record by record, and whose pods outlive it."""
    return settings.model_copy(update={"batch_records": 1, "agent_on_stop": OnStop.KEEP})


async def start_and_stop(launcher: Launcher, request: PodRequest) -> None:
    await launcher.publish(request)
    await stop_behind_others(launcher, request)


async def stop_behind_others(launcher: Launcher, request: PodRequest) -> None:
    for number in range(BETWEEN):
        other = wanted(f"other-{number}", "true", request.journal)
        await launcher.publish(other.model_copy(update={"node": "another node with this key"}))
    await launcher.stop(request)


async def test_a_pod_whose_start_and_stop_both_wait_for_the_agent_never_runs(
    launcher: Launcher, slow: AgentSettings, tmp_path: Path
) -> None:
    async with an_agent(slow):
        journal = (await launcher.report()).journal
    await start_and_stop(launcher, wanted("pod-1", f"touch {tmp_path}/ran; sleep 300", journal))
    async with an_agent(slow):
        ended = await launcher.ended("pod-1")
        assert ended.verdict is not None
        assert (ended.verdict.rule, ended.verdict.outcome) == ("stopped", "It never ran.")
        assert ended.started_at is None
        await launcher.run("pod-2", "true")
        assert (await launcher.ended("pod-2")).state is PodState.SUCCEEDED
    assert not (tmp_path / "ran").exists()


async def test_an_agent_that_meets_another_bus_reads_all_of_it_before_it_launches(
    fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    settings = settings_for(fresh_broker.bootstrap, tmp_path / "agent")
    agent = agent_process(settings, within=("env", "MUSTER_BATCH_RECORDS=1"))
    try:
        async with Launcher(fresh_broker.bootstrap) as launcher:
            journal = (await launcher.report()).journal
            # More than the other bus has: where this one was read to is nowhere there.
            await start_and_stop(launcher, wanted("pod-0", "true", journal))
            await launcher.forget(wanted("pod-0", "true", journal))
            await launcher.until(lambda: launcher.has_applied("pod-0", 3))
        agent.send_signal(signal.SIGSTOP)
        fresh_broker.kill()
        fresh_broker.start()
        async with Launcher(fresh_broker.bootstrap) as launcher:
            command = f"touch {tmp_path}/ran; sleep 300"
            await start_and_stop(launcher, wanted("pod-1", command, journal))
            agent.send_signal(signal.SIGCONT)
            assert (await launcher.ended("pod-1")).started_at is None
    finally:
        agent.send_signal(signal.SIGCONT)
        agent.send_signal(signal.SIGTERM)
        agent.wait(timeout=60)
    assert not (tmp_path / "ran").exists()


async def test_a_pod_whose_start_waits_alone_runs(launcher: Launcher, slow: AgentSettings) -> None:
    async with an_agent(slow):
        journal = (await launcher.report()).journal
    await launcher.publish(wanted("pod-1", "true", journal))
    async with an_agent(slow):
        assert (await launcher.ended("pod-1")).state is PodState.SUCCEEDED


async def test_a_pod_that_was_accepted_before_never_runs_where_its_stop_waits(
    launcher: Launcher, slow: AgentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: ForkServer, _directory: Path) -> None:
        raise OSError("no process can be started")

    with monkeypatch.context() as patched:
        patched.setattr(ForkServer, "start", fails)
        async with an_agent(slow):
            request = await launcher.run("pod-1", f"touch {tmp_path}/ran; sleep 300")
            await launcher.report(lambda r: bool(r.pods))
    assert phases(slow) == {"pod-1": Phase.ACCEPTED}
    await stop_behind_others(launcher, request)
    async with an_agent(slow):
        ended = await launcher.ended("pod-1")
        assert ended.verdict is not None
        assert (ended.verdict.rule, ended.verdict.outcome) == ("stopped", "It never ran.")
    assert not (tmp_path / "ran").exists()


async def test_a_pod_that_was_accepted_before_runs_where_nothing_takes_it_back(
    launcher: Launcher, slow: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: ForkServer, _directory: Path) -> None:
        raise OSError("no process can be started")

    with monkeypatch.context() as patched:
        patched.setattr(ForkServer, "start", fails)
        async with an_agent(slow):
            await launcher.run("pod-1", "true")
            await launcher.report(lambda r: bool(r.pods))
    async with an_agent(slow):
        assert (await launcher.ended("pod-1")).state is PodState.SUCCEEDED


def phases(settings: AgentSettings) -> dict[str, Phase]:
    journal = Journal(settings.agent_home / "journal.sqlite", "unused")
    found = {entry.pod.pod: entry.pod.phase for entry in journal.active()}
    journal.close()
    return found


@pytest.mark.parametrize("place", ["next = 1000000000", None], ids=["beyond the end", "none"])
async def test_without_a_place_that_can_be_used_the_agent_begins_at_the_end(
    launcher: Launcher, settings: AgentSettings, place: str | None
) -> None:
    async with an_agent(settings):
        journal = (await launcher.report()).journal
    await launcher.report(lambda r: r.is_stopping)
    change = "DELETE FROM position" if place is None else f"UPDATE position SET {place}"
    with sqlite3.connect(settings.agent_home / "journal.sqlite") as database:
        database.execute(change)
    database.close()
    missed = wanted("missed", "true", journal)
    await launcher.publish(missed)
    async with an_agent(settings):
        await launcher.report(lambda r: not r.is_stopping)
        await launcher.run("pod-1", "true")
        await launcher.ended("pod-1")
        assert launcher.statuses("missed") == []
        assert PodDirectories(settings.agent_home / "pods").names() == ["pod-1"]
        await launcher.publish(missed, again=True)
        assert (await launcher.ended("missed")).state is PodState.SUCCEEDED
