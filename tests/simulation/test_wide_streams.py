"""Of random streams through clusters of two chains, with loans, faults, elastic gangs and each of
the policies: nobody is delayed, killed or lent to as the rules forbid it, what is answered to "why"
is true, and in the end nobody waits. `HISTORIES`: as in `test_histories`, a thirtieth of it.
"""

from collections import Counter
from copy import deepcopy
from random import Random

import pytest
from judging import Judge, Kept, Punctual, Told, gang_of, waiting, without
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import OPPORTUNISTIC, Decision, Grown, Placed, Preempted
from seeds import blocks
from streams import Stream, a_policy, run
from test_core_answers import PARTS, MadeSo
from wide_judging import Lends, Quiet, Sound
from wide_streams import WideMix, a_wide_cluster, a_wide_stream, with_faults

UNTIL_S = 250.0

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


class Alone(MadeSo):
    """Nobody else waits, neither to start nor to grow: the order depends on who has ended."""

    def _nobody_before(self) -> None:
        for name in [name for name in self.core.gang_ids() if name != self.gang]:
            found = self.core.gang(name)
            assert found is not None
            if found.started_at is None and not found.is_nominated:
                self.core.release(name)
                continue
            is_running = found.started_at is not None
            for role in (*found.elastic, *(found.waiting if is_running else ())):
                for pod in role.pods:
                    self.core.release_pod(name, pod)


class Asks(Judge):
    """What is answered to "why" is true where nothing else happens. What is untrue is counted."""

    share = 0.3

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        core = stream.core
        if self.random.random() >= self.share or not (some := waiting(core)):
            return
        gang = self.random.choice(sorted(some))
        answer = core.questions.counterfactual(gang)
        for part in PARTS if answer is not None else ():
            if getattr(answer, part):
                self.met[part] += 1
                self.met["answers"] += 1
                came = Alone(*deepcopy((core, gang, answer)), now).part(part)
                if came != "placed" and (came != "NOMINATED" or part not in ("ends", "nodes")):
                    self.met["untrue"] += 1


class Tried(Judge):
    """Who waits is seldom placed if all are tried once more: that is counted. (Where a budget is
    used up a lazy gang is downgraded for another only with what else changes.)
    """

    share = 0.2

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        is_known = stream.policy.is_lazy and stream.policy.preemptions_per_hour is not None
        if is_known or self.random.random() >= self.share:
            return
        core = deepcopy(stream.core)
        core.settle(not core.is_settled)
        core.settle(not core.is_settled)  # all classes are to be tried
        again = [d for d in core.cycle(now) if isinstance(d, Placed | Preempted | Grown)]
        self.met["tried"] += bool(waiting(stream.core))
        self.met["missed"] += bool(again)


class Left(Judge):
    """Who waits after the last cycle could not start alone either: only names and counts refuse.
    Where the order is strict others wait behind it.
    """

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        self.core, self.now, self.is_strict = stream.core, now, stream.policy.is_strict

    def look(self) -> None:
        """The stream is over."""
        some = waiting(self.core)
        behind: set[tuple[str, bool]] = set()
        for gang in some:
            mine = gang_of(self.core, gang)
            place = mine.virtual_cluster, mine.priority == OPPORTUNISTIC
            if place not in behind and without(self.core, set(some) - {gang}, gang, self.now) in (
                "placed",
                "lent",
            ):
                self.wrong.append(f"{gang} waits for ever")
            behind |= {place} if self.is_strict else set()


def judged(seed: int, until_s: float = UNTIL_S) -> list[Judge]:
    """One stream, and those who have looked at it."""
    random = Random(seed)
    config, mix = a_world(random)
    every = (Kept, Punctual, Told, Sound, Lends, Quiet, Asks, Tried)
    left = Left(seed)
    judges: list[Judge] = [*(judge(seed) for judge in every), left]

    def look(stream: Stream, now: float, decided: list[Decision]) -> None:
        for judge in judges:
            judge(stream, now, decided)

    requests = list(a_wide_stream(random, config, mix, until_s))
    faults_s = random.choice((20.0, 60.0, NO_FAULT_S))
    run(config, with_faults(random, requests, mix, until_s, faults_s), look)
    left.look()
    return judges


@pytest.mark.parametrize("block", blocks(2, deep=300, size=2))
def test_the_rules_hold_in_two_chains_with_loans_and_faults(block: range) -> None:
    met: Counter[str] = Counter()
    for seed in block:
        for judge in judged(seed):
            assert not judge.wrong, (seed, type(judge).__name__, judge.wrong[:3])
            met += judge.met
    print(f"{met['missed']} of {met['tried']} cycles missed a place")
    print(f"{met['untrue']} of {met['answers']} answers were untrue")
    assert met["missed"] <= 1 + met["tried"] / 50, met
    assert met["untrue"] <= 1 + met["answers"] / 50, met
    if block.start == 0:  # of others it is chance
        some = ("loans", "preempted", "ends", "fewer", "tried")
        assert all(met[each] > 0 for each in some), met
