"""The wiring of the agent, its start and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, assert_never

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
from muster.settings import names_in, read
from muster.token_guard import TokenGuard

from runtime_agent.api.logs import LogServer
from runtime_agent.api.usage import usage_routes
from runtime_agent.confinement import confinement_of
from runtime_agent.devices import Devices, NvmlDevices, SimulatedDevices, capacity
from runtime_agent.domain.kubernetes.manifest import PodRules
from runtime_agent.domain.report import NodeFacts, Offer
from runtime_agent.fork_server import ForkServer
from runtime_agent.handlers import Handlers
from runtime_agent.kubernetes.permits import PermitServer
from runtime_agent.kubernetes.runner import KubernetesPods
from runtime_agent.machine import machine_id
from runtime_agent.metrics import AgentMetrics
from runtime_agent.pod_files import PodFiles
from runtime_agent.pods import PodDirectories
from runtime_agent.ports import listening_ports
from runtime_agent.pretended import PretendedPods
from runtime_agent.reader import PartitionReader
from runtime_agent.recovery import end_unknown, fresh_id, is_of_another_machine
from runtime_agent.relay import Relay
from runtime_agent.reporter import Reporter
from runtime_agent.runner import Runner
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings, OnStop, RunnerKind
from runtime_agent.step import Memory, Node
from runtime_agent.store import Journal, Position
from runtime_agent.supervised import SupervisedPods
from runtime_agent.supervisor import lock, proc
from runtime_agent.usage_metrics import UsageMetrics
from runtime_agent.usage_store import UsageStore
from runtime_agent.usage_watch import UsageWatch
from runtime_agent.watch import Doorbell, Watch

FLUSH_TIMEOUT_S = 5.0
POLL_S = 0.05
LOOKS_KEPT = 2
"""Figures that are older than this many looks are exported no more."""

_log = structlog.get_logger()


class Machine(NamedTuple):
    """What the agent's parts work on."""

    doorbell: Doorbell
    devices: Devices
    journal: Journal
    secrets_key: SecretsKey
    metrics: AgentMetrics


@dataclass
class Agent:
    """The parts of an agent, for its start and its stop."""

    settings: AgentSettings
    files: PodFiles
    journal: Journal
    runner: Runner
    handlers: Handlers
    watch: Watch
    relay: Relay
    reporter: Reporter
    reader: PartitionReader
    recovered: asyncio.Event
    """Whether nothing is left on the node that the journal does not know."""

    async def end(self) -> None:
        """The agent is asked to end: withdraw the pods or leave them, and publish it."""
        match self.settings.agent_on_stop:
            case OnStop.WITHDRAW:
                await self._withdraw()
            case OnStop.KEEP:
                _log.info("pods go on", pods=len(self.handlers.live()))
            case never:
                assert_never(never)
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                if self.recovered.is_set():
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
            live = {entry.pod.pod for entry in self.handlers.live()}
            ended = {seen.pod for seen in self.watch.look(None) if seen.ending is not None}
            if live <= ended:  # the next start publishes what the journal did not take now
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
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(os.close, held)
        doorbell = Doorbell(home / "doorbell")
        opened.callback(doorbell.close)
        journal = _open_journal(home / "journal.sqlite")
        opened.callback(journal.close)
        machine = Machine(
            doorbell,
            _devices(settings, journal),
            journal,
            SecretsKey(home),
            AgentMetrics(runtime.registry),
        )
        files, runner = await _runner(settings, machine)
        opened.push_async_callback(runner.close)
        files.sweep()
        ident = machine_id(settings.machine_id, settings.node)
        if is_of_another_machine(journal, ident):
            await _while_running(runner, end_unknown(journal, runner, ident, ()))
        elif journal.machine is None:
            journal.adopt(ident)
        agent = _make(runtime, settings, machine, files, runner)
        agent.watch.see_to_reserve()
        await agent.reporter.look_at_devices()
        doorbell.listen(agent.watch.ring)
        _spawn(runtime, agent, ident)
        yield
        await runtime.bus.close()  # its start may have been cut off by the stop
        await agent.end()
        await runtime.bus.close()


