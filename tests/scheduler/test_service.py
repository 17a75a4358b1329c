"""The service over a real database and a Kafka-protocol broker; a Launcher and agents are
played.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import asyncpg
import httpx2
import pytest
from cli.embedded.broker import EmbeddedBroker
from muster.bus import Bus
from muster.contracts.gangs import GangDecision, GangRequest
from muster.contracts.model import Model
from muster.contracts.nodes import NodeHeartbeat, NodeLost, NodeReport, NodeReturned
from muster.contracts.topics import Service
from muster.metrics import PlumbingMetrics
from muster.readers import Follower
from muster.records import Received
from muster.service import Runtime, running
from muster.settings import ServiceSettings
from prometheus_client import CollectorRegistry
from scheduler.app import build
from scheduler.settings import SchedulerSettings

Kit = Any
DEADLINE_S = 60.0
TOKEN = "between-services"
HEARD = (
    "placement-decided",
    "placement-deferred",
    "placement-refused",
    "node-lost",
    "node-returned",
)

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@dataclass
class Others:
    """The Launcher and the agents, as far as the Scheduler sees them."""

    bus: Bus
    decisions: dict[str, GangDecision] = field(default_factory=dict)
    topics: list[tuple[str, str]] = field(default_factory=list)
    lost: list[NodeLost] = field(default_factory=list)
    returned: list[NodeReturned] = field(default_factory=list)
    alive: dict[str, str] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    words: dict[str, GangRequest] = field(default_factory=dict)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, request: GangRequest) -> None:
        """The Launcher's word, with a higher revision each time."""
        revision = self.revisions[request.gang] = self.revisions.get(request.gang, 0) + 1
        known = self.decisions.get(request.gang)
        seen = 0 if known is None else known.revision
        word = request.model_copy(update={"revision": revision, "seen": seen})
        self.words[request.gang] = word
        await self._say_word(word)

    async def _say_word(self, word: GangRequest) -> None:
        topic = "gang-requested" if word.pods else "gang-released"
        await self._say(topic, word.gang, word, f"launcher/gang/{word.gang}/{word.revision}")

    async def repeat(self) -> None:
        """Words that the Scheduler has not named are said again, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            for gang, word in list(self.words.items()):
                known = self.decisions.get(gang)
                if known is None or known.seen < word.revision:
                    await self._say_word(word)

    async def report(self, report: NodeReport) -> None:
        """An agent's report; it beats from now on."""
        self.alive[report.node] = report.journal
        await self._say("node-reported", report.node, report, f"report/{report.revision}")

    async def beat(self) -> None:
        """Heartbeats, until cancelled."""
        while True:
            for node, journal in list(self.alive.items()):
                await self._say("node-heartbeat", node, NodeHeartbeat(node=node, journal=journal))
            await asyncio.sleep(0.1)

    async def _say(self, topic: str, key: str, model: Model, event_id: str = "x") -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.bus.say(topic, key, model, event_id=event_id, at=0.0)

    def hear(self, record: Received, word: Model | None) -> None:
        """What the Scheduler says."""
        if word is not None:
            self._take(record.topic, word)

    def _take(self, topic: str, word: Model) -> None:
        match word:
            case GangDecision():
                self.topics.append((topic, word.gang))
                known = self.decisions.get(word.gang)
                if known is None or known.revision < word.revision:
                    self.decisions[word.gang] = word
            case NodeLost():
                self.lost.append(word)
            case NodeReturned():
                self.returned.append(word)
        self.moved.set()

    async def until(self, what: Callable[[], object]) -> Any:
        """Wait until something is so; fails with what was heard."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not (found := what()):
                    self.moved.clear()
                    await self.moved.wait()
        except TimeoutError:
            pytest.fail(f"heard only {self.decisions}, {self.lost}, {self.returned}")
        return found

    def states(self, gang: str) -> list[str]:
        """The states of a gang's pods in the newest word; nothing where none was heard."""
        word = self.decisions.get(gang)
        return [] if word is None else [pod.state.value for pod in word.pods]

    def is_over(self, gang: str) -> bool:
        """The Scheduler has said the gang's end."""
        word = self.decisions.get(gang)
        return word is not None and word.seen >= self.revisions[gang] and not word.pods


@pytest.fixture
async def others(fresh_broker: EmbeddedBroker) -> AsyncIterator[Others]:
    """A Launcher and agents on a broker of their own."""
    settings = ServiceSettings(
        kafka_bootstrap=fresh_broker.bootstrap,
        fetch_wait_busy_ms=10,
        fetch_wait_idle_ms=10,
        bus_watch_s=0.1,
    )
    bus = Bus(settings, Service.LAUNCHER, PlumbingMetrics(CollectorRegistry()))
    played = Others(bus)
    tasks = [
        asyncio.create_task(played.beat()),
        asyncio.create_task(played.repeat()),
        asyncio.create_task(Follower(bus, HEARD, played.hear).run()),
        asyncio.create_task(bus.run()),
    ]
    yield played
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await bus.close()


