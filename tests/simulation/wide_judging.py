"""Judges of streams with loans, faults and preemptions: the books are right, a lender waits for no
loan, preemption is quiet, and nobody leaves who could stay.
"""

from collections.abc import Iterator, Sequence

from judging import Judge
from scheduler.domain.core import preempting
from scheduler.domain.core.auditing import audited
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import Decision, Grown, Placed, Preempted
from streams import Stream
from test_borrowing_properties import held_up, limits_held, loans_of, wrong_with
from test_quiet_properties import Book


class Sound(Judge):
    """No GPU is two gangs', nothing starts where it is not well, quota and limits hold."""

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        cluster = stream.core
        wrong = [*wrong_with(cluster, decided), *limits_held(cluster)]
        wrong += [str(drift) for drift in audited(cluster)]
        used = set[tuple[str, int]]()
        for run in stream.runs.values():
            for place in run.places.values():
                gpus = {(place.node, gpu) for gpu in place.gpus}
                if gpus & used:
                    wrong.append(f"{run.gang.id} has GPUs that another has")
                used |= gpus
        for each in decided:
            if isinstance(each, Placed | Grown):
                self.met["loans"] += each.lender is not None
                wrong += _unwell(cluster, each)
        self.wrong += [f"{now}: {each}" for each in wrong]


def _unwell(cluster: Cluster, decision: Placed | Grown) -> Iterator[str]:
    for place in decision.pods:
        machine = cluster.hardware.machines[place.node]
        (state,) = machine.slots
        if not machine.is_open or state.slot.mask_of(place.gpus) & ~state.usable:
            yield f"{decision.gang} starts on {place}, which is not well"


class Lends(Judge):
    """Who lends waits for no loan. ``share``: of the cycles are looked at."""

    share = 0.3

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        if self.random.random() >= self.share or not loans_of(stream.core):
            return
        self.met["lends"] += 1
        self.wrong += [f"{now}: {each}" for each in held_up(stream.core, now)]


class Quiet(Judge):
    """Minimum run times, budgets, and no two jobs that preempt one another."""

    book: Book | None = None

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        if self.book is None:
            self.book = Book(stream.core, stream.core.policy)
        self.met["preempted"] += sum(isinstance(each, Preempted) for each in decided)
        self.wrong += [f"{now}: {each}" for each in self.book.take(decided, now)]


class Minimal(Judge):
    """Of every gang for which others have to leave, as that is decided: nobody leaves who could
    stay, and nobody is killed where shrinking would do.
    """

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        """It has looked already."""

    def look(
        self, cluster: Cluster, live: Live, room: preempting.Room, _losers: Sequence[Live]
    ) -> None:
        """At whom a gang makes leave."""
        tries = preempting._Tries(cluster, live)
        leave = [each for each in room.victims if each.started_at is not None]
        rest = [each for each in room.victims if each not in leave]
        is_killing = any(each.extra_of is None for each in leave)
        self.met["killed" if is_killing else "shrunk"] += bool(leave)
        versions = cluster.hardware.versions()
        with cluster.preemptions.kept_off(live), cluster.hardware.ahead():
            growths = [
                preempting.Removal(cluster, other, is_growth=True)
                for other in preempting._growths_below(cluster, live)
            ]
            lower = [preempting.Removal(cluster, each, lifts=False) for each in room.lowered]
            for stays in leave:
                others = [each for each in leave if each is not stays]
                if tries([*rest, *others]) is not None:
                    self.wrong.append(f"{cluster.at}: {stays.id} leaves for {live.id}, needlessly")
            if is_killing and tries([*rest, *_surplus(cluster, live)]) is not None:
                self.wrong.append(f"{cluster.at}: {live.id} kills, where shrinking would do")
            preempting.undo_all(lower)
            preempting.undo_all(growths)
        cluster.hardware.unchanged(versions)


def _surplus(cluster: Cluster, live: Live) -> list[Live]:
    """Pods that could be given back for a gang."""
    return [
        cluster.gangs[extra]
        for gang, extras in cluster.extras.items()
        for extra in extras.values()
        if cluster.gangs[extra].pods
        and not cluster.gangs[extra].is_leaving
        and cluster.gangs[extra].rank < live.reach
        and (cluster.gangs[extra].is_guest or cluster.gangs[extra].owner == live.owner)
        and not cluster.gangs[gang].is_leaving
    ]
