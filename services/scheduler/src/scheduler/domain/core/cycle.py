"""One cycle: everything that waits is placed, gets its preemption published, or is told why not.

It goes by steps, a gang in each, and may be left after any of them to be gone on with later.
"""

from collections.abc import Callable, Iterator, Sequence

from scheduler.domain.core.admitting import attempts
from scheduler.domain.core.aside import put_aside
from scheduler.domain.core.borrowing import lend
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.extras import NO_ROOM
from scheduler.domain.core.holdings import Live, Order
from scheduler.domain.core.model import Decision, Deferred, Reason, Refused
from scheduler.domain.core.passing import first_of, keep, tries
from scheduler.domain.core.queue import Line, Stamp
from scheduler.domain.core.reasons import Explainer, preempting, unsettled
from scheduler.domain.core.refusing import refusal
from scheduler.domain.core.starting import preempt, start_if_free
from scheduler.domain.core.tried import Tried
from scheduler.domain.core.upgrading import upgrade
from scheduler.domain.core.waking import Waking, held_back, soon_to_start

EXPLAINED = 32
"""Lines whose reason may have become another one because others were placed are all looked at again
in every cycle where they are so few; of more, one (`Rechecks`).
"""

EXPLAINED_AT_ONCE = 4
"""Lines whose reasons are found in one step: in each nothing is kept, and all nodes are well, in
thought.
"""

UNEXPLAINED = Reason("waiting", "Nobody asks why.", {})
"""What gangs are told where nobody reads why they wait."""

SEARCHES = 4
"""Gangs for which places are sought in every way on many nodes, in one cycle at the most."""


def run_cycle(
    cluster: Cluster, now: float, is_enough: Callable[[int], bool] | None = None
) -> list[Decision]:
    """Decide about everything that waits. The cluster is changed accordingly.

    ``is_enough`` is asked before every step, with the number of decisions so far. When it says so
    the cycle is `under_way`, and the next call goes on with it; until it is over nothing else may
    change the cluster, so that everybody is tried however much changes.
    """
    cluster.cycles += 1
    cluster.at = now
    if cluster.under_way is None:
        cluster.now = now
    steps, cluster.under_way = cluster.under_way or _steps(cluster, cluster.now), None
    decisions: list[Decision] = []
    if is_enough is None:
        for decided in steps:
            decisions += decided
        return decisions
    while not is_enough(len(decisions)):
        step = next(steps, None)
        if step is None:
            return decisions
        decisions += step
    cluster.under_way = steps
    return decisions


def _steps(cluster: Cluster, began: float) -> Iterator[list[Decision]]:
    """``began``: when the first part of the cycle was run."""
    _note_time(cluster, began)
    # 1. What was undone since the last cycle is said.
    decisions, cluster.said = cluster.said, []
    # 2. Who is on a drained node leaves.
    if cluster.nodes.draining:
        decisions += _drain(cluster)
    # 3. Reservations whose place is free by now start; those whose place has turned bad end.
    if cluster.reserved:
        decisions += _start_reserved(cluster)
    if decisions:
        yield decisions
    # 4. Who waits, in order: any gang that fits may pass one that does not.
    failed: list[Line] = []
    is_over = not cluster.queue.lines
    while not is_over:
        before = cluster.stamps.progress()
        yield from _admit(cluster, failed)
        is_over = not cluster.queue.lines or before == cluster.stamps.progress()
    if cluster.is_keeping and (cluster.queue.tried or cluster.reservations.by_gang):
        version = cluster.reservations.version
        yield from _keep(cluster)
        if version != cluster.reservations.version:  # who would not be gone in time may be now
            yield from _admit(cluster, failed)
            yield from _keep(cluster)
    # 5. Downgraded gangs get their cells again where there is room; then they may grow in them.
    if cluster.downgraded.gangs or cluster.charges.loans.gangs:
        before = cluster.stamps.progress()
        yield upgrade(cluster)
        if cluster.queue.added or before != cluster.stamps.progress():
            yield from _admit(cluster, failed)
    # 6. Who waits is told why, where that is new; who could never be placed is refused.
    if cluster.queue.lines or cluster.reserved:
        yield from _explain(cluster, failed, began)
    # Who was refused was perhaps the first, whom nobody may pass.
    while cluster.policy.is_strict and cluster.queue.try_firsts(
        cluster.rank, soon_to_start(cluster)
    ):
        failed.clear()
        yield from _admit(cluster, failed)
        yield from _explain(cluster, failed, began)


