"""One attempt to place a waiting gang: on its reservation, past those of others where it may, and
without GPUs also as an opportunistic gang.
"""

from collections.abc import Collection

from scheduler.domain.core.costs import Costs
from scheduler.domain.core.evict import Rules
from scheduler.domain.core.fit import ROOM, Fit, No, claim, fit
from scheduler.domain.core.model import OPPORTUNISTIC
from scheduler.domain.core.nodes import Phase, Place, Workload
from scheduler.domain.core.records import Reservation
from scheduler.domain.core.reserve import (
    Sparing,
    lift_all,
    may_backfill,
    renew,
    reserved_shares,
)
from scheduler.domain.core.shortage import Shortage, shortage, wanted
from scheduler.domain.core.state import State


def attempt(
    state: State,
    workload: Workload,
    reservations: Collection[Reservation],
    costs: Costs,
    *,
    is_free: bool = False,
) -> tuple[Fit | No, list[Reservation]]:
    """On its own reservation and those of gangs behind it; else, where it will have ended in time,
    at nobody's cost on those of gangs before it, which are returned too. ``reservations``: of its
    owner. ``is_free``: at nobody's cost in any case.
    """
    before = [each for each in reservations if not costs.goes_before(workload, each)]
    lifted = [each for each in reservations if each not in before]
    sparing: Rules = Sparing(costs, before) if before else costs
    rules = None if is_free else sparing
    if workload.gang.group is not None or workload.parent is not None:
        state.set_near(workload, costs.records.racks_near(workload))
    passed: list[Reservation] = []
    with state.trial() as trial:
        lift_all(state, lifted)
        overstaying = _overstaying(workload, costs)
        for other in overstaying:  # they leave before all others
            state.set_priority(other, OPPORTUNISTIC)
        answer = _at_nobodys_cost(state, workload, before)
        if isinstance(answer, No):
            answer = fit(state, workload, rules)
        for other in overstaying:
            if other.phase is Phase.RUNNING:
                state.set_priority(other, other.gang.priority)
        may_pass = [e for e in before if may_backfill(workload, e, costs.policy, costs.now)]
        if isinstance(answer, No) and may_pass:
            lift_all(state, may_pass)
            answer = fit(state, workload, None)
            passed = may_pass if isinstance(answer, Fit) else []
        if isinstance(answer, No) and may_be_opportunistic(workload):
            answer = _beside_cells(state, workload, before, rules)
        if isinstance(answer, Fit):
            for each in (*lifted, *may_pass):
                if each.workload is not workload:
                    renew(state, each)
            trial.commit()
    return answer, passed


def _at_nobodys_cost(state: State, workload: Workload, before: Collection[Reservation]) -> Fit | No:
    """A gang without GPUs ends no other one where CPU is idle: in its cells, else beside these."""
    if not may_be_opportunistic(workload):
        return No(ROOM)
    answer = fit(state, workload, None)
    return answer if isinstance(answer, Fit) else _beside_cells(state, workload, before, None)


def _beside_cells(
    state: State, workload: Workload, before: Collection[Reservation], rules: Rules | None
) -> Fit | No:
    """As an opportunistic gang, which leaves the idle cells of reservations alone."""
    with state.trial() as trial:
        state.be_opportunistic(workload)
        with reserved_shares(state, before):
            answer = fit(state, workload, rules)
        if isinstance(answer, Fit):
            trial.commit()
    return answer


def _overstaying(workload: Workload, costs: Costs) -> list[Workload]:
    """Gangs that overstay on cells that are reserved for a workload."""
    if costs.records.of(workload).reserved_since is None:
        return []
    return costs.records.overstaying(workload.gang.id, costs.now)


def places_of(
    state: State,
    workload: Workload,
    reservations: Collection[Reservation],
    costs: Costs,
    *,
    is_free: bool = False,
) -> tuple[Place, ...]:
    """Where an attempt would put it, perhaps when others have left; nowhere if it would fail.
    Nothing is changed.
    """
    with state.trial():
        is_sure = not (is_free or workload.is_opportunistic or may_be_opportunistic(workload))
        if is_sure and not _overstaying(workload, costs):
            with state.trial():  # a cheap look first: most fail here
                lift_all(state, reservations)
                if short_of(state, workload) or not claim(state, workload):
                    return ()
        answer, _ = attempt(state, workload, reservations, costs, is_free=is_free)
        return workload.places if isinstance(answer, Fit) else ()


def short_of(state: State, workload: Workload) -> Shortage | None:
    """Which quota is too small for it now."""
    return shortage(state, wanted(state, workload), workload.priority)


def may_be_opportunistic(workload: Workload) -> bool:
    """It is a guaranteed gang whose pods want neither GPUs nor pins."""
    costs_nothing = all(want.kind.costs_nothing for want, _ in workload.wants)
    return costs_nothing and not workload.is_opportunistic and workload.parent is None
