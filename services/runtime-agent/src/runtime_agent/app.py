"""The wiring of the agent, its start and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import assert_never

import structlog
from muster.contracts.model import Model
from muster.contracts.pods import PodRequest, PodRun
from muster.contracts.services import SERVICE_STARTED
from muster.contracts.topics import Service
from muster.errors import Broken, Transient
from muster.process import make_folder_private
from muster.records import Received
from muster.service import Runtime, run_service
from muster.service_keys import agent as audience_of
from muster.settings import read
from muster.token_guard import TokenGuard

from runtime_agent.api.logs import LogServer
from runtime_agent.confinement import Confinement, confinement_of
from runtime_agent.devices import Devices, NvmlDevices, SimulatedDevices, capacity
from runtime_agent.domain.ending import AGENT_RESET
from runtime_agent.domain.report import NodeFacts
from runtime_agent.fork_server import ForkServer
from runtime_agent.handlers import Handlers
from runtime_agent.machine import machine_id
from runtime_agent.metrics import AgentMetrics
from runtime_agent.pods import PodDirectories, never_ran
from runtime_agent.ports import listening_ports
from runtime_agent.reader import PartitionReader
from runtime_agent.relay import Relay
from runtime_agent.reporter import Reporter
from runtime_agent.runner import PretendedPods, Runner, SupervisedPods
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings, OnStop
from runtime_agent.step import Memory, Node
from runtime_agent.store import Journal, Position
from runtime_agent.supervisor import lock, proc
from runtime_agent.watch import Doorbell, Watch

END_ALL_TIMEOUT_S = 60.0
"""Pods of a lost journal are ended by then; later their supervisors are killed with them."""
FLUSH_TIMEOUT_S = 5.0
POLL_S = 0.05

_log = structlog.get_logger()


@dataclass
class Agent:
    """The parts of an agent, for its start and its stop."""

    settings: AgentSettings
    directories: PodDirectories
    journal: Journal
    handlers: Handlers
    watch: Watch
    relay: Relay
    reporter: Reporter
    reader: PartitionReader
    fork_server: ForkServer

    async def end(self) -> None:
        """The agent is asked to end: withdraw the pods or leave them, and publish it."""
        match self.settings.agent_on_stop:
            case OnStop.WITHDRAW:
                await self._withdraw()
            case OnStop.KEEP:
                _log.info("pods go on under their supervisors", pods=len(self.handlers.live()))
            case never:
                assert_never(never)
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self.reporter.report()
                await self.relay.flush()
        except (Transient, TimeoutError, sqlite3.Error) as error:
            _log.warning(
                "the last messages were not published; the next start publishes them",
                why=str(error),
            )

    async def _withdraw(self) -> None:
        grace_s = self.settings.withdraw_grace_s
        try:
            self.handlers.on_withdraw(grace_s)
        except sqlite3.Error as error:
            _log.error("the journal can't be written, so the pods go on", error=str(error))
            return
        self.reporter.is_stopping = True
        _log.info("withdrawing", pods=len(self.handlers.live()), grace_s=grace_s)
        self.watch.carry_out_all()
        until = time.monotonic() + grace_s + self.settings.supervisor_patience_s
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self.reporter.report()
        except (Transient, TimeoutError, sqlite3.Error) as error:
            _log.debug("the final report was not published", why=str(error))
        while self.handlers.live() and time.monotonic() < until:
            is_over = all(self.directories.is_over(entry.pod.pod) for entry in self.handlers.live())
            self.watch.look(None)
            if is_over:  # the next start publishes what the journal did not take now
                return
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def build(runtime: Runtime) -> AsyncIterator[None]:
    """Set the agent up; after its tasks have ended, end it. Raises Broken where it can't run."""
    settings = runtime.settings
    assert isinstance(settings, AgentSettings)
    home = settings.agent_home.resolve()
    try:
        make_folder_private(home)
    except OSError as error:
        raise Broken(f"MUSTER_AGENT_HOME: {home} can't be used: {error}") from error
    held = lock.take(home / "lock")
    if held is None:
        raise Broken(f"another agent runs over {home}; stop it, or set another MUSTER_AGENT_HOME")
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, held)
        doorbell = Doorbell(home / "doorbell")
        opened.callback(doorbell.close)
        directories = PodDirectories(home / "pods")
        directories.sweep()
        journal = _open_journal(home / "journal.sqlite")
        opened.callback(journal.close)
        await end_unknown(journal, directories, machine_id(settings.machine_id, settings.node))
        agent = _make(runtime, settings, doorbell, directories, journal)
        opened.callback(agent.fork_server.close)
        agent.watch.see_to_reserve()
        await agent.reporter.look_at_devices()
        doorbell.listen(agent.watch.ring)
        _spawn(runtime, agent)
        yield
        await runtime.bus.close()  # its start may have been cut off by the stop
        await agent.end()
        await runtime.bus.close()