@pytest.fixture
def settings(database_url: str, fresh_broker: EmbeddedBroker) -> SchedulerSettings:
    """Quick: leases of two seconds."""
    return SchedulerSettings(
        database_url=database_url,
        kafka_bootstrap=fresh_broker.bootstrap,
        http_port=0,
        internal_token=TOKEN,
        fetch_wait_busy_ms=10,
        fetch_wait_idle_ms=10,
        bus_watch_s=0.1,
        database_connections=4,
        settle_s=0.5,
        lease_timeout_s=2.0,
        many_silent=1.0,
        probe_s=0.2,
        watch_s=0.1,
        idle_transaction_s=3.0,
        leader_renew_s=0.1,
        leader_expiry_s=0.3,
        leader_take_s=0.3,
    )


@asynccontextmanager
async def scheduler(settings: SchedulerSettings) -> AsyncIterator[Runtime]:
    """The service, while the block runs."""
    async with running(Service.SCHEDULER, settings, 0, build) as runtime:
        yield runtime


async def held(runtime: Runtime) -> set[tuple[str, int, str]]:
    """Which pod holds which GPU, as the database has it."""
    rows = await runtime.pool.fetch("SELECT node, gpu, pod FROM held_gpu")
    return {(row["node"], row["gpu"], row["pod"]) for row in rows}


async def test_a_gang_is_placed_released_and_over(
    kit: Kit, settings: SchedulerSettings, others: Others
) -> None:
    async with scheduler(settings) as runtime:
        await others.report(kit.report("n0", gpus=4))
        await others.ask(kit.gang("g", *kit.pods("g", 2, gpus=2, ports={"http": 1})))
        await others.until(lambda: others.states("g") == ["placed", "placed"])
        word = others.decisions["g"]
        assert word.epoch == 1
        assert sorted(gpu for pod in word.pods for gpu in pod.gpus) == [0, 1, 2, 3]
        assert {pod.journal for pod in word.pods} == {"journal-of-n0"}
        await others.ask(kit.gang("h", *kit.pods("h", 1, gpus=1)))
        await others.until(lambda: others.states("h") == ["waiting"])
        assert others.decisions["h"].reason is not None
        await others.ask(kit.gang("g"))
        await others.until(lambda: others.is_over("g"))
        await others.until(lambda: others.states("h") == ["placed"])
        assert {pod for _, _, pod in await held(runtime)} == {"h-w-0"}
        await others.ask(kit.gang("big", *kit.pods("big", 1, gpus=5)))
        await others.until(lambda: others.states("big") == ["refused"])


async def test_a_restart_loses_nothing_and_says_nothing_again(
    kit: Kit, settings: SchedulerSettings, others: Others
) -> None:
    async with scheduler(settings):
        await others.report(kit.report("n0", gpus=2))
        await others.ask(kit.gang("a", *kit.pods("a", 2, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed", "placed"])
        await others.ask(kit.gang("b", *kit.pods("b", 2, gpus=1), age=1))
        await others.until(lambda: others.states("b") == ["waiting", "waiting"])
    before = dict(others.decisions)
    async with scheduler(settings) as runtime:
        await others.ask(kit.gang("c", *kit.pods("c", 2, gpus=1), age=2))
        await others.until(lambda: others.states("c") == ["waiting", "waiting"])
        assert {gang: others.decisions[gang].pods for gang in "ab"} == {
            gang: before[gang].pods for gang in "ab"
        }
        assert others.topics.count(("placement-deferred", "b")) >= 1
        await others.ask(kit.gang("a"))
        await others.until(lambda: others.states("b") == ["placed", "placed"])
        assert {pod for _, _, pod in await held(runtime)} == {"b-w-0", "b-w-1"}


async def test_a_silent_node_is_lost_and_its_gpus_count_again_from_its_lease(
    kit: Kit, settings: SchedulerSettings, others: Others
) -> None:
    async with scheduler(settings) as runtime:
        await others.report(kit.report("n0", gpus=1))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed"])
        del others.alive["n0"]
        await others.until(lambda: others.states("a") == ["lost"])
        await others.until(lambda: others.lost)
        assert (others.lost[0].node, others.lost[0].lease, others.lost[0].pods) == (
            "n0",
            1,
            ("a-w-0",),
        )
        await others.ask(kit.gang("a"))
        await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=1)))
        await others.until(lambda: others.states("b") == ["waiting"])
        await others.report(kit.report("n0", gpus=1, revision=2))
        await others.until(lambda: others.returned)
        assert await held(runtime) == {("n0", 0, "a-w-0")}
        await others.report(kit.report("n0", gpus=1, revision=3, lease=others.returned[0].lease))
        await others.until(lambda: others.states("b") == ["placed"])
        assert await held(runtime) == {("n0", 0, "b-w-0")}


