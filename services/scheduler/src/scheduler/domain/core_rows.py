"""What the core knows beside single gangs, as it is stored: cells that are kept for some that wait,
what users have used, who was preempted lately, and what came of what was expected.

The core says for whom it may be something else; what is the same as it was stored is not written
again. The next thing that the core is to remember over a restart joins here.
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
    """Cells that are kept for a gang. ``pods``: a digest of those that it waited for then."""

    restored: RestoredReservation
    pods: str

    def is_for(self, live: Live) -> bool:
        """The gang waits for the same pods; else what was kept is not any more."""
        return self.pods == _digest(live)


@dataclass(slots=True)
class CoreChanges:
    """What a transaction must write of it: by gang, and by user, None: nothing any more;
    ``preemptions`` that are new; and what has come of expectations by their kind.
    """

    reservations: dict[str, KnownReservation | None] = field(default_factory=dict)
    usage: dict[UserKey, RestoredUsage | None] = field(default_factory=dict)
    preemptions: tuple[RestoredPreemption, ...] = ()
    calibration: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.reservations or self.usage or self.preemptions or self.calibration)


class CoreRows:
    """``reservations``, ``usage``: what is stored, the transaction that is to come included."""

    def __init__(self) -> None:
        self.reservations: dict[str, KnownReservation] = {}
        self.usage: dict[UserKey, RestoredUsage] = {}
        self._is_doubted = False

    def doubt(self) -> None:
        """The core is another one: all that is stored is compared with what it knows."""
        self._is_doubted = True

    def keep_reservations(
        self, rows: Mapping[str, KnownReservation], gone: Collection[str] = ()
    ) -> list[KnownReservation]:
        """These are stored, and those that are ``gone`` not. Returns all, the oldest first."""
        for gang in gone:
            self.reservations.pop(gang, None)
        self.reservations.update(rows)
        return sorted(self.reservations.values(), key=lambda row: row.restored.number)

    def keep_usage(
        self, rows: Mapping[UserKey, RestoredUsage], gone: Collection[UserKey] = ()
    ) -> None:
        """The same of users."""
        for key in gone:
            self.usage.pop(key, None)
        self.usage.update(rows)

    def take(self, cluster: Cluster) -> CoreChanges:
        """What has changed since this was asked last. Amid a cycle some of what is kept may be
        lifted for a moment: that waits for its end.
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
