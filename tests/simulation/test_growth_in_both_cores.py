"""Both cores on the same random stream of elastic gangs and gangs that grow, where counts decide:
all pods take whole machines, and all gangs have one priority. They never differ in who is placed
whole, nor in how many pods more run.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from core_door import CoreDoor
from scenes import config, owning, racks
from scheduler.domain.core.extras import want_more
from scheduler.domain.core.model import Decision, Gang, Kind, Role, Shrunk
from scheduler.domain.core.cycle import Core

STREAMS, STEPS, NODES = 20, 60, 6


class Follower:
    """A core, and what of its gangs runs. Pods that it asks back leave at once, and are wanted
    again.
    """

    def __init__(self, core: Any, cycle: Callable[[float], Sequence[Decision]]) -> None:
        self.core = core
        self.cycle = cycle

    def settle(self, now: float) -> None:
        """Cycles until nobody has to leave any more."""
        for _ in range(3 * NODES):
            shrunk = [each for each in self.cycle(now) if isinstance(each, Shrunk)]
            for each in shrunk:
                for pod in each.pods:
                    self.core.release_pod(each.gang, pod)
                    self.want_more(each.gang, [pod])
            if not shrunk:
                return
        pytest.fail("pods are asked back again and again", pytrace=False)

    def want_more(self, name: str, pods: Iterable[str]) -> None:
        self.core.want_more(name, (Role(Kind(4), tuple(pods), "p"),))

    def placed(self, names: Iterable[str]) -> tuple[dict[str, list[str]], int]:
        """Pods that gangs need and that run, and how many run that they can do without."""
        found, surplus = dict[str, list[str]](), 0
        for name in names:
            kept = self.core.exported(name)
            extra = {each.pod for each in kept.extra}
            surplus += len(extra)
            own = {place.pod for place in kept.places} - extra - set(kept.reserved)
            found[name] = sorted(own) if kept.started_at is not None else []
        return found, surplus


class Before(CoreDoor):
    """The present core, with what elastic gangs want beside."""

    def want_more(self, name: str, roles: tuple[Role, ...]) -> None:
        want_more(self.core, name, roles)


class Stream:
    """What happens to both."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        cluster = config(racks(NODES // 2), x=owning(("rack/node", self.random.choice((4, 5, 6)))))
        before, after = Before(cluster), Core(cluster)
        for number in range(NODES):
            before.set_node_health(f"n{number}", True)
        self.both = [Follower(before, before.decide), Follower(after, after.cycle)]
        self.names: list[str] = []

    def a_gang(self, number: int) -> Gang:
        """One to three pods, and often some that it can do without."""
        least, more = self.random.choice((1, 1, 2, 3)), self.random.choice((0, 0, 1, 2, 4))
        pods = tuple(f"p{each}" for each in range(least + more))
        roles = (Role(Kind(4), pods, "p", least if more else None),)
        return Gang(f"g{number:02}", "x", "user", 0, roles, submitted_at=float(number))

    def step(self, number: int) -> None:
        kind, name = self.random.random(), self.random.choice([*self.names, ""])
        if kind < 0.45 or not name:
            new = self.a_gang(number)
            self.names.append(new.id)
            self.each(lambda core: core.core.request(new))
        elif kind < 0.65:
            self.names.remove(name)
            self.each(lambda core: core.core.release(name))
        elif kind < 0.8:
            pods = tuple(f"q{number}-{each}" for each in range(self.random.choice((1, 2))))
            self.each(lambda core: core.core.grow(name, (Role(Kind(4), pods, "q"),)))
        elif kind < 0.9:
            self.each(lambda core: core.want_more(name, [f"s{number}"]))
        else:
            self.end_pod(name)

    def end_pod(self, name: str) -> None:
        """One that it needs, and not the last."""
        own = self.both[0].placed([name])[0][name]
        if len(own) > 1:
            pod = self.random.choice(own)
            self.each(lambda core: core.core.release_pod(name, pod))

    def each(self, change: Callable[[Follower], None]) -> None:
        for core in self.both:
            change(core)

    def settle(self, now: float) -> None:
        self.each(lambda core: core.settle(now))
        self.names = [name for name in self.names if name in self.both[0].core.gangs]


@pytest.mark.parametrize("seed", range(STREAMS))
def test_who_is_placed_whole_is_the_same_in_both_cores(seed: int) -> None:
    stream = Stream(seed)
    for number in range(STEPS):
        stream.step(number)
        stream.settle(float(number))
        before, after = (core.placed(stream.names) for core in stream.both)
        assert before == after, number
