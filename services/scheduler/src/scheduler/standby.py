"""The standby: its memory follows the leader's commits, so that it is ready for a takeover.

A gang with changed rows is forgotten and restored from them, as after a restart. If that is not
enough, memory is rebuilt, as at the start. Reasons are another cluster, changes that are no longer
kept, or a broken connection.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

import structlog
from asyncpg.pool import PoolConnectionProxy
from muster.db import Connection, is_transient
from muster.service import Runtime

from scheduler import store
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.model import RestoredPreemption, RestoredUsage, UserKey
from scheduler.domain.core_rows import KnownReservation
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold
from scheduler.domain.run_times import History, Key
from scheduler.memory import Memory
from scheduler.renewing import renew
from scheduler.store.nodes import KnownNode

_log = structlog.get_logger()


class Standby:
    """Memory while its process does not lead.

    One connection reads everything. After it breaks, the database may be another one, or lack its
    last transactions.
    """

    def __init__(self, runtime: Runtime, memory: Memory) -> None:
        self._runtime = runtime
        self._memory = memory
        self._looking: asyncio.Task[None] | None = None
        self._conn: PoolConnectionProxy | None = None
        self._seen: str | None = None
        self._looked_at = 0.0
        self._begin_from = 0.0
        self._refused = ""
        memory.metrics.follow_lag.set_function(self._lag_s)

    def _lag_s(self) -> float:
        return 0.0 if self._seen is None else time.monotonic() - self._looked_at

    def look(self) -> None:
        """Begin to follow, or read the changes since the last look, unless that is under way. Call
        it all the time: it runs beside the caller. Raises the last look's error; then memory is
        rebuilt.
        """
        if self._looking is not None:
            if not self._looking.done():
                return
            last, self._looking = self._looking, None
            last.result()
        self._looking = asyncio.create_task(self._look(), name="look")

    async def _look(self) -> None:
        try:
            if self._seen is None or self._is_outdated():
                self._note_warm(is_warm=False)
                await self._begin()
            else:
                self._note_warm(is_warm=await self._follow(is_last=False))
            self._memory.tidy(is_idle=True)
        except BaseException:
            await self._let_go()
            raise

    async def catch_up(self) -> bool:
        """This process leads from now on: end the look under way, and read the remaining changes.
        False if memory must be rebuilt. Raises the database's errors, and TimeoutError if the
        connection hangs.
        """
        try:
            await self._looked()
            if self._conn is None or self._seen is None:
                return False
            async with asyncio.timeout(self._memory.settings.lead_s):
                await self._memory.read_clock(self._conn)
            return await self._follow(is_last=True) and not self._is_outdated()
        finally:
            self._begin_from = 0.0
            await self._let_go()

    async def _looked(self) -> None:
        if self._looking is None:
            return
        is_following = self._seen is not None
        limit_s = self._memory.settings.lead_s if is_following else None
        await asyncio.wait({self._looking}, timeout=limit_s)
        if not self._looking.done():
            await self.end()
            return
        last, self._looking = self._looking, None
        error = last.exception()
        if error is not None and not is_transient(error):
            raise error

    async def end(self) -> None:
        """Stop following."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        await self._let_go()

    async def _let_go(self) -> None:
        conn, self._conn, self._seen = self._conn, None, None
        self._note_warm(is_warm=False)
        if conn is not None:
            await self._runtime.pool.release(conn)

    def _note_warm(self, *, is_warm: bool) -> None:
        self._memory.metrics.is_warm.set(is_warm)

    async def _begin(self) -> None:
        """Build memory from the stored rows. Rows that change meanwhile are read again."""
        memory, started = self._memory, time.monotonic()
        if not memory.watch.reports.caught_up.is_set() or started < self._begin_from:
            return
        await self._let_go()
        conn = self._conn = await self._runtime.pool.acquire()
        seen = await store.changes.snapshot(conn)
        is_loaded = await self._load(conn)
        took = time.monotonic() - started
        self._begin_from = started + took / memory.settings.remake_share
        if not is_loaded:
            await self._let_go()
            return
        self._seen, self._looked_at = seen, started
        if await self._follow(is_last=True):
            self._note_warm(is_warm=True)
            _log.info("this process stands by", gangs=len(memory.state.gangs), seconds=took)

    async def _load(self, conn: Connection) -> bool:
        """False if the file is invalid with the present nodes. The leader keeps the previous one,
        and this process can still take the lead, without warm memory.
        """
        try:
            await self._memory.load(conn)
        except ConfigError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                _log.error(
                    "the configuration can't be applied: this process is no warm standby",
                    why=str(error),
                )
            return False
        self._refused = ""
        return True

    def _is_outdated(self) -> bool:
        """Memory is of another cluster than the present one."""
        state, file = self._memory.state, self._memory.configuring.config
        if state.file is not file:
            return True
        if not state.is_outdated:
            return False
        plan = state.plan(file, state.made_of.setting)
        if plan.config() != state.core.forest.config:
            return True
        state.keep_config(plan)
        return False

    async def _follow(self, *, is_last: bool) -> bool:
        """Apply the changes; ``is_last``: also for gangs that others may have blocked. False if
        the changes are no longer kept.
        """
        conn, seen = self._conn, self._seen
        assert conn is not None
        assert seen is not None
        memory, now = self._memory, time.monotonic()
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            changed = await store.changes.since(conn, seen)
            made_of = memory.state.made_of.setting
            revision = None if made_of is None else made_of.revision
            is_same = await store.configuration.is_at(conn, revision)
            if changed is None or not is_same:
                self._seen = None
                return False
            source = _Database(conn, memory)
            gangs = await renew(memory.state, changed, source, now, is_last=is_last)
        self._seen, self._looked_at = changed.seen, now
        memory.metrics.followed.inc(gangs)
        return True


class _Database:
    """The stored rows, in a transaction of one moment, and this process's received messages."""

    def __init__(self, conn: Connection, memory: Memory) -> None:
        self._conn = conn
        self._memory = memory
        self.at = memory.at
        self.recall = memory.watch.recall

    async def nodes(self, names: Sequence[str]) -> Sequence[KnownNode]:
        known = await store.nodes.load_nodes_of(self._conn, list(names))
        self._memory.known.update((node.node, node) for node in known)
        return known

    async def run_times(self, keys: Collection[Key]) -> Mapping[Key, History]:
        return await store.run_times.load_of(self._conn, keys)

    async def usage(self, keys: Collection[UserKey]) -> Mapping[UserKey, RestoredUsage]:
        return await store.usage.load_of(self._conn, keys)

    async def preemptions(self, numbers: Collection[int]) -> Sequence[RestoredPreemption]:
        return await store.preemptions.load_of(self._conn, numbers)

    async def reservations(self, gangs: Collection[str]) -> Mapping[str, KnownReservation]:
        return await store.reservations.load_of(self._conn, gangs)

    async def holds(self, gangs: Sequence[str]) -> AsyncIterator[Sequence[Hold]]:
        for some in self._parts(gangs):
            yield await store.gangs.load_holds_of(self._conn, some)

    async def gangs(self, gangs: Sequence[str]) -> AsyncIterator[Sequence[KnownGang]]:
        for some in self._parts(gangs):
            yield await store.gangs.load_gangs_of(self._conn, some)

    def _parts(self, gangs: Sequence[str]) -> list[list[str]]:
        limit = self._memory.settings.load_gangs
        return [list(gangs[first : first + limit]) for first in range(0, len(gangs), limit)]
