"""The core's stored facts beside single gangs: reservations, users' usage, late preemptions, and
the outcomes of expected starts.

The core names the entries that may have changed; equal rows are not written again. A new fact that
the core must keep over a restart joins here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TypeVar

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live, UserKey
from scheduler.domain.core.model import RestoredPreemption, RestoredReservation, RestoredUsage

Key = TypeVar("Key")
Row = TypeVar("Row")

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class KnownReservation:
    """A gang's reservation. ``pods``: a digest of the pods that it waited for then."""

    restored: RestoredReservation
    pods: str

    def is_for(self, live: Live) -> bool:
        """The gang waits for the same pods; else the reservation is void."""
        return self.pods == _digest(live)


@dataclass(slots=True)
class CoreChanges:
    """The rows that a transaction must write: by gang, and by user, None: delete it; the new
    ``preemptions``; and the outcomes of expected starts by their kind.
    """

    reservations: dict[str, KnownReservation | None] = field(default_factory=dict)
    usage: dict[UserKey, RestoredUsage | None] = field(default_factory=dict)
    preemptions: tuple[RestoredPreemption, ...] = ()
    calibration: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.reservations or self.usage or self.preemptions or self.calibration)


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
        return sorted(self.reservations.values(), key=lambda row: row.restored.number)

    def keep_usage(
        self, rows: Mapping[UserKey, RestoredUsage], gone: Collection[UserKey] = ()
    ) -> None:
        """The same for users."""
        for key in gone:
            self.usage.pop(key, None)
        self.usage.update(rows)

    def take(self, cluster: Cluster) -> CoreChanges:
        """The changes since the last call. Amid a cycle, reservations may be lifted for a moment:
        their rows wait for its end.
        """
        changes, calibration = CoreChanges(), cluster.forecast.calibration
        changes.preemptions = tuple(cluster.preemptions.added)
        cluster.preemptions.added.clear()
        for kind in sorted(calibration.changed):
            changes.calibration[kind] = calibration.exported(kind)
        calibration.changed.clear()
        if cluster.under_way is None:
            self._take_whole(cluster, changes)
        return changes

    def _take_whole(self, cluster: Cluster, changes: CoreChanges) -> None:
        kept, usage = cluster.reservations, cluster.usage
        gangs, users = set(kept.changed), set(usage.changed)
        kept.changed.clear()
        usage.changed.clear()
        if self._is_doubted:
            self._is_doubted = False
            gangs.update(self.reservations)
            users.update(self.usage)
        for gang in sorted(gangs):
            _note(changes.reservations, self.reservations, gang, _reservation(cluster, gang))
        for key in sorted(users):
            _note(changes.usage, self.usage, key, usage.exported_of(key))


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


def _reservation(cluster: Cluster, gang: str) -> KnownReservation | None:
    found = cluster.reservations.by_gang.get(gang)
    if found is None:
        return None
    row = replace(cluster.reservations.exported_of(found), patient_until=None)
    return KnownReservation(row, _digest(found.live))


def _digest(live: Live) -> str:
    pods = sorted(pod for role in live.waiting for pod in role.pods)
    return blake2b("\n".join(pods).encode(), digest_size=DIGEST_BYTES).hexdigest()
