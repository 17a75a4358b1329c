"""The loop that decides: messages and node reports in, one cycle, one transaction out.

Memory is valid only while the last transaction was committed. After any failure it is rebuilt from
the database and the nodes' reports.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import asyncpg
import structlog
from muster.contracts.gangs import GangEnd, GangRequest
from muster.contracts.topics import Kind, Service
from muster.db import Connection, Transaction, is_transient
from muster.decisions import Publish
from muster.service import Runtime
from muster.subjects import publish_all

from scheduler import order_policies, store
from scheduler.auditor import Auditor
from scheduler.cluster_file import Loaded
from scheduler.configuring import Configuring
from scheduler.decision_log import log, name_of, topic_of
from scheduler.domain.known import Changes
from scheduler.domain.ledger import Rows
from scheduler.domain.messages import DECIDED, ended, message_of
from scheduler.domain.stored import Stored
from scheduler.memory import Memory
from scheduler.metrics import SchedulerMetrics
from scheduler.outcome import Outcome
from scheduler.pauses import Collector
from scheduler.recorder import Recorder
from scheduler.settings import SchedulerSettings
from scheduler.standby import Standby
from scheduler.watch import Watch

_log = structlog.get_logger()


class Decider:
    """Decides while this process leads."""

    def __init__(
        self,
        runtime: Runtime,
        settings: SchedulerSettings,
        holder: str,
        file: Loaded | None = None,
        collector: Collector | None = None,
    ) -> None:
        self.metrics = SchedulerMetrics(runtime.registry)
        self.settings = settings
        self.holder = holder
        self.configuring = Configuring(settings, self.metrics, file)
        self.epoch = 0
        self.is_leading = False
        self.deciding = asyncio.Lock()
        policies = order_policies.load(order_policies.logged(self.metrics.order_failed))
        rules = replace(settings.rules(), policies=policies)
        blank = partial(Stored, rules, policy=settings.policy())
        self.watch = Watch(runtime.bus, settings, self.metrics, blank(), holder, self.wake)
        self.memory = Memory(self.watch, self.configuring, blank, collector)
        self.standby = Standby(runtime, self.memory)
        self._runtime = runtime
        self._woken = asyncio.Event()
        self._has_messages = True
        self.recorder = Recorder(settings, self.metrics, self._deciding, runtime.pool.acquire)
        self.auditor = Auditor(settings, self.metrics)

    @property
    def state(self) -> Stored:
        """The present state."""
        return self.memory.state

    def wake(self) -> None:
        """Something has changed."""
        self._woken.set()

    def messages_arrived(self, _applied: int) -> None:
        """Messages were recorded."""
        self._has_messages = True
        self._woken.set()

    def file_came(self, file: Loaded) -> None:
        """The cluster's file has changed."""
        self.configuring.file = file
        self._woken.set()

    def at(self) -> float:
        """The core's clock."""
        return self.memory.at()

    async def rebuild(self) -> None:
        """Rebuild memory; later decisions are made from it."""
        await self._wait_for_peers()
        started = time.monotonic()
        async with self._runtime.pool.acquire() as conn:
            await self.memory.load(conn, leaves_out=True)
        await self._begin()
        self.metrics.rebuilds.inc()
        self.metrics.rebuild_seconds.observe(time.monotonic() - started)

    async def _wait_for_peers(self) -> None:
        """Wait for agents' reports: they show the resources in use, also after a restore."""
        await self.watch.wait_for_reports()
        await self._runtime.incarnations.is_settled.wait()

    async def _begin(self) -> None:
        """All decisions of previous leaders are known."""
        self._has_messages = True
        self.configuring.begin(self.state)
        self.watch.lead(self.memory.known.values())
        self.state.restored(time.monotonic(), self.at())
        await self.recorder.begin(self.memory.recorded, self.state.core, self.memory.moment())

    async def _take_over(self) -> None:
        """Take over the standby's memory, else rebuild it."""
        await self._wait_for_peers()
        started = time.monotonic()
        if await self.standby.catch_up():
            await self._begin()
            self.metrics.takeover_seconds.observe(time.monotonic() - started)
        else:
            await self.rebuild()

    async def run(self) -> None:
        """Decide until cancelled. Raises Deposed when another process leads."""
        wait_s = self.settings.retry_first_s
        is_known = False
        while True:
            try:
                if not is_known:
                    await self._take_over()
                    is_known = self.is_leading = True
                    self.metrics.is_leader.set(1)
                await self._pause()
                await self.cycle()
                wait_s = self.settings.retry_first_s
            except Exception as error:
                if not _passes(error):
                    raise
                is_known = False
                _log.warning("memory is rebuilt", error=str(error) or type(error).__name__)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, self.settings.retry_longest_s)

    async def _pause(self) -> None:
        """Wait for a change, or until the poll is due."""
        try:
            async with asyncio.timeout(self.settings.cycle_poll_s):
                await self._woken.wait()
        except TimeoutError:
            self.memory.tidy(is_idle=True)
        self._woken.clear()

    async def cycle(self) -> None:
        """One cycle, and a transaction if it decided anything. Raises Deposed."""
        started = time.monotonic()
        async with self.deciding:
            watch = self.watch
            if not self.state.is_under_way:
                await self.configuring.remake(self.state, watch.received_setting(), self.at)
            if (self._has_messages or watch.has_news) and not self.state.is_under_way:
                self._has_messages = False
                async with self._transaction() as opened:
                    requests = await store.gangs.take_dirty(
                        opened.conn, self.settings.cycle_messages
                    )
                    if len(requests) == self.settings.cycle_messages:
                        self.messages_arrived(len(requests))
                    outcome = self._decide(requests)
                    await self._write(opened, outcome)
            else:
                outcome = self._decide([])
                is_due = self.recorder.is_due or self.configuring.is_unsaved(self.state)
                if outcome or is_due:
                    async with self._transaction() as opened:
                        await self._write(opened, outcome)
        state = self.state
        if self.recorder.is_snapshot_due and not (state.is_under_way or state.core.unpublished()):
            await self.recorder.take(state.core, self.memory.last_at)
        if outcome:
            await self._note(outcome)
            self.metrics.cycle_seconds.observe(time.monotonic() - started)
            self.memory.tidy(is_idle=False)
        if not state.is_under_way and self.auditor.look(state.core):
            self._woken.set()
        if state.is_under_way:  # the lead is renewed, and questions are answered, now or meanwhile
            await asyncio.sleep(0 if outcome else self.settings.cycle_interval_s)
        elif outcome:
            await asyncio.sleep(max(started + self.settings.cycle_interval_s - time.monotonic(), 0))

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        async with self._runtime.relay.transaction() as opened:
            await store.leadership.check(opened.conn, self.epoch, self.holder, self.settings)
            yield opened

    @asynccontextmanager
    async def _deciding(self) -> AsyncIterator[Connection]:
        async with self._transaction() as opened:
            yield opened.conn

    def _decide(self, requests: list[GangRequest]) -> Outcome:
        """All changes of memory, without an await in between."""
        started = time.perf_counter()
        now, at = time.monotonic(), self.memory.moment()
        state, watch = self.state, self.watch
        outcome, goes_on = Outcome(Changes(Rows())), state.is_under_way
        for request in requests:
            state.request(request, now, at)
        watch.settle()
        if not goes_on:
            self._take_nodes(outcome, now)
        until = started + self.settings.cycle_part_s
        outcome.decisions = state.decide(now, at, lambda: time.perf_counter() >= until)
        self.recorder.note(state.given.take_noted())
        outcome.changes = state.take_changes()
        outcome.topics.update(dict.fromkeys(outcome.changes.adopted, DECIDED))
        for decision in outcome.decisions:
            outcome.topics[decision.gang] = topic_of(decision, outcome.topics.get(decision.gang))
        if state.has_more or goes_on:  # changes that came during a cycle wait for its end
            self._woken.set()
        nodes = state.ledger.nodes.values()
        new = [n.name for n in nodes if n.is_alive and n.name not in self.memory.known]
        sized = outcome.changes.rows.sized & state.ledger.nodes.keys()
        outcome.nodes = sorted({*outcome.lost, *outcome.returned, *new, *sized})
        outcome.nodes += outcome.removed
        self.metrics.core_seconds.observe(time.perf_counter() - started)
        self.metrics.cycle_parts.inc(state.is_under_way)
        return outcome

    def _take_nodes(self, outcome: Outcome, now: float) -> None:
        """Nodes that are lost, without their journal, back, or removed."""
        state, watch = self.state, self.watch
        for name in sorted(watch.to_lose):
            outcome.lost[name] = state.lose(name, now, int(time.time() * 1000))
        for name in sorted(watch.to_lose_forgotten):
            outcome.forgotten[name] = state.lose_forgotten(name, now)
        for gangs in (*outcome.lost.values(), *outcome.forgotten.values()):
            outcome.topics.update(dict.fromkeys(gangs, DECIDED))
        for name in sorted(watch.to_return):
            state.ledger.take_back(name)
            outcome.returned.append(name)
        outcome.removed = [name for name in sorted(watch.to_remove) if state.remove(name)]

    async def _write(self, opened: Transaction, outcome: Outcome) -> None:
        """Write placements, releases, leases and messages: all or none."""
        changes, state = outcome.changes, self.state
        conn = opened.conn
        rows = changes.rows
        known = outcome.rows_of_nodes(state.ledger, self.memory.known, opened.now)
        messages = [self._message(gang, topic) for gang, topic in sorted(outcome.topics.items())]
        messages += [
            Publish(Kind.GANG, gang, DECIDED, gang, ended(request, self.epoch), is_open=False)
            for gang, request in sorted(changes.ended.items())
        ]
        kept = [state.known(gang) for gang in sorted({*outcome.topics, *changes.kept})]
        holds = [hold for pod in sorted(rows.changed) if (hold := state.ledger.hold_of(pod))]
        placements = [rows.placed[pod] for pod in sorted(rows.placed)]
        await store.gangs.delete_placements(conn, sorted(rows.gone))
        await store.gangs.update_holds(conn, holds)
        await store.gangs.insert_placements(conn, placements, self.epoch)
        await store.gangs.delete_gangs(conn, sorted(changes.ended))
        await store.gangs.keep_gangs(conn, kept)
        await store.nodes.save_nodes(conn, known)
        await store.run_times.save(conn, changes.histories)
        await self.configuring.save(conn, state)
        await store.reservations.save(conn, changes.core.reservations)
        await store.usage.save(conn, changes.core.usage)
        await store.preemptions.add(conn, changes.core.preemptions)
        await self.recorder.write(conn)
        if messages:
            await publish_all(opened, Service.SCHEDULER, messages)
        outcome.nodes, outcome.known = [node.node for node in known], known

    def _message(self, gang: str, topic: str) -> Publish:
        message = message_of(self.state, self.state.gangs[gang], self.epoch)
        return Publish(Kind.GANG, gang, topic, gang, message)

    async def _note(self, outcome: Outcome) -> None:
        """After the commit: count, log, and publish about nodes."""
        self.memory.known.update((node.node, node) for node in outcome.known)
        for decision in outcome.decisions:
            self.metrics.decisions.labels(name_of(decision)).inc()
            log(decision)
        for gang, pods in outcome.changes.adopted.items():
            self.metrics.adopted.inc(len(pods))
            _log.warning("running pods without a placement were adopted", gang=gang, pods=pods)
        for gang, request in outcome.changes.ended.items():
            if request.end is GangEnd.REQUEUED:
                self.metrics.requeued.labels(request.virtual_cluster).inc()
                _log.info("a failed attempt's cells are reserved for the next one", gang=gang)
        self.metrics.note_runs(outcome.changes.runs.values())
        for node, gangs in outcome.lost.items():
            self.metrics.lost.inc()
            _log.error("a node is lost", node=node, gangs=gangs)
        for node, gangs in outcome.forgotten.items():
            self.metrics.lost_journals.inc()
            _log.error("an agent has lost its journal, and its pods", node=node, gangs=gangs)
        for node in outcome.returned:
            _log.info("a lost node has returned", node=node)
        for node in outcome.removed:
            self.watch.leases.forget(node)
            _log.warning("a lost node was removed", node=node)
        self.watch.settle()
        if outcome.lost or outcome.returned:
            for node in (*outcome.lost, *outcome.returned):
                self.watch.published_at.pop(node, None)
            await self.watch.publish(self.memory.known)


def _passes(error: Exception) -> bool:
    """Whether rebuilt memory can continue; a GPU that is held twice means that memory was wrong."""
    return is_transient(error) or isinstance(error, asyncpg.UniqueViolationError)
