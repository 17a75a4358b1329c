"""What is stored of a core beside its gangs, and restored."""

from scheduler.domain.core.interface import Touched
from scheduler.domain.core.model import (
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    UserKey,
)
from scheduler.domain.newcore.reserve import exported_reservation
from scheduler.domain.newcore.transitions import Transitions


class Rows:
    """Implements `interface.Rows`."""

    def __init__(self, gangs: Transitions) -> None:
        self._gangs = gangs
        self._reserved: set[str] = set()

    def take_touched(self) -> Touched:
        usage, costs = self._gangs.usage, self._gangs.costs
        users, usage.changed = usage.changed, set()
        new, costs.added = tuple(costs.added), []
        before, self._reserved = self._reserved, {r.id for r in self._gangs.records.reserved}
        return Touched(reservations=before | self._reserved, usage=users, preemptions=new)

    def reservation(self, gang: str) -> RestoredReservation | None:
        record = self._gangs.records.all.get(gang)
        found = None if record is None else record.reservation
        return None if found is None else exported_reservation(found)

    def reservations(self) -> list[RestoredReservation]:
        return [*map(exported_reservation, self._gangs.records.reservations())]

    def usage_of(self, user: UserKey) -> RestoredUsage | None:
        return self._gangs.usage.exported_of(user)

    def usages(self) -> list[RestoredUsage]:
        return self._gangs.usage.exported()

    def preemptions(self) -> list[RestoredPreemption]:
        return self._gangs.costs.hour.exported()

    def begin_restoring(self) -> None:
        self._gangs.usage.is_timed = False

    def restore_reservation(self, restored: RestoredReservation) -> None:
        if self._gangs.policy.is_keeping:
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