async def _while_running(runner: Runner, work: Coroutine[Any, Any, None]) -> None:
    running = asyncio.create_task(runner.run())
    try:
        await work
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _runner(settings: AgentSettings, machine: Machine) -> tuple[PodFiles, Runner]:
    doorbell, devices, journal, key, metrics = machine
    pods = settings.agent_home.resolve() / "pods"
    match settings.runner:
        case RunnerKind.PRETENDED:
            _log.warning("no process is started: every pod is pretended and succeeds at once")
            offered = capacity()
            offer = Offer(
                cpu=settings.cpu or offered.cpu,
                memory_mb=settings.memory_mb or offered.memory_mb,
                simulated=True,
            )
            return PodFiles(pods), PretendedPods(doorbell.path, offer)
        case RunnerKind.KUBERNETES:
            # Only here: its libraries take 44 MB, which other runners should not pay.
            from runtime_agent.kubernetes.api_server import connect

            api = await connect(settings.node, settings.kube_config)
            files = PodFiles(pods)
            rules = PodRules(
                namespace=settings.kube_namespace,
                host_namespace=settings.kube_host_namespace,
                step_image=settings.kube_step_image,
                agent_port=settings.http_port,
                grace_s=settings.grace_s,
                gpu_mode=settings.kube_gpu_mode,
                runtime_class=settings.kube_runtime_class,
                host_network=frozenset(names_in(settings.kube_host_network)),
                image_pull_policy=settings.kube_image_pull_policy,
                step_is_private=settings.kube_step_pull_secret,
            )
            return files, KubernetesPods(
                settings, rules, files, journal, api, devices, key, metrics, doorbell.path
            )
        case RunnerKind.SUPERVISED:
            directories = PodDirectories(pods)
            confinement = confinement_of(settings)
            return directories, SupervisedPods(
                settings, directories, ForkServer(), devices, doorbell.path, confinement, key
            )
        case never:
            assert_never(never)


