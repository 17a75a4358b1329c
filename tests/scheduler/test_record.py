"""The record of a running service: what is exported of it is decided again by the simulator, and
nothing is in it that was not decided.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cli.embedded.process import free_port
from muster.contracts.gangs import PodRelease
from muster.db import Connection
from muster.errors import Transient
from muster.service import Runtime
from muster.service_keys import SCHEDULER
from scheduler import store
from scheduler.domain.core.model import Decision
from scheduler.domain.formats.cluster_change import ClusterChange
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.decisions import decision_line
from scheduler.domain.formats.events import read_events
from scheduler.domain.given import Given
from scheduler.domain.simulation.comparison import compare
from scheduler.domain.simulation.recording import GangHistory, Replay
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.simulation.side_by_side import SideBySide
from scheduler.domain.simulation.workload import Workload, enforcing
from scheduler_answers import asking
from scheduler_watched import measured, until
from service_auth import ServiceAuth

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
DEADLINE_S = 60.0

CLUSTER = """
cellTypes:
  node: {{child: t, count: 2, node: true}}
physicalCells:
  - {{type: node, name: n0}}
  - {{type: node, name: n1}}
  - {{type: node, name: n2}}
virtualClusters:
  default: {{cells: [{{type: node, count: {default}}}]}}
  lab: {{cells: [{{type: node, count: {lab}}}]}}
