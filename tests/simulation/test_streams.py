"""Of random streams of gangs, who end by themselves and are wrong about when: nobody who has to
wait is delayed by those who pass it, and who waits is told why. `HISTORIES`: as in
`test_histories`, a thirtieth of it.
"""

from collections import Counter
from random import Random

import pytest
from judging import Judge, Kept, Punctual, Told
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Decision
from seeds import blocks
from streams import Mix, Stream, a_cluster, a_policy, a_stream, run

UNTIL_S = 600.0


def a_world(random: Random) -> tuple[ClusterConfig, Mix]:
    """A small cluster with some policy, and what is asked of it."""
    policy = a_policy(random)
    mix = Mix(
        priorities=random.choice(((0,), (0, 1, 2), (0, 1, 2))),
        elastic=random.choice((0.0, 0.4, 0.6)),
        guests=random.choice((0.0, 0.3)),
        runs_s=(10.0, 30.0, 100.0),
    )
    return a_cluster(3, {"x": 3, "y": 2}, **policy), mix


def judged(seed: int) -> list[Judge]:
    """One stream, and those who have looked at it."""
    random = Random(seed)
    config, mix = a_world(random)
    judges: list[Judge] = [Kept(seed), Punctual(seed), Told(seed)]

    def look(stream: Stream, now: float, decided: list[Decision]) -> None:
        for judge in judges:
            judge(stream, now, decided)

    run(config, list(a_stream(random, config, mix, UNTIL_S)), look)
    return judges


@pytest.mark.parametrize("block", blocks(6, deep=600, size=6))
def test_nobody_who_passes_delays_those_before_and_who_waits_is_told_why(block: range) -> None:
    """Of reasons less than one in twelve is outdated."""
    met: Counter[str] = Counter()
    for seed in block:
        for judge in judged(seed):
            assert not judge.wrong, (seed, type(judge).__name__, judge.wrong[:3], judge.met)
            met += judge.met
    print(f"{met['outdated']} reasons of {met['looked']} were outdated")
    assert met["outdated"] < met["looked"] / 12, met
    if block.start == 0:  # of others it is chance
        assert all(met[each] > 0 for each in ("passes", "late", "names", "quota")), met
