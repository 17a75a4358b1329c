"""Standing by: memory that follows what the leader commits, so that it is there at a take-over.

Of a gang whose rows have changed all is forgotten, and restored from them as a restart would. Where
that is not enough (another cluster, changes that are not kept any more, a connection that broke)
memory is made anew, as at the start.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog
from asyncpg.pool import PoolConnectionProxy
from muster.db import Connection
from muster.service import Runtime

from scheduler import changes, store
from scheduler.domain.stored import Stored
from scheduler.store import KnownNode

if TYPE_CHECKING:
    from scheduler.decider import Decider

_log = structlog.get_logger()


class Standby:
    """The decider's memory while its process does not lead.

    All is read over one connection: where it breaks, the database may be another one, or one that
    has lost its last transactions.
    """

    def __init__(self, runtime: Runtime, decider: "Decider") -> None:
        self._runtime = runtime
        self._decider = decider
        self._conn: PoolConnectionProxy | None = None
        self._seen: str | None = None
        self._looked_at = 0.0
        self._begin_from = 0.0
        decider.metrics.follow_lag.set_function(self._lag_s)

    def _lag_s(self) -> float:
        return 0.0 if self._seen is None else time.monotonic() - self._looked_at

    async def look(self) -> None:
        """Begin to follow, or read what was committed since. To be called all the time. Raises what
        the database raises; then memory is made anew with the next call.
        """
        try:
            if self._seen is None or self._is_outdated():
                await self._begin()
            else:
                await self._follow(is_last=False)
            self._decider.tidy(is_idle=True)
        except BaseException:
            await self.end()
            raise

    async def catch_up(self) -> bool:
        """This process leads from now on: read the last of what was committed before. False where
        memory has to be made anew. Raises what the database raises.
        """
        try:
            if self._conn is None or self._seen is None:
                return False
            await self._decider.read_clock(self._conn)
            return await self._follow(is_last=True) and not self._is_outdated()
        finally:
            self._begin_from = 0.0
            await self.end()

    async def end(self) -> None:
        """Memory is followed no longer."""
        conn, self._conn, self._seen = self._conn, None, None
        self._decider.metrics.is_warm.set(0)
        if conn is not None:
            await self._runtime.pool.release(conn)

    async def _begin(self) -> None:
        """Memory as it is stored now. What is changed while it is read is read once more."""
        decider, started = self._decider, time.monotonic()
        if not decider.watch.reports.caught_up.is_set() or started < self._begin_from:
            return
        await self.end()
        conn = self._conn = await self._runtime.pool.acquire()
        seen = await changes.snapshot(conn)
        await decider.load(conn)
        self._seen = seen
        took = time.monotonic() - started
        self._begin_from = started + took / decider.settings.remake_share
        if await self._follow(is_last=True):
            decider.metrics.is_warm.set(1)
            _log.info("this process stands by", gangs=len(decider.state.gangs), seconds=took)

    def _is_outdated(self) -> bool:
        """The cluster that memory is of is not the one that is there."""
        state, file = self._decider.state, self._decider.config
        if state.file is not file:
            return True
        if not state.is_outdated:
            return False
        plan = state.plan(file)
        if plan.config() != state.cluster.hardware.forest.config:
            return True
        state.keep_config(plan)
        return False

    async def _follow(self, *, is_last: bool) -> bool:
        """Take what has changed; ``is_last``: and what may have been in the way of others. False
        where it is not known any more what that was.
        """
        conn, seen = self._conn, self._seen
        assert conn is not None
        assert seen is not None
        decider, now = self._decider, time.monotonic()
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            changed = await changes.since(conn, seen)
            if changed is None:
                self._seen = None
                return False
            state = decider.state
            state.keep_up(now)
            gangs = sorted(changed.gangs | state.unsure if is_last else changed.gangs)
            if gangs or changed.nodes:
                await self._restore(conn, gangs, sorted(changed.nodes))
        self._seen, self._looked_at = changed.seen, now
        decider.metrics.followed.inc(len(gangs))
        return True

    async def _restore(self, conn: Connection, gangs: list[str], nodes: list[str]) -> None:
        """Gangs in parts, between which nodes are heard."""
        decider, now = self._decider, time.monotonic()
        state, watch, limit = decider.state, decider.watch, decider.settings.load_gangs
        touched = state.forget(gangs)
        if nodes:
            known = await store.load_nodes_of(conn, nodes)
            restore_nodes(state, known)
            decider.known.update((node.node, node) for node in known)
            touched.update(nodes)
        for first in range(0, len(gangs), limit):
            holds = await store.load_holds_of(conn, gangs[first : first + limit])
            state.restore_holds(holds, now)
            touched.update(hold.placement.node for hold in holds)
        state.settle(touched, now)
        watch.recall(nodes)
        for first in range(0, len(gangs), limit):
            for gang in await store.load_gangs_of(conn, gangs[first : first + limit]):
                state.restore_gang(gang, now, decider.at())
        state.keep_up(now)


def restore_nodes(state: Stored, nodes: Iterable[KnownNode]) -> None:
    """Tell a state what is stored of nodes."""
    for node in nodes:
        if node.is_removed:
            state.restore_removed(node.node, node.lease)
        else:
            state.ledger.restore_node(
                node.node, lease=node.lease, is_lost=node.is_lost, size=node.size
            )
