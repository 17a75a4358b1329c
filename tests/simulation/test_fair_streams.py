"""Fair share of random users who always want more: by their weights each gets as much of the
resource of which he has most, whatever he asks for it in.
"""

from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Decision
from seeds import blocks
from streams import TYPES, Json, Stream, from_file, run

NODES, GPUS, CPU = 8, 4, 16
HALF_LIFE_S = 300.0
UNTIL_S, MEASURED_FROM_S = 2_700.0, 900.0
BATCH_S = 100.0
TOLERANCE = 0.02
"""Of all there is, beside half of the largest gang: what runs counts as much as what was used, so
who is due less than a gang more has to wait for its turn.
"""


class User(NamedTuple):
    """What one always asks for."""

    name: str
    weight: float
    pods: int
    gpus: int
    cpu: int
    run_s: float

    @property
    def dominant(self) -> float:
        """Of one gang: the share of that resource of which it takes most."""
        return self.pods * max(self.gpus / (NODES * GPUS), self.cpu / (NODES * CPU))

    def asks(self, at: float, number: int) -> Json:
        """Once more."""
        gang = {
            "id": f"{self.name}-{number:04}",
            "user": self.name,
            "virtualCluster": "x",
            "priority": 0,
            "pods": [{"name": "w", "count": self.pods, "gpus": self.gpus, "cpu": self.cpu}],
            "runSeconds": self.run_s,
            "expectedSeconds": self.run_s,
        }
        return {"at": at, "event": "gang-requested", "gang": gang}


def users(random: Random) -> list[User]:
    """Two or three, with weights from 1 to 3."""
    found = []
    for name in "uvw"[: random.choice((2, 2, 3))]:
        gpus = random.choice((1, 1, 2, 4))
        cpu = random.choice((0, 0, 4 * gpus, min(CPU, 8 * gpus)))
        pods = random.choice((1, 2)) if gpus < GPUS else 1
        weight, run_s = random.choice((1.0, 1.0, 2.0, 3.0)), random.choice((20.0, 35.0, 60.0))
        found.append(User(name, weight, pods, gpus, cpu, run_s))
    return found


def endless(users: list[User]) -> Iterator[Json]:
    """Each asks for more than all there is, again and again."""
    numbers: defaultdict[str, int] = defaultdict(int)
    for batch in range(int(UNTIL_S / BATCH_S)):
        for user in users:
            for _ in range(2 + int(BATCH_S / user.run_s / user.dominant)):
                yield user.asks(batch * BATCH_S, numbers[user.name])
                numbers[user.name] += 1


def a_cluster(users: list[User], **policy: object) -> ClusterConfig:
    """All of it is one virtual cluster's."""
    weights = {user.name: user.weight for user in users}
    fair = {"fairShare": {"halfLifeSeconds": HALF_LIFE_S, "weights": weights}}
    racks = [
        {"type": "rack", "name": f"r{n}", "nodes": [f"n{2 * n}", f"n{2 * n + 1}"]}
        for n in range(NODES // 2)
    ]
    return from_file(
        {
            "cellTypes": TYPES,
            "physicalCells": racks,
            "nodes": {f"n{number}": {"cpu": CPU} for number in range(NODES)},
            "virtualClusters": {"x": {"cells": [{"type": "rack/node", "count": NODES}]}},
            "policy": fair | policy,
        }
    )


class Shares:
    """What each has had, by the places of gangs that run."""

    def __init__(self, users: list[User]) -> None:
        self.users = {user.name: user for user in users}
        self.had: defaultdict[str, float] = defaultdict(float)
        self.running: defaultdict[str, int] = defaultdict(int)
        self.at = 0.0

    def __call__(self, stream: Stream, now: float, _: list[Decision]) -> None:
        end, since = min(now, UNTIL_S), max(self.at, MEASURED_FROM_S)
        for user, count in self.running.items():
            self.had[user] += max(0.0, end - since) * count * self.users[user].dominant
        self.at = now
        self.running.clear()
        for each in stream.runs.values():
            self.running[each.gang.user] += each.started_at is not None


@pytest.mark.parametrize("policy", [{"order": "strict"}, {"backfill": True}], ids=str)
@pytest.mark.parametrize("block", blocks(3, deep=400, size=3))
def test_everybody_gets_a_share_by_weight(block: range, policy: Json) -> None:
    for seed in block:
        some = users(Random(seed))
        shares = Shares(some)
        run(a_cluster(some, **policy), list(endless(some)), shares, until=UNTIL_S)
        weights, had = sum(user.weight for user in some), sum(shares.had.values())
        off = {u.name: shares.had[u.name] / had - u.weight / weights for u in some}
        granularity = max(user.dominant for user in some)
        assert max(map(abs, off.values())) <= TOLERANCE + granularity / 2, (seed, off, some)
