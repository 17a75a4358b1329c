"""SQL of the setting in force. The leader writes it with its next decisions; a process reads it at
its start, and a standby follows it.
"""

import json

from muster.db import Connection

from scheduler.domain.configured import Setting


async def load(conn: Connection) -> Setting | None:
    """The setting in force; None: there was never one."""
    row = await conn.fetchrow("SELECT revision, version, content FROM configuration")
    if row is None:
        return None
    content = row["content"]
    return Setting(
        row["revision"], row["version"], None if content is None else json.loads(content)
    )


async def is_at(conn: Connection, revision: int | None) -> bool:
    """Whether it is the one of this revision."""
    found: int | None = await conn.fetchval("SELECT revision FROM configuration")
    return found == revision


async def save(conn: Connection, setting: Setting) -> None:
    """It is taken."""
    content = None if setting.content is None else json.dumps(setting.content)
    await conn.execute(_SAVE, setting.revision, setting.version, content)


_SAVE = """
    INSERT INTO configuration (revision, version, content) VALUES ($1, $2, $3)
    ON CONFLICT (one) DO UPDATE SET revision = excluded.revision, version = excluded.version,
        content = excluded.content, taken_at = now()
"""
