"""What is so of every loan, in random histories: quota and limits hold, and whoever lends waits for
none of its own longer than by a grace.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest
from core_door import CoreDoor
from judging import running, waiting
from scenes import config, gang, owning, racks
from scheduler.domain.core.config import ALL_TYPES, ClusterConfig, Policy
from scheduler.domain.core.interface import Core, Leaving
from scheduler.domain.core.model import Decision, Gang, Kind, Placed, PodPlace, Preempted, Role
from scheduler_audit import audited

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


def a_history(seed: int) -> Iterator[tuple[Core, list[Decision], float]]:
    """A core and what it decides, cycle by cycle."""
    random = Random(seed)
    door, now = CoreDoor(a_cluster(random)), 0.0
    for number in range(8):
        door.set_node_health(f"n{number}", True)
    for number in range(CYCLES):
        now += random.choice((1.0, 20.0, 100.0, 400.0))
        for each in sorted(door.leaving()):
            if each.until <= now:
                end(door, each)
        for more in range(random.choice((1, 2, 3))):
            door.request(a_wish(random, 4 * number + more))
        some = sorted(name for name, at in running(door.core).items() if at is not None)
        for name in random.sample(some, min(len(some), random.choice((0, 1, 2)))):
            door.release(name)
        if some and random.random() < 0.2 and (name := random.choice(some)) in door.gang_ids():
            pods = (place.pod for place in door.exported(name).places)
            door.release_pod(name, min(pods, default="p0"))
        if some and random.random() < 0.3 and (name := random.choice(some)) in door.gang_ids():
            door.grow(name, (Role(Kind(random.choice((1, 2))), (f"q{number}",), f"q{number}"),))
        yield door.core, list(door.decide(now)), now


def end(door: CoreDoor, leaving: Leaving) -> None:
    """Its grace is over."""
    if leaving.pod is None:
        door.release(leaving.gang)
    else:
        door.release_pod(leaving.gang, leaving.pod)


class Loan(NamedTuple):
    """Places in another virtual cluster's quota; ``pod``: of a pod that its gang can do without."""

    gang: Gang
    pod: str | None
    lender: str
    places: list[PodPlace]


def loans_of(core: Core) -> Iterator[Loan]:
    """Of gangs and pods that were not told to leave."""
    for name, at in running(core).items():
        if at is None or core.exported(name).preempted_until is not None:
            continue
        kept = core.exported(name)
        extra = {each.pod: each for each in kept.extra}
        own = [place for place in kept.places if place.pod not in extra]
        if kept.lender is not None and own:
            yield Loan(kept.gang, None, kept.lender, own)
        for place in kept.places:
            each = extra.get(place.pod)
            if each is not None and each.lender is not None and each.preempted_until is None:
                yield Loan(kept.gang, place.pod, each.lender, [place])


def limits_held(core: Core) -> Iterator[str]:
    """Of each virtual cluster, counted from the placements alone."""
    lent: Counter[tuple[str, str]] = Counter()
    borrowed: Counter[tuple[str, str]] = Counter()
    for loan in loans_of(core):
        for place in loan.places:
            leaf = core.forest.machines[place.node][0].chain.gpu_type
            for name in (leaf, ALL_TYPES):
                lent[loan.lender, name] += len(place.charged or place.gpus)
                borrowed[loan.gang.virtual_cluster, name] += len(place.charged or place.gpus)
    for name, each in core.forest.config.virtual_clusters.items():
        if core.cells.borrowing()[name] != (lent[name, ALL_TYPES], borrowed[name, ALL_TYPES]):
            yield f"{name}: what is lent or borrowed is miscounted"
        for limit, taken in ((each.lending_limit, lent), (each.borrowing_limit, borrowed)):
            yield from (
                f"{name}: above its limit" for n, most in limit.items() if taken[name, n] > most
            )
        quota = core.cells.quotas()[name]
        if quota.charged > quota.owned:
            yield f"{name}: more is charged than it owns"


def held_up(core: Core, now: float) -> Iterator[str]:
    """Gangs that wait though they would not if their virtual cluster had lent nothing. Who could
    pass only where cells are reserved passes at nobody's cost, loans included.
    """
    new = waiting(core)
    for lender in sorted({loan.lender for loan in loans_of(core)}):
        some = [
            name
            for name in new
            if (found := core.gang(name)) is not None
            and found.gang.virtual_cluster == lender
            and found.gang.priority >= 0
            and found.published not in ("reservation", "order")
        ]
        if some:
            yield from _held_up(core, now, lender, some)


def _held_up(core: Core, now: float, lender: str, some: Sequence[str]) -> Iterator[str]:
    without = deepcopy(core)
    for loan in loans_of(core):
        if loan.lender != lender:
            continue
        if loan.pod is None:
            without.release(loan.gang.id)
        else:
            without.release_pod(loan.gang.id, loan.pod)
    decided = without.cycle(now)
    started = {e.gang for e in decided if isinstance(e, Placed) and e.lender is None}
    for name in some:
        found = without.gang(name)
        if name in started or (found is not None and found.is_nominated):
            yield f"{name} waits for a loan"


def wrong_with(decided: Sequence[Decision], policy: Policy) -> Iterator[str]:
    """What no decision may be."""
    told = {each.gang for each in decided if isinstance(each, Preempted)}
    if policy.is_strict:  # one that is refused may have held up the lender's own
        return
    for each in decided:
        if isinstance(each, Placed) and each.lender is not None and each.gang in told:
            yield f"{each.gang} is placed and told to leave at once"


@pytest.mark.parametrize("first", range(0, SEEDS, IN_ONE_TEST))
def test_quota_and_limits_hold_and_no_lender_waits_for_a_loan(first: int) -> None:
    loans = 0
    for seed in range(first, first + IN_ONE_TEST):
        for core, decided, now in a_history(seed):
            policy = core.forest.config.policy
            wrong = [*wrong_with(decided, policy), *limits_held(core), *held_up(core, now)]
            assert wrong == [], (seed, now)
            assert audited(core) == [], (seed, now)
            loans += sum(isinstance(each, Placed) and each.lender is not None for each in decided)
    assert loans
