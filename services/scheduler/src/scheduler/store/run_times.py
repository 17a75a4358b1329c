"""The SQL of learnt run times."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from muster.db import Connection

from scheduler.domain.run_times import History, Key
from scheduler.store.keyed import Keyed, array

_TABLE: Keyed[Key] = Keyed(
    "run_time",
    {"user_name": "text", "name": "text", "shape": "text"},
    {"ended_at": "double precision[]", "seconds": "integer[]"},
)


async def save(conn: Connection, histories: Mapping[Key, History | None]) -> None:
    """Write the run times of these keys; None: delete them."""
    values = {
        key: None if history is None else (array(history.ended_at), array(history.seconds))
        for key, history in histories.items()
    }
    await _TABLE.save(conn, values)


async def load(conn: Connection) -> dict[Key, History]:
    """The run times of all keys."""
    return _histories(await _TABLE.load(conn))


async def load_of(conn: Connection, keys: Collection[Key]) -> dict[Key, History]:
    """The run times of these keys."""
    return _histories(await _TABLE.load_of(conn, keys))


def _histories(rows: Sequence[Any]) -> dict[Key, History]:
    return {
        Key(user, name, shape): History(tuple(ended_at), tuple(seconds))
        for user, name, shape, ended_at, seconds in rows
    }
