"""The agent's journal: its only memory, one SQLite file.

Each step of the agent (a batch of records with the offsets behind it, the ends of some pods) is one
transaction. It is on the disk before anything of it is published or done. A journal has an id; pods
placed for another one are refused, so an agent that lost its journal can't run a pod twice. It
belongs to one machine; on another it counts as lost.

It works on a full disk: it writes into space that its two files already have, so that no pod can
take that space.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from muster.channels import Outgoing
from muster.contracts.model import Reason
from muster.contracts.pods import PodRun
from muster.contracts.topics import Kind
from muster.exchange import Exchange
from muster.subject import Subject, digest_of

from runtime_agent.domain.pods import Phase, Pod, Stopping

SCHEMA_VERSION = 2
REPORT_BLOCK = 1000
"""Report revisions are set aside in blocks, so that a report costs no write of its own."""
LOG_BYTES = 8 * 1024 * 1024
"""Of the write-ahead log, kept however little is in it. SQLite begins it anew after some 4 MiB; the
other half is for the step that comes last before that.
"""
SPARE_BYTES = 2 * 1024 * 1024
"""Of empty pages in the journal: enough for more than a thousand ends of pods. The Scheduler places
no pod on a node whose disk is full.
"""

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE position (
    topic TEXT NOT NULL, number INTEGER NOT NULL, bus TEXT NOT NULL, next INTEGER NOT NULL,
    PRIMARY KEY (topic, number)
) WITHOUT ROWID;
CREATE TABLE pod (
    pod TEXT PRIMARY KEY, job TEXT NOT NULL, gang TEXT NOT NULL, phase TEXT NOT NULL, run TEXT,
    stop_reason TEXT, stop_grace_s REAL, is_forgotten INTEGER NOT NULL, started_at REAL,
    revision INTEGER NOT NULL, seen INTEGER NOT NULL, acknowledged INTEGER NOT NULL,
    skipped INTEGER NOT NULL, rejected INTEGER NOT NULL, repeats INTEGER NOT NULL,
    repeat_at REAL, answer_at REAL,
    topic TEXT, message TEXT, traceparent TEXT, changed_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX pod_active ON pod (pod) WHERE phase <> 'ended' OR repeat_at IS NOT NULL
    OR answer_at IS NOT NULL;
CREATE INDEX pod_changed ON pod (changed_at) WHERE phase = 'ended';
CREATE TABLE letter (
    id TEXT PRIMARY KEY, topic TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
    at_s REAL NOT NULL
) WITHOUT ROWID;
"""

_EXCHANGE = (
    "revision", "seen", "acknowledged", "skipped", "rejected", "repeats", "repeat_at", "answer_at",
)  # fmt: skip
_COLUMNS = (
    "pod", "job", "gang", "phase", "run", "stop_reason", "stop_grace_s", "is_forgotten",
    "started_at", *_EXCHANGE, "topic", "message", "traceparent", "changed_at",
)  # fmt: skip
_PUT = (
    f"INSERT OR REPLACE INTO pod ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608  names of columns
)
_GET = f"SELECT {', '.join(_COLUMNS)} FROM pod"  # noqa: S608  names of columns


@dataclass(frozen=True, slots=True)
class Entry:
    """A pod, and the subject that it is in the exchange with the Launcher."""

    pod: Pod
    subject: Subject
    changed_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)

    @property
    def is_live(self) -> bool:
        """Whether the pod may hold anything of the node."""
        return self.pod.phase is not Phase.ENDED

    @property
    def is_active(self) -> bool:
        """Whether something is still to be done or published."""
        return self.is_live or not self.subject.exchange.is_silent


@dataclass(frozen=True, slots=True)
class Position:
    """The next record to read of one partition of the bus that has this identity."""

    topic: str
    number: int
    bus: str
    next: int


@dataclass(frozen=True, slots=True)
class Partitions:
    """How many a topic has on the bus of that id; `retired`: the ones that were the node's before
    their number changed, and until when (Unix time) they are read.
    """

    bus: str
    count: int
    retired: Mapping[int, float] = field(default_factory=dict)


