"""A thousand agents in one process, for `make bench-k8s`: `python fleet.py FILE`.

Each is the agent's own `build`, with its journal, runner, watches, loops and rights. They share the
reader and the producer of the bus, the connections to the API server, and the look at the machine's
ports. None serves HTTP, for KWOK runs nothing that asks for a start permit, and none reserves disk
space for its journal.
"""

import asyncio
import contextlib
import copy
import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from unittest.mock import patch

import uvloop
from aiokafka import AIOKafkaConsumer
from kubernetes_asyncio.client import ApiClient, Configuration
from muster.bus import Bus
from muster.contracts.model import Model
from muster.contracts.services import SERVICE_STARTED
from muster.contracts.topics import Service
from muster.metrics import PlumbingMetrics
from muster.readers import Follower, OnRecord, Reader, end_in_time, received
from muster.records import Received
from muster.service import Runtime
from muster.telemetry import set_up_logging
from prometheus_client import CollectorRegistry
from runtime_agent.app import build
from runtime_agent.kubernetes.api import Json
from runtime_agent.kubernetes.api_server import ApiServer
from runtime_agent.ports import listening_ports
from runtime_agent.reader import TOPICS
from runtime_agent.settings import AgentSettings, OnStop, RunnerKind
from runtime_agent.store import Journal, Position

IN_FLIGHT = 64
"""Requests about pods, of all agents together; as many as the ceiling has."""
STARTS_AT_ONCE = 16
PORTS_KEPT_S = 5.0
FILES = 20_000
"""Of an agent some ten: its lock, doorbell, journal and two watches."""
POLL_MS = 200


@dataclass(frozen=True)
class Plan:
    """What a fleet needs. `tokens`: of the agents' service account, by node."""

    home: str
    url: str
    ca: str
    bootstrap: str
    gpus: int
    tokens: Mapping[str, str]

    def write(self, path: Path) -> None:
        """A private file."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            json.dump(asdict(self), file)


@dataclass
class BoundedApi(ApiServer):
    """One node's, of those that have few requests open together."""

    slots: asyncio.Semaphore

    async def _ask(
        self, method: str, path: str, body: Json | None = None
    ) -> tuple[int, Json, float]:
        async with self.slots:
            return await super()._ask(method, path, body)

    async def close(self) -> None:
        """The connections are the others' too."""


class Connections:
    """Connections to the API server that many nodes share, each with its own token."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._client = ApiClient(self._configuration(""))

    def of(self, node: str) -> BoundedApi:
        """The API server, as the node's agent has it."""
        client = copy.copy(self._client)
        client.configuration = self._configuration(self._plan.tokens[node])
        return BoundedApi(node, client, self._slots)

    def _configuration(self, token: str) -> Configuration:
        made = Configuration(host=self._plan.url)
        made.ssl_ca_cert = self._plan.ca
        made.api_key["BearerToken"] = f"Bearer {token}"
        made.connection_pool_maxsize = 0  # no limit: each watch holds a connection
        return made

    async def close(self) -> None:
        """Ends watches too."""
        await self._client.close()


class Seat:
    """What an agent has in place of its reader of the bus."""

    def __init__(
        self,
        seats: dict[str, "Seat"],
        _bus: Bus,
        settings: AgentSettings,
        _journal: Journal,
        on_batch: Callable[[Sequence[Received], Sequence[Position]], None],
        recovered: asyncio.Event,
    ) -> None:
        self.take = on_batch
        self._recovered = recovered
        self.has_begun = asyncio.Event()
        self.caught_up = asyncio.Event()
        seats[settings.node] = self

    async def run(self) -> None:
        """The fleet's reader has begun before any agent did."""
        self.has_begun.set()
        await self._recovered.wait()
        self.caught_up.set()
        await asyncio.Event().wait()


class FleetReader(Reader):
    """Reads all agents' records once, and hands each to its node's agent."""

    def __init__(self, bus: Bus, seats: Mapping[str, Seat]) -> None:
        super().__init__(bus, TOPICS, bus.settings.bus_watch_s)
        self._seats = seats
        self.has_begun = asyncio.Event()

    async def _read(self) -> None:
        settings = self._bus.settings
        consumer = AIOKafkaConsumer(
            *TOPICS,
            **settings.kafka_client(),
            group_id=None,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=settings.fetch_wait_busy_ms,
        )
        try:
            await consumer.start()
            self.has_begun.set()
            while not self._rebuild.is_set():
                got = await consumer.getmany(timeout_ms=POLL_MS, max_records=settings.batch_records)
                self._waits.adapt(consumer, bool(got))
                by_node: defaultdict[str, list[Received]] = defaultdict(list)
                for record in map(received, (one for batch in got.values() for one in batch)):
                    by_node[record.key or ""].append(record)
                for node, records in by_node.items():
                    if node in self._seats:
                        self._seats[node].take(records, ())
                        await asyncio.sleep(0)
        finally:
            await end_in_time(consumer.stop(), settings.shutdown_s)


