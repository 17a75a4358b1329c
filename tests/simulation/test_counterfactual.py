"""What is answered to "why" is true: when it is made so, the gang starts. And asking changes
nothing.
"""

from copy import deepcopy
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest
from core_door import POLICIES, door
from histories import history
from random_clusters import Traits
from runs import Run
from scheduler.domain.core.answers import Answer, answer
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.cycle import run_cycle
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import OPPORTUNISTIC, Placed
from streams import Mix, Stream, a_cluster, a_stream, blocks, run
from unchanged import changed, fingerprint

SEEDS = 15
CYCLE_S = 1.0

PARTS = ("is_opportunistic", "is_borrowing", "ends", "fewer", "nodes")


def next_cycle(cluster: Cluster, gang: str) -> str:
    """What the next cycle makes of a gang that waits."""
    decided = run_cycle(cluster, cluster.now)
    if any(isinstance(each, Placed) and each.gang == gang for each in decided):
        return "placed"
    live = cluster.gangs.get(gang)
    if live is None:
        return "gone"
    if live.started_at is not None and not live.waiting:
        return "placed"
    return "reserved" if live.reserved else "waits"


def ask_anew(cluster: Cluster, live: Live, **changed: Any) -> str:
    """The same gang, with something changed."""
    cluster.withdraw(live.id)
    cluster.request(replace(live.gang, **changed))
    return next_cycle(cluster, live.id)


def withdraw_those_before(cluster: Cluster, live: Live) -> None:
    """Nobody who comes before it waits any more, and nothing is kept for others. With fair share
    all others, as some come before it when gangs have ended.
    """
    rank, all_may = cluster.rank_of(live), cluster.ordering.has_users
    for gang in list(cluster.queue.gangs):
        other = cluster.gangs.get(gang)
        if other is None or other is live or other.extra_of == live.id:
            continue
        if all_may or cluster.rank_of(other) < rank or other.is_kept_for:
            if other.pods or other.strangers:
                for role in other.waiting:
                    for pod in role.pods:
                        cluster.release_pod(gang, pod)
            else:
                cluster.withdraw(gang)
    for gang in list(cluster.reserved) if cluster.policy.is_strict else ():
        if cluster.gangs[gang].started_at is None and cluster.rank_of(cluster.gangs[gang]) < rank:
            cluster.withdraw(gang)
    for gang in cluster.reserved:  # what such a gang grows by when it starts waits as well
        cluster.gangs[gang].surplus = ()