async def end_unknown(journal: Journal, directories: PodDirectories, machine: str) -> None:
    """Ends pods that the journal does not know: all of them where it is new, or is reset because it
    belongs to another machine.

    Raises Broken where a pod can't be ended: then no other may start.
    """
    names = directories.names()
    is_lost = journal.machine not in (None, machine)
    if is_lost:
        _log.warning(
            "the journal belongs to another machine: this one ends all pods that it finds of it,"
            " forgets what is in it, and begins a new one; logs stay",
            journal=journal.id,
            pods=len(names),
        )
        for name in names:
            directories.disown_start(name)
    known = {} if is_lost else journal.load(names)
    open_ones = [name for name in names if name not in known and not directories.is_over(name)]
    if open_ones:
        _log.warning("ending pods that the journal does not know", pods=open_ones)
    for name in open_ones:
        _end_unknown_pod(directories, name)
    patience = time.monotonic() + END_ALL_TIMEOUT_S
    while open_ones := [name for name in open_ones if not directories.is_over(name)]:
        if time.monotonic() > patience:
            for name in open_ones:
                directories.kill_supervisor(name)
        if time.monotonic() > 2 * END_ALL_TIMEOUT_S + patience:
            raise Broken(f"these pods can't be ended, not even by SIGKILL: {open_ones}")
        await asyncio.sleep(POLL_S)
    for name in set(names) - known.keys():
        directories.drop_command(name)
    if is_lost:  # not before: a crash until here begins all this again
        journal.begin_anew(_fresh_id(), machine)
    elif journal.machine is None:
        journal.adopt(machine)


def _end_unknown_pod(directories: PodDirectories, name: str) -> None:
    try:
        directories.ask_to_stop(name, AGENT_RESET, 0.0)
        directories.seal(name, never_ran(AGENT_RESET))
    except OSError as error:
        _log.error("a pod can't be asked to end: killed", pod=name, error=str(error))
        directories.kill_supervisor(name)


def _make(
    runtime: Runtime,
    settings: AgentSettings,
    doorbell: Doorbell,
    directories: PodDirectories,
    journal: Journal,
) -> Agent:
    metrics = AgentMetrics(runtime.registry)
    relay = Relay(
        runtime.bus, settings, journal, lambda pod, revision: handlers.on_refused(pod, revision)
    )
    devices = _devices(settings, journal)
    fork_server = ForkServer()
    confinement = confinement_of(settings)
    key = SecretsKey(settings.agent_home.resolve())
    runner: Runner
    if settings.agent_pretend:
        _log.warning("no process is started: every pod is pretended and succeeds at once")
        runner = PretendedPods(doorbell.path)
    else:
        runner = SupervisedPods(
            settings, directories, fork_server, devices, doorbell.path, confinement, key
        )
    memory = Memory(
        journal=journal,
        node=Node(settings.node, proc.boot_id(), settings.grace_s, settings.checkpoint_every_s),
        has=runner.has,
    )

    def on_batch(records: Sequence[Received], positions: Sequence[Position]) -> None:
        foreign = _foreign_ports(handlers, records)
        reporter.note_foreign(foreign)
        with runtime.metrics.batch_seconds.time():
            handlers.on_records(records, positions, foreign)
        runtime.metrics.batch_records.observe(len(records))

    reader = PartitionReader(runtime.bus, settings, journal, on_batch)
    reporter = Reporter(
        bus=runtime.bus,
        settings=settings,
        facts=_facts(settings, journal, confinement, key, simulated=runner.simulated),
        journal=journal,
        devices=devices,
        metrics=metrics,
        has_begun=reader.has_begun,
        live=lambda: [entry.pod for entry in handlers.live()],
        on_gpus=lambda indices: setattr(memory, "gpus", indices),
    )
    handlers = Handlers(memory, relay.publish, reporter.changed)
    watch = Watch(
        handlers, runner, directories, settings, metrics, runtime.metrics, reader.caught_up
    )
    return Agent(
        settings, directories, journal, handlers, watch, relay, reporter, reader, fork_server
    )