def _make(
    runtime: Runtime, settings: AgentSettings, machine: Machine, files: PodFiles, runner: Runner
) -> Agent:
    _, devices, journal, key, metrics = machine
    patience_s = LOOKS_KEPT * (settings.device_look_s + settings.device_timeout_s)
    is_private = bool(settings.metrics_token.get_secret_value())
    is_shared = runner.offer().single_user is None and _open_bus(settings) is None
    usage = UsageMetrics(
        runtime.registry, settings.node, patience_s, shows_jobs=is_private or not is_shared
    )
    store = UsageStore(settings.agent_home / "usage.sqlite")
    relay = Relay(
        runtime.bus, settings, journal, lambda pod, revision: handlers.on_refused(pod, revision)
    )
    memory = Memory(
        journal=journal,
        node=Node(settings.node, proc.boot_id(), settings.grace_s, settings.checkpoint_every_s),
        has=runner.has,
        masked=key.masked,
    )

    def on_batch(records: Sequence[Received], positions: Sequence[Position]) -> None:
        foreign = _foreign_ports(handlers, records)
        reporter.note_foreign(foreign)
        with runtime.metrics.batch_seconds.time():
            handlers.on_records(records, positions, foreign)
        runtime.metrics.batch_records.observe(len(records))

    recovered = asyncio.Event()
    reader = PartitionReader(runtime.bus, settings, journal, on_batch, recovered)
    reporter = Reporter(
        bus=runtime.bus,
        settings=settings,
        facts=_facts(settings, journal, key),
        offer=runner.offer,
        journal=journal,
        devices=devices,
        metrics=metrics,
        has_begun=reader.has_begun,
        live=lambda: [entry.pod for entry in handlers.live()],
        on_gpus=lambda indices: setattr(memory, "gpus", indices),
        owns=runner.owns,
        usage=UsageWatch(settings.agent_home, runner, usage, store),
    )
    handlers = Handlers(memory, relay.publish, reporter.changed)
    if isinstance(runner, KubernetesPods):
        runner.changed = reporter.changed
    watch = Watch(handlers, runner, files, settings, metrics, runtime.metrics, reader.caught_up)
    return Agent(
        settings, files, journal, runner, handlers, watch, relay, reporter, reader, recovered
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
        return Journal(path, fresh_id(), report_floor=int(time.time() * 1000))
    except sqlite3.OperationalError:  # a full disk, or a place that may not be written to
        raise
    except (sqlite3.DatabaseError, ValueError) as error:
        raise Broken(
            f"{path} can't be read ({error}); with another agent's version, or remove {path}* to"
            " begin anew: then every pod of this node is ended"
        ) from error


def _facts(settings: AgentSettings, journal: Journal, key: SecretsKey) -> NodeFacts:
    return NodeFacts(
        node=settings.node,
        journal=journal.id,
        boot=proc.boot_id(),
        address=settings.address,
        log_url=settings.logs_at(),
        version=version("muster-runtime-agent"),
        port_range=(settings.port_first, settings.port_last),
        single_user=_open_bus(settings),
        secrets_key=key.public,
    )


def _open_bus(settings: AgentSettings) -> str | None:
    if settings.kafka_has_login:
        return None
    return "Kafka has no log-in, so a task can act as any user"


def _spawn(runtime: Runtime, agent: Agent, machine: str) -> None:
    settings, watch, reporter = agent.settings, agent.watch, agent.reporter

    known = agent.journal.names()

    async def recover() -> None:
        await end_unknown(agent.journal, agent.runner, machine, known)
        agent.recovered.set()

    async def read_requests() -> None:
        if not isinstance(agent.runner, KubernetesPods):
            await agent.recovered.wait()
        await agent.reader.run()  # a stop does not wait for an API server that is away

    async def run_reports() -> None:
        await agent.recovered.wait()  # before that, nothing of the node may be known
        await reporter.run_reports()

    def on_broadcast_message(record: Received, message: Model | None) -> None:
        reporter.on_returned(message)
        watch.on_setting(record, message)
        watch.on_service(record, message)

    # The records on the old bus are gone: messages as well as the node's state.
    runtime.bus.on_new_bus.extend((watch.on_recovered, reporter.changed))
    runtime.bus.on_open.append(lambda channel: watch.on_recovered(channel.topic))
    runtime.follow(["node-returned", "settings-changed", SERVICE_STARTED], on_broadcast_message)
    for name, run in (
        ("runner", agent.runner.run),
        ("recovery", recover),
        ("reader", read_requests),
        ("relay", agent.relay.run),
        ("effects", watch.run_effects),
        ("looks", watch.run_looks),
        ("times", watch.run_times),
        ("removals", watch.run_removals),
        ("cleaning", watch.run_cleaning),
        ("returns", lambda: watch.run_returns(agent.reader.has_begun, reporter.has_returned)),
        ("requests", lambda: watch.run_requests(agent.reader.has_begun)),
        ("reports", run_reports),
        ("heartbeats", reporter.run_heartbeats),
        ("devices", reporter.run_devices),
    ):
        runtime.spawn(name, run)
    guard = TokenGuard(audience_of(settings.node), settings.service_key, runtime.metrics)
    streams = watch.metrics.log_streams
    server = LogServer(
        agent.files, agent.handlers.is_live, settings, streams, guard, runtime.stopping
    )
    runtime.routes.extend(server.routes())
    runtime.routes.extend(usage_routes(reporter.usage.store, guard))
    if isinstance(agent.runner, KubernetesPods):
        permits = PermitServer(agent.handlers, agent.runner, agent.reader.caught_up)
        runtime.routes.extend(permits.routes())


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
