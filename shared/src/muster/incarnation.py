"""Notices that a service's database was restored to an earlier moment, and resyncs with the peers.

Example: an operator puts back the disk of 11:00 at 12:00. The Launcher starts on it, and reads on
``service-started`` that it had published the beat of 11:59. So it publishes all its open subjects
again, above every revision that it may have used in that hour, and announces the restore. Its peers
republish what they know. Until they had time for that, its timers wait.

The *beat* in a service's schema is a time at which the service had just applied or published
something, or started. It rises at most once a second, and is published after that commit. A schema
that lost more than a second therefore has a lower beat than the one on the bus. A beat never falls,
on whatever bus it is published.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from typing import cast

import structlog

from muster.bus import Bus
from muster.contracts.model import Model
from muster.contracts.services import SERVICE_STARTED, ServiceStarted
from muster.contracts.topics import SIDES, Kind, Service
from muster.db import Connection, Pool, is_transient
from muster.errors import Broken, Transient
from muster.newest import Newest
from muster.readers import Follower
from muster.records import Received
from muster.recovery import resync_all
from muster.subject import Key
from muster.subjects import repeat_soon

_log = structlog.get_logger()

BEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A state of a service's database, as the schema itself holds it. Times are milliseconds since
    1970, and higher where the clock went back.

    ``database``: PostgreSQL's system identifier and timeline. ``restored``: the beat at which the
    service last found its database restored, 0 for never. Commits after ``as_of`` may be lost then.
    ``lost``: the beat at which a restore last lost commits for certain, 0 for never. A process that
    ends and knows a later beat than the row writes that one here, above the row's beat: so the next
    start knows of the loss.
    """

    database: str
    beat: int
    restored: int = 0
    as_of: int = 0
    lost: int = 0


def next_incarnation(
    before: Incarnation | None, database: str, published: int | None, now: datetime
) -> Incarnation:
    """The incarnation that a start begins. ``before``: what the schema holds, None where no service
    ever ran on it. ``published``: the service's beat on the bus, None where the bus has none.

    The database counts as restored where it is another one, where the bus or a process before knew
    a beat that it does not know, and where the bus knows none: then a new bus and a restored
    database look alike. Commits were lost for certain where a later beat was known, and where both
    bus and database are others.
    """
    held, lost = (0, 0) if before is None else (before.beat, before.lost)
    beat = max(held + 1, (published or 0) + 1, int(now.timestamp() * 1000))
    if before is None and published is None:
        return Incarnation(database, beat)
    is_other = before is not None and database != before.database
    if max(published or 0, lost) > held or (published is None and is_other):
        lost = beat
    elif before is not None and published is not None and not is_other:
        return replace(before, beat=beat)
    return Incarnation(database, beat, restored=beat, as_of=held, lost=lost)


class DatabaseRestored(Broken):
    """The database was restored under the running service; the service must start anew on it."""