class Journal:
    """One open journal. `is_new`: there was none, so whatever runs on the node is unknown.

    Revisions of reports begin above `report_floor`: an older journal that was put back knows too
    little of those that were used.
    """

    def __init__(self, path: Path, fresh_id: str, report_floor: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = path.with_name(f"{path.name}-wal")
        self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        # First of all: the log's index is then in memory, and to open the journal takes no disk.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        self.is_new = version == 0
        if self.is_new:
            self._create(fresh_id)
        elif version == 1:
            self._rename()
        elif version != SCHEMA_VERSION:
            raise ValueError(
                f"{path} is a journal of version {version}; this agent reads {SCHEMA_VERSION}"
            )
        self.id = self._meta("journal") or ""
        self._reported = max(int(self._meta("report") or 0), report_floor)
        self._report_ceiling = 0

    def _create(self, fresh_id: str) -> None:
        with self._transaction():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._db.execute(statement)
            self._db.execute("INSERT INTO meta VALUES ('journal', ?)", (fresh_id,))
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _rename(self) -> None:
        """Columns had other names in version 1."""
        with self._transaction():
            self._db.execute("ALTER TABLE pod RENAME COLUMN dead TO skipped")
            self._db.execute("ALTER TABLE pod RENAME COLUMN refused TO rejected")
            self._db.execute("ALTER TABLE pod RENAME COLUMN word TO message")
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # on a full disk SQLite has done so already
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def keep_reserve(self) -> int:
        """Takes the room that the journal needs on a full disk, as far as there is any now.

        How many bytes it can take then, `SPARE_BYTES` where all is well. Raises sqlite3.Error.
        """
        free_bytes = shutil.disk_usage(self._log.parent).free
        if self._spare_bytes() < SPARE_BYTES and free_bytes > LOG_BYTES + 2 * SPARE_BYTES:
            # Put in and taken out again, it leaves empty pages that the disk has given already.
            name = "reserve"
            with self._transaction():
                self._db.execute(
                    "INSERT OR REPLACE INTO meta VALUES (?, zeroblob(?))", (name, SPARE_BYTES)
                )
            with self._transaction():
                self._db.execute("DELETE FROM meta WHERE name = ?", (name,))
            self._db.execute("PRAGMA wal_checkpoint")
        return min(self._spare_bytes(), SPARE_BYTES) if self._hold_log() else 0

    def _spare_bytes(self) -> int:
        pages, size = (
            int(self._db.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("freelist_count", "page_size")
        )
        return pages * size

    def _hold_log(self) -> bool:
        """Whether the write-ahead log has its room. What is not written yet are zeros, which SQLite
        takes for no log, or for its end.
        """
        with contextlib.suppress(OSError):
            descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, LOG_BYTES)
            finally:
                os.close(descriptor)
            return True
        return False

    @property
    def machine(self) -> str | None:
        """The machine that it belongs to; None for a journal that no machine has adopted yet."""
        return self._meta("machine")

    def adopt(self, machine: str) -> None:
        """From now on it belongs to this machine."""
        with self._transaction():
            self._set_machine(machine)

    def begin_anew(self, fresh_id: str, machine: str) -> None:
        """Becomes another journal, which knows nothing. The files stay, with the room they hold."""
        with self._transaction():
            for table in ("meta", "position", "pod", "letter"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608  names of tables
            self._db.execute("INSERT INTO meta VALUES ('journal', ?)", (fresh_id,))
            self._set_machine(machine)
        self.id, self.is_new, self._report_ceiling = fresh_id, True, 0

    def _set_machine(self, machine: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('machine', ?)", (machine,))

    def _meta(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    @property
    def next_report(self) -> int:
        """The revision of the first report to come."""
        return self._reported + 1

    def take_report(self) -> int:
        """The revision of a report that is made now; never the same twice, also after a crash."""
        if self._reported + 1 > self._report_ceiling:
            ceiling = self._reported + REPORT_BLOCK
            with self._transaction():
                self._db.execute(
                    "INSERT OR REPLACE INTO meta VALUES ('report', ?)", (str(ceiling),)
                )
            self._report_ceiling = ceiling
        self._reported += 1
        return self._reported

    def active(self) -> list[Entry]:
        """Every pod that lives or on which something is still to be published."""
        where = "WHERE phase <> 'ended' OR repeat_at IS NOT NULL OR answer_at IS NOT NULL"
        return [_entry(row, self.id) for row in self._db.execute(f"{_GET} {where}")]

    def mark(self, name: str) -> int:
        """The number under which something was last done; 0 for never."""
        return int(self._meta(name) or 0)

    def refused(self) -> list[Entry]:
        """Every pod on which the Launcher could not handle the latest message."""
        return [_entry(row, self.id) for row in self._db.execute(f"{_GET} WHERE rejected > 0")]

    def unforgotten(self, since: datetime | None = None) -> list[Entry]:
        """Every pod that lives, or of which the Launcher may not know the end, or that changed
        after `since`.
        """
        query = f"{_GET} WHERE phase <> 'ended' OR is_forgotten = 0 OR changed_at > ?"
        rows = self._db.execute(query, (math.inf if since is None else since.timestamp(),))
        return [_entry(row, self.id) for row in rows]

    def load(self, names: Iterable[str]) -> dict[str, Entry]:
        """Those of the pods that the journal knows."""
        found = {}
        for name in names:
            row = self._db.execute(f"{_GET} WHERE pod = ?", (name,)).fetchone()
            if row is not None:
                found[name] = _entry(row, self.id)
        return found

    def names(self) -> set[str]:
        """Of all pods that it knows."""
        return {name for (name,) in self._db.execute("SELECT pod FROM pod")}

    def live(self) -> set[str]:
        """The names of the pods that may hold anything of the node."""
        return {name for (name,) in self._db.execute("SELECT pod FROM pod WHERE phase <> 'ended'")}

    def save(
        self,
        entries: Iterable[Entry] = (),
        positions: Iterable[Position] = (),
        letters: Iterable[Outgoing] = (),
        marks: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """One step, whole or not at all. Raises sqlite3.Error where the disk does not take it."""
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [(name, str(number)) for name, number in marks.items()],
            )
            self._db.executemany(_PUT, [_row(entry) for entry in entries])
            self._db.executemany(
                "INSERT OR REPLACE INTO position VALUES (?, ?, ?, ?)",
                [(p.topic, p.number, p.bus, p.next) for p in positions],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO letter VALUES (?, ?, ?, ?, ?)",
                [(x.event_id, x.topic, x.key, (x.value or b"").decode(), x.at) for x in letters],
            )

    def positions(self) -> list[Position]:
        """Where reading goes on."""
        return [Position(*row) for row in self._db.execute("SELECT * FROM position")]

    def partitions(self) -> dict[str, Partitions]:
        """What was last known of each topic's partitions."""
        found = {}
        query = "SELECT substr(name, 12), value FROM meta WHERE name LIKE 'partitions/%'"
        for topic, value in self._db.execute(query):
            bus, count, retired = json.loads(value)
            found[str(topic)] = Partitions(bus, count, {int(n): until for n, until in retired})
        return found

    def keep_partitions(self, partitions: Mapping[str, Partitions]) -> None:
        """Survives the agent. Raises sqlite3.Error where the disk does not take it."""
        rows = [
            (f"partitions/{topic}", json.dumps([p.bus, p.count, list(p.retired.items())]))
            for topic, p in partitions.items()
        ]
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def gpus(self) -> str | None:
        """What was last known of the GPUs."""
        return self._meta("gpus")

    def keep_gpus(self, known: str) -> None:
        """Survives the agent. Raises sqlite3.Error where the disk does not take it."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('gpus', ?)", (known,))

    def letters(self, limit: int, after: str = "") -> list[Outgoing]:
        """Dead letters that wait for the bus, in the order of their ids."""
        query = "SELECT id, topic, key, value, at_s FROM letter WHERE id > ? ORDER BY id LIMIT ?"
        return [
            Outgoing(topic, key, value.encode(), ident, at_s)
            for ident, topic, key, value, at_s in self._db.execute(query, (after, limit))
        ]

    def drop_letters(self, ids: Sequence[str]) -> None:
        """The bus has taken them."""
        with self._transaction():
            self._db.executemany("DELETE FROM letter WHERE id = ?", [(each,) for each in ids])

    def drop_ended(self, before: datetime, limit: int) -> list[str]:
        """Takes out pods that ended before then and have nothing to publish; their names."""
        query = """SELECT pod FROM pod WHERE phase = 'ended' AND changed_at < ?
                   AND repeat_at IS NULL AND answer_at IS NULL LIMIT ?"""
        names = [str(row[0]) for row in self._db.execute(query, (before.timestamp(), limit))]
        with self._transaction():
            self._db.executemany("DELETE FROM pod WHERE pod = ?", [(name,) for name in names])
        return names

    def close(self) -> None:
        """The file may be opened again. SQLite removes its log; the room stays ours."""
        self._db.close()
        self._hold_log()


def _row(entry: Entry) -> tuple[object, ...]:
    pod, subject = entry.pod, entry.subject
    values = (getattr(subject.exchange, name) for name in _EXCHANGE)
    return (
        pod.pod, pod.job, pod.gang, pod.phase.value,
        None if pod.run is None else pod.run.model_dump_json(),
        None if pod.stop is None else pod.stop.reason,
        None if pod.stop is None else pod.stop.grace_s,
        pod.is_forgotten, _seconds(pod.started_at),
        *(_seconds(value) if isinstance(value, datetime) else value for value in values),
        subject.topic, subject.message, subject.traceparent, _seconds(entry.changed_at),
    )  # fmt: skip


def _entry(row: Sequence[object], journal: str) -> Entry:
    values: Mapping[str, object] = dict(zip(_COLUMNS, row, strict=True))
    stop_reason, grace_s = values["stop_reason"], values["stop_grace_s"]
    run, message = values["run"], _text(values["message"])
    latest: Mapping[str, Any] = {} if message is None else json.loads(message)
    saved_at, reason = latest.get("checkpointedAt"), latest.get("reason")
    pod = Pod(
        pod=str(values["pod"]),
        job=str(values["job"]),
        gang=str(values["gang"]),
        phase=Phase(str(values["phase"])),
        run=None if run is None else PodRun.model_validate_json(str(run)),
        stop=None if stop_reason is None else Stopping(str(stop_reason), float(str(grace_s))),
        is_forgotten=bool(values["is_forgotten"]),
        started_at=_moment(values["started_at"]),
        checkpointed_at=None if saved_at is None else datetime.fromisoformat(saved_at),
        reason=None if reason is None else Reason.model_validate(reason),
        address=latest.get("address"),
    )
    revision, seen, acknowledged, skipped, rejected, repeats = (
        int(str(values[name])) for name in _EXCHANGE[:6]
    )
    repeat_at, answer_at = (_moment(values[name]) for name in _EXCHANGE[6:])
    exchange = Exchange(
        revision, seen, acknowledged, skipped, rejected, repeats, repeat_at, answer_at
    )
    subject = replace(
        new_subject(pod, journal),
        exchange=exchange,
        topic=_text(values["topic"]),
        message=message,
        digest=0 if message is None else digest_of(message),
        traceparent=_text(values["traceparent"]),
    )
    changed_at = _moment(values["changed_at"]) or datetime(1970, 1, 1, tzinfo=UTC)
    return Entry(pod, subject, changed_at)


def new_subject(pod: Pod, journal: str) -> Subject:
    """A pod on which nothing was published or received yet."""
    return Subject(Kind.POD, pod.pod, key=pod.job, journal=journal)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _moment(seconds: object) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(float(str(seconds)), UTC)
