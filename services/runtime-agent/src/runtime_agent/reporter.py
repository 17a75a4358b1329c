"""Broadcasts the node's state: a report on every change and each minute, and heartbeats.

Reports are states: only the newest counts, so the next replaces one that the bus did not take.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog
from muster.bus import Bus
from muster.contracts.model import Model
from muster.contracts.nodes import Gpu, NodeHeartbeat, NodeReturned, ProblemKind
from muster.errors import Transient

from runtime_agent.devices import Devices, Look
from runtime_agent.domain.gpus import TIERS, ForeignProcess, staying, tier_of, with_foreign
from runtime_agent.domain.pods import Pod
from runtime_agent.domain.report import NodeFacts, NodeNow, Offer, report
from runtime_agent.metrics import AgentMetrics
from runtime_agent.ports import listening_ports
from runtime_agent.settings import MEBIBYTE, AgentSettings
from runtime_agent.store import Journal
from runtime_agent.supervisor import proc
from runtime_agent.usage_watch import UsageWatch

PORTS_LOOK_S = 5.0
"""The kernel's list of sockets is long; it is read no more often than this."""

_log = structlog.get_logger()


@dataclass
class Reporter:
    """`live` gives the pods that hold something of the node; `on_gpus` gets the GPUs' indices;
    `owns` tells whether a process is a pod's; `usage` gets the figures of each look.

    Nothing is reported before `has_begun`: the agent must not miss the pods that are placed here.
    """

    bus: Bus
    settings: AgentSettings
    facts: NodeFacts
    offer: Callable[[], Offer]
    journal: Journal
    devices: Devices
    metrics: AgentMetrics
    live: Callable[[], Iterable[Pod]]
    has_begun: asyncio.Event
    on_gpus: Callable[[frozenset[int]], None]
    owns: Callable[[int], bool]
    usage: UsageWatch
    is_stopping: bool = False
    has_returned: asyncio.Event = field(default_factory=asyncio.Event)
    _gpus: tuple[Gpu, ...] = ()
    _processes: dict[int, frozenset[ForeignProcess]] = field(default_factory=dict)
    _disk_problem: str | None = None
    _driver_problem: str | None = None
    _remembered: str | None = None
    _lease: int = 0
    _looked_at_ports_s: float = -PORTS_LOOK_S
    _foreign: dict[int, float] = field(default_factory=dict)
    _outdated: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self) -> None:
        """The last report no longer holds."""
        self._outdated.set()

    def note_foreign(self, ports: Iterable[int]) -> None:
        """A process of no pod was seen to listen there."""
        until = time.monotonic() + self.settings.foreign_port_s
        new = set(ports) - self._foreign.keys()
        self._foreign |= dict.fromkeys(ports, until)
        if new:
            self.changed()

    def on_returned(self, message: Model | None) -> None:
        """The Scheduler has given the node a new lease after it was lost."""
        if not isinstance(message, NodeReturned) or message.node != self.facts.node:
            return
        if message.lease > self._lease:
            self._lease = message.lease
            self.has_returned.set()
            self.changed()

    async def run_reports(self) -> None:
        """Report until cancelled."""
        await self.has_begun.wait()
        while True:
            try:
                await self.report()
                wait_s = self.settings.report_s
            except (Transient, sqlite3.Error) as error:
                _log.debug("a report was not published", error=str(error))
                wait_s = self.settings.retry_s
            try:
                async with asyncio.timeout(wait_s):
                    await self._outdated.wait()
                await asyncio.sleep(self.settings.report_coalesce_s)
            except TimeoutError:
                pass

    async def report(self) -> None:
        """One report now. Raises Transient where the bus is away."""
        self._outdated.clear()
        live = list(self.live())
        self._look_at_ports(live)
        at_s = time.time()
        problem, kind = self._disk_problem, ProblemKind.DISK
        if problem is None and not self._gpus:
            problem, kind = self._driver_problem, ProblemKind.DRIVER
        made = report(
            self.facts,
            NodeNow(
                offer=self.offer(),
                gpus=self._gpus,
                foreign_ports=tuple(self._foreign),
                lease=self._lease,
                is_stopping=self.is_stopping,
                problem=problem,
                problem_kind=kind,
            ),
            live,
            revision=self.journal.take_report(),
            at=datetime.fromtimestamp(at_s, UTC),
        )
        event_id = f"runtime-agent/node/{made.node}/{made.journal}/{made.revision}"
        await self.bus.broadcast("node-reported", made.node, made, event_id=event_id, at=at_s)

    def _look_at_ports(self, live: Iterable[Pod]) -> None:
        """Reports foreign processes on ports of the pods' range, before a pod gets such a port."""
        now = time.monotonic()
        self._foreign = {port: until for port, until in self._foreign.items() if until > now}
        if now - self._looked_at_ports_s < PORTS_LOOK_S:
            return
        self._looked_at_ports_s = now
        given = {
            port
            for pod in live
            if pod.run is not None
            for numbers in pod.run.ports.values()
            for port in numbers
        }
        first, last = self.facts.port_range
        foreign = {p for p in listening_ports() - given if first <= p <= last}
        self._foreign |= dict.fromkeys(foreign, now + self.settings.foreign_port_s)

    async def run_heartbeats(self) -> None:
        """Send heartbeats until cancelled."""
        alive = NodeHeartbeat(node=self.facts.node, journal=self.facts.journal)
        while True:
            at_s = time.time()
            event_id = f"runtime-agent/heartbeat/{self.facts.node}/{int(at_s * 1000)}"
            try:
                await self.bus.broadcast(
                    "node-heartbeat", self.facts.node, alive, event_id=event_id, at=at_s
                )
            except Transient as error:
                _log.debug("a heartbeat was not published", error=str(error))
            await asyncio.sleep(self.settings.heartbeat_s)

    async def run_devices(self) -> None:
        """Look at the GPUs until cancelled."""
        while True:
            await self.look_at_devices()
            await asyncio.sleep(self.settings.device_look_s)

    def _look_at_disk(self) -> None:
        """A node without disk space for its pods' output reports itself as unhealthy."""
        free_mb = shutil.disk_usage(self.settings.agent_home).free // MEBIBYTE
        problem = None
        if free_mb < self.settings.disk_min_mb:
            problem = (
                f"Only {free_mb} MB are free in {self.settings.agent_home}; pods need"
                f" {self.settings.disk_min_mb} MB."
            )
        if (problem is None) != (self._disk_problem is None):
            _log.warning("the node has room again" if problem is None else problem)
            self.changed()
        self._disk_problem = problem

    async def look_at_devices(self) -> None:
        """One look; a driver that hangs costs a thread and its timeout, not the agent."""
        self._look_at_disk()
        look = await asyncio.to_thread(self.devices.look)
        before, self._processes = self._processes, foreign_processes(look.processes, self.owns)
        foreign = staying(self._processes, before)
        self._take(look, foreign)
        try:
            await asyncio.to_thread(
                self.usage.look, self._gpus, look.usage, foreign, list(self.live())
            )
        except Exception as error:  # figures are no reason to end
            self.metrics.usage_failures.inc()
            _log.error("figures of this look are missing", error=repr(error))

    def _take(self, look: Look, foreign: Mapping[int, Set[ForeignProcess]]) -> None:
        self._remember(look.memory)
        gpus = with_foreign(look.gpus, foreign)
        unhealthy = [gpu for gpu in gpus if not gpu.is_healthy]
        self.metrics.gpus.set(len(gpus))
        self.metrics.gpus_unhealthy.set(len(unhealthy))
        self.metrics.gpu_driver_up.set(look.problem is None)
        for gpu in gpus:
            for tier in TIERS:  # a counter that begins at 1 has never risen
                self.metrics.gpu_xids.labels(str(gpu.index), tier).inc(0)
        for index, xid in look.xids:
            self.metrics.gpu_xids.labels(str(index), tier_of(xid)).inc()
        self.on_gpus(frozenset(gpu.index for gpu in gpus))
        if (gpus, look.problem) == (self._gpus, self._driver_problem):
            return
        if look.problem != self._driver_problem:
            _log.warning("the GPU driver answers" if look.problem is None else look.problem)
        if look.problem is None:
            for gpu in unhealthy:
                if gpu not in self._gpus:
                    _log.warning("a GPU is unhealthy", gpu=gpu.index, problem=gpu.problem)
        self._gpus, self._driver_problem = gpus, look.problem
        self.changed()

    def _remember(self, memory: str | None) -> None:
        """A disk that does not take it is asked again after the next look."""
        if memory is None or memory == self._remembered:
            return
        try:
            self.journal.keep_gpus(memory)
            self._remembered = memory
        except sqlite3.Error as error:
            _log.warning("the journal did not take what is known of the GPUs", error=str(error))


def foreign_processes(
    processes: Mapping[int, Iterable[int]], owns: Callable[[int], bool]
) -> dict[int, frozenset[ForeignProcess]]:
    """By the GPU's index, which living processes on it are no pod's. None where the driver's
    numbers may mean other processes than here.
    """
    if not proc.sees_machine():
        return {}
    found: dict[int, frozenset[ForeignProcess]] = {}
    for index, pids in processes.items():
        on_gpu = set()
        for pid in pids:
            with contextlib.suppress(PermissionError):  # where /proc hides others' processes
                ticks = proc.start_ticks(pid)
                if ticks is not None and not owns(pid):
                    on_gpu.add(ForeignProcess(pid, ticks, proc.name_of(pid)))
        found[index] = frozenset(on_gpu)
    return found
