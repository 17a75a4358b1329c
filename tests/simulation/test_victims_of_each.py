"""Of every gang for which others have to leave, in random clusters with elastic gangs: nobody is
killed where shrinking would do, nobody leaves who could stay, and when they have left it starts.
"""

from copy import deepcopy
from random import Random
from typing import NamedTuple

import pytest
from core_door import CoreDoor
from judging import gang_of, waiting
from scenes import Scene, config, gang, owning, racks
from scheduler.domain.core.config import Policy
from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import (
    Decision,
    Gang,
    Kind,
    Placed,
    Preempted,
    Role,
    Shrunk,
)
from seeds import blocks

GANGS = 40


class Told(NamedTuple):
    """What was decided for one gang: who is killed for it, who gives back which pods, and whether
    it starts at once.
    """

    killed: list[str]
    shrunk: list[tuple[str, str]]
    starts: bool

    @property
    def is_free(self) -> bool:
        """It starts, and nobody leaves for it."""
        return self.starts and not self.killed and not self.shrunk


def told(decided: list[Decision], gang: str) -> Told:
    """Of all that was decided."""
    mine = [each for each in decided if getattr(each, "for_gang", None) == gang]
    return Told(
        [each.gang for each in mine if isinstance(each, Preempted)],
        [(each.gang, pod) for each in mine if isinstance(each, Shrunk) for pod in each.pods],
        any(isinstance(each, Placed) and each.gang == gang for each in decided),
    )


def a_gang(random: Random, name: str) -> Gang:
    """Of a few sizes; most of them can do without some of their pods."""
    pods = random.choice((1, 2, 4, 6))
    least = random.randint(1, pods) if random.random() < 0.7 else None
    role = Role(Kind(random.choice((1, 1, 2, 4))), tuple(f"p{n}" for n in range(pods)), "p", least)
    priority = random.choice((-1, 0, 0, 1, 2))
    return Gang(name, random.choice("xxy"), "user", priority, (role,), is_lazy=False)


class World:
    """A core, and one gang after another that asks."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        policy = Policy(
            min_run_s=self.random.choice((0.0, 0.0, 30.0)),
            preemptions_per_hour=self.random.choice((None, None, 3)),
            grace_s=10.0,
        )
        self.core = CoreDoor(
            config(racks(3), policy=policy, x=owning(("rack/node", 4)), y=owning(("rack", 1)))
        )
        for number in range(6):
            self.core.set_node_health(f"n{number}", True)
        self.now = 0.0
        self.met = {"killed": 0, "shrunk": 0, "both": 0}

    def asks(self, gang: Gang) -> None:
        """It asks; who has to leave for it leaves, and it starts. Nobody else waits."""
        before = deepcopy(self.core.core)
        self.now += self.random.choice((1.0, 20.0))
        self.core.request(gang)
        found = told(list(self.core.decide(self.now)), gang.id)
        self.met["killed"] += bool(found.killed)
        self.met["shrunk"] += bool(found.shrunk)
        self.met["both"] += bool(found.killed and found.shrunk)
        if found.killed or found.shrunk:
            self.check(before, gang, found)
            self.leave(found)
            later = told(list(self.core.decide(self.now)), gang.id)
            assert found.starts or later.starts, f"{gang.id} does not start when {found} have left"
        elif not found.starts:
            self.core.release(gang.id)
        for other in waiting(self.core.core):
            self.core.release(other)

    def leave(self, found: Told) -> None:
        """They leave."""
        for name, pod in found.shrunk:
            self.core.release_pod(name, pod)
        for name in found.killed:
            self.core.release(name)

    def check(self, before: Core, gang: Gang, found: Told) -> None:
        """What would have been otherwise."""
        if found.killed:
            gone = [(owner, pod) for owner, pod in surplus(before, gang)]
            fewer = self.without(before, gang, gone, [])
            assert not fewer.is_free, f"{found.killed} are killed for {gang.id}: shrinking would do"
        for stays in found.killed:
            rest = [each for each in found.killed if each != stays]
            assert not self.without(before, gang, found.shrunk, rest).is_free, (gang.id, stays)
        for stays in found.shrunk:
            pods = [each for each in found.shrunk if each != stays]
            assert not self.without(before, gang, pods, found.killed).is_free, (gang.id, stays)

    def without(
        self, before: Core, gang: Gang, pods: list[tuple[str, str]], gangs: list[str]
    ) -> Told:
        """What is decided for it if these were not there: in a copy."""
        core = deepcopy(before)
        for owner, pod in pods:
            core.release_pod(owner, pod)
        for each in gangs:
            core.release(each)
        core.request(gang)
        return told(core.cycle(self.now), gang.id)


def surplus(core: Core, gang: Gang) -> list[tuple[str, str]]:
    """Pods that could be given back for a gang: of its virtual cluster, and of opportunistic
    gangs.
    """
    return [
        (name, each.pod)
        for name in core.gang_ids()
        for each in core.exported(name).extra
        if gang_of(core, name).priority < 0
        or gang_of(core, name).virtual_cluster == gang.virtual_cluster
    ]


@pytest.mark.parametrize("block", blocks(6, deep=600, size=6))
def test_they_shrink_before_they_are_killed_and_none_leaves_that_could_stay(block: range) -> None:
    met = {"killed": 0, "shrunk": 0, "both": 0}
    for seed in block:
        world = World(seed)
        for number in range(GANGS):
            try:
                world.asks(a_gang(world.random, f"g{number:02}"))
            except AssertionError as error:
                error.add_note(f"seed {seed}, gang {number}")
                raise
            if world.random.random() < 0.2 and world.core.gang_ids():
                world.core.release(world.random.choice(sorted(world.core.gang_ids())))
        met = {what: count + world.met[what] for what, count in met.items()}
    assert min(met["killed"], met["shrunk"]) > 0, met


def test_pods_in_two_racks_shrink_before_a_gang_of_one_rack_is_killed() -> None:
    scene = Scene(config(x=owning(("rack/node", 4))))
    for number in (0, 3):
        there = frozenset({f"n{number}"})
        scene.asks(gang(f"whole{number}", "x", 4, allowed_nodes=there))
    for number in (1, 2):
        there, role = frozenset({f"n{number}"}), Role(Kind(2), ("p0", "p1"), "p", 1)
        scene.asks(Gang(f"elastic{number}", "x", "user", 0, (role,), allowed_nodes=there))
    decided = scene.asks(gang("high", "x", 2, pods=2, priority=1))
    found = told(decided, "high")
    assert found.killed == []
    assert sorted(found.shrunk) == [("elastic1", "p1"), ("elastic2", "p1")]
