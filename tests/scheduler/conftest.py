"""Builders of the core's inputs that read as sentences; a Launcher and agents that are played."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli.embedded.broker import EmbeddedBroker
from muster.bus import Bus
from muster.contracts.gangs import GangDecision, GangRequest, PodAsk, PodRelease
from muster.contracts.model import Model
from muster.contracts.nodes import (
    Gpu,
    NodeHeartbeat,
    NodeLost,
    NodeNameClashed,
    NodeReport,
    NodeReturned,
    PodOnNode,
)
from muster.contracts.topics import Service
from muster.errors import Transient
from muster.metrics import PlumbingMetrics
from muster.readers import Follower
from muster.records import Received
from muster.service import Runtime, running
from muster.settings import ServiceSettings
from prometheus_client import CollectorRegistry
from scheduler.app import build
from scheduler.domain.core.config import ClusterConfig, Policy
from scheduler.domain.core.model import Decision
from scheduler.domain.rules import Rules
from scheduler.domain.state import State
from scheduler.settings import SchedulerSettings
from scheduler_process import quick_settings, scheduler_process

START = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_S = 60.0
HEARD = (
    "placement-decided",
    "placement-deferred",
    "placement-refused",
    "gang-preempted",
    "node-lost",
    "node-returned",
    "node-name-clashed",
    "node-reported",
)

RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]
RunAnother = Callable[..., AbstractAsyncContextManager[asyncio.subprocess.Process]]


class Kit:
    """What the tests of the core share."""

    start = START

    def report(
        self,
        node: str,
        *,
        revision: int = 1,
        gpus: int | tuple[Gpu, ...] = 0,
        cpu: int = 64,
        memory_mb: int = 512_000,
        holding: Mapping[str, tuple[int, ...]] | None = None,
        bad: tuple[int, ...] = (),
        **more: Any,
    ) -> NodeReport:
        """A node's report; ``holding``: the live pods and their GPUs."""
        holding = holding or {}
        owner = {index: pod for pod, held in holding.items() for index in held}
        values: dict[str, Any] = {
            "journal": f"journal-of-{node}",
            "boot": "boot",
            "at": START + timedelta(seconds=revision),
            "address": f"address-of-{node}",
            "version": "1",
            "pods": tuple(PodOnNode(pod=pod, gpus=held) for pod, held in holding.items()),
            "gpus": gpus
            if isinstance(gpus, tuple)
            else tuple(
                Gpu(
                    index=i,
                    uuid=f"{node}-{i}",
                    model="T",
                    memory_mb=1,
                    is_healthy=i not in bad,
                    pod=owner.get(i),
                )
                for i in range(gpus)
            ),
        }
        return NodeReport(
            node=node, revision=revision, cpu=cpu, memory_mb=memory_mb, **(values | more)
        )

    def gang(
        self,
        name: str,
        *pods: PodAsk,
        priority: int = 10,
        age: float = 0.0,
        released: tuple[PodRelease, ...] = (),
    ) -> GangRequest:
        """A gang's word; ``age`` seconds after the first ones it was submitted."""
        return GangRequest(
            gang=name,
            job=name,
            name=name,
            user="user",
            virtual_cluster="default",
            priority=priority,
            submitted_at=START + timedelta(seconds=age),
            pods=pods,
            released=released,
        )

    def pods(self, gang: str, count: int, **wants: Any) -> tuple[PodAsk, ...]:
        """Equal pods of a gang."""
        return tuple(PodAsk(pod=f"{gang}-w-{i}", role="w", **wants) for i in range(count))

    def state(
        self,
        *reports: NodeReport,
        rules: Rules | None = None,
        file: ClusterConfig | None = None,
        policy: Policy | None = None,
    ) -> State:
        """A state whose nodes are alive and have reported."""
        state = State(rules or Rules(settle_s=0.0), file, policy)
        for report in reports:
            state.report(report, 0.0)
            state.ledger.receive(report.node, report.journal, 0.0)
        return state

    def decide(self, state: State, now: float) -> list[Decision]:
        """One cycle, as the service runs it; the core's clock goes like the other."""
        if state.is_outdated and not state.is_under_way:
            state.change(state.file, now)
        return state.decide(now, now)

    def free(self, state: State, now: float = 0.0) -> int:
        """GPUs that the next gang may have, after a cycle."""
        self.decide(state, now)
        return sum(free.bit_count() for _, _, free in state.core.cells.free())

    def ports(self, state: State, pod: str) -> tuple[int, ...]:
        """The ports of a pod that was placed."""
        hold = state.ledger.hold_of(pod)
        assert hold is not None
        return hold.placement.port_numbers


@pytest.fixture(scope="session")
def kit() -> Kit:
    """Builders."""
    return Kit()


