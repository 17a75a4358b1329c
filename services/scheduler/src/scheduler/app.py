"""The wiring of the Scheduler: it follows the leader and receives from nodes; it decides while it
leads.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from muster.bounded import bounded
from muster.consumer import Consumer
from muster.contracts.topics import Service
from muster.db import is_transient
from muster.errors import Transient
from muster.service import Runtime, run_service
from muster.service_keys import SCHEDULER
from muster.settings import read as read_settings
from muster.token_guard import TokenGuard

from scheduler import store
from scheduler.api.routes import routes
from scheduler.api.views import state_of
from scheduler.cluster_file import Loaded, Refused, content_of, load, load_or_exit
from scheduler.comparisons import Comparisons
from scheduler.configuring import RejectedFile
from scheduler.decider import Decider
from scheduler.domain.core.fragmentation import FreeCells
from scheduler.domain.core.interface import Core
from scheduler.handlers import RECEIVED_TOPICS, messages_beside
from scheduler.pauses import Collector
from scheduler.settings import SchedulerSettings
from scheduler.store.leadership import Deposed

_log = structlog.get_logger()

RENEWALS = 2
"""The most renewals of the lead under way at the same time."""
USERS_EVERY_S = 10.0
"""How often the GPUs of users are counted."""


class Candidate:
    """Takes the lead when it is free, and releases it at the stop."""

    def __init__(self, runtime: Runtime, settings: SchedulerSettings, decider: Decider) -> None:
        self._runtime = runtime
        self._settings = settings
        self._decider = decider
        self._free_cells: FreeCells | None = None
        self._count_users_at = 0.0
        self._renewed_at = 0.0
        self._received_since = time.monotonic()
        handler = messages_beside(decider.deciding)
        self._consumer: Consumer = runtime.consumer(
            RECEIVED_TOPICS, handler, decider.messages_arrived, seat="leader"
        )

    async def run(self) -> None:
        """Stand by, lead, stand by again; until cancelled."""
        standby = self._decider.standby
        try:
            while True:
                epoch = None
                try:
                    epoch = await self._take()
                    if epoch is None:
                        standby.look()
                except Exception as error:
                    if not is_transient(error):
                        raise
                    _log.warning("leadership can't be looked at", error=_text_of(error))
                if epoch is None:
                    await asyncio.sleep(self._settings.leader_renew_s)
                else:
                    await self._lead(epoch)
        finally:
            await standby.end()

    async def _take(self) -> int | None:
        self._renewed_at = time.monotonic()
        receives_from_bus = self._has_received_from_bus()
        async with asyncio.timeout(self._settings.lead_s), self._runtime.pool.acquire() as conn:
            return await store.leadership.take(
                conn, self._decider.holder, self._settings, receives_from_bus=receives_from_bus
            )

    def _has_received_from_bus(self) -> bool:
        """Whether the bus has been reachable for ``leader_cut_off_s``. A bus that has just come
        back will reach the leader too.
        """
        now = time.monotonic()
        if not self._decider.watch.receives_from_bus():
            self._received_since = now
        return now - self._received_since >= self._settings.leader_cut_off_s

    async def probe(self) -> None:
        """A standby's probe shows whether it receives from the bus; a leader probes with leases."""
        while True:
            if not self._decider.is_leading:
                await self._decider.watch.probe()
            await asyncio.sleep(self._settings.probe_s)

    async def _lead(self, epoch: int) -> None:
        decider, metrics = self._decider, self._decider.metrics
        decider.epoch = epoch
        _log.info("this process leads now", epoch=epoch, holder=decider.holder)
        metrics.epoch.set(epoch)
        decider.watch.take_lead()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew(epoch), name="renew")
                tasks.create_task(self._doubt(), name="doubt")
                tasks.create_task(decider.run(), name="decide")
                tasks.create_task(self._watch(), name="watch")
                tasks.create_task(self._forget(), name="forget")
                tasks.create_task(self._consumer.run(), name="consumer")
                tasks.create_task(decider.recorder.run(), name="record")
        except* Deposed:
            _log.warning("another process leads now", epoch=epoch)
        except* (OSError, Transient) as errors:  # what did not end in time, among others
            _log.warning("this process stands by again", errors=[*map(_text_of, errors.exceptions)])
        finally:
            self._step_down()

    def _step_down(self) -> None:
        self._decider.is_leading = False
        self._decider.metrics.is_leader.set(0)

    async def _renew(self, epoch: int) -> None:
        """A renewal that hangs on a broken connection must not cost the lead while others succeed.
        A slow one is not given up: it counts when it is done.
        """
        renewals = set[asyncio.Task[None]]()
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._settings.leader_renew_s)
                renewals = {task for task in renewals if not task.done()}
                if len(renewals) < RENEWALS:
                    renewals.add(group.create_task(self._renew_once(epoch)))

    async def _renew_once(self, epoch: int) -> None:
        began, receives_from_bus = time.monotonic(), self._decider.watch.receives_from_bus()
        try:
            # A later result counts for nothing: another process may lead by then.
            async with asyncio.timeout(self._settings.lead_s), self._runtime.pool.acquire() as conn:
                has_messages = await store.leadership.renew(
                    conn,
                    epoch,
                    self._decider.holder,
                    self._settings,
                    receives_from_bus=receives_from_bus,
                )
        except Deposed:
            self._step_down()  # the reader's end may take long
            raise
        except Exception as error:
            if not is_transient(error):
                raise
            _log.warning("leadership can't be renewed", error=_text_of(error))
        else:
            self._renewed_at = max(self._renewed_at, began)
            if has_messages:
                self._decider.messages_arrived(0)

    async def _doubt(self) -> None:
        """Step down when renewals have failed and another process may lead. Two checks in a row
        must find that: a starved process gets the chance to renew first. Raises Transient.
        """
        limit_s = self._settings.lead_s
        was_late = False
        while True:
            await asyncio.sleep(self._settings.leader_renew_s)
            is_late = time.monotonic() - self._renewed_at > limit_s
            if is_late and was_late:
                self._step_down()
                raise Transient(f"leadership could not be renewed for {limit_s:g} s")
            was_late = is_late

    async def _forget(self) -> None:
        """Delete the changes that every standby must have read by now."""
        before = store.changes.NOTHING
        while True:
            try:
                async with self._runtime.pool.acquire() as conn:
                    await store.changes.forget(conn, before)
                    before = await store.changes.snapshot(conn)
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("old changes can't be dropped", error=_text_of(error))
            await asyncio.sleep(self._settings.changes_kept_s)

    async def _watch(self) -> None:
        watch = self._decider.watch
        probed = -self._settings.probe_s
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - probed >= self._settings.probe_s:
                probed = loop.time()
                await watch.probe()
            watch.judge()
            await watch.publish(self._decider.memory.known)
            await self._decider.auditor.publish(watch.bus)
            self._measure()
            await asyncio.sleep(self._settings.watch_s)

    def _measure(self) -> None:
        state, metrics = self._decider.state, self._decider.metrics
        counts = dict.fromkeys(("alive", "lost", "stopping", "unhealthy", "unknown"), 0)
        for node in state.ledger.nodes.values():
            counts[state_of(node)] += 1
        for name, count in counts.items():
            metrics.nodes.labels(name).set(count)
        clashes = sum(node.clash is not None for node in state.ledger.nodes.values())
        metrics.clashes.set(clashes)
        core, at = state.core, self._decider.at()
        if self._free_cells is None or self._free_cells.forest is not core.forest:
            self._free_cells = FreeCells(core.forest)
            metrics.forget_cluster()
        healthy = free = 0
        for slot, usable, unused in core.cells.free():
            healthy += usable.bit_count()
            free += unused.bit_count()
            self._free_cells.set(slot, unused)
        metrics.gpus.labels("healthy").set(healthy)
        metrics.gpus.labels("free").set(free)
        metrics.note_free(self._free_cells.pieces.values())
        gangs = core.questions.counts()
        metrics.note_virtual_clusters(core.cells.quotas(), gangs.wanted)
        self._count_users(core)
        metrics.waiting.set(gangs.waiting + len(state.withheld))
        metrics.gangs.set(len(state.gangs))
        metrics.run_time_keys.set(len(state.run_times))
        metrics.placements.set(len(state.ledger.pods))
        ends = [until for gang, pod, until in core.leaving() if gang in state.gangs and not pod]
        metrics.preempted.set(len(ends))
        metrics.overdue.set(sum(until < at for until in ends))
        metrics.nominated.set(gangs.nominated)
        metrics.downgraded.set(gangs.downgraded)

    def _count_users(self, core: Core) -> None:
        """Names of users are exported only to holders of the metrics' token."""
        settings, now = self._settings, time.monotonic()
        if settings.metrics_token.get_secret_value() and now >= self._count_users_at:
            self._count_users_at = now + USERS_EVERY_S
            self._decider.metrics.note_users(bounded(core.cells.users(), settings.metrics_users))

    async def resign(self) -> None:
        """Trigger a decision at once, instead of after some seconds."""
        decider = self._decider
        if decider.epoch:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(self._settings.leader_renew_s):
                    async with self._runtime.pool.acquire() as conn:
                        await store.leadership.resign(conn, decider.epoch, decider.holder)


