"""Of random streams through clusters of two chains, with loans, faults, elastic gangs and each of
the policies: nobody is delayed, killed or lent to as the rules forbid it, what is answered to "why"
is true, and in the end nobody waits. `HISTORIES`: as in `test_histories`, a thirtieth of it.
"""

from collections import Counter
from copy import deepcopy
from random import Random

import pytest
from judging import Judge, Kept, Punctual, Told, victims_seen
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.cycle import run_cycle
from scheduler.domain.core.extras import EXTRA
from scheduler.domain.core.model import Decision, Grown, Placed, Preempted
from streams import Stream, a_policy, blocks, run
from test_counterfactual import ASKED_SHARE, Asked
from wide_judging import Lends, Minimal, Quiet, Sound
from wide_streams import WideMix, a_wide_cluster, a_wide_stream, with_faults

UNTIL_S = 250.0
IN_ONE_TEST = 6

NO_FAULT_S = 1e9
"""No fault comes before it."""


def a_world(random: Random) -> tuple[ClusterConfig, WideMix]:
    """A small cluster with some policy, and what is asked of it."""
    policy = a_policy(random)
    if random.random() < 0.3:
        policy["preemptionsPerHour"] = random.choice((0, 2, 10))
    mix = WideMix(
        priorities=random.choice(((0,), (0, 1, 2), (0, 1, 2))),
        elastic=random.choice((0.0, 0.4, 0.6)),
        guests=random.choice((0.0, 0.3)),
        borrowing=random.choice((0.0, 0.4, 0.8)),
        runs_s=(10.0, 30.0, 100.0),
    )
    return a_wide_cluster(random, **policy), mix


class Asks(Judge):
    """What is answered to "why" is true where nothing else happens, and asking changes nothing."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked = Asked(seed)

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        if self.random.random() < ASKED_SHARE:
            self.asked.ask(stream.core, now)
            stream.core.forecast._ranked.clear()  # a part of it can't be copied
        self.wrong, self.met = self.asked.wrong, Counter(self.asked.counts)


class Tried(Judge):
    """Who waits would not be placed if all were tried once more. (Where a budget is used up a lazy
    gang is downgraded for another only with what else changes.)
    """

    share = 0.2

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        policy = stream.core.policy
        is_known = policy.is_lazy and policy.preemptions_per_hour is not None
        if is_known or self.random.random() >= self.share:
            return
        stream.core.forecast._ranked.clear()  # a part of it can't be copied
        cluster = deepcopy(stream.core)
        cluster.queue.added.update(dict.fromkeys(cluster.queue.lines.values()))
        again = [d for d in run_cycle(cluster, now) if isinstance(d, Placed | Preempted | Grown)]
        self.met["tried"] += bool(cluster.queue.lines)
        self.wrong += [f"{now}: {type(each).__name__} {each.gang}" for each in again]


class Left(Judge):
    """Who waits after the last cycle waits for ever: nobody does."""

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        waiting = (gang for gang in stream.core.queue.gangs if EXTRA not in gang)
        self.wrong = [f"{gang} waits for ever" for gang in sorted(waiting)]


def judged(seed: int, until_s: float = UNTIL_S) -> list[Judge]:
    """One stream, and those who have looked at it."""
    random = Random(seed)
    config, mix = a_world(random)
    every = (Kept, Punctual, Told, Sound, Lends, Quiet, Asks, Tried, Left)
    judges: list[Judge] = [judge(seed) for judge in every]

    def look(stream: Stream, now: float, decided: list[Decision]) -> None:
        for judge in judges:
            judge(stream, now, decided)

    requests = list(a_wide_stream(random, config, mix, until_s))
    faults_s = random.choice((20.0, 60.0, NO_FAULT_S))
    minimal = Minimal(seed)
    with victims_seen(minimal.look):
        run(config, with_faults(random, requests, mix, until_s, faults_s), look)
    return [*judges, minimal]


@pytest.mark.parametrize("block", blocks(6, IN_ONE_TEST))
def test_the_rules_hold_in_two_chains_with_loans_and_faults(block: range) -> None:
    met: Counter[str] = Counter()
    for seed in block:
        for judge in judged(seed):
            assert not judge.wrong, (seed, type(judge).__name__, judge.wrong[:3])
            met += judge.met
    if block.start == 0:  # of others it is chance
        some = ("loans", "preempted", "killed", "ends", "fewer", "tried")
        assert all(met[each] > 0 for each in some), met
