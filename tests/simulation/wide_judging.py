"""Judges of streams with loans, faults and preemptions: the accounting is right, a lender waits for
no loan, and preemption is quiet.
"""

from collections.abc import Iterator

from judging import Judge
from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import Decision, Grown, Placed, Preempted
from scheduler_audit import audited
from streams import Stream
from test_borrowing_properties import held_up, limits_held, loans_of, wrong_with
from test_quiet_properties import Book


class Sound(Judge):
    """No GPU is two gangs', nothing starts where it is not well, quota and limits hold."""

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        core = stream.core
        wrong = [*wrong_with(decided, stream.policy), *limits_held(core)]
        wrong += [str(drift) for drift in audited(core)]
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
                wrong += _unwell(core, each)
        self.wrong += [f"{now}: {each}" for each in wrong]


def _unwell(core: Core, decision: Placed | Grown) -> Iterator[str]:
    for place in decision.pods:
        node = core.nodes.of(place.node)
        assert node is not None
        is_open = node.is_healthy and not node.is_cordoned and not node.is_drained
        if not is_open or set(place.gpus) & node.bad:
            yield f"{decision.gang} starts on {place}, which is not well"


class Lends(Judge):
    """Who lends waits for no loan. ``share``: of the cycles are looked at."""

    share = 0.3

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        if self.random.random() >= self.share or not any(loans_of(stream.core)):
            return
        self.met["lends"] += 1
        self.wrong += [f"{now}: {each}" for each in held_up(stream.core, now)]


class Quiet(Judge):
    """Minimum run times, budgets, and no two jobs that preempt one another."""

    book: Book | None = None

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        if self.book is None:
            self.book = Book(stream.core, stream.policy)
        self.met["preempted"] += sum(isinstance(each, Preempted) for each in decided)
        self.wrong += [f"{now}: {each}" for each in self.book.take(decided, now)]
