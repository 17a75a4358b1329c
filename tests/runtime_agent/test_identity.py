"""Whose a journal is: copied agent folders, and two agents under one name."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from cli.embedded.process import free_port
from launcher_double import Launcher, an_agent, wanted
from muster.contracts.nodes import NodeHeartbeat, NodeReport
from muster.contracts.pods import PodAction, PodRequest, PodState, PodStatus, PodStop
from muster.errors import Broken
from runtime_agent.machine import machine_id
from runtime_agent.pods import Phase, PodDirectories
from runtime_agent.settings import AgentSettings, OnStop
from runtime_agent.store import Journal
from runtime_agent.supervisor import proc

pytestmark = pytest.mark.kafka

HEARTBEATS = 10
"""So many of each agent without another record are silence; storms have one within each."""


@pytest.fixture
def first(settings: AgentSettings) -> AgentSettings:
    """Of an agent on a machine with an id; its pods outlive it."""
    return settings.model_copy(
        update={"machine_id": "machine a", "agent_on_stop": OnStop.KEEP, "heartbeat_s": 0.2}
    )


@pytest.fixture
def second(first: AgentSettings, tmp_path: Path) -> AgentSettings:
    """Of an agent with another folder on another machine, under the same name."""
    own = {"machine_id": "machine b", "agent_home": tmp_path / "second", "http_port": free_port()}
    return first.model_copy(update=own)


def pods_of(settings: AgentSettings) -> PodDirectories:
    return PodDirectories(settings.agent_home / "pods")


def journal_of(settings: AgentSettings) -> str:
    journal = Journal(settings.agent_home / "journal.sqlite", "unused")
    found = journal.id
    journal.close()
    return found


def waiting(gate: Path) -> str:
    return f"until test -e {gate}; do sleep 0.01; done"


async def report_of_another(launcher: Launcher, journal: str) -> NodeReport:
    def find() -> NodeReport | None:
        return next((r for r in launcher.reports() if r.journal != journal), None)

    found = await launcher.until(find)
    assert isinstance(found, NodeReport)
    return found


@pytest.mark.parametrize("name", ["node-a", "node-b"])
async def test_a_copied_folder_on_another_machine_is_an_empty_node_and_touches_no_pod(
    launcher: Launcher, first: AgentSettings, second: AgentSettings, tmp_path: Path, name: str
) -> None:
    gate = tmp_path / "gate"
    async with an_agent(first):
        await launcher.run("ended", "echo of the first; exit 3")
        await launcher.ended("ended")
        request = await launcher.run("lives", waiting(gate))
        await launcher.status("lives", PodState.RUNNING)
    await asyncio.to_thread(
        subprocess.run, ["cp", "-a", first.agent_home, second.agent_home], check=True
    )
    start = pods_of(first).observe("lives").start
    assert start is not None
    async with an_agent(first), an_agent(second.model_copy(update={"node": name})):
        report = await report_of_another(launcher, request.journal)
        assert (report.node, report.pods) == (name, ())
        assert proc.start_ticks(start.pid) == start.process_start_ticks
        assert pods_of(first).observe("lives").phase is Phase.RUNNING
        gate.touch()
        ended = await launcher.ended("lives")
        assert (ended.journal, ended.exit_code) == (request.journal, 0)
    assert {status.journal for status in launcher.statuses("lives")} == {request.journal}
    assert (journal_of(first), journal_of(second)) == (request.journal, report.journal)
    copies = pods_of(second)
    assert {copies.observe(pod).phase for pod in ("ended", "lives")} == {Phase.EXITED}
    assert (copies.logs_path("ended") / "stdout.log").read_text() == "of the first\n"


async def test_a_copy_refuses_the_pods_of_the_first_and_never_touches_them(
    launcher: Launcher, first: AgentSettings, second: AgentSettings
) -> None:
    async with an_agent(first):
        requests = [await launcher.run("ended", "exit 3"), await launcher.run("lives", "sleep 300")]
        await launcher.ended("ended")
        await launcher.status("lives", PodState.RUNNING)
    journal = requests[0].journal
    await asyncio.to_thread(
        subprocess.run, ["cp", "-a", first.agent_home, second.agent_home], check=True
    )
    async with an_agent(first), an_agent(second):
        report = await report_of_another(launcher, journal)
        for request in requests:
            await launcher.publish(request)

            def refusal(pod: str = request.pod) -> PodStatus | None:
                return next((s for s in launcher.statuses(pod) if s.journal != journal), None)

            refused = await launcher.until(refusal)
            assert (refused.journal, refused.verdict.rule) == (report.journal, "agent-reset")
        assert pods_of(first).observe("lives").phase is Phase.RUNNING
    assert pods_of(first).observe("lives").phase is Phase.RUNNING


async def test_a_machine_that_gets_another_id_ends_the_pods_that_it_still_runs(
    launcher: Launcher, first: AgentSettings
) -> None:
    async with an_agent(first):
        request = await launcher.run("lives", "sleep 300")
        await launcher.status("lives", PodState.RUNNING)
    start = pods_of(first).observe("lives").start
    assert start is not None
    async with an_agent(first.model_copy(update={"machine_id": "machine b"})):
        assert proc.start_ticks(start.pid) is None
        report = await report_of_another(launcher, request.journal)
        assert report.pods == ()
        await launcher.publish(request)
        assert (await launcher.ended("lives")).journal == report.journal
    assert journal_of(first) == report.journal


async def test_a_journal_without_a_machine_belongs_to_the_one_that_first_opens_it(
    launcher: Launcher, first: AgentSettings
) -> None:
    first.agent_home.mkdir(mode=0o700)
    Journal(first.agent_home / "journal.sqlite", "from before").close()
    for machine, is_same in (("machine a", True), ("machine a", True), ("machine b", False)):
        async with an_agent(first.model_copy(update={"machine_id": machine})):
            pass
        assert (journal_of(first) == "from before") is is_same


@asynccontextmanager
async def answering(launcher: Launcher) -> AsyncIterator[None]:
    """Acknowledges each message on a pod to the agent that has published it."""

    async def answer() -> None:
        done = 0
        while True:
            some = launcher.messages[done:]
            done += len(some)
            for message in [w for _, w in some if isinstance(w, PodStatus)]:
                same = [s for s in launcher.statuses(message.pod) if s.journal == message.journal]
                await launcher.acknowledge(max(same, key=lambda status: status.revision))
            await asyncio.sleep(0.01)

    task = asyncio.create_task(answer())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def silence(launcher: Launcher, *agents: AgentSettings) -> None:
    """Once each agent has nothing to repeat, and beside heartbeats and reports nothing comes."""

    async def is_settled(agent: AgentSettings) -> bool:
        answer = await http.get(f"http://127.0.0.1:{agent.http_port}/metrics")
        return "muster_unacknowledged_messages 0.0" in answer.text

    def pod_messages() -> int:
        return sum(not isinstance(w, NodeHeartbeat | NodeReport) for _, w in launcher.messages)

    def heartbeats(journal: str) -> int:
        messages = [w for _, w in launcher.messages if isinstance(w, NodeHeartbeat)]
        return sum(message.journal == journal for message in messages)

    journals = {r.journal for r in launcher.reports()}
    assert len(journals) == len(agents)
    async with httpx2.AsyncClient(timeout=60) as http, asyncio.timeout(60):
        while True:
            before = pod_messages()
            beats = {journal: heartbeats(journal) for journal in journals}
            while any(heartbeats(j) < beats[j] + HEARTBEATS for j in journals):
                await asyncio.sleep(0.01)
            if pod_messages() == before and all([await is_settled(agent) for agent in agents]):
                return


async def test_two_agents_under_one_name_fall_silent_once_a_pod_has_ended(
    launcher: Launcher, first: AgentSettings, second: AgentSettings, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with answering(launcher), an_agent(second):
        other = (await launcher.report()).journal
        async with an_agent(first):
            journal = (await report_of_another(launcher, other)).journal
            request = wanted("pod-1", waiting(gate), journal)
            await launcher.publish(request)
            await launcher.status("pod-1", PodState.RUNNING)
            # As a Launcher answers the refusal of the second.
            await launcher.forget(request.model_copy(update={"journal": other}))
            await silence(launcher, first, second)
        async with an_agent(first):  # which reports that its pod is still there
            await silence(launcher, first, second)
            gate.touch()
            await launcher.status("pod-1", PodState.SUCCEEDED)
            await launcher.forget(request)
            for unknown, named in (("pod-2", journal), ("pod-3", other), ("pod-4", "lost")):
                await launcher.stop(wanted(unknown, "true", named))
                await launcher.forget(wanted(unknown, "true", named))
            await silence(launcher, first, second)
    published = {(s.journal, s.state) for s in launcher.statuses("pod-1")}
    # A pod that does not start at once is accepted first.
    assert published - {(journal, PodState.ACCEPTED)} == {
        (other, PodState.FAILED),
        (journal, PodState.RUNNING),
        (journal, PodState.SUCCEEDED),
    }
    for settings in (first, second):
        kept = Journal(settings.agent_home / "journal.sqlite", "unused")
        assert kept.active() == []
        kept.close()


@pytest.mark.parametrize("action", [PodAction.STOP, PodAction.FORGET])
async def test_what_is_asked_of_another_journal_touches_no_pod_of_this_one(
    launcher: Launcher, first: AgentSettings, action: PodAction
) -> None:
    async with an_agent(first):
        request = await launcher.run("pod-1", "sleep 300")
        await launcher.status("pod-1", PodState.RUNNING)
        stop = PodStop(reason="stopped", grace_s=5.0)
        foreign = {"journal": "another", "action": action, "run": None, "stop": stop}
        await launcher.publish(request.model_copy(update=foreign))
        await launcher.until(lambda: launcher.has_applied("pod-1", 2))
        await launcher.stop(request, reason="preempted")
        ended = await launcher.ended("pod-1")
    assert ended.verdict is not None
    assert ended.verdict.rule == "preempted"


@pytest.mark.parametrize("action", [PodAction.RUN, PodAction.STOP, PodAction.FORGET])
async def test_what_is_asked_of_another_journal_is_answered_as_ended(
    launcher: Launcher, first: AgentSettings, action: PodAction
) -> None:
    async with an_agent(first):
        await launcher.report()
        asked: PodRequest = wanted("pod-1", "true", "another")
        await launcher.publish(asked.model_copy(update={"action": action}))
        ended = await launcher.ended("pod-1")
    assert ended.verdict is not None
    assert (ended.state, ended.verdict.rule) == (PodState.FAILED, "agent-reset")
    assert pods_of(first).names() == []


def test_a_machine_is_known_by_the_setting_then_the_system_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, older, named = tmp_path / "system", tmp_path / "older", tmp_path / "named"
    monkeypatch.setattr("runtime_agent.machine.SYSTEM_FILES", (system, older))
    assert machine_id(None, "node-a") == "node node-a"
    system.write_text("uninitialized\n")
    older.write_text("  of the older file\n")
    assert machine_id(None, "node-a") == "of the older file"
    system.write_text("of the system\n")
    assert machine_id(None, "node-a") == "of the system"
    named.write_text("of a file\n")
    assert machine_id(str(named), "node-a") == "of a file"
    assert machine_id("an id", "node-a") == "an id"


@pytest.mark.parametrize("content", [None, "", "uninitialized\n"])
def test_a_file_that_is_named_for_the_id_and_has_none_is_refused(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "id"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Broken, match="MUSTER_MACHINE_ID"):
        machine_id(str(file), "node-a")
