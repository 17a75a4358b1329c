"""Nodes with enough beside GPUs, as a bit set: beside what each node has by itself."""

import random

import pytest
from scheduler.domain.core.amounts import STEPS, Amounts, make_amounts
from scheduler.domain.core.config import NodeLimits
from scheduler.domain.core.machines import Machine, Sort
from scheduler.domain.core.model import Kind

LIMITS = (
    NodeLimits(cpu=96, memory_mb=768_000),
    NodeLimits(cpu=40, resources={"rdma": 4}),
    NodeLimits(),
)


def machines(rng: random.Random, count: int = 40) -> list[Machine]:
    """Without GPUs: a machine's number is its bit."""
    sorts = [Sort(0, limits) for limits in LIMITS]
    drawn = [rng.choice(sorts) for _ in range(count)]
    return [Machine(n, f"n{n}", sort, free=list(sort.capacity)) for n, sort in enumerate(drawn)]


def take_some(rng: random.Random, every: list[Machine], amounts: Amounts) -> None:
    """Something comes or goes on a few; below nothing while a reservation waits."""
    for machine in rng.sample(every, 5):
        machine.free = [rng.randint(-1, capacity) for capacity in machine.sort.capacity]
        if machine.free:
            amounts.changed(machine)


@pytest.mark.parametrize("seed", range(20))
def test_who_has_enough_is_in_the_set_and_nobody_lacks_more_than_a_step(seed: int) -> None:
    rng = random.Random(seed)
    every = machines(rng)
    amounts = make_amounts(every, 0)
    for _ in range(30):
        take_some(rng, every, amounts)
        rdma = rng.choice((0, 0, 1, 4))
        kind = Kind(
            cpu=rng.choice((0, 1, 8, 40, 96, 97, 5_000)),
            memory_mb=rng.choice((0, 1, 64_000, 767_999, 768_000)),
            resources=(("rdma", rdma),) if rdma else (),
        )
        found = amounts.having(kind)
        for machine in every:
            wanted = {"cpu": kind.cpu, "memoryMB": kind.memory_mb, "rdma": rdma}
            short = max(
                (
                    wanted[name] - max(free, 0)
                    for name, free in zip(machine.sort.names, machine.free, strict=True)
                    if wanted[name]
                ),
                default=0,
            )
            if found >> machine.number & 1:
                assert short < 768_000 // STEPS, (machine, kind)
            else:
                assert short > 0, (machine, kind)
