"""The loop that decides: words and nodes' news in, one cycle, one transaction out.

Memory is the truth only as long as the last transaction was committed: after any failure it is
rebuilt from the database and from what nodes have reported.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

import asyncpg
import structlog
from muster.contracts.gangs import GangRequest
from muster.contracts.topics import Kind, Service
from muster.db import Connection, is_transient
from muster.errors import Transient
from muster.service import Runtime
from muster.subjects import Say, say_all

from scheduler import leadership, store
from scheduler.domain.cluster import Cluster
from scheduler.domain.cycle import run_cycle
from scheduler.domain.gangs import Changes
from scheduler.domain.model import Decision, Deferred, Hold, Placed, Refused
from scheduler.domain.words import DECIDED, DEFERRED, REFUSED, ended, word_of
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from scheduler.store import KnownNode, Told
from scheduler.watch import Watch

_log = structlog.get_logger()


@dataclass(slots=True)
class Outcome:
    """What one cycle changed, to be written and said. ``topics``: gang → on which topic."""

    changes: Changes
    topics: dict[str, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    lost: dict[str, list[str]] = field(default_factory=dict)
    returned: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.changes or self.topics or self.nodes)


class Decider:
    """Decides while this process leads."""

    def __init__(self, runtime: Runtime, settings: SchedulerSettings, holder: str) -> None:
        self.metrics = SchedulerMetrics(runtime.registry)
        self.settings = settings
        self.holder = holder
        self.epoch = 0
        self.is_leading = False
        self.deciding = asyncio.Lock()
        self.known: dict[str, KnownNode] = {}
        cluster = Cluster(settings.policy())
        self.watch = Watch(runtime.bus, settings, self.metrics, cluster, holder, self.wake)
        self._runtime = runtime
        self._woken = asyncio.Event()
        self._has_words = True

    @property
    def cluster(self) -> Cluster:
        """The cluster as it is known now."""
        return self.watch.cluster

    def wake(self) -> None:
        """Something has changed."""
        self._woken.set()

    def words_came(self, _applied: int) -> None:
        """Words were recorded."""
        self._has_words = True
        self._woken.set()

    async def rebuild(self) -> None:
        """Memory anew: what the database has, then what nodes have reported.

        Gangs come in parts, between which this process renews its leadership.
        """
        started = now = time.monotonic()
        self._has_words = True
        cluster = Cluster(self.settings.policy())
        async with self._runtime.pool.acquire() as conn:
            nodes = await store.load_nodes(conn)
            self._restore(cluster, nodes, await store.load_holds(conn))
            after = ""
            while gangs := await store.load_gangs(conn, after, self.settings.load_gangs):
                for gang in gangs:
                    cluster.restore_gang(gang.request, gang.reason, gang.is_refused, now)
                after = gangs[-1].request.gang
        self.known = {node.node: node for node in nodes}
        self.watch.lead(cluster, nodes)
        cluster.restored(now)
        self.metrics.rebuilds.inc()
        self.metrics.rebuild_seconds.observe(time.monotonic() - started)

    @staticmethod
    def _restore(cluster: Cluster, nodes: list[KnownNode], holds: list[Hold]) -> None:
        for node in nodes:
            if node.is_removed:
                cluster.removed[node.node] = node.lease
            else:
                cluster.restore_node(node.node, lease=node.lease, is_lost=node.is_lost)
        for hold in holds:
            cluster.restore_hold(hold)

    async def run(self) -> None:
        """Decide until cancelled. Raises Deposed when another process leads."""
        wait_s = self.settings.retry_first_s
        is_known = False
        while True:
            try:
                if not is_known:
                    await self.rebuild()
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
        """Until something has changed or the poll is due."""
        try:
            async with asyncio.timeout(self.settings.cycle_poll_s):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def cycle(self) -> None:
        """One cycle, and where it decided anything its transaction. Raises Deposed."""
        started = time.monotonic()
        async with self.deciding:
            watch = self.watch
            if self._has_words or watch.to_lose or watch.to_return or watch.to_remove:
                self._has_words = False
                async with self._transaction() as (conn, now):
                    requests = await store.take_dirty(conn, self.settings.cycle_words)
                    if len(requests) == self.settings.cycle_words:
                        self.words_came(len(requests))
                    outcome = self._decide(requests)
                    await self._write(conn, outcome, now)
            else:
                outcome = self._decide([])
                if outcome:
                    async with self._transaction() as (conn, now):
                        await self._write(conn, outcome, now)
        if outcome:
            await self._note(outcome)
            self.metrics.cycle_seconds.observe(time.monotonic() - started)
            elapsed = time.monotonic() - started
            await asyncio.sleep(max(self.settings.cycle_interval_s - elapsed, 0))

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[tuple[Connection, datetime]]:
        async with self._runtime.relay.transaction() as conn:
            now = await leadership.check(conn, self.epoch, self.holder, self.settings)
            yield conn, now

    def _decide(self, requests: list[GangRequest]) -> Outcome:
        """All that changes memory, with nothing awaited in between."""
        started = time.perf_counter()
        now = time.monotonic()
        cluster, watch = self.cluster, self.watch
        outcome = Outcome(Changes())
        for request in requests:
            cluster.request(request, now)
        watch.settle()
        for name in sorted(watch.to_lose):
            outcome.lost[name] = cluster.lose(name, now, int(time.time() * 1000))
            outcome.topics.update(dict.fromkeys(outcome.lost[name], DECIDED))
        for name in sorted(watch.to_return):
            cluster.take_back(name)
            outcome.returned.append(name)
        outcome.removed = [name for name in sorted(watch.to_remove) if cluster.remove(name)]
        outcome.decisions = run_cycle(cluster, now)
        for decision in outcome.decisions:
            outcome.topics[decision.gang] = _topic(decision)
        if cluster.has_more:
            self._woken.set()
        outcome.changes = cluster.take_changes()
        new = [n.name for n in cluster.nodes.values() if n.is_alive and n.name not in self.known]
        outcome.nodes = sorted({*outcome.lost, *outcome.returned, *new})
        outcome.nodes += outcome.removed
        self.metrics.core_seconds.observe(time.perf_counter() - started)
        return outcome

    async def _write(self, conn: Connection, outcome: Outcome, now: datetime) -> None:
        """Placements, what was given back, leases, and the words about it: all or nothing."""
        changes, cluster = outcome.changes, self.cluster
        known = self._nodes(outcome, now)
        says = [self._say(gang, topic) for gang, topic in sorted(outcome.topics.items())]
        says += [
            Say(Kind.GANG, gang, DECIDED, gang, ended(request, self.epoch), is_open=False)
            for gang, request in sorted(changes.ended.items())
        ]
        told = [
            Told(gang, cluster.gangs[gang].said, cluster.gangs[gang].is_refused)
            for gang in sorted(outcome.topics)
        ]
        holds = [hold for pod in sorted(changes.changed) if (hold := cluster.hold_of(pod))]
        placements = [changes.placed[pod] for pod in sorted(changes.placed)]
        await store.delete_placements(conn, sorted(changes.gone))
        await store.update_holds(conn, holds)
        await store.insert_placements(conn, placements, self.epoch)
        await store.delete_gangs(conn, sorted(changes.ended))
        await store.note_told(conn, told)
        await store.save_nodes(conn, known)
        if says:
            await say_all(conn, Service.SCHEDULER, says, now)
        outcome.nodes = [node.node for node in known]
        self.known.update((node.node, node) for node in known)

    def _nodes(self, outcome: Outcome, now: datetime) -> list[KnownNode]:
        rows = []
        for name in outcome.nodes:
            node = self.cluster.nodes.get(name)
            if node is None:
                rows.append(replace(self.known[name], is_removed=True))
            else:
                since = now if node.is_lost else None
                rows.append(KnownNode(name, node.lease, node.is_lost, since))
        return rows

    def _say(self, gang: str, topic: str) -> Say:
        word = word_of(self.cluster, self.cluster.gangs[gang], self.epoch)
        return Say(Kind.GANG, gang, topic, gang, word)

    async def _note(self, outcome: Outcome) -> None:
        """It is committed: count, log, and tell about nodes."""
        for decision in outcome.decisions:
            self.metrics.decisions.labels(_topic(decision)).inc()
            match decision:
                case Placed(gang=gang, placements=placements):
                    _log.info("placed", gang=gang, nodes=sorted({p.node for p in placements}))
                case Deferred(gang=gang, reason=reason):
                    _log.info("waits", gang=gang, code=reason.code, reason=reason.text)
                case Refused(gang=gang, reason=reason):
                    _log.info("refused", gang=gang, code=reason.code, reason=reason.text)
        for node, gangs in outcome.lost.items():
            self.metrics.lost.inc()
            _log.error("a node is lost", node=node, gangs=gangs)
        for node in outcome.returned:
            _log.info("a lost node is back", node=node)
        for node in outcome.removed:
            self.watch.leases.forget(node)
            _log.warning("a lost node was removed", node=node)
        self.watch.settle()
        if outcome.lost or outcome.returned:
            for node in (*outcome.lost, *outcome.returned):
                self.watch.said_at.pop(node, None)
            await self.watch.tell(self.known)


def _topic(decision: Decision) -> str:
    match decision:
        case Placed():
            return DECIDED
        case Deferred():
            return DEFERRED
        case Refused():
            return REFUSED


def _passes(error: Exception) -> bool:
    """Whether a rebuilt memory can go on; a GPU held twice means that memory was wrong."""
    return is_transient(error) or isinstance(error, Transient | asyncpg.UniqueViolationError)