class Incarnations:
    """A service's own incarnation, and its answers to those of its peers.

    ``has_begun`` is set once the service knows whether its database was restored.
    ``is_settled`` is set once timers need not wait: the service's database was not restored, or its
    peers had ``resync_s`` to republish what it lost. The Launcher's timers and the Scheduler's
    cycles wait for it. ``on_restored`` hooks get the floor, above which revisions must go on;
    ``on_peer_restored`` hooks are called when much is to be republished.
    """

    def __init__(self, bus: Bus, resync_s: float) -> None:
        self._bus = bus
        self._resync_s = resync_s
        self._current: Incarnation | None = None
        self._published: int | None = None
        self._restored_on_bus = 0
        self._published_at: float | None = None
        self._peers: dict[Service, ServiceStarted] = {}
        self._answered: defaultdict[str, int] = defaultdict(int)
        self._newest = Newest()
        self._has_committed = False
        self._is_published = False
        self._is_answered = False
        self.has_begun = asyncio.Event()
        self.is_settled = asyncio.Event()
        self.on_restored: list[Callable[[int], None]] = []
        self.on_peer_restored: list[Callable[[], None]] = []
        self.follower = Follower(bus, [SERVICE_STARTED], self.on_record)
        bus.on_new_bus.append(self._on_new_bus)

    def _on_new_bus(self) -> None:
        self._is_published = False
        self._restored_on_bus, self._published_at = 0, None

    def note_commit(self) -> None:
        """The service committed something."""
        self._has_committed = True

    def revision_floor(self) -> int:
        """What is published goes above it: the other side may have applied messages that a restored
        database has forgotten. Their revisions counted from 1, or from the milliseconds of an
        earlier restore, and nobody publishes a thousand messages a second on one subject.
        """
        return self._current.restored if self._current is not None else 0

    def unused_number(self, made_at: datetime, *, is_known: bool) -> int:
        """The lowest number that nobody can have used, before the restore, for what was made then:
        not ten in a second. 0 where nothing can be forgotten. Of what ``is_known`` it is only where
        commits were lost for certain: each start on a new bus may be a restore.
        """
        if self._current is None:
            return 0
        restored = self._current.lost if is_known else self._current.restored
        milliseconds = restored - int(made_at.timestamp() * 1000)
        return 0 if restored == 0 or milliseconds < 0 else milliseconds // 100 + 1

    async def note_loss(self, conn: Connection) -> None:
        """As the process ends: the schema gets to know that it has lost commits, if it has."""
        if self._current is not None:
            await conn.execute(_NOTE_LOSS, self._current.beat)

    async def begin_transaction(self, conn: Connection) -> datetime:
        """The database's time. Raises DatabaseRestored where the database knows less than before:
        what this process has in memory is of another state then.
        """
        known = 0 if self._current is None else self._current.beat
        now, beat = cast(tuple[datetime, int], await conn.fetchrow(_NOW))
        if beat < known:
            raise DatabaseRestored(f"The database is at beat {beat}; it was at {known}.")
        return now

    def on_record(self, record: Received, model: Model | None) -> None:
        """A service's incarnation arrives; perhaps this one's, from before its start."""
        if not isinstance(model, ServiceStarted) or not self._newest.is_news(record, model):
            return
        if model.service == self._bus.me.value:
            self._published = model.revision
            self._restored_on_bus = model.restored
        elif model.service in _SERVICES and model.restored != self._answered[model.service]:
            self._peers[Service(model.service)] = model

    async def run(self, pool: Pool) -> None:
        """Begin an incarnation, resync if it is of a restored database, answer peers, and beat,
        until cancelled.
        """
        await self.follower.caught_up.wait()
        await self._until_done(pool, self._begin)
        while True:
            await self._until_done(pool, self._look)
            await self._publish()
            await asyncio.sleep(BEAT_S)

    async def _until_done(self, pool: Pool, do: Callable[[Connection], Awaitable[None]]) -> None:
        while True:
            try:
                async with pool.acquire() as conn:
                    await do(conn)
            except Exception as error:
                if not is_transient(error):
                    raise
                self._has_committed = True  # perhaps the connection ended after a commit
                _log.warning("the incarnation waits", error=str(error) or type(error).__name__)
                await asyncio.sleep(BEAT_S)
            else:
                return

    async def _begin(self, conn: Connection) -> None:
        # Read before the row. A replica commits a beat before it publishes it, so only a restored
        # row can be below it.
        published = self._published
        row = await conn.fetchrow(_LOAD)
        before = None if row is None else Incarnation(**dict(row))
        database, now = cast(tuple[str, datetime], await conn.fetchrow(_STATE))
        current = next_incarnation(before, database, published, now)
        if current.restored == current.beat:
            # Before the row is written: a start that ends in the middle is followed by another one.
            subjects = await resync_all(conn, self._bus.me, current.restored)
            if published is None and not subjects:  # on a new bus, and there is nothing to decide
                self.is_settled.set()
            what = "the bus is new" if published is None else "the database was restored"
            as_of = str(_time(current.as_of))
            _log.warning(f"{what}; resyncing", as_of=as_of, subjects=subjects)
        elif current.restored == self._restored_on_bus:
            self._published_at = min(current.restored / 1000, now.timestamp())
        if current.restored:  # also where the process that found it ended before it was through
            for hook in self.on_restored:
                hook(current.restored)
        # Another replica may have begun, and beaten, meanwhile: a beat never falls.
        beat = await conn.fetchval(_SAVE, *astuple(current))
        self._current = replace(current, beat=beat)
        self.has_begun.set()

    async def _look(self, conn: Connection) -> None:
        """What time brings: a beat after commits, peers that were restored, the end of a resync."""
        assert self._current is not None
        database, now = cast(tuple[str, datetime], await conn.fetchrow(_STATE))
        row, known = await conn.fetchrow(_LOAD), self._current
        if row is None or database != known.database or row["beat"] < known.beat:
            raise DatabaseRestored(f"The database is {database} with {row}; it was {known}.")
        self._current = Incarnation(**dict(row))  # with what another replica has found
        if self._published_at is None and self._restored_on_bus == self._current.restored:
            self._published_at = now.timestamp()
        is_published = (
            self._published_at is not None
            and now.timestamp() >= self._published_at + self._resync_s
        )
        if self._current.restored == 0 or is_published:
            self.is_settled.set()
        for peer, started in list(self._peers.items()):
            await self._answer(conn, peer, started)
            self._answered[peer.value] = started.restored
            if self._peers[peer] is started:
                del self._peers[peer]
        if self._has_committed:
            self._has_committed = False
            beat = await conn.fetchval(_BEAT, self._current.beat)
            if beat is None:
                raise DatabaseRestored(f"The database is below beat {self._current.beat}.")
            self._current = replace(self._current, beat=beat)
            self._is_published = False

    async def _answer(self, conn: Connection, peer: Service, started: ServiceStarted) -> None:
        """Republish to a restored peer what it may have lost, once for each restore."""
        kinds = [k.value for k, s in SIDES.items() if {s.opener, s.other} == {peer, self._bus.me}]
        async with conn.transaction():
            if await conn.fetchval(_NOTE_PEER, peer.value, started.restored):
                done = await conn.execute(_REPUBLISH, kinds, started.lost_since)
                _log.warning("republishing to a restored peer", peer=peer.value, subjects=done)
                for hook in self.on_peer_restored:
                    hook()

    async def _publish(self) -> None:
        current = self._current
        if self._is_published or current is None:
            return
        started = ServiceStarted(
            service=self._bus.me.value,
            database=current.database,
            revision=current.beat,
            restored=current.restored,
            as_of=_time(current.as_of) if current.as_of else None,
            at=_time(current.beat),
        )
        event_id = f"{started.service}/started/{started.service}/{started.revision}"
        try:
            await self._bus.broadcast(
                SERVICE_STARTED, started.service, started, event_id=event_id, at=current.beat / 1000
            )
        except Transient as error:
            _log.debug("the incarnation was not taken", error=str(error))
        else:
            self._is_published = True

    async def unanswered(self, conn: Connection) -> list[Key]:
        """How many open subjects of a resync the other side has not answered yet."""
        if self._current is None or not self._current.restored or self._is_answered:
            return []
        rows = await conn.fetch(_UNANSWERED, self._current.restored)
        self._is_answered = not rows
        return [(Kind(row["kind"]), row["subject"]) for row in rows]


