"""What is stored of a core beside its gangs, and restored."""

from scheduler.domain.core.interface import ChangedRows
from scheduler.domain.core.model import (
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    UserKey,
)
from scheduler.domain.core.reserve import exported_reservation
from scheduler.domain.core.transitions import Transitions


class Rows:
    """Implements `interface.Rows`."""

    def __init__(self, gangs: Transitions) -> None:
        self._gangs = gangs
        self._reserved: set[str] = set()
        self._nominated: set[str] = set()

    def take_changed(self) -> ChangedRows:
        usage, costs, records = self._gangs.usage, self._gangs.costs, self._gangs.records
        users, usage.changed = usage.changed, set()
        new, costs.added = tuple(costs.added), []
        kept = {each.workload.gang.id for each in records.kept}
        reserved, self._reserved = self._reserved, kept | {each.id for each in records.reserved}
        nominated, self._nominated = self._nominated, {each.id for each in records.nominated}
        moved = (nominated ^ self._nominated) | records.moved
        records.moved.clear()
        return ChangedRows(moved, reserved | self._reserved, users, new)

    def reservation(self, gang: str) -> RestoredReservation | None:
        records = self._gangs.records
        found = records.reservation_of(gang) or records.kept_of(gang)
        return None if found is None else exported_reservation(found)

    def reservations(self) -> list[RestoredReservation]:
        records = self._gangs.records
        settled = (each for each in records.kept if each.cells)
        kept = sorted(settled, key=lambda each: (each.since, each.workload.name))
        return [*map(exported_reservation, (*records.reservations(), *kept))]

    def usage_of(self, user: UserKey) -> RestoredUsage | None:
        return self._gangs.usage.exported_of(user)

    def usages(self) -> list[RestoredUsage]:
        return self._gangs.usage.exported()

    def preemptions(self) -> list[RestoredPreemption]:
        return list(self._gangs.costs.hour.all)

    def begin_restoring(self) -> None:
        self._gangs.usage.is_timed = False

    def restore_reservation(self, restored: RestoredReservation) -> None:
        if self._gangs.policy.is_keeping or restored.kept_of is not None:
            self._gangs.restore_reservation(restored)

    def forget_reservations(self) -> None:
        self._gangs.forget_reservations()

    def restore_usage(self, restored: RestoredUsage) -> None:
        self._gangs.usage.restore(restored)

    def forget_usage(self, user: UserKey) -> None:
        self._gangs.usage.restore_none(user)

    def restore_preemption(self, restored: RestoredPreemption) -> None:
        self._gangs.costs.hour.note(restored)
        self._gangs.costs.hour.forget(restored.at)

    def restored(self, now: float) -> None:
        self._gangs.usage.is_timed = True
        self._gangs.usage.settle(now)