def _devices(settings: AgentSettings, journal: Journal) -> Devices:
    if settings.fake_gpus:
        return SimulatedDevices(settings.node, settings.fake_gpus)
    import pynvml  # only here: nodes that pretend need not load it

    return NvmlDevices(
        pynvml,
        settings.device_timeout_s,
        boot=proc.boot_id(),
        home=settings.agent_home,
        memory=journal.gpus(),
    )


def _open_journal(path: Path) -> Journal:
    try:
        # The clock lies above every revision of a report that an older journal could have missed.
        return Journal(path, _fresh_id(), report_floor=int(time.time() * 1000))
    except sqlite3.OperationalError:  # a full disk, or a place that may not be written to
        raise
    except (sqlite3.DatabaseError, ValueError) as error:
        raise Broken(
            f"{path} can't be read ({error}); with another agent's version, or remove {path}* to"
            " begin anew: then every pod of this node is ended"
        ) from error


def _fresh_id() -> str:
    return secrets.token_hex(8)


def _facts(
    settings: AgentSettings,
    journal: Journal,
    confinement: Confinement,
    key: SecretsKey,
    *,
    simulated: bool,
) -> NodeFacts:
    offered = capacity()
    return NodeFacts(
        node=settings.node,
        journal=journal.id,
        boot=proc.boot_id(),
        address=settings.address,
        log_url=settings.log_url or f"http://{settings.address}:{settings.http_port}",
        version=version("muster-runtime-agent"),
        cpu=settings.cpu or offered.cpu,
        memory_mb=settings.memory_mb or offered.memory_mb,
        port_range=(settings.port_first, settings.port_last),
        simulated=simulated,
        missing_limits=confinement.missing,
        single_user=confinement.single_user or _open_bus(settings),
        secrets_key=key.public,
    )


def _open_bus(settings: AgentSettings) -> str | None:
    if settings.kafka_has_login:
        return None
    return "Kafka has no log-in, so a task can act as any user"


def _spawn(runtime: Runtime, agent: Agent) -> None:
    settings, watch, reporter = agent.settings, agent.watch, agent.reporter

    def on_broadcast_message(record: Received, message: Model | None) -> None:
        reporter.on_returned(message)
        watch.on_setting(record, message)
        watch.on_service(record, message)

    # The records on the old bus are gone: messages as well as the node's state.
    runtime.bus.on_new_bus.extend((watch.on_recovered, reporter.changed))
    runtime.bus.on_open.append(lambda channel: watch.on_recovered(channel.topic))
    runtime.follow(["node-returned", "settings-changed", SERVICE_STARTED], on_broadcast_message)
    for name, run in (
        ("reader", agent.reader.run),
        ("relay", agent.relay.run),
        ("effects", watch.run_effects),
        ("looks", watch.run_looks),
        ("times", watch.run_times),
        ("removals", watch.run_removals),
        ("cleaning", watch.run_cleaning),
        ("returns", lambda: watch.run_returns(agent.reader.has_begun, reporter.has_returned)),
        ("requests", lambda: watch.run_requests(agent.reader.has_begun)),
        ("reports", reporter.run_reports),
        ("heartbeats", reporter.run_heartbeats),
        ("devices", reporter.run_devices),
    ):
        runtime.spawn(name, run)
    guard = TokenGuard(audience_of(settings.node), settings.service_key, runtime.metrics)
    streams = watch.metrics.log_streams
    server = LogServer(agent.directories, settings, streams, guard, runtime.stopping)
    runtime.routes.extend(server.routes())


def _foreign_ports(handlers: Handlers, records: Sequence[Received]) -> frozenset[int]:
    """Of the ports that new pods are to get, those on which a foreign process listens."""
    wanted: set[int] = set()
    for record in records:
        with contextlib.suppress(Broken):
            match record.model():
                case PodRequest(pod=pod, run=PodRun(ports=ports)) if not handlers.knows(pod):
                    wanted.update(*ports.values())
    for entry in handlers.live():
        if entry.pod.run is not None:
            wanted.difference_update(*entry.pod.run.ports.values())
    return frozenset(wanted) & listening_ports() if wanted else frozenset()


def main() -> None:
    """Run the agent until it is asked to end."""
    settings = read(AgentSettings)
    run_service(Service.RUNTIME_AGENT, settings, settings.http_port, build)