class Asked:
    """Counts what was answered, and how it came out."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []

    def watch(self, run: Run) -> None:
        self.ask(run.core.core, run.now)  # type: ignore[attr-defined]

    def ask(self, cluster: Cluster, now: float) -> None:
        """Why some gang waits."""
        some = [gang for gang in cluster.queue.gangs if cluster.gangs[gang].extra_of is None]
        if not some:
            return
        gang = self.random.choice(sorted(some))
        before = fingerprint(cluster)
        found = answer(cluster, cluster.gangs[gang])
        changes = changed(before, fingerprint(cluster))
        assert not changes, f"asking about {gang} changes {changes}"
        for part in PARTS:
            if getattr(found, part):
                cluster.forecast._ranked.clear()  # a part of it can't be copied
                told = getattr(self, part)(deepcopy(cluster), gang, found)
                self._note(part, told, f"{gang} {now}")
        expected = cluster.forecast.expected(cluster, cluster.gangs[gang])
        if expected is not None:
            self.counts["expected"] = self.counts.get("expected", 0) + 1
            is_known = expected.error is None or 0.0 <= expected.error < inf
            if not (now <= expected.at < inf and is_known):
                self.wrong.append(f"{gang} {now}: {expected}")

    def _note(self, part: str, told: str, where: str) -> None:
        self.counts[part] = self.counts.get(part, 0) + 1
        if told not in ("placed", "reserved") or (told == "reserved" and part == "fewer"):
            self.wrong.append(f"{part}: {told}, {where}")

    def ends(self, cluster: Cluster, gang: str, found: Answer) -> str:
        """They end."""
        assert found.ends is not None
        live = cluster.gangs[gang]
        withdraw_those_before(cluster, live)
        for other in found.ends.gangs:
            cluster.release(other.id)
        return next_cycle(cluster, gang)

    def fewer(self, cluster: Cluster, gang: str, found: Answer) -> str:
        """It asks for fewer pods."""
        assert found.fewer is not None
        live = cluster.gangs[gang]
        number = max(range(len(live.waiting)), key=lambda n: len(live.waiting[n].pods))
        roles = list(live.waiting)
        roles[number] = replace(roles[number], pods=roles[number].pods[: found.fewer.pods])
        return ask_anew(cluster, live, roles=tuple(roles))

    def is_opportunistic(self, cluster: Cluster, gang: str, _found: Answer) -> str:
        """It asks with another priority."""
        return ask_anew(cluster, cluster.gangs[gang], priority=OPPORTUNISTIC)

    def is_borrowing(self, cluster: Cluster, gang: str, _found: Answer) -> str:
        """It asks for what others lend, too."""
        return ask_anew(cluster, cluster.gangs[gang], is_borrowing=True)

    def nodes(self, cluster: Cluster, gang: str, found: Answer) -> str:
        """They are well, and open."""
        withdraw_those_before(cluster, cluster.gangs[gang])
        for node in found.nodes:
            cluster.nodes.uncordon(node)
            cluster.nodes.set_node_health(node, True)
            for slot in cluster.hardware.machines[node].slots:
                for gpu in slot.slot.gpus:
                    cluster.nodes.set_gpu_health(node, gpu, True)
        return next_cycle(cluster, gang)


@pytest.mark.parametrize("number", range(len(POLICIES)))
def test_the_counterfactual_is_true(number: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(9000 + 1000 * number, 9000 + 1000 * number + SEEDS):
        asked = Asked(seed)
        traits = Traits(judges="", restarts=0.0)
        found = history(seed, door(POLICIES[number]), traits, watch=asked.watch)
        assert not any("fails" in each for each in found.problems), (seed, found.problems)
        assert not asked.wrong, (seed, asked.wrong)
        for part, count in asked.counts.items():
            counts[part] = counts.get(part, 0) + count
    asked_for = set(PARTS)
    if POLICIES[number]:  # those that could borrow mostly have cells kept for them
        asked_for -= {"is_borrowing"}
    if POLICIES[number].get("is_strict"):
        asked_for -= {"is_opportunistic"}
    assert all(counts.get(part, 0) > 0 for part in asked_for), counts


ASKED_SHARE = 0.3
"""Of the cycles of a stream."""

MIX = Mix(priorities=(0, 0, 1), elastic=0.4, runs_s=(10.0, 30.0, 100.0))


@pytest.mark.parametrize("block", blocks(4, 4))
def test_the_counterfactual_is_true_where_gangs_end_grow_and_pass(block: range) -> None:
    counts: dict[str, int] = {}
    for seed in block:
        random, asked = Random(seed), Asked(seed)
        policy = {
            "backfill": seed % 4 < 3,
            "assumedSeconds": 100,
            "minRunSeconds": 20 * (seed % 2),
            "fairShare": seed % 4 > 1,
            "preemptionsPerHour": 2 if seed % 2 else None,
        }
        config = a_cluster(3, {"x": 3, "y": 2}, **policy)

        def look(stream: Stream, now: float, _: object, asked: Asked = asked) -> None:
            if asked.random.random() < ASKED_SHARE:
                asked.ask(stream.core, now)

        run(config, list(a_stream(random, config, MIX, 400.0)), look)
        assert not asked.wrong, (seed, asked.wrong)
        for part, count in asked.counts.items():
            counts[part] = counts.get(part, 0) + count
    assert all(counts.get(part, 0) > 0 for part in ("ends", "fewer", "expected")), counts


@pytest.mark.parametrize("number", range(len(POLICIES)))
def test_asking_changes_no_decision(number: int) -> None:
    for seed in range(19000, 19000 + SEEDS):
        traits = Traits(judges="", restarts=0.0, is_large=seed % 4 == 0)

        def ask_all(run: Run) -> None:
            cluster: Cluster = run.core.core  # type: ignore[attr-defined]
            for gang in list(cluster.queue.gangs):
                answer(cluster, cluster.gangs[gang])
                cluster.forecast.expected(cluster, cluster.gangs[gang])

        made = door(POLICIES[number])
        asked, silent = (history(seed, made, traits, watch=each) for each in (ask_all, None))
        assert repr(asked.decisions) == repr(silent.decisions), f"seed {seed}"
