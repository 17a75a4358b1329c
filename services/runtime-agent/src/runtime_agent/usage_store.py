"""What the node's pods have used, kept for a week: a file beside the journal.

It holds figures only: a file that can't be read is begun anew, and what a full disk does not take
is missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path

from runtime_agent.domain.usage import SUMS, Stretch

KEPT_S = 8 * 86400.0
"""A week, and a day for whoever asks late."""
FINE_S = 3600.0
"""How long each look is kept by itself; then looks are added up."""
COARSE_S = 120.0
BEHIND_S = 4 * 3600.0
"""How far back looks are added up that were not yet: the rest goes with its age."""
WAIT_S = 5.0

_COLUMNS = tuple(each.name for each in fields(Stretch))
_ADDED = ", ".join(f"sum({name})" for name in SUMS)  # NULL where nothing is known
_SCHEMA = f"""
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS stretch (
        job TEXT NOT NULL, pod TEXT NOT NULL, at_s REAL NOT NULL,
        {", ".join(f"{name} REAL" for name in SUMS)}
    );
    CREATE INDEX IF NOT EXISTS stretch_job ON stretch (job, at_s);
    CREATE INDEX IF NOT EXISTS stretch_at ON stretch (at_s);
"""


class UsageStore:
    """Any thread may use it: each call has a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._make()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # a full disk may have room later
                return
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._make()

    def _make(self) -> None:
        with closing(sqlite3.connect(self._path, timeout=WAIT_S)) as conn:
            conn.executescript(_SCHEMA)
            conn.execute("SELECT count(*) FROM stretch WHERE at_s < 0").fetchone()

    def add(self, stretches: Iterable[Stretch]) -> None:
        """Keep these. Raises sqlite3.Error."""
        rows = [astuple(each) for each in stretches]
        if rows:
            with self._transaction() as conn:
                conn.executemany(
                    f"INSERT INTO stretch ({', '.join(_COLUMNS)})"  # noqa: S608 - columns
                    f" VALUES ({', '.join('?' * len(_COLUMNS))})",
                    rows,
                )

    def of_job(self, job: str, since_s: float, until_s: float, step_s: float) -> list[Stretch]:
        """What the job's pods used, by pod and in order of time, added up in steps from
        ``since_s`` on. Raises sqlite3.Error.
        """
        with self._transaction() as conn:
            rows = conn.execute(
                f"SELECT job, pod, max(at_s), {_ADDED} FROM stretch"  # noqa: S608 - columns
                " WHERE job = ? AND at_s > ? AND at_s <= ?"
                " GROUP BY pod, CAST((at_s - ?) / ? AS INTEGER) ORDER BY pod, max(at_s)",
                (job, since_s, until_s, since_s, step_s),
            )
            return [Stretch(*row) for row in rows]

    def by_job(self, since_s: float, until_s: float) -> Mapping[str, Stretch]:
        """What each job's pods used in all, those of no pod in particular. Raises sqlite3.Error."""
        with self._transaction() as conn:
            rows = conn.execute(
                f"SELECT job, '', max(at_s), {_ADDED} FROM stretch"  # noqa: S608 - columns
                " WHERE at_s > ? AND at_s <= ? GROUP BY job",
                (since_s, until_s),
            )
            return {row[0]: Stretch(*row) for row in rows}

    def thin(self, now_s: float) -> None:
        """Add older looks up, and forget what is older than a week. Raises sqlite3.Error."""
        bucket = f"CAST(at_s / {COARSE_S} AS INTEGER)"
        old = "at_s > ? AND at_s <= ?"
        times = (now_s - BEHIND_S, now_s - FINE_S)
        with self._transaction() as conn:
            conn.execute("DELETE FROM stretch WHERE at_s <= ?", (now_s - KEPT_S,))
            conn.execute(
                f"CREATE TEMP TABLE added AS SELECT job, pod, max(at_s) AS at_s, {_ADDED}"  # noqa: S608
                f" FROM stretch WHERE {old} GROUP BY job, pod, {bucket} HAVING count(*) > 1",
                times,
            )
            conn.execute(
                f"DELETE FROM stretch WHERE {old} AND (job, pod, {bucket}) IN"  # noqa: S608
                f" (SELECT job, pod, {bucket} FROM added)",
                times,
            )
            conn.execute("INSERT INTO stretch SELECT * FROM added")
            conn.execute("DROP TABLE added")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=WAIT_S)) as conn, conn:
            conn.execute("PRAGMA synchronous = OFF")  # figures: a power cut may lose the last ones
            yield conn