def _text_of(error: BaseException) -> str:
    """A timeout has no text of its own."""
    return str(error) or type(error).__name__


async def follow_file(decider: Decider, path: Path, every_s: float) -> None:
    """Reload the cluster's file whenever its content changes, until cancelled. A thread reads and
    checks it; content that was checked before is skipped.
    """
    file = decider.configuring.file
    looked_at = None if file is None else file.content
    while True:
        await asyncio.sleep(every_s)
        try:
            content = await asyncio.to_thread(content_of, path)
            if content == looked_at:
                continue
            looked_at = content
            file = await asyncio.to_thread(load, path, content)
        except Refused as error:
            rejected = decider.configuring.rejected
            if rejected is None or error.problems != rejected.problems:
                decider.configuring.rejected = RejectedFile(error.problems, decider.at())
                decider.metrics.configs.labels("refused").inc()
                _log.error(
                    "the cluster file is rejected; the previous one stays in force",
                    why=error.problems,
                )
            continue
        decider.configuring.rejected = None
        before = decider.configuring.file
        if before is None or content != before.content:
            _warn(file)
            decider.file_came(file)


def _warn(file: Loaded) -> None:
    for warning in file.warnings:
        _log.warning("the cluster's file", warning=warning)


@asynccontextmanager
async def build(
    runtime: Runtime, collector: Collector | None = None, file: Loaded | None = None
) -> AsyncIterator[None]:
    """Set the Scheduler up; its tasks run until the stop. Ends the process if the cluster's file is
    wrong. ``file``: its first content.
    """
    settings = runtime.settings
    assert isinstance(settings, SchedulerSettings)
    holder = f"{settings.instance}/{secrets.token_hex(4)}"
    path = settings.cluster_file
    if file is None and path is not None:
        file = load_or_exit(path)
    decider = Decider(runtime, settings, holder, file, collector)
    candidate = Candidate(runtime, settings, decider)
    if file is not None and path is not None:
        _warn(file)
        poll_s = settings.cluster_file_poll_s
        runtime.spawn("file", partial(follow_file, decider, path, poll_s))
    runtime.spawn("reports", decider.watch.reports.run)
    runtime.spawn("heartbeats", decider.watch.heartbeats.run)
    runtime.spawn("orders", decider.watch.orders.run)
    runtime.spawn("probe", candidate.probe)
    runtime.spawn("candidate", candidate.run)
    comparisons = Comparisons(settings, decider.metrics)
    runtime.spawn("what-if", comparisons.run)
    guard = TokenGuard(SCHEDULER, settings.service_key, runtime.metrics)
    runtime.facts["leading"] = lambda: decider.is_leading
    runtime.routes.extend(routes(decider, settings, runtime.pool.acquire, comparisons, guard))
    try:
        yield
    finally:
        await candidate.resign()


def main() -> None:
    """Run the service until it receives the stop signal."""
    settings = read_settings(SchedulerSettings)
    path = settings.cluster_file
    file = None if path is None else load_or_exit(path)
    collected = partial(build, collector=Collector(), file=file)
    run_service(Service.SCHEDULER, settings, settings.http_port, collected)
