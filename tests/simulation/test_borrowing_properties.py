"""What is so of every loan, in random histories: quota and limits hold, and whoever lends waits for
none of its own longer than by a grace.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest
from core_door import CoreDoor
from scenes import config, gang, owning, racks
from scheduler.domain.core.auditing import audited
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.config import ALL_TYPES, ClusterConfig, Policy
from scheduler.domain.core.cycle import run_cycle
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import Decision, Gang, Kind, Placed, Preempted, Role
from scheduler.domain.core.owning import owner_of

SEEDS, IN_ONE_TEST, CYCLES = 6, 3, 40

LIMITS: tuple[dict[str, int], ...] = ({}, {}, {ALL_TYPES: 6}, {"v100": 4}, {ALL_TYPES: 0})


def a_cluster(random: Random) -> ClusterConfig:
    """Three virtual clusters that own four of eight machines, a rack, and two machines."""
    policy = Policy(
        is_backfilling=random.random() < 0.5,
        is_lazy=random.random() < 0.3,
        min_run_s=random.choice((0.0, 300.0)),
        preemptions_per_hour=random.choice((None, 0, 2)),
        assumed_s=2_000.0,
        is_strict=random.random() < 0.2,
    )
    owned = {
        "x": owning(("rack/node", 4)),
        "y": owning(("rack", 1)),
        "z": owning(("rack/node", 1), ("rack/node/switch", 2)),
    }
    limited = {
        name: replace(
            each,
            lending_limit=random.choice(LIMITS),
            borrowing_limit=random.choice(LIMITS),
        )
        for name, each in owned.items()
    }
    return config(racks(4), policy=policy, **limited)


def a_wish(random: Random, number: int) -> Gang:
    """One of a few sizes; half of them may borrow."""
    found = gang(
        f"g{number:03}",
        random.choice("xyz"),
        random.choice((1, 2, 4)),
        pods=random.choice((1, 1, 2, 3, 4)),
        priority=random.choice((-1, 0, 0, 1, 2)),
        is_borrowing=random.random() < 0.5,
        min_run_s=random.choice((None, None, 900.0)),
        is_lazy=random.choice((None, None, True, False)),
        expected_s=random.choice((None, 300.0)),
        job=random.choice(("", "", "j1", "j2")),
    )
    (role,) = found.roles
    if random.random() < 0.3:
        least = random.randint(1, len(role.pods))
        found = replace(found, roles=(Role(role.kind, role.pods, role.name, least),))
    return found


def a_history(seed: int) -> Iterator[tuple[Cluster, list[Decision], float]]:
    """A core and what it decides, cycle by cycle."""
    random = Random(seed)
    door, now = CoreDoor(a_cluster(random)), 0.0
    for number in range(8):
        door.set_node_health(f"n{number}", True)
    for number in range(CYCLES):
        now += random.choice((1.0, 20.0, 100.0, 400.0))
        for name in sorted(door.told_to_leave):
            if (live := door.gangs.get(name)) is not None and live.preempted_until <= now:
                end(door, live)
        for more in range(random.choice((1, 2, 3))):
            door.request(a_wish(random, 4 * number + more))
        running = sorted(
            n for n, e in door.gangs.items() if e.started_at is not None and "\n" not in n
        )
        for name in random.sample(running, min(len(running), random.choice((0, 1, 2)))):
            door.release(name)
        if running and random.random() < 0.2:
            name = random.choice(running)
            if (live := door.gangs.get(name)) is not None:
                door.release_pod(name, min(live.pods, default="p0"))
        if running and random.random() < 0.3 and (name := random.choice(running)) in door.gangs:
            door.grow(name, (Role(Kind(random.choice((1, 2))), (f"q{number}",), f"q{number}"),))
        yield door.core, list(door.decide(now)), now


def end(door: CoreDoor, live: Live) -> None:
    """Its grace is over."""
    if live.extra_of is None:
        door.release(live.id)
    else:
        door.release_pod(live.extra_of, *live.pods)


def loans_of(core: Cluster) -> list[Live]:
    """Gangs and pods on loan that were not told to leave."""
    return [live for live in core.gangs.values() if live.is_lent and live.pods]


def limits_held(core: Cluster) -> Iterator[str]:
    """Of each virtual cluster, counted from the placements alone."""
    lent: Counter[tuple[str, str]] = Counter()
    borrowed: Counter[tuple[str, str]] = Counter()
    for live in loans_of(core):
        for pod in live.pods.values():
            for name in (pod.state.gpu_type, ALL_TYPES) if pod.state else ():
                lent[live.lender or "", name] += pod.leaves.bit_count()
                borrowed[live.gang.virtual_cluster, name] += pod.leaves.bit_count()
    loans = core.charges.loans
    if +Counter(loans.lent) != +lent or +Counter(loans.borrowed) != +borrowed:
        yield "what is lent is miscounted"
    for name, each in core.hardware.forest.config.virtual_clusters.items():
        for limit, taken in ((each.lending_limit, lent), (each.borrowing_limit, borrowed)):
            yield from (
                f"{name}: above its limit" for n, most in limit.items() if taken[name, n] > most
            )
        owner = owner_of(name)
        for (other, leaf), owned in core.hardware.owning.owned.items():
            if other == owner and sum(core.charges.leaves[owner, leaf].values()) > owned:
                yield f"{name}: more is charged than it owns"


def held_up(core: Cluster, now: float) -> Iterator[str]:
    """Gangs that wait though they would not if their virtual cluster had lent nothing. Who could
    pass only where cells are kept passes at nobody's cost, loans included.
    """
    for lender in sorted({live.lender or "" for live in loans_of(core)}):
        waiting = [
            name
            for name in core.queue.gangs
            if (live := core.gangs[name]).gang.virtual_cluster == lender
            and live.gang.priority >= 0
            and live.extra_of is None
            and live.told not in ("reservation", "order")
        ]
        if waiting:
            yield from _held_up(core, now, lender, waiting)


def _held_up(core: Cluster, now: float, lender: str, waiting: Sequence[str]) -> Iterator[str]:
    without = deepcopy(core)
    for live in loans_of(core):
        if live.lender == lender and live.id in without.gangs:
            without.release(live.id)
    started = {
        each.gang
        for each in run_cycle(without, now)
        if isinstance(each, Placed) and each.lender is None
    }
    for name in waiting:
        if name in started or (name in without.gangs and without.gangs[name].reserved):
            yield f"{name} waits for a loan"


def wrong_with(core: Cluster, decided: Sequence[Decision]) -> Iterator[str]:
    """What no decision may be."""
    told = {each.gang for each in decided if isinstance(each, Preempted)}
    if core.policy.is_strict:  # one that is refused may have held up the lender's own
        return
    for each in decided:
        if isinstance(each, Placed) and each.lender is not None and each.gang in told:
            yield f"{each.gang} is placed and told to leave at once"


@pytest.mark.parametrize("first", range(0, SEEDS, IN_ONE_TEST))
def test_quota_and_limits_hold_and_no_lender_waits_for_a_loan(first: int) -> None:
    loans = 0
    for seed in range(first, first + IN_ONE_TEST):
        for core, decided, now in a_history(seed):
            wrong = [*wrong_with(core, decided), *limits_held(core), *held_up(core, now)]
            assert wrong == [], (seed, now)
            assert audited(core) == [], (seed, now)
            loans += sum(isinstance(each, Placed) and each.lender is not None for each in decided)
    assert loans
