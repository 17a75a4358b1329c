"""Answers to "why": who is ahead of a gang, and what would have to be otherwise for it to start.

Example: a gang of 8 pods waits. In a trial the gangs that end first are taken away, one after the
other, until it fits. Then all are put back without which it fits as well: the others have to end.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from scheduler.domain.core.attempt import may_be_opportunistic, places_of, short_of
from scheduler.domain.core.conditions import heal, unwell
from scheduler.domain.core.ends import end_of
from scheduler.domain.core.explain import (
    LENDER,
    preempting,
    quota,
    reasons,
    unsettled,
    with_kept,
    with_lenders,
)
from scheduler.domain.core.fit import ORDER, QUOTA
from scheduler.domain.core.gangs import workload_of
from scheduler.domain.core.interface import (
    AHEAD_NAMED,
    HEALTH,
    Ahead,
    Counterfactual,
    End,
    Ends,
    Fewer,
)
from scheduler.domain.core.lend import Lending
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Reason, Role
from scheduler.domain.core.nodes import Phase, Place, Workload
from scheduler.domain.core.ordering import Order, Rank
from scheduler.domain.core.queue import WorkloadClass
from scheduler.domain.core.records import Record, Reservation, Run
from scheduler.domain.core.refuse import refusal
from scheduler.domain.core.reserve import beside, lift_all
from scheduler.domain.core.transitions import Transitions

ENDS_LOOKED = 256
"""Gangs, the first to end, of which some may have to end."""

SPARED = 16
"""Gangs of those of which it is tried whether it does without their end."""

ENDS, NODES = "ends", "nodes"
PARTS = (ENDS, "fewer", "opportunistic", "borrowing")
"""What is left out while a cycle is under way."""


class _Ending(NamedTuple):
    """A gang that runs, and when it is expected to end."""

    at: float
    gang: str
    gpus: int
    workload: Workload


# Who is ahead.


def everyone(gangs: Transitions) -> list[Workload]:
    """All that wait, or have a nominated placement, in order."""
    found = [each for group in _groups(gangs) for each in group.first(group.count)]
    return [workload for _, workload in sorted(found, key=itemgetter(0))]


def waiting(gangs: Transitions) -> Iterator[Workload]:
    """The same in no order."""
    yield from (record.workload for record in gangs.records.nominated)
    for found in gangs.queue.classes.values():
        yield from () if found.is_surplus else found.waiting()


def everywhere(gangs: Transitions, part: Record) -> Ahead:
    """Who is ahead of a gang, or of what one is to grow by, among all."""
    return _ahead(gangs, part, list(_groups(gangs)))


def inside(gangs: Transitions, part: Record) -> Ahead:
    """Among those of its virtual cluster and class without a nominated placement."""
    account = _account(part.workload)
    same = [each for each in _groups(gangs) if _account(each.of) == account]
    return _ahead(gangs, part, [each for each in same if each.of.phase is Phase.WAITING])


@dataclass(frozen=True, slots=True)
class _Group:
    """Gangs of one class and user that wait, in order. ``of``: one of them."""

    of: Workload
    orders: Sequence[tuple[Order, Workload]]
    rank_of: Callable[[Order], Rank]

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.orders)

    def before(self, rank: Rank) -> int:
        """How many of them come before a gang of this rank."""
        return bisect_left(self.orders, rank, key=lambda each: self.rank_of(each[0]))

    def first(self, count: int) -> list[tuple[Rank, Workload]]:
        """The first of them, with their ranks."""
        return [(self.rank_of(order), each) for order, each in islice(self.orders, count)]


def _groups(gangs: Transitions) -> Iterator[_Group]:
    """All that wait; and each that has a nominated placement."""
    queue = gangs.queue
    for found in queue.classes.values():
        for orders, rank_of in () if found.is_surplus else queue.in_order(found):
            yield _Group(orders[0][1], orders, rank_of)
    for record in gangs.records.nominated:
        rank_of = gangs.usage.rank_as(record.workload.gang, queue.now)
        yield _Group(record.workload, [(record.order, record.workload)], rank_of)


def _ahead(gangs: Transitions, part: Record, groups: Sequence[_Group]) -> Ahead:
    """Of these groups."""
    own = gangs.queue.rank_of(part.workload, part.order)
    counted = [(group, group.before(own)) for group in groups]
    before = sum(count for _, count in counted)
    gpus = sum(count * gpus_wanted(group.of) for group, count in counted)
    heads = [(group.first(1)[0][0], group, count) for group, count in counted if count]
    first = [
        each
        for _, group, count in nsmallest(AHEAD_NAMED, heads, key=itemgetter(0))
        for each in group.first(min(count, AHEAD_NAMED))
    ]
    named = nsmallest(AHEAD_NAMED, first, key=itemgetter(0))
    waiting = sum(group.count for group, _ in counted)
    names = tuple((workload.gang.id, gpus_wanted(workload)) for _, workload in named)
    return Ahead(before + 1, waiting, gpus, names)


def reason_of(gangs: Transitions, record: Record) -> Reason | None:
    """As of the last time that its class was tried; of quota as it is now."""
    workload, state = record.workload, gangs.state
    if workload.phase is Phase.NOMINATED:
        return preempting(gangs.records, workload)
    if record.misnamed is not None:
        is_settled = record.published != HEALTH
        return record.misnamed if is_settled else unsettled(record.misnamed)
    found = gangs.queue.class_of(workload)
    reason, is_behind = found.reason, found.no is not None and found.no.code == ORDER
    if reason is None:
        return None
    if reason.code == QUOTA and LENDER not in reason.numbers:
        with state.trial():
            lift_all(state, _reservations(gangs, record))
            short = short_of(state, workload)
        if short is not None:
            reason = quota(workload, short)
            reason = reason if is_behind else with_lenders(workload, reason)
        elif not is_behind:  # what has ended since is reserved for another
            reason = _explained(gangs, found, workload)
    return with_kept(reason, record.reservation)


def reason_now(gangs: Transitions, record: Record) -> Reason | None:
    """As things are; if the next cycle tries its class, or not all nodes are known, as before."""
    last, workload = reason_of(gangs, record), record.workload
    if last is None or workload.phase is Phase.NOMINATED or record.misnamed is not None:
        return last
    found = gangs.queue.class_of(workload)
    is_tried_next = bool(gangs.state.freed) or found in gangs.queue.ready
    is_behind = found.no is not None and found.no.code == ORDER
    is_unsettled = last.code == HEALTH and refusal(gangs.state, workload) is not None
    if is_tried_next or is_behind or is_unsettled:
        return last
    return with_kept(_explained(gangs, found, workload), record.reservation)


def _explained(gangs: Transitions, found: WorkloadClass, workload: Workload) -> Reason:
    kept = [*gangs.records.reservations(), *gangs.records.kept]
    return reasons(gangs.state, {found: workload}, {}, kept, gangs.costs)[found]


def part_of(record: Record) -> Record | None:
    """What of a gang waits or is nominated: all of it, or what it is to grow by."""
    parts = (record, None if record.growth is None else record.growth.asking)
    phases = Phase.WAITING, Phase.NOMINATED
    return next((each for each in parts if each and each.workload.phase in phases), None)


def _account(workload: Workload) -> tuple[str, bool]:
    """Its virtual cluster and class."""
    return workload.gang.virtual_cluster, workload.gang.priority == OPPORTUNISTIC


def gpus_wanted(workload: Workload) -> int:
    """By all its pods."""
    return sum(want.gpus * len(pods) for want, pods in workload.wants)


def _reservations(gangs: Transitions, record: Record) -> list[Reservation]:
    """Its own, and those of other gangs of its virtual cluster."""
    found = beside(gangs.records, record.workload)
    return found if record.reservation is None else [*found, record.reservation]


# What would have to be otherwise.


def answer(
    gangs: Transitions, lending: Lending, record: Record, *, is_under_way: bool
) -> Counterfactual | None:
    """What would let a waiting gang start; None: it has a nominated placement, or does not wait.
    Nothing is changed. ``is_under_way``: half a cycle was decided, so nothing is tried.
    """
    found, part = Counterfactual(), part_of(record)
    if part is None or part.workload.phase is Phase.NOMINATED:
        return None
    if part.misnamed is not None:
        return found
    if is_under_way:
        return Counterfactual(left_out=[*PARTS])
    asked = _Asked(gangs, lending, part)
    if part is record:
        found.is_opportunistic = asked.starts_as_opportunistic()
        found.is_borrowing, found.lender = asked.borrows()
        found.fewer = asked.starts_with_fewer()
    found.ends, is_all = asked.starts_after_ends()
    may_borrow = part.workload.gang.is_borrowing and lending.may_lend(part.workload)
    if found.ends is None and (may_borrow or not is_all):
        found.left_out.append(ENDS)  # ends of a lender's gangs are not tried
    reason = reason_now(gangs, part)
    if reason is not None and reason.code == HEALTH:
        found.nodes = asked.starts_with_nodes()
        if not found.nodes:
            found.left_out.append(NODES)
    return found


class _Asked:
    """One gang that waits. Every method leaves the state as it was."""

    def __init__(self, gangs: Transitions, lending: Lending, record: Record) -> None:
        self._gangs = gangs
        self._state = gangs.state
        self._lending = lending
        self._record = record
        self._workload = record.workload
        self._others = beside(gangs.records, record.workload)
        self._all = _reservations(gangs, record)
        self._costs = gangs.costs.copy()  # they note when somebody is to be tried again

    # It asks anew.

    def starts_as_opportunistic(self) -> bool | None:
        """With priority -1; None: not asked."""
        gang = self._workload.gang
        has_pin = any(want.kind.pin for want, _ in self._workload.wants)
        if gang.priority == OPPORTUNISTIC or has_pin or self._gives_up():
            return None
        return self._starts_now(replace(gang, priority=OPPORTUNISTIC, roles=self._roles()))

    def borrows(self) -> tuple[bool | None, str | None]:
        """If it might borrow, and of which virtual cluster; None: not asked."""
        gang, has_pin = self._workload.gang, any(want.kind.pin for want, _ in self._workload.wants)
        is_asked = gang.priority != OPPORTUNISTIC and not gang.is_borrowing and not has_pin
        if not is_asked or self._record.reservation is not None or self._gives_up():
            return None, None
        with self._state.trial():
            borrowers = self._gangs.records.borrowers()
            lender = self._lending.borrow(replace(self._workload), borrowers)
        return lender is not None, lender

    def starts_with_fewer(self) -> Fewer | None:
        """The most pods of its role with the most pods with which it starts at nobody's cost."""
        roles = self._roles()
        number = max(range(len(roles)), key=lambda each: len(roles[each].pods))
        role, gang = roles[number], self._workload.gang
        fits, fails = 0, len(role.pods)
        if self._loses_its_turn():
            return None
        while fits + 1 < fails:
            count = (fits + fails) // 2
            less = replace(role, pods=role.pods[:count], least=None)
            asked = replace(gang, roles=(*roles[:number], less, *roles[number + 1 :]))
            fits, fails = (count, fails) if self._starts_now(asked) else (fits, count)
        return Fewer(role.name, fits, len(role.pods)) if fits else None

    def _roles(self) -> tuple[Role, ...]:
        """With the pods that it still wants."""
        wanted = {pod for _, pods in self._workload.wants for pod in pods}
        roles = (
            replace(role, pods=tuple(pod for pod in role.pods if pod in wanted), least=None)
            for role in self._workload.gang.roles
        )
        return tuple(role for role in roles if role.pods)

    def _gives_up(self) -> bool:
        """Others that wait may come before it then, or get what is reserved for it."""
        is_first = self._record.reservation is not None or self._gangs.policy.is_strict
        return is_first and len(everyone(self._gangs)) > 1

    def _loses_its_turn(self) -> bool:
        """The same of one that keeps its rank."""
        if self._record.reservation is None and not self._gangs.policy.is_strict:
            return False
        return everyone(self._gangs)[0] is not self._workload

    def _starts_now(self, gang: Gang) -> bool:
        asked = workload_of(self._state, gang, gang.roles)
        with self._state.trial():
            if self._record.reservation is not None:
                lift_all(self._state, [self._record.reservation])
            return bool(places_of(self._state, asked, self._others, self._costs, is_free=True))

    # Others end.

    def starts_after_ends(self) -> tuple[Ends | None, bool]:
        """Who has to end; and whether all were looked at."""
        every = self._in_the_way()
        ends = nsmallest(ENDS_LOOKED, every)
        with self._state.trial():
            lift_all(self._state, self._all)
            places = self._look()
            found = Ends((), self._costs.now) if places else self._fewest(ends)
        return found, len(ends) == len(every)

    def _in_the_way(self) -> list[_Ending]:
        """Gangs that it can't make leave, with their ends."""
        records, workload = self._gangs.records, self._workload
        if workload.is_opportunistic or may_be_opportunistic(workload):
            some = [each for each in records.all.values() if each.run is not None]
            some += records.nominated
        else:
            # With a budget each of them may leave, and all together may not.
            cost_of = self._costs.of(workload, is_inside=not self._costs.has_budget)
            some = [
                each
                for each in records.around(workload)
                if each.workload.priority >= workload.priority or cost_of(each.workload) is None
            ]
            some += [each for each in records.nominated if each.workload.owner == workload.owner]
        return [
            self._end_of(each)
            for each in some
            if each.workload.phase is not Phase.PREEMPTED and each.workload is not workload.parent
        ]

    def _end_of(self, record: Record) -> _Ending:
        began = None if record.run is None else record.run.started_at
        at = end_of(record.workload.gang, began, self._gangs.policy, self._costs.now)
        return _Ending(at, record.id, record.workload.gpus, record.workload)

    def _look(self) -> tuple[Place, ...]:
        """Its places in the next cycle, perhaps after others have left."""
        with self._state.trial():
            for record in self._gangs.records.nominated:  # they start first
                other = record.workload
                if other.phase is Phase.NOMINATED and self._state.start(other):
                    self._state.journal.set(record, "run", Run(self._costs.now))
            return places_of(self._state, self._workload, (), self._costs)

    def _fewest(self, ends: Sequence[_Ending]) -> Ends | None:
        """As few as serve of the first to end; of these all that are needed."""
        fails, fits, step = 0, len(ends) + 1, 1
        places: tuple[Place, ...] = ()
        with self._state.trial():
            while fails + 1 < fits and fails < len(ends):
                number = (fails + fits) // 2 if places else min(fails + step, len(ends))
                with self._state.trial() as trial:
                    self._remove(ends[fails:number])
                    found = self._look()
                    if found:
                        places, fits = found, number
                    else:
                        trial.commit()
                        fails, step = number, 2 * step
        return self._needed(ends[:fits], places) if places else None

    def _needed(self, ends: Sequence[_Ending], places: Sequence[Place]) -> Ends:
        for is_there in (_is_on_leaves, _is_on_nodes):
            there = [end for end in ends if is_there(end.workload, places)]
            if len(there) < len(ends) and self._fits_without(there):
                ends = there
                break
        is_least = len(ends) <= SPARED
        for end in ends[: -SPARED - 1 : -1]:  # those that end last first
            fewer = [each for each in ends if each is not end]
            if self._fits_without(fewer):
                ends = fewer
        at = max((end.at for end in ends), default=self._costs.now)
        gangs = (End(end.gang, end.gpus, end.at) for end in ends)
        return Ends(tuple(gangs), at, is_least)

    def _fits_without(self, ends: Collection[_Ending]) -> bool:
        with self._state.trial():
            self._remove(ends)
            return bool(self._look())

    def _remove(self, ends: Collection[_Ending]) -> None:
        with self._state.unnoticed():
            for end in ends:
                for child in self._gangs.records.of(end.workload).children:
                    self._state.remove(child.workload)
                self._state.remove(end.workload)

    # Nodes are healthy.

    def starts_with_nodes(self) -> tuple[str, ...]:
        """Those of the place that it would have if all were; none if that is not enough."""
        bad = unwell(self._state)
        with self._state.trial():
            lift_all(self._state, self._all)
            with self._state.trial():
                heal(self._state, bad)
                there = {place.slot.node for place in self._look()}
            some = [node for node in bad if node in there]
            heal(self._state, some)
            is_enough = bool(some) and bool(self._look())
        return tuple(node.name for node in some) if is_enough else ()


def _is_on_leaves(workload: Workload, places: Sequence[Place]) -> bool:
    wanted = [(place.slot, place.charge | place.gpus) for place in places]
    return any(
        mine.slot is slot and (mine.charge | mine.gpus) & leaves
        for mine in workload.places
        for slot, leaves in wanted
    )


def _is_on_nodes(workload: Workload, places: Sequence[Place]) -> bool:
    nodes = [place.slot.node for place in places]
    return any(mine.slot.node in nodes for mine in workload.places)
