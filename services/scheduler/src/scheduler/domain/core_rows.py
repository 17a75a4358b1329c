"""The core's stored facts beside single gangs: reservations, users' usage, and late preemptions.

The core names the entries that may have changed; equal rows are not written again. A new fact that
the core must keep over a restart joins here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TypeVar

from scheduler.domain.core.interface import ChangedRows, Core, GangState
from scheduler.domain.core.model import (
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    UserKey,
)

Key = TypeVar("Key")
Row = TypeVar("Row")

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class KnownReservation:
    """A gang's reservation. ``pods``: a digest of the pods that it waited for then; empty: the gang
    is over.
    """

    restored: RestoredReservation
    pods: str

    def is_for(self, gang: GangState) -> bool:
        """The gang waits for the same pods; else the reservation is void."""
        return self.pods == _digest(gang)


@dataclass(slots=True)
class CoreChanges:
    """The rows that a transaction must write: by gang, and by user, None: delete it; and the
    new ``preemptions``.
    """

    reservations: dict[str, KnownReservation | None] = field(default_factory=dict)
    usage: dict[UserKey, RestoredUsage | None] = field(default_factory=dict)
    preemptions: tuple[RestoredPreemption, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reservations or self.usage or self.preemptions)


class CoreRows:
    """``reservations``, ``usage``: the stored rows, with the next transaction's."""

    def __init__(self) -> None:
        self.reservations: dict[str, KnownReservation] = {}
        self.usage: dict[UserKey, RestoredUsage] = {}
        self._is_doubted = False

    def doubt(self) -> None:
        """The core was replaced: compare all stored rows with it."""
        self._is_doubted = True

    def keep_reservations(
        self, rows: Mapping[str, KnownReservation], gone: Collection[str] = ()
    ) -> list[KnownReservation]:
        """These rows are stored, and those that are ``gone`` not. Returns all, the oldest first."""
        for gang in gone:
            self.reservations.pop(gang, None)
        self.reservations.update(rows)
        rows_of = self.reservations.values()
        return sorted(rows_of, key=lambda row: (row.restored.since, row.restored.gang))

    def keep_usage(
        self, rows: Mapping[UserKey, RestoredUsage], gone: Collection[UserKey] = ()
    ) -> None:
        """The same for users."""
        for key in gone:
            self.usage.pop(key, None)
        self.usage.update(rows)

    def take(self, core: Core, changed: ChangedRows) -> CoreChanges:
        """The changes of these entries."""
        changes = CoreChanges(preemptions=changed.preemptions)
        gangs, users = changed.reservations, changed.usage
        if self._is_doubted and not core.is_under_way:
            self._is_doubted = False
            gangs, users = gangs | self.reservations.keys(), users | self.usage.keys()
        for gang in sorted(gangs):
            _note(changes.reservations, self.reservations, gang, _reservation(core, gang))
        for key in sorted(users):
            _note(changes.usage, self.usage, key, core.rows.usage_of(key))
        return changes


def _note(
    changes: dict[Key, Row | None], stored: dict[Key, Row], key: Key, row: Row | None
) -> None:
    if stored.get(key) == row:
        return
    changes[key] = row
    if row is None:
        del stored[key]
    else:
        stored[key] = row


def _reservation(core: Core, gang: str) -> KnownReservation | None:
    row, waiting = core.rows.reservation(gang), core.gang(gang)
    if row is None:
        return None
    pods = "" if waiting is None else _digest(waiting)
    return KnownReservation(replace(row, patient_until=None), pods)


def _digest(gang: GangState) -> str:
    pods = sorted(pod for role in gang.waiting for pod in role.pods)
    return blake2b("\n".join(pods).encode(), digest_size=DIGEST_BYTES).hexdigest()
