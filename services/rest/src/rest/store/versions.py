"""Versions of what administrators have set: of virtual clusters and policy, and of actions on
alerts. The newest holds.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
from muster.db import Connection


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be the next version. ``content`` None: nothing is set any more."""

    content: dict[str, Any] | None
    by: str
    comment: str = ""
    rolled_back_to: int | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """A version as it is stored. ``revision``: by which the Scheduler knows it."""

    number: int
    revision: int
    change: Change
    at: datetime


class Versions:
    """The versions in one table."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._select = f"SELECT {_COLUMNS} FROM {table}"  # noqa: S608 - columns only
        self._add = _ADD.format(table=table)

    async def lift_revision(self, conn: Connection, revision: int) -> None:
        """Raise the revision of the newest version to this one."""
        await conn.execute(
            f"UPDATE {self._table} SET revision = $1"  # noqa: S608 - a table
            f" WHERE version = (SELECT max(version) FROM {self._table}) AND revision < $1",
            revision,
        )

    async def newest(self, conn: Connection) -> Version | None:
        """The version that holds; None: nothing was set ever."""
        return _version(await conn.fetchrow(f"{self._select} ORDER BY version DESC LIMIT 1"))

    async def find(self, conn: Connection, number: int) -> Version | None:
        """One version, if it is kept."""
        return _version(await conn.fetchrow(f"{self._select} WHERE version = $1", number))

    async def read(self, conn: Connection, offset: int, limit: int) -> list[Version]:
        """Versions, newest first, after the first ``offset``."""
        sql = f"{self._select} ORDER BY version DESC OFFSET $1 LIMIT $2"
        rows = await conn.fetch(sql, offset, limit)
        return [found for row in rows if (found := _version(row))]

    async def count(self, conn: Connection) -> int:
        """How many versions are kept."""
        sql = f"SELECT count(*) FROM {self._table}"  # noqa: S608 - a table
        found: int = await conn.fetchval(sql)
        return found

    async def add(self, conn: Connection, change: Change, after: int) -> Version | None:
        """Make the version that follows ``after``; None where that is not the newest (any more)."""
        content = None if change.content is None else json.dumps(change.content)
        given = (after, content, change.by, change.comment, change.rolled_back_to)
        return _version(await conn.fetchrow(self._add, *given))

    async def forget_old(self, conn: Connection, kept: int) -> None:
        """Keep so many versions, the newest."""
        await conn.execute(
            f"DELETE FROM {self._table}"  # noqa: S608 - a table
            f" WHERE version <= (SELECT max(version) FROM {self._table}) - $1",
            kept,
        )


def _version(row: asyncpg.Record | None) -> Version | None:
    if row is None:
        return None
    content = None if row["content"] is None else json.loads(row["content"])
    change = Change(content, row["made_by"], row["comment"], row["rolled_back_to"])
    return Version(row["version"], row["revision"], change, row["made_at"])


_COLUMNS = "version, revision, content, made_by, made_at, comment, rolled_back_to"

# A revision is above all published ones, also those of a database before its restore.
_ADD = f"""
    INSERT INTO {{table}}
        (version, revision, content, made_by, comment, rolled_back_to)
    SELECT $1 + 1,
        greatest(coalesce(max(revision), 0) + 1,
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
        $2, $3, $4, $5
    FROM {{table}} HAVING coalesce(max(version), 0) = $1
    ON CONFLICT (version) DO NOTHING
    RETURNING {_COLUMNS}
"""  # noqa: S608 - columns only

SCHEDULING = Versions("scheduling_config")
ALERT_RULES = Versions("alert_rules")