policy: {{graceSeconds: 0}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A cluster of three nodes; victims' grace is over at once, and the Launcher's word is not
    there at once.
    """
    path = tmp_path / "cluster.yaml"
    write(path, default=2, lab=1)
    return path


@dataclass
class Decided:
    """What every core of this test has decided, in order; ``at``: in its last cycle, which may have
    decided nothing.
    """

    at: float = 0.0
    lines: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    @property
    def last_at(self) -> float:
        """When the last cycle was that decided something."""
        at: float = json.loads(self.lines[-1])["at"]
        return at

    def forget_last(self) -> None:
        """What the last cycle decided was not committed."""
        self.lines = [line for line in self.lines if json.loads(line)["at"] != self.at]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Decided:
    """Everything that the cores of the services decide."""
    told = Decided()
    run = Given.run

    def listening(
        given: Given, at: float, is_enough: Callable[[int], bool], *, is_settled: bool
    ) -> list[Decision]:
        found = run(given, at, is_enough, is_settled=is_settled)
        told.at = at
        for decision in found:
            told.lines.append(decision_line(at, decision))
            told.names.add(type(decision).__name__)
        return found

    monkeypatch.setattr(Given, "run", listening)
    return told


async def exported(port: int, since: str = "0") -> tuple[bytes, list[bytes]]:
    """The CLUSTER, and the lines of the EVENTS."""
    async with asking(port) as client:
        async with asyncio.timeout(DEADLINE_S):
            while (
                answer := await client.get("/export", params={"since": since})
            ).status_code != 200:
                assert answer.status_code in (404, 503), answer.text
                await asyncio.sleep(0.02)
    cluster, *events = answer.content.splitlines()
    return cluster, events


def replayed(cluster: bytes, events: list[bytes]) -> tuple[list[str], Simulation]:
    """What the simulator decides, and its end."""
    simulation = Simulation(read_cluster(cluster).config, lambda _: None)
    lines = [decision_line(at, each) for at, each in simulation.run(read_events(iter(events)))]
    return lines, simulation


def what_was_wanted(cluster: bytes, events: list[bytes]) -> dict[str, GangHistory]:
    """What each gang of a recording wanted, by id; simulated anew each is one gang, and a change of
    nothing changes nothing.
    """

    def no_word(_: object) -> None:
        """Nobody is told."""

    simulations = [Simulation(read_cluster(cluster).config, no_word) for _ in range(3)]
    before, after = (enforcing(each, no_word) for each in simulations[1:])
    recording = Replay(simulations[0]).run(read_events(iter(events)))
    pair = SideBySide(before, after, ClusterChange(), no_word)
    for _ in pair.run(Workload(recording).events(read_events(iter(events)))):
        pass
    assert pair.gangs == len(recording.histories)
    assert compare(pair).all.is_same
    return recording.histories


def wanted(kit: Kit, name: str, *counts: tuple[str, int, int], **more: Any) -> Any:
    """A gang's word: of each role so many pods with so many GPUs."""
    vc = more.pop("vc", "default")
    pods = [
        kit.pods(name, count, gpus=gpus)[n].model_copy(
            update={"pod": f"{name}-{role}-{n}-0", "role": role}
        )
        for role, count, gpus in counts
        for n in range(count)
    ]
    return kit.gang(name, *pods, **more).model_copy(update={"virtual_cluster": vc})


async def ends(kit: Kit, others: Others, name: str) -> None:
    """All pods of a gang end, and their nodes report it."""
    told = others.decisions[name].pods
    pods = [pod for pod in told if pod.node is not None]
    over = tuple(PodRelease(pod=pod.pod, journal=pod.journal, report_revision=1) for pod in pods)
    await others.ask(kit.gang(name, released=over))
    await others.until(lambda: others.is_over(name))


def places(others: Others) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Where the Scheduler's newest words have each pod."""
    return {
        pod.pod: (pod.node, pod.gpus)
        for message in others.decisions.values()
        for pod in message.pods
        if pod.state.value in ("placed", "preempted")
    }


def simulated(simulation: Simulation) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Where the simulator has each pod in the end."""
    return {
        place.pod: (place.node, place.gpus)
        for run in simulation.runs.values()
        for place in run.places.values()
    }


async def nodes_come(kit: Kit, others: Others) -> None:
    for node in ("n0", "n1", "n2"):
        await others.report(kit.report(node, gpus=2))


def write(file: Path, default: int, lab: int) -> None:
    file.write_text(CLUSTER.format(default=default, lab=lab))


async def a_day(kit: Kit, others: Others, file: Path) -> None:
    """Guests, waits, preemption, growth, loss, another file."""
    await nodes_come(kit, others)
    await others.ask(wanted(kit, "guest", ("w", 3, 2), priority=-1))
    await others.until(lambda: others.states("guest") == ["placed"] * 3)
    await others.ask(wanted(kit, "owner", ("w", 1, 2), vc="lab"))
    await others.until(lambda: others.states("guest") == ["preempted"] * 3)
    await others.ask(wanted(kit, "low", ("w", 1, 1), ("v", 2, 1), age=1))
    await others.until(lambda: others.states("low") == ["waiting"] * 3)
    await ends(kit, others, "guest")
    await others.until(lambda: others.states("owner") == ["placed"])
    await others.until(lambda: others.states("low") == ["placed"] * 3)
    grown = wanted(kit, "low", ("w", 2, 1), ("v", 2, 1), age=1)
    await others.ask(grown)
    await others.until(lambda: others.states("low") == ["placed"] * 4)
    await others.ask(wanted(kit, "late", ("w", 1, 2), age=2))
    await others.until(lambda: others.states("late") == ["waiting"])
    await others.ask(wanted(kit, "huge", ("w", 4, 2), age=3))
    await others.until(lambda: others.states("huge") == ["refused"] * 4)
    write(file, default=3, lab=0)
    await others.until(lambda: others.decisions["owner"].gang_class == "downgraded")


async def a_node_is_lost(others: Others, gang: str) -> None:
    """The node of a gang falls silent."""
    node = others.decisions[gang].pods[0].node
    del others.alive[node]
    await others.until(lambda: node in {message.node for message in others.lost})
    await others.until(lambda: others.states(gang)[0] == "lost")


async def test_the_simulator_decides_on_an_export_what_the_service_has_decided(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path, decided: Decided
) -> None:
    """Every decision, in the same order, at the same time, with the same places, codes, numbers and
    words; and in the end every pod where the Scheduler's words have it.
    """
    port = free_port()
    async with scheduler(
        port,
        cluster_file=file,
        cluster_file_poll_s=0.05,
        record_wait_s=0.0,
        lease_timeout_s=2.0,
        cycle_part_s=DEADLINE_S,  # in one part: else the next word comes amid it
    ):
        await a_day(kit, others, file)
        await a_node_is_lost(others, "owner")
        cluster, events = await exported(port)
    again, simulation = replayed(cluster, events)
    assert again == decided.lines
    kinds = {json.loads(event)["event"] for event in events}
    assert {"Placed", "Deferred", "Refused", "Preempted", "Grown", "Downgraded"} <= decided.names
    assert {"cluster-changed", "node-bad", "gang-grown", "pod-released"} <= kinds
    assert simulated(simulation) == places(others)
    histories = what_was_wanted(cluster, events)
    assert histories.keys() == {"guest", "owner", "low", "late", "huge"}
    assert histories["guest"].is_over
    assert histories["guest"].cut_s > 0, "it did not come back"
    assert (histories["low"].is_over, histories["huge"].started_at) == (False, None)


async def test_what_was_decided_before_and_after_restarts_is_in_one_export(
    kit: Kit,
    scheduler: RunScheduler,
    others: Others,
    file: Path,
    decided: Decided,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clean restart amid a preemption, and a transaction that fails: its cycle never was."""
    port = free_port()
    async with scheduler(free_port(), cluster_file=file, record_wait_s=0.0):
        await nodes_come(kit, others)
        await others.ask(wanted(kit, "guest", ("w", 3, 2), priority=-1))
        await others.until(lambda: others.states("guest") == ["placed"] * 3)
        await others.ask(wanted(kit, "owner", ("w", 1, 2), vc="lab"))
        await others.until(lambda: others.states("guest") == ["preempted"] * 3)
        await others.ask(wanted(kit, "more", ("w", 2, 2), vc="lab", age=1))
        await others.until(lambda: others.states("more") == ["refused"] * 2)
    async with scheduler(port, cluster_file=file, record_wait_s=0.0) as runtime:
        await others.ask(wanted(kit, "next", ("w", 1, 2), vc="lab", age=2))
        await others.until(lambda: others.states("next") == ["waiting"])
        keep_gangs, failed = store.gangs.keep_gangs, asyncio.Event()

        async def failing(conn: Connection, gangs: Any) -> None:
            await keep_gangs(conn, gangs)
            if not failed.is_set() and any(gang.request.gang == "again" for gang in gangs):
                failed.set()
                decided.forget_last()
                raise Transient("as if the database had gone away")

        monkeypatch.setattr(store.gangs, "keep_gangs", failing)
        await until(lambda: measured(runtime, SNAPSHOTS) >= 1)
        await others.ask(wanted(kit, "again", ("w", 1, 2), vc="lab", age=3))
        await others.until(lambda: others.states("again") == ["waiting"])
        assert failed.is_set()
        await ends(kit, others, "guest")
        await others.until(lambda: others.states("owner") == ["placed"])
        await until(lambda: measured(runtime, SNAPSHOTS) >= 2)
        cluster, events = await exported(port)
        numbers = [row["number"] for row in await runtime.pool.fetch(NUMBERS)]
    again, simulation = replayed(cluster, events)
    assert again == decided.lines
    assert simulated(simulation) == places(others)
    restarts = [event for event in map(json.loads, events) if event["event"] == RESTARTED]
    assert len(restarts) == 2
    assert not any("gap" in event for event in restarts)
    assert numbers == list(range(1, len(numbers) + 1))
    histories = what_was_wanted(cluster, events)
    assert histories.keys() == {"guest", "owner", "more", "next", "again"}
    assert {gang for gang, life in histories.items() if life.started_at is not None} == {
        "guest",
        "owner",
    }


NUMBERS = "SELECT number FROM recorded_cycle ORDER BY number"
RESTARTED = "scheduler-restarted"
SNAPSHOTS = "record_snapshots_total"


async def test_a_leader_that_is_deposed_records_nothing(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    async with scheduler(cluster_file=file, record_wait_s=0.0, leader_take_s=DEADLINE_S) as runtime:
        await nodes_come(kit, others)
        await others.ask(wanted(kit, "a", ("w", 1, 2)))
        await others.until(lambda: others.states("a") == ["placed"])
        await runtime.pool.execute(
            "UPDATE leader SET epoch = 7, holder = 'other', expires_at = 'infinity'"
        )
        before = await runtime.pool.fetch(NUMBERS)
        for number in range(5):
            await others.ask(wanted(kit, f"b{number}", ("w", 1, 1)))
            await others.report(kit.report("n0", gpus=2, bad=(number % 2,), revision=2 + number))
        await until(lambda: not measured(runtime, "is_leader"))
        assert await runtime.pool.fetch(NUMBERS) == before
        assert await runtime.pool.fetchval("SELECT max(epoch) FROM recorded_cycle") == 1


async def test_who_may_export_and_what_can_be_asked(
    scheduler: RunScheduler, kit: Kit, others: Others, file: Path
) -> None:
    port = free_port()
    async with scheduler(port, cluster_file=file):
        await nodes_come(kit, others)
        await others.ask(wanted(kit, "a", ("w", 1, 2)))
        await others.until(lambda: others.states("a") == ["placed"])
        await exported(port)
        async with asking(port, ServiceAuth(SCHEDULER, "another-cluster-key-" * 2)) as stranger:
            assert (await stranger.get("/export", params={"since": 0})).status_code == 401
        async with asking(port) as client:

            async def status(**query: object) -> int:
                return (await client.get("/export", params=query)).status_code

            answer = await client.get("/export", params={"since": 0})
            assert (answer.status_code, int(answer.headers["X-As-Of"]) > 0) == (200, True)
            assert await status(since="2026-01-31T13:00:00Z", until="9999999999") == 200
            assert await status(since=5, until=4) == 400
            assert await status(until=4) == 400
            assert await status(since="yesterday") == 400
            assert await status(since="2026-01-31T13:00:00") == 400  # of no zone
            assert await status(since="nan") == await status(since=-1) == 400
            assert await status(since=0, until=1) == 404


async def whole_snapshots(runtime: Runtime) -> list[float]:
    """When each stored one was taken."""
    rows = await runtime.pool.fetch("SELECT at FROM recorded_snapshot WHERE is_last")
    return [row["at"] for row in rows]


async def test_a_stretch_begins_with_the_last_snapshot_before_it(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path, decided: Decided
) -> None:
    port = free_port()
    async with scheduler(
        port, cluster_file=file, record_wait_s=0.0, record_snapshot_h=1e-9, record_clean_s=1e6
    ) as runtime:
        await nodes_come(kit, others)
        await others.ask(wanted(kit, "a", ("w", 2, 2)))
        await others.until(lambda: others.states("a") == ["placed"] * 2)
        await others.ask(wanted(kit, "b", ("w", 1, 2), age=1))
        await others.until(lambda: others.states("b") == ["waiting"])
        async with asyncio.timeout(DEADLINE_S):
            while (since := max(await whole_snapshots(runtime), default=0.0)) < decided.last_at:
                await asyncio.sleep(0.02)
        before = len(decided.lines)
        assert len(await whole_snapshots(runtime)) > 1
        assert measured(runtime, SNAPSHOTS) >= 1
        await ends(kit, others, "a")
        await others.until(lambda: others.states("b") == ["placed"])
        cluster, events = await exported(port, str(since))
    first = json.loads(events[0])
    assert first["at"] > since
    assert "gang-restored" in {json.loads(event)["event"] for event in events}
    assert replayed(cluster, events)[0] == decided.lines[before:]