_SERVICES = frozenset(service.value for service in Service)
_NAMES = tuple(Incarnation.__dataclass_fields__)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


_EXCLUDED = ", ".join(f"{name} = excluded.{name}" for name in _NAMES if name != "beat")
_LOAD = f"SELECT {', '.join(_NAMES)} FROM incarnation"  # noqa: S608 - columns
_NOW = "SELECT clock_timestamp(), coalesce((SELECT beat FROM incarnation), 0)"
_STATE = """
    SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8),
        clock_timestamp()
    FROM pg_control_system()
"""
_SAVE = f"""
    INSERT INTO incarnation ({", ".join(_NAMES)}) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (is_only) DO UPDATE SET {_EXCLUDED},
        beat = greatest(excluded.beat, incarnation.beat + 1)
    RETURNING beat
"""  # noqa: S608 - columns
_BEAT = """
    UPDATE incarnation
    SET beat = greatest(beat + 1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE beat >= $1 RETURNING beat
"""
_NOTE_LOSS = "UPDATE incarnation SET lost = $1 WHERE greatest(beat, lost) < $1"
_NOTE_PEER = """
    INSERT INTO peer (service, restored) VALUES ($1, $2)
    ON CONFLICT (service) DO UPDATE SET restored = excluded.restored
    WHERE peer.restored <> excluded.restored RETURNING true
"""
_REPUBLISH = repeat_soon(
    "kind = ANY($1::text[]) AND topic IS NOT NULL AND (is_open OR changed_at > $2)"
)
_UNANSWERED = """
    SELECT kind, subject FROM subject
    WHERE is_open AND revision > $1 AND acknowledged < $1 AND repeat_at IS NOT NULL
"""
