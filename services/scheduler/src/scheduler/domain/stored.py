"""A state from stored rows: whole, or gang by gang as their rows change.

The leader changes its state by decisions and stores the results. A standby forgets gangs with
changed rows and restores them from those, which gives the state of a restart. Both receive nodes'
messages meanwhile.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.domain.core.config import ClusterConfig, Policy
from scheduler.domain.core.model import (
    ExtraPod,
    Kind,
    PodPlace,
    Restored,
    RestoredPreemption,
    RestoredUsage,
    UserKey,
)
from scheduler.domain.core_rows import KnownReservation
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import LEFT, Hold
from scheduler.domain.requests import Asked, gang_of, kind_of, roles_of, saved_at
from scheduler.domain.rules import Rules
from scheduler.domain.state import State


class Stored(State):
    """``patient_until``: until then the nodes of reservations may still report.

    The order is: nodes, placements, gangs, users' usage and reservations. At last, before the first
    decision, comes `restored`.
    """

    def __init__(
        self, rules: Rules, file: ClusterConfig | None = None, policy: Policy | None = None
    ) -> None:
        super().__init__(rules, file, policy)
        self._held: dict[str, list[Hold]] = {}
        self._pods_of: dict[str, list[str]] = {}
        self.patient_until: float | None = None
        self.core.rows.begin_restoring()

    @property
    def unsure(self) -> set[str]:
        """Gangs that did not get their old cells back: others may have had them meanwhile."""
        return set(self.core.unpublished())

    def restore_removed(self, name: str, lease: int) -> None:
        """A stored removal of a node."""
        self._seen.nodes.pop(name, None)
        self.ledger.restore_removed(name, lease)

    def restore_holds(self, holds: Iterable[Hold], now: float) -> None:
        """Stored placements; before their gangs."""
        for hold in holds:
            self.ledger.restore_hold(hold, now)
            gang = hold.placement.gang
            self._pods_of.setdefault(gang, []).append(hold.pod)
            if hold.is_wanted:
                self._held.setdefault(gang, []).append(hold)

    def restore_gang(self, known: KnownGang, now: float, at: float) -> None:
        """A stored gang; after its placements and its nodes."""
        request = known.request
        gang = self.gangs[request.gang] = Asked(request, preemption=known.preemption)
        self.jobs.add(gang)
        gang.downgrade = known.downgrade
        gang.shape, gang.expected_s = known.shape, known.expected_s
        self._expect(gang)
        gang.is_refused, gang.published_reason = known.is_refused, known.reason
        held = self._held.pop(request.gang, [])
        reserved = {place.pod: place for place in known.reserved}
        kinds = {ask.pod: kind_of(ask) for ask in request.pods if ask.pod in reserved}
        asks = {ask.pod: ask for ask in request.pods}
        kinds |= {hold.pod: hold.placement.kind for hold in held}
        for pod, place in reserved.items():  # a message that no cycle has seen may drop it
            kinds.setdefault(pod, Kind(len(place.gpus), ports=len(place.ports)))
        places = [h.placement.place() for h in held if not h.is_lost] + list(known.reserved)
        if places:
            started_at = known.started_at
            if started_at is None and not reserved:
                started_at = at
            in_order = sorted(places, key=lambda place: place.pod not in asks)
            roles = roles_of((place.pod, kinds[place.pod]) for place in in_order)
            restored = Restored(
                gang_of(request, roles, gang.expected_s),
                tuple(places),
                known.gang_class,
                known.cells,
                started_at,
                known.preempted_until,
                known.preempted_for,
                () if started_at is None else tuple(reserved),
                known.passed,
                checkpointed_at=saved_at(request, at),
                extra=_still_extra(known, places),
                lender=known.lender,
            )
            self.given.restore(restored, at)
            gang.leaving = _leaving(restored)
        gone = {h.pod: asks.get(h.pod) for h in held} | dict.fromkeys(reserved)
        gang.asks = {pod: ask for pod, ask in asks.items() if pod in gone or gang.is_refused}
        self._requeue(gang, at)
        for pod in gone.keys() - asks.keys():  # by a message that no cycle has seen
            end = next((e for e in request.released if e.pod == pod), None)
            self._drop(gang, pod, end, now, at)
        self.request(request, now, at)
        if known.reason is not None:
            self.core.note_published(request.gang, known.reason.code)

    def restore_usage(
        self, rows: Mapping[UserKey, RestoredUsage], gone: Collection[UserKey] = ()
    ) -> None:
        """Stored usage; after the running gangs, whose use it includes up to then."""
        self.core_rows.keep_usage(rows, gone)
        for key in gone:
            self.core.rows.forget_usage(key)
        for row in rows.values():
            self.given.restore_usage(row)

    def restore_preemptions(self, rows: Sequence[RestoredPreemption]) -> None:
        """Stored preemptions, in their order: those that were not restored yet."""
        for row in rows:
            self.given.restore_preemption(row)

    def let_go(self) -> None:
        """Remove all reservations, before gangs are restored."""
        self.core.rows.forget_reservations()

    def restore_reservations(
        self, rows: Mapping[str, KnownReservation], gone: Collection[str] = ()
    ) -> None:
        """Stored reservations; after all gangs."""
        for row in self.core_rows.keep_reservations(rows, gone):
            gang = self.core.gang(row.restored.gang)
            is_over = gang is None and row.restored.kept_of is not None
            if is_over or (gang is not None and row.is_for(gang)):
                patient = replace(row.restored, patient_until=self.patient_until)
                self.given.keep_again(patient)

    def forget(self, gangs: Collection[str]) -> set[str]:
        """As if these gangs had never been stored. Returns the nodes of their pods, to be settled
        after the gangs are restored.
        """
        nodes: set[str | None] = set()
        for name in sorted(gangs):
            for pod in self._pods_of.pop(name, ()):
                nodes.add(self.ledger.forget_hold(pod))
                self.core.release(LEFT + pod)
            self.core.forget(name)
            if name in self.gangs:
                self.jobs.remove(self.gangs.pop(name))
            self.withheld.pop(name, None)
            self._held.pop(name, None)
            self._changes.ended.pop(name, None)
            self._changes.runs.pop(name, None)
            self._changes.kept.discard(name)
        return {name for name in nodes if name is not None}

    def settle(self, nodes: Iterable[str], now: float) -> None:
        """Placements on these nodes were restored after the nodes had reported."""
        for name in sorted(nodes):
            self.ledger.settle(name, now)

    def keep_up(self, now: float) -> None:
        """Take the nodes' reports, as a cycle does before it decides."""
        self.ledger.expire(now)
        self._carry(now)
        self._withhold(self._listed().as_reasons())

    def restored(self, now: float, at: float) -> None:
        """All rows are restored: decisions follow. Pods that were released before still hold their
        resources.
        """
        for pod in sorted(self.ledger.pods):
            hold = self.ledger.hold_of(pod)
            if hold is None or hold.is_wanted or self.core.gang(LEFT + pod) is not None:
                continue
            if pod not in self.ledger.nodes[hold.placement.node].overdue:
                self._linger(hold, at)
        for name in sorted(self.gangs):
            self.notices.note(self.gangs[name], self.gangs[name].published_reason, now)
        self.core.rows.restored(at)
        self.core_rows.doubt()
        self._pods_of.clear()
        self.given.is_recording = True


def _still_extra(known: KnownGang, places: Collection[PodPlace]) -> tuple[ExtraPod, ...]:
    """The gang's placed elastic pods, unless it has no other pod."""
    placed = {place.pod for place in places}
    extra = tuple(each for each in known.extra if each.pod in placed)
    return extra if len(extra) < len(placed) else ()


def _leaving(restored: Restored) -> set[str]:
    """Its preempted pods, if the others are not preempted."""
    extra = {each.pod: each.preempted_until is not None for each in restored.extra}
    is_whole = restored.preempted_until is not None
    preempted = {p.pod for p in restored.places if extra.get(p.pod, is_whole)}
    return set() if len(preempted) == len(restored.places) else preempted