async def test_lost_connections_cost_no_decision_and_make_no_second(
    kit: Kit, settings: SchedulerSettings, others: Others, database_url: str
) -> None:
    async with scheduler(settings):
        await others.report(kit.report("n0", gpus=12))
        admin = await asyncpg.connect(database_url)
        for number in range(12):
            name = f"g{number}"
            await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'muster-scheduler' AND datname = current_database()"
            )
        names = [f"g{number}" for number in range(12)]
        await others.until(lambda: all(others.states(name) == ["placed"] for name in names))
        said = {(p.node, p.gpus[0], p.pod) for n in names for p in others.decisions[n].pods}
        rows = await admin.fetch("SELECT node, gpu, pod FROM scheduler.held_gpu")
        assert {(row["node"], row["gpu"], row["pod"]) for row in rows} == said
        assert len({gpu for _, gpu, _ in said}) == 12
        await admin.close()


async def test_a_bus_that_is_away_loses_no_node(
    kit: Kit, settings: SchedulerSettings, others: Others, fresh_broker: EmbeddedBroker
) -> None:
    async with scheduler(settings):
        await others.report(kit.report("n0", gpus=1))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed"])
        alive = dict(others.alive)
        others.alive.clear()
        fresh_broker.kill()
        await asyncio.sleep(3 * settings.lease_timeout_s)  # the time is the test
        fresh_broker.start()
        others.alive.update(alive)
        await others.report(kit.report("n0", gpus=2, revision=2, holding={"a-w-0": (0,)}))
        await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=1)))
        await others.until(lambda: others.states("b") == ["placed"])
        assert others.states("a") == ["placed"]
        assert others.lost == []


@asynccontextmanager
async def process(
    settings: SchedulerSettings, log: IO[bytes]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The service as a process of its own, which can be stopped and woken."""
    names = settings.model_fields_set - {"database_url", "internal_token"}
    environment = {f"MUSTER_{name.upper()}": str(getattr(settings, name)) for name in names}
    environment["MUSTER_DATABASE_URL"] = settings.database_url.get_secret_value()
    environment["MUSTER_INTERNAL_TOKEN"] = TOKEN
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "scheduler",
        env=dict(os.environ) | environment,
        stdout=log,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGCONT)
            started.kill()
        await started.wait()


async def test_only_the_highest_epochs_decisions_exist(
    kit: Kit, settings: SchedulerSettings, others: Others, tmp_path: Path
) -> None:
    """Stop the leader, let the standby decide, wake the leader."""
    with (tmp_path / "leader.log").open("wb") as log:
        await _stop_and_wake(kit, settings, others, log)


async def _stop_and_wake(
    kit: Kit, settings: SchedulerSettings, others: Others, log: IO[bytes]
) -> None:
    async with process(settings, log) as leader:
        await others.report(kit.report("n0", gpus=8))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed"])
        assert others.decisions["a"].epoch == 1
        async with scheduler(settings) as standby:
            leader.send_signal(signal.SIGSTOP)
            for name in ("b", "c"):
                await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
            await others.until(lambda: others.states("b") == others.states("c") == ["placed"])
            leader.send_signal(signal.SIGCONT)
            for number in range(20):
                name = f"d{number}"
                await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
                await others.ask(kit.gang(name))
                await others.until(partial(others.is_over, name))
            later = {gang: word.epoch for gang, word in others.decisions.items() if gang != "a"}
            assert set(later.values()) == {2}
            rows = await standby.pool.fetch("SELECT pod, epoch FROM placement")
            assert {row["pod"]: row["epoch"] for row in rows} == {
                "a-w-0": 1,
                "b-w-0": 2,
                "c-w-0": 2,
            }
            said = await asyncio.to_thread(Path(log.name).read_text)
            assert leader.returncode is None, said


async def test_the_queue_and_reasons_are_told_over_http_to_those_who_may(
    kit: Kit, settings: SchedulerSettings, others: Others
) -> None:
    port = _free_port()
    async with running(Service.SCHEDULER, settings, port, build):
        await others.report(kit.report("n0", gpus=1))
        for age, name in enumerate("abc"):
            await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1), age=age))
        await others.until(lambda: others.states("c") == others.states("b") == ["waiting"])
        base = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=base, trust_env=False) as client:
            assert (await client.get("/queue")).status_code == 401
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            queue = (await client.get("/queue?limit=1")).json()
            assert (queue["waiting"], [gang["gang"] for gang in queue["gangs"]]) == (2, ["b"])
            why = (await client.get("/jobs/c/why")).json()
            (gang,) = why["gangs"]
            assert (gang["state"], gang["position"], gang["ahead"]) == ("waiting", 2, ["b"])
            assert gang["reason"]["code"] == "resource"
            assert gang["reason"]["numbers"]["freeGpus"] == 0
            assert (await client.get("/gangs/a")).json()["state"] == "placed"
            assert (await client.get("/jobs/nobody/why")).status_code == 404
            (node,) = (await client.get("/nodes")).json()["nodes"]
            assert (node["state"], node["gpusFree"], node["pods"]) == ("alive", 0, ["a-w-0"])
            assert "muster_scheduler_is_leader 1.0" in (await client.get("/metrics")).text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