def _note_time(cluster: Cluster, began: float) -> None:
    """What has come of time alone. Gangs with kept cells are tried when their time has come, or
    others should be gone from there.
    """
    cluster.hardware.searches_left = SEARCHES
    cluster.usage.settle(began)
    cluster.preemptions.begin_cycle(began)
    if cluster.saving.next:
        for live in cluster.saving.due(began, cluster.gangs):
            cluster.looked_at_anew(live)
    if cluster.reservations.by_gang:
        for live in cluster.reservations.due(began):
            cluster.queue.added[cluster.queue.gangs[live.id]] = None


def _admit(cluster: Cluster, failed: list[Line]) -> Iterator[list[Decision]]:
    """Every line that may have become placeable, in order."""
    waking, is_keeping = Waking(cluster), cluster.is_keeping
    tried, kept = cluster.queue.tried, cluster.reservations.by_gang
    loans, class_tried = cluster.charges.loans, 0.0
    known = Tried(cluster)
    ranked = cluster.usage.ranked
    for line, gang in cluster.queue.candidates(waking.woken, waking.is_idle, cluster.rank, ranked):
        waking.tried(line)
        live = cluster.gangs[gang]
        if loans.lines and live.order[0][0] > class_tried:  # who could not be placed may borrow
            class_tried = live.order[0][0]
            yield from lend(cluster, class_tried)
        if cluster.policy.is_strict and first_of(cluster, live) is not live:
            _set_aside(cluster, line, live, failed)
            continue
        if is_keeping and (tried or kept) and (said := keep(cluster, live.owner, live)):
            yield said
        line = cluster.queue.gangs[gang]  # another by now, if cells are kept for it no longer
        if known.is_vain(live):
            _set_aside(cluster, line, live, failed)
            yield []
            continue
        versions = cluster.hardware.versions()
        for found in tries(cluster, live) if kept else attempts(cluster, live):
            if found is not None:
                if cluster.said:  # what others had reserved is lost, which may free a place
                    found = [*found, *_said(cluster), *_start_reserved(cluster)]
                yield found
                break
            yield []
        else:
            cluster.hardware.unchanged(versions)
            _set_aside(cluster, line, live, failed)
            known.note_vain(live, line.groups)
            yield []
    if loans.lines:
        yield from lend(cluster)


def _keep(cluster: Cluster) -> Iterator[list[Decision]]:
    """For the first of every virtual cluster, and what has become free of what is kept."""
    owners = {owner for owner, is_guest in cluster.queue.tried if not is_guest}
    for owner in sorted(owners.union(cluster.reservations.owners())):
        yield keep(cluster, owner)


def _set_aside(cluster: Cluster, line: Line, live: Live, failed: list[Line]) -> None:
    """Its first gang can't be placed, which is to be explained."""
    put_aside(cluster, line)
    if live.extra_of is not None:
        line.reason = NO_ROOM
    else:
        failed.append(line)


def _said(cluster: Cluster) -> list[Decision]:
    said, cluster.said = cluster.said, []
    return said


def _drain(cluster: Cluster) -> list[Decision]:
    decisions: list[Decision] = []
    for node in sorted(cluster.nodes.draining):
        machine = cluster.hardware.machines[node]
        for gang in sorted(machine.pods):
            live = cluster.gangs[gang]
            if live.is_leaving:
                continue
            if live.reserved:
                cluster.cancel(live)
                decisions += _said(cluster)
                if gang not in machine.pods:
                    cluster.enqueue(live)
                    continue
            cluster.withdraw_cells(live)
            decisions.append(preempt(cluster, live, None, cluster.at))
    return decisions


