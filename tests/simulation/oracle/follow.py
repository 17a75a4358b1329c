"""One cycle of the core, decision by decision, beside the definitions.

Every decision is judged in the state at that moment and then taken over, places and cells as the
core chose them: of two that are equally good either is legal, and the histories stay one.
What comes back are the sentences of the definitions that were not kept.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import (
    Decision,
    Gang,
    GangClass,
    PodPlace,
    Preempted,
    Restored,
)

from oracle import choices, covers, turns
from oracle.adopt import adopted, published
from oracle.change import changed, lowered, still_used
from oracle.checker import findings
from oracle.codes import Codes
from oracle.fitting import TooHardError
from oracle.hardware import Hardware, Path
from oracle.judge import Bill, Judge, is_place_usable
from oracle.private import fits_in_private
from oracle.reserved import is_place_free, is_same_place, is_short_of_the_rest, taken_reservations
from oracle.settling import differences, without_cells
from oracle.state import Record, State, kinds_of, order_of
from oracle.told import Told, growth_of, left_over, lose_later, sort_out
from oracle.turns import fits_nowhere, growths, turn_of, wanting, with_other_cells

Exported = Callable[[str], Restored]
EPSILON = 1e-9


class Follower:
    """The plain state beside a core, and what the core was seen to do against the definitions.

    ``judges``: "" checks states alone, "cost" all but how near pods are, "all" everything.
    ``judged``: how decisions differ from the best ones, which the core does not promise to find.
    """

    def __init__(self, hardware: Hardware, judges: str = "all") -> None:
        self.state = State(hardware)
        self.codes = Codes()
        self.compared = 0
        self.too_hard = 0
        self._judges = judges
        self.judged: list[str] = []
        self._problems: list[str] = []
        self._now = 0.0
        self._told = Told()
        self._exported: Exported
        self._withdrawn: set[str] = set()
        self._lowered: set[str] = set()
        self._served: set[str] = set()

    def cycle(self, decisions: Sequence[Decision], exported: Exported, now: float) -> list[str]:
        """Take over one cycle; the problems since the last come back."""
        self._now, self.state.before_change = now, still_used(self.state)
        self.state.now = now
        self._told, self._exported = sort_out(decisions, self.state.growing), exported
        for name in sorted(self._withdrawn):
            self._expect(name in self._told.cancelled, f"{name}'s reservation is cancelled")
            self._told.cancelled = [other for other in self._told.cancelled if other != name]
        told = set(self._told.downgraded.pop(None, []))
        text = f"{sorted(self._lowered)} are downgraded by a change, not {sorted(told)}"
        self._expect(told == self._lowered, text)
        self._withdrawn, self._served, self._lowered = set(), set(), set()
        self._drain()
        self._start_or_lose()
        self._serve_all(growths(self.state) - self._told.raised)
        self._raise_again()
        self._serve_all(growths(self.state))
        self._say(left_over(self._told))
        self.judged += self.codes.doubts(self.state, self._judge())
        self._say(self.codes.untold(self.state))
        self._compare_states()
        self.state.before_change = still_used(self.state)
        self._say([*findings(self.state), *self._held_up()])
        problems, self._problems = self._problems, []
        return problems

    def adopt(self, core: Core) -> list[str]:
        """Go on with the gangs as the core has them; what is wrong with that comes back."""
        self.state = adopted(self.state, core)
        self.state.before_change = still_used(self.state)
        self.codes.told = dict(published(core))
        self.judged += self._held_up() if self._judges else ()
        return findings(self.state)

    def _held_up(self) -> Iterator[str]:
        for gang in self.state.waiting.values():
            if fits_in_private(self.state, gang):
                yield f"{gang.id} waits and fits in its virtual cluster as hardware of its own"

    def forget(self, gang: str) -> None:
        """A gang is gone or withdrawn; nothing is published of it any more."""
        for name in (gang, growth_of(gang)):
            self.state.records.pop(name, None)
            self._withdrawn.discard(name)
            self.codes.told.pop(name, None)
        self._lowered.discard(gang)
        self.state.waiting.pop(gang, None)
        self.state.growing.pop(gang, None)

    def change(self, hardware: Hardware, exported: Exported) -> None:
        """Another configuration from now on."""
        before = self.state.records
        self.state, problems, lost = changed(self.state, hardware, exported)
        self._lowered |= lowered(before, self.state)
        self._say(problems)
        self._withdrawn |= lost
        self.codes.may_repeat |= lost

    def _say(self, problems: Iterable[str]) -> None:
        self._problems += problems

    def _expect(self, is_so: bool, text: str) -> None:
        self._say([] if is_so else [f"expected: {text}"])

    def _judge(self) -> Judge | None:
        return Judge(self.state, self._now, self._judges == "all") if self._judges else None

    # Steps 1 and 2

    def _drain(self) -> None:
        state = self.state
        due = {
            name
            for name, record in state.records.items()
            if not record.is_leaving
            and not record.is_reserved
            and any(place.node in state.drained for place in record.places.values())
        }
        told = self._told.victims.pop(None, [])
        names = {decision.gang for decision in told}
        self._expect(due == names, f"{sorted(due)} leave drained nodes, not {sorted(names)}")
        self._leave(told, None)

    def _leave(self, told: Sequence[Preempted], for_gang: str | None) -> None:
        until = self._now + self.state.hardware.config.policy.grace_s
        for decision in told:
            is_due = abs(decision.until - until) < EPSILON
            self._expect(is_due, f"{decision.gang} may stay until {until}: {decision}")
            record = self.state.records.get(decision.gang)
            if record is None:
                self._say([f"{decision.gang} is preempted and does not run"])
                continue
            if self.state.records.pop(growth_of(decision.gang), None) is not None:
                ended = growth_of(decision.gang)
                others = [name for name in self._told.cancelled if name != ended]
                self._expect(len(others) < len(self._told.cancelled), f"{ended} is cancelled")
                self._told.cancelled = others
            self.state.records[decision.gang] = replace(
                record,
                cells=frozenset(),
                preempted_until=decision.until,
                preempted_for=for_gang and for_gang.rstrip("+"),
            )

    def _start_or_lose(self) -> None:
        state = self.state
        reserved = [record for record in state.records.values() if record.is_reserved]
        for record in sorted(reserved, key=lambda r: order_of(r.gang)):
            name = record.gang.id
            if not is_place_usable(state, record):
                self._expect(name in self._told.cancelled, f"{name}'s reserved place turned bad")
                self._cancel(name)
            elif is_place_free(state, record):
                placed = self._told.placed.pop(name, None)
                if placed is None:
                    if not is_short_of_the_rest(state, record):
                        self._say([f"{name}'s reserved GPUs are free and it does not start"])
                    continue
                places = {pod.pod: pod for pod in placed}
                is_there = is_same_place(record, places)
                self._expect(is_there, f"{name} starts where reserved, not at {placed}")
                self._settle(replace(record, started_at=self._now, places=places))

    def _cancel(self, name: str) -> None:
        if name in self._told.cancelled:
            self._told.cancelled.remove(name)
        gang = self.state.records.pop(name).gang
        if not name.endswith("+"):
            self.state.waiting[name] = gang
        self.codes.may_repeat.add(name)

    # Step 3

    def _serve_all(self, grow: Collection[str]) -> None:
        """All that wait and were not served, and these that grow."""
        later: set[str] = set()  # they get what others have given up after their turn
        self._take_over_exchanges()
        while True:
            todo = [gang for gang in wanting(self.state, grow) if gang.id not in self._served]
            if not todo:
                break
            ready = [gang for gang in todo if gang.id not in later]
            gang = min(ready or todo, key=lambda gang: turn_of(self.state, gang))
            is_told = self._is_decided(gang.id)
            if ready and is_told and fits_nowhere(self.state, gang):
                later.add(gang.id)
                continue
            self._served.add(gang.id)
            self._serve(gang)
            if is_told:
                later.clear()
                self._take_over_exchanges()

    def _take_over_exchanges(self) -> None:
        """A gang's cells may be exchanged for others around the same GPUs, to make room."""
        before, lost = dict(self.state.records), lose_later(self._told, self.state)
        for name, record in before.items():
            if record.is_guaranteed and not name.endswith("+") and name not in lost:
                cells = self._adopt(record.gang, record.is_reserved).cells
                self.state.records[name] = replace(record, cells=cells)
        if findings(self.state):
            others = with_other_cells(self.state, {name for name in lost if name in before})
            self.state.records = others or before

    def _serve(self, gang: Gang) -> None:
        self.compared += 1
        name, told = gang.id, self._told
        if name in told.refused:
            del told.refused[name]
            self._try(lambda judge: judge.refused(gang))
            self.state.waiting.pop(name, None)
            self.state.growing.pop(name.rstrip("+"), None)
            self.codes.told.pop(name, None)
        elif name in told.placed:
            self._place(gang, told.placed.pop(name))
        elif name in told.victims or self._has_reservation(name):
            self._publish(gang)
        else:
            self._wait(gang)

    def _wait(self, gang: Gang) -> None:
        before = len(self.judged) + self.too_hard
        judge, expected = self._judge(), None
        if judge and not self._is_growth_of_downgraded(gang):
            self._try(lambda judge: judge.waits(gang))
            try:
                if len(self.judged) + self.too_hard == before:
                    expected = judge.code(gang, may_fit=False)
            except TooHardError:
                self.too_hard += 1
        told = self._told.deferred.pop(gang.id, None)
        self._say(self.codes.note(gang, told, expected, self.state if judge else None))

    def _is_growth_of_downgraded(self, gang: Gang) -> bool:
        whole = self.state.records.get(gang.id.rstrip("+"))
        return whole is not None and whole.gang_class is GangClass.DOWNGRADED

    def _try(self, judgement: Callable[[Judge], Iterable[str]]) -> None:
        """Judge, if that is asked for and can be done."""
        judge = self._judge()
        try:
            self.judged += judgement(judge) if judge else ()
        except TooHardError:
            self.too_hard += 1

    def _is_decided(self, name: str) -> bool:
        told = self._told
        return name in told.placed or name in told.victims or self._has_reservation(name)

    def _has_reservation(self, name: str) -> bool:
        told = self._told.deferred.get(name)
        return told is not None and told.reason.code == "preempting"

    def _kept_cells(self, name: str) -> set[tuple[int, Path]]:
        cells = set()
        for use in self._exported(name).cells:
            at = self.state.hardware.cell_at(use.cell, use.quota)
            if at is None:
                self._say([f"{name} holds {use}, which is no cell"])
            else:
                cells.add((at, use.quota))
        return cells

    def _adopt(self, gang: Gang, is_reserved: bool) -> Record:
        """The gang (or the growth of one) with the places and cells that the core has for it."""
        name, hardware = gang.id.rstrip("+"), self.state.hardware
        kept = self._exported(name)
        wanted = kinds_of(gang.roles)
        places = {place.pod: place for place in kept.places if place.pod in wanted}
        assert kept.gang_class is not None
        started = None if is_reserved else self._now
        record = Record(gang, places, kept.gang_class, frozenset(), started)
        used = {at for leaf in self.state.charged_by(record) for at in hardware.path_up(leaf)}
        if name == gang.id and name not in self.state.growing:
            used |= {at for at, _ in self._kept_cells(name)}
        cells = frozenset(use for use in self._kept_cells(name) if use[0] in used)
        if growth_of(name) == gang.id:
            self._expect(is_reserved == bool(kept.reserved), f"{gang.id} reserves: {kept}")
        else:
            self._expect(is_reserved == (kept.started_at is None), f"{name} starts: {kept}")
        return replace(record, cells=cells)

    def _place(self, gang: Gang, placed: tuple[PodPlace, ...]) -> None:
        record = self._adopt(gang, is_reserved=False)
        same = {pod.pod: pod for pod in placed} == dict(record.places)
        self._expect(same, f"{gang.id} is kept at {placed}, not {record.places}")
        downgraded = self._told.downgraded.pop(gang.id, [])
        if not downgraded:  # else it is they who make room
            leave = lose_later(self._told, self.state)
            self.state.records = turns.with_others_exchanged(self.state, record, leave)
        bill = Bill((), downgraded, self._cancelled_by(gang, record, downgraded))
        self._try(lambda judge: judge.placed(gang, record, bill))
        self._downgrade(gang, bill)
        for other in bill.cancelled:
            self._cancel(other)
        self._settle(record)

    def _publish(self, gang: Gang) -> None:
        name = gang.id
        record = self._adopt(gang, is_reserved=True)
        victims, lower = self._told.victims.pop(name, []), self._told.downgraded.pop(name, [])
        all_lower = [*lower, *(victim.gang for victim in victims)]
        is_second = bool(self._told.raised) and name in self._told.cancelled
        if is_second:  # one that had its cells again took the first; both are told as one
            self._told.cancelled.remove(name)
        bill = Bill(victims, lower, self._cancelled_by(gang, record, all_lower))
        if not is_second:
            self._try(lambda judge: judge.published(gang, record, bill))
        self._downgrade(gang, bill)
        self._leave(bill.victims, name)
        for other in bill.cancelled:
            if other in self.state.records:  # what a victim grew by has left with it
                self._cancel(other)
        self._settle(record)
        self._say(self.codes.note(gang, self._told.deferred.pop(name, None), "preempting"))

    def _cancelled_by(self, gang: Gang, record: Record, lower: Sequence[str]) -> list[str]:
        return taken_reservations(self.state, gang, record, self._told.cancelled, lower)

    def _settle(self, record: Record) -> None:
        """It has its places from now on."""
        name = record.gang.id
        self.state.waiting.pop(name, None)
        self.state.records[name] = record
        if record.is_reserved:
            return
        self.codes.told.pop(name, None)
        if name.endswith("+"):
            del self.state.records[name]
            whole = self.state.records[name.rstrip("+")]
            roles = whole.gang.roles + self.state.growing.pop(whole.gang.id)
            self.state.records[whole.gang.id] = replace(
                whole,
                gang=replace(whole.gang, roles=roles),
                places={**whole.places, **record.places},
                cells=whole.cells | record.cells,
            )

    def _downgrade(self, gang: Gang, bill: Bill) -> None:
        allowed = choices.lazy_ones(self.state, gang)
        for name in bill.downgraded:
            self._expect(name in allowed, f"{name} is not downgraded for {gang.id}")
            if name in self.state.records:
                record = self.state.records[name]
                self.state.records[name] = without_cells(record, GangClass.DOWNGRADED)

    # Steps 4 and 5

    def _raise_again(self) -> None:
        state = self.state
        low = [
            record
            for record in state.records.values()
            if record.gang_class is GangClass.DOWNGRADED and not record.is_leaving
        ]
        for record in sorted(low, key=lambda r: (r.gang.submitted_at, r.gang.id)):
            name = record.gang.id
            if name in self._told.upgraded:
                self._told.upgraded.remove(name)
                has_cells = covers.cells_for(state, record, with_bad_ones=True) is not None
                self._expect(has_cells, f"{name} is not upgraded: there are no cells for it")
                kept = self._adopt(record.gang, is_reserved=False)
                state.records[name] = replace(
                    record, gang_class=kept.gang_class, cells=kept.cells, places=kept.places
                )
            else:
                is_stuck = covers.cells_for(state, record) is None
                self._expect(is_stuck, f"{name} is upgraded: there are cells for it")
        for name in self._told.upgraded:
            self._say([f"{name} is upgraded and was not downgraded"])
        for name, told in self._told.deferred.items():
            if name.rstrip("+") not in state.growing:
                self._say([f"{name} does not wait and is told {told.reason.code}"])

    def _compare_states(self) -> None:
        for name, record in self.state.records.items():
            if growth_of(name) in self.state.records or name.endswith("+"):
                continue
            kept = self._exported(name)
            mine = self._adopt(record.gang, record.is_reserved)
            self.state.records[name] = replace(record, cells=mine.cells)
            self._say(differences(mine, record, kept))
