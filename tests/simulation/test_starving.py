"""No gang starves under an endless stream of small ones, whatever these expect of themselves."""

from random import Random

import pytest
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Decision, Placed
from seeds import blocks
from streams import NODE_GPUS, Json, Mix, Quota, Stream, a_cluster, a_stream, run

NODES = 3
QUOTAS: dict[str, Quota] = {
    "nodes": NODES,
    "gpus": {"rack/node/gpu": NODES * NODE_GPUS},
    "both": {"rack/node": NODES - 1, "rack/node/pair": NODE_GPUS // 2},
}
RUNS_S = (10.0, 30.0, 60.0)
LONGEST_S = 1.5 * max(RUNS_S)
"""No gang of these streams runs for longer."""

ASKS_AT_S = 100.0
ERRORS = ((1.0,), (0.01, 0.1), (10.0, 100.0), (0.01, 0.1, 1.0, 10.0, 100.0))


def a_world(random: Random, cells: Quota) -> tuple[ClusterConfig, Mix]:
    """Some policy with which cells are kept, or nobody passes."""
    policy: Json = {
        "assumedSeconds": random.choice((20, 100, 1000)),
        "maxPassSeconds": random.choice((0, 50, 300)),
        "graceSeconds": random.choice((0, 5, 30)),
    } | random.choice(({"backfill": True}, {"backfill": True}, {"order": "strict"}))
    if random.random() < 0.3:
        policy["fairShare"] = {"halfLifeSeconds": 500}
    if random.random() < 0.3:
        policy["minRunSeconds"] = random.choice((50, 1000))
    if random.random() < 0.3:
        policy["preemptionsPerHour"] = random.choice((0, 1, 5))
    mix = Mix(
        priorities=random.choice(((0,), (0,), (0, 1))),
        guests=random.choice((0.0, 0.5)),
        elastic=random.choice((0.0, 0.5)),
        errors=random.choice(ERRORS),
        most_nodes=1,
        runs_s=RUNS_S,
        load=1.5,
    )
    quota: dict[str, Quota] = {"x": cells}
    if random.random() >= 0.5 and isinstance(cells, int):  # else its GPUs could be on every node
        quota["y"] = 1
    return a_cluster(2, quota, **policy), mix


def large(priority: int, quota: str) -> Json:
    """It wants all that its virtual cluster has."""
    count, gpus = (2 * NODES, NODE_GPUS // 2) if quota == "both" else (NODES, NODE_GPUS)
    gang = {
        "id": "large",
        "user": "l",
        "virtualCluster": "x",
        "priority": priority,
        "pods": [{"name": "w", "count": count, "gpus": gpus}],
        "runSeconds": 10,
    }
    return {"at": ASKS_AT_S, "event": "gang-requested", "gang": gang}


class Start:
    """When the large gang starts; ``others``: gangs before it when it asks; how long they want."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.ahead: set[str] | None = None

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        if self.ahead is None and "large" in stream.runs:
            self.ahead = {gang for gang in stream.core.gang_ids() if gang != "large"}
        if any(isinstance(each, Placed) and each.gang == "large" for each in decided):
            self.at = now


def bound_s(config: ClusterConfig, ahead: int) -> float:
    """So long the large gang waits at the most: those that are before it start, in the worst case
    one after the other; then cells are kept, for those who run on them and those who pass there.
    """
    policy = config.policy
    each_s = LONGEST_S + policy.grace_s
    return ahead * each_s + policy.max_pass_s + 2 * each_s


QUOTA_ELSEWHERE = range(89, 90)
"""Some of the quota for what is kept is in a cell where small ones are."""


@pytest.mark.parametrize("block", [*blocks(4, deep=800, size=4), QUOTA_ELSEWHERE])
@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_a_large_gang_starts_however_many_small_ones_come(block: range, quota: str) -> None:
    waits = []
    for seed in block:
        random = Random(seed)
        config, mix = a_world(random, QUOTAS[quota])
        start = Start()
        until_s = ASKS_AT_S + 2_000.0
        events = [*a_stream(random, config, mix, until_s), large(max(mix.priorities), quota)]
        events.sort(key=lambda each: float(each["at"]))
        run(config, events, start, until=until_s, is_over=lambda: start.at is not None)  # noqa: B023
        assert start.ahead is not None
        assert start.at is not None, seed
        waits.append(start.at - ASKS_AT_S)
        assert waits[-1] <= bound_s(config, len(start.ahead)), (seed, waits[-1], config.policy)
    assert max(waits) > 0, waits