class AgentRuntime(Runtime):
    """An agent's, with the fleet's bus."""

    def __init__(self, settings: AgentSettings, bus: Bus, listeners: list[OnRecord]) -> None:
        super().__init__(Service.RUNTIME_AGENT, settings, CollectorRegistry())
        self.bus = bus
        self._tasks.clear()
        self._listeners = listeners

    def follow(self, topics: Sequence[str], on_record: OnRecord) -> Follower:
        """By the fleet's follower, which begins when all agents have."""
        self._listeners.append(on_record)
        return Follower(self.bus, topics, on_record)


@dataclass
class Fleet:
    """All agents, until cancelled."""

    plan: Plan
    seats: dict[str, Seat] = field(default_factory=dict)
    listeners: list[OnRecord] = field(default_factory=list)

    async def run(self) -> None:
        connections = Connections(self.plan)

        async def connect(node: str, _config: Path | None) -> BoundedApi:
            return connections.of(node)

        bus = Bus(
            self._settings("fleet"), Service.RUNTIME_AGENT, PlumbingMetrics(CollectorRegistry())
        )
        reader = FleetReader(bus, self.seats)
        topics = ["node-returned", "settings-changed", SERVICE_STARTED]
        follower = Follower(bus, topics, self._tell)
        starts = asyncio.Semaphore(STARTS_AT_ONCE)
        with (
            patch("runtime_agent.kubernetes.api_server.connect", connect),
            patch("runtime_agent.app.PartitionReader", partial(Seat, self.seats)),
            patch("runtime_agent.store.SPARE_BYTES", 0),
            patch("runtime_agent.store.LOG_BYTES", 1),
            patch("runtime_agent.watch.SPARE_BYTES", 0),
            patch("runtime_agent.app.listening_ports", _ports),
            patch("runtime_agent.reporter.listening_ports", _ports),
        ):
            async with asyncio.TaskGroup() as group:
                group.create_task(bus.run())
                group.create_task(reader.run())
                await reader.has_begun.wait()
                for node in self.plan.tokens:
                    group.create_task(self._agent(node, bus, starts))
                group.create_task(follower.run())

    async def _agent(self, node: str, bus: Bus, starts: asyncio.Semaphore) -> None:
        runtime = AgentRuntime(self._settings(node), bus, self.listeners)
        async with contextlib.AsyncExitStack() as stack:
            async with starts:
                await stack.enter_async_context(build(runtime))
            async with asyncio.TaskGroup() as group:
                for name, run in runtime.tasks:
                    group.create_task(_until_cancelled(run), name=f"{node}: {name}")

    def _tell(self, record: Received, message: Model | None) -> None:
        for listener in self.listeners:
            listener(record, message)

    def _settings(self, node: str) -> AgentSettings:
        return AgentSettings(
            node=node,
            machine_id=node,
            agent_home=Path(self.plan.home) / node,
            runner=RunnerKind.KUBERNETES,
            agent_on_stop=OnStop.KEEP,
            kube_host_network="*",
            kube_logs=Path(self.plan.home) / "logs",
            kube_pods=Path(self.plan.home) / "volumes",
            fake_gpus=self.plan.gpus,
            kafka_bootstrap=self.plan.bootstrap,
            fetch_wait_busy_ms=4,  # as `muster up` has it for its embedded broker
            fetch_wait_idle_ms=100,
        )


async def _until_cancelled(run: Callable[[], Awaitable[None]]) -> None:
    await run()


def _ports() -> frozenset[int]:
    return _ports_at(int(time.monotonic() / PORTS_KEPT_S))


@lru_cache(maxsize=1)
def _ports_at(_period: int) -> frozenset[int]:
    return listening_ports()


def main() -> None:
    """Run the fleet until a signal ends it."""
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    set_up_logging(Service.RUNTIME_AGENT, "INFO")
    uvloop.run(Fleet(plan).run())


if __name__ == "__main__":
    main()
