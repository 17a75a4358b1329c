"""A relay's periodic upkeep of the database: it counts waiting rows, deletes closed ones, and ends
the sessions of hung processes.
"""

import time

import asyncpg
import structlog

from muster.db import Pool
from muster.metrics import PlumbingMetrics
from muster.settings import DatabaseSettings

_log = structlog.get_logger()

CLEAN_EVERY_S = 600.0
CLEAN_ROWS = 5000
COUNT_EVERY_S = 15.0
COUNT_MOST = 100_000
"""Metrics count no further: counting must not cost as much as the work."""

END_HUNG_EVERY_S = 2.0


class Upkeep:
    """Each part when it is due."""

    def __init__(self, pool: Pool, metrics: PlumbingMetrics, settings: DatabaseSettings) -> None:
        self._pool = pool
        self._metrics = metrics
        self._days = float(settings.closed_subjects_days)
        self._idle_s = settings.idle_transaction_s
        self._cleaned = time.monotonic()
        self._counted = -COUNT_EVERY_S
        self._ended_hung = -END_HUNG_EVERY_S

    async def clean(self) -> None:
        """Delete subjects that were closed longer ago than topics keep records. Where there are
        more than ``CLEAN_ROWS``, the next call goes on: the relay must not wait for them all.
        """
        if time.monotonic() - self._cleaned < CLEAN_EVERY_S:
            return
        self._cleaned = time.monotonic()
        async with self._pool.acquire() as conn:
            done = await conn.execute(_FORGET, self._days, CLEAN_ROWS)
        if done == f"DELETE {CLEAN_ROWS}":
            self._cleaned -= CLEAN_EVERY_S

    async def count(self) -> None:
        """Set the metrics of what waits."""
        if time.monotonic() - self._counted < COUNT_EVERY_S:
            return
        self._counted = time.monotonic()
        async with self._pool.acquire() as conn:
            counts = await conn.fetchrow(_COUNTS, COUNT_MOST)
        assert counts is not None
        self._metrics.notices.set(counts["notices"])
        self._metrics.unacknowledged.set(counts["unacknowledged"])

    async def end_hung(self) -> None:
        """End sessions whose process hangs between a statement's preparation and its execution.
        None of the server's own time limits counts there, and the session's locks block others.
        """
        if time.monotonic() - self._ended_hung < END_HUNG_EVERY_S:
            return
        self._ended_hung = time.monotonic()
        try:
            async with self._pool.acquire() as conn:
                ended = await conn.fetch(_END_HUNG, self._idle_s)
        except asyncpg.InsufficientPrivilegeError as error:
            self._ended_hung = float("inf")
            _log.warning("sessions of hung processes can't be ended", error=str(error))
            return
        for row in ended:
            _log.warning("a hung process's session is ended", pid=row["pid"], of=row["of"])


_FORGET = """
    DELETE FROM subject WHERE (kind, subject) IN (
        SELECT kind, subject FROM subject
        WHERE NOT is_open AND repeat_at IS NULL AND changed_at < now() - $1 * interval '1 day'
        LIMIT $2 FOR UPDATE SKIP LOCKED
    )
"""
_COUNTS = """
    SELECT (SELECT count(*) FROM (SELECT FROM notice LIMIT $1) AS n) AS notices,
           (SELECT count(*) FROM (SELECT FROM subject WHERE repeat_at IS NOT NULL LIMIT $1) AS s)
               AS unacknowledged
"""
_END_HUNG = """
    SELECT pid, application_name AS of, pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user
        AND application_name LIKE 'muster-%' AND state = 'active'
        AND wait_event = 'ClientRead' AND xact_start IS NOT NULL
        AND state_change < clock_timestamp() - $1 * interval '1 s'
"""