def _start_reserved(cluster: Cluster) -> list[Decision]:
    decisions: list[Decision] = []
    waiting = [cluster.gangs[gang] for gang in cluster.reserved]
    awaited = {cluster.gangs[gang].preempted_for for gang in cluster.told_to_leave}
    for live in sorted(waiting, key=lambda live: live.order):
        pods = [live.pods[name] for name in live.reserved]
        if any(pod.state is not None and pod.leaves & ~pod.state.usable for pod in pods) or any(
            not pod.machine.is_open for pod in pods
        ):
            cluster.cancel(live)
            cluster.enqueue(live)
            decisions += _said(cluster)
        elif live.id not in awaited:
            decisions += start_if_free(cluster, live, cluster.at)
    return decisions


def _explain(cluster: Cluster, failed: list[Line], began: float) -> Iterator[list[Decision]]:
    decisions: list[Decision] = []
    for gang in sorted(cluster.reserved):
        live = cluster.gangs[gang]
        if live.told != "preempting":
            live.told = "preempting"
            decisions.append(Deferred(gang, preempting(cluster, live)))
    if decisions:
        yield decisions
    state = cluster.stamps.state()
    apart = (line for line in cluster.queue.news if line.reason is None and line.groups)
    again = _rechecked(cluster, state, began) if cluster.is_explaining else ()
    some = dict.fromkeys((*failed, *apart, *again, *_outdated(cluster, state)))
    lines = sorted((line for line in some if line.waiting), key=lambda line: line.waiting[0])
    explainer, others = Explainer(cluster), list[Line]()
    for line in lines:
        versions = cluster.hardware.versions()
        refused = refusal(cluster, line)
        cluster.hardware.unchanged(versions)
        if refused is None:
            others.append(line)
        elif cluster.is_settled:
            yield _refuse(cluster, line, refused)
        else:
            cluster.queue.explain(line, unsettled(refused), state)
            yield []
    if not cluster.is_explaining:
        for line in others:
            cluster.queue.explain(line, UNEXPLAINED, state)
        others.clear()
    for alike in _at_once(others):
        versions = cluster.hardware.versions()
        for line, reason in explainer.reasons(alike):
            cluster.queue.explain(line, reason, state)
        cluster.hardware.unchanged(versions)
        yield []
    yield _tell(cluster)


def _at_once(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """So many at a time, of one virtual cluster: of no other anything is thought away."""
    of_owners: dict[str, list[Line]] = {}
    for line in lines:
        of_owners.setdefault(line.key[0], []).append(line)
    for of_owner in of_owners.values():
        for first in range(0, len(of_owner), EXPLAINED_AT_ONCE):
            yield of_owner[first : first + EXPLAINED_AT_ONCE]


def _rechecked(cluster: Cluster, state: Stamp, began: float) -> list[Line]:
    """Lines whose reason may be another one by now, a bounded number: the same in however many
    parts, and when, the cycle is run.
    """
    rechecks, more = cluster.queue.rechecks, held_back(cluster)
    for line in more:
        rechecks.add(line)
    due = rechecks.due(began, EXPLAINED)
    for line in more:
        rechecks.discard(line)
    return [line for line in due if line.explained != state]


def _outdated(cluster: Cluster, state: Stamp) -> list[Line]:
    """Lines with gangs to be told a reason that was found in another state."""
    return [
        line
        for line in cluster.queue.news
        if line.untold and line.reason is not None and line.explained != state
    ]


def _refuse(cluster: Cluster, line: Line, reason: Reason) -> list[Decision]:
    decisions: list[Decision] = []
    for _, gang in list(line.waiting):
        live = cluster.gangs[gang]
        cluster.queue.remove(live)
        live.waiting = ()
        decisions.append(Refused(gang, reason))
        if not live.pods and not live.strangers:
            cluster.release(gang)
    return decisions


def _tell(cluster: Cluster) -> list[Decision]:
    """Who was not told the code of its line is told now, in order."""
    told: list[tuple[Order, Deferred]] = []
    for line in list(cluster.queue.news):
        if line.reason is None:
            continue
        del cluster.queue.news[line]
        for gang in line.untold:
            live = cluster.gangs[gang]
            if live.told != line.reason.code:
                live.told = line.reason.code
                told.append((live.order, Deferred(gang, line.reason)))
        line.untold.clear()
    return [deferred for _, deferred in sorted(told, key=lambda each: each[0])]