@dataclass
class Others:
    """The Launcher and the agents, as far as the Scheduler sees them. ``alive``: the nodes that
    beat, and their journals; ``twins``: second machines with these names.
    """

    bus: Bus
    decisions: dict[str, GangDecision] = field(default_factory=dict)
    topics: list[tuple[str, str]] = field(default_factory=list)
    lost: list[NodeLost] = field(default_factory=list)
    returned: list[NodeReturned] = field(default_factory=list)
    clashed: list[NodeNameClashed] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    alive: dict[str, str] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    messages: dict[str, GangRequest] = field(default_factory=dict)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, request: GangRequest) -> None:
        """The Launcher's word, with a higher revision each time."""
        revision = self.revisions[request.gang] = self.revisions.get(request.gang, 0) + 1
        known = self.decisions.get(request.gang)
        seen = 0 if known is None else known.revision
        message = request.model_copy(update={"revision": revision, "seen": seen})
        self.messages[request.gang] = message
        await self._say_word(message)

    async def _say_word(self, message: GangRequest) -> None:
        topic = "gang-requested" if message.pods else "gang-released"
        await self._say(
            topic, message.gang, message, f"launcher/gang/{message.gang}/{message.revision}"
        )

    async def repeat(self) -> None:
        """Words that the Scheduler has not named are said again, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            for gang, message in list(self.messages.items()):
                known = self.decisions.get(gang)
                if known is None or known.seen < message.revision:
                    with suppress(Transient, TimeoutError):
                        await self._say_word(message)

    async def report(self, report: NodeReport) -> None:
        """An agent's report; it beats from now on."""
        if self.twins.get(report.node) != report.journal:
            self.alive[report.node] = report.journal
        await self._say("node-reported", report.node, report, f"report/{report.revision}")

    async def beat(self) -> None:
        """Heartbeats, until cancelled."""
        while True:
            for node, journal in (*self.alive.items(), *self.twins.items()):
                with suppress(Transient, TimeoutError):
                    await self._beat(node, journal)
            await asyncio.sleep(0.1)

    async def _beat(self, node: str, journal: str) -> None:
        await self._say("node-heartbeat", node, NodeHeartbeat(node=node, journal=journal))

    async def remove(self, node: str) -> None:
        """An operator removes a node."""
        await self._say("node-reported", node, None)

    async def _say(self, topic: str, key: str, model: Model | None, event_id: str = "x") -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.bus.broadcast(topic, key, model, event_id=event_id, at=0.0)

    def receive(self, record: Received, message: Model | None) -> None:
        """What the Scheduler says."""
        if message is None:
            self.removed.add(record.key or "")
            self.moved.set()
        else:
            self._take(record.topic, message)

    def _take(self, topic: str, message: Model) -> None:
        match message:
            case GangDecision():
                self.topics.append((topic, message.gang))
                known = self.decisions.get(message.gang)
                # One message goes out again with a later ``seen``, as its acknowledgement.
                if known is None or (known.revision, known.seen) < (message.revision, message.seen):
                    self.decisions[message.gang] = message
            case NodeLost():
                self.lost.append(message)
            case NodeReturned():
                self.returned.append(message)
            case NodeNameClashed():
                self.clashed.append(message)
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
        message = self.decisions.get(gang)
        return [] if message is None else [pod.state.value for pod in message.pods]

    def is_over(self, gang: str) -> bool:
        """The Scheduler has said the gang's end."""
        message = self.decisions.get(gang)
        return message is not None and message.seen >= self.revisions[gang] and not message.pods


@pytest.fixture
async def others(fresh_broker: EmbeddedBroker) -> AsyncIterator[Others]:
    """A Launcher and agents on a broker of their own."""
    settings = ServiceSettings(
        kafka_bootstrap=fresh_broker.bootstrap,
        fetch_wait_busy_ms=40,
        fetch_wait_idle_ms=40,
        bus_watch_s=0.1,
    )
    bus = Bus(settings, Service.LAUNCHER, PlumbingMetrics(CollectorRegistry()))
    played = Others(bus)
    tasks = [
        asyncio.create_task(played.beat()),
        asyncio.create_task(played.repeat()),
        asyncio.create_task(Follower(bus, HEARD, played.receive).run()),
        asyncio.create_task(bus.run()),
    ]
    yield played
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await bus.close()


@pytest.fixture
def settings(database_url: str, fresh_broker: EmbeddedBroker) -> SchedulerSettings:
    """Quick ones of this test's own database and broker."""
    return quick_settings(database_url, fresh_broker.bootstrap)


@pytest.fixture
def scheduler(settings: SchedulerSettings) -> RunScheduler:
    """The service, while the block runs."""

    @asynccontextmanager
    async def run(port: int = 0, **changes: Any) -> AsyncIterator[Runtime]:
        changed = settings.model_copy(update=changes)
        async with running(Service.SCHEDULER, changed, port, build) as runtime:
            yield runtime

    return run


@pytest.fixture
def another_scheduler(settings: SchedulerSettings, tmp_path: Path) -> RunAnother:
    """The service as a process of its own. ``log``: where its output goes."""

    def run(
        log: Path | None = None, **changes: Any
    ) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
        changed = settings.model_copy(update=changes)
        return scheduler_process(changed, log or tmp_path / f"{secrets.token_hex(4)}.log")

    return run
