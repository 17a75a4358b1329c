"""A scheduler's core at work under W2: does what was decided as the services would, and times the
core.

Preempted gangs end some cycles later, and do not come again.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from clusters import NODE_CPU
from meter import Meter
from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Gang,
    Placed,
    PodPlace,
    Preempted,
    Refused,
)
from w1 import GPUS_PER_NODE

GRACE_CYCLES = 3


@dataclass(slots=True)
class Accounting:
    """The gangs that run and their places, by the decisions."""

    gangs: dict[str, Gang] = field(default_factory=dict)
    places: dict[str, tuple[PodPlace, ...]] = field(default_factory=dict)
    on_node: dict[str, set[str]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)
    gpus: int = 0
    cpu: int = 0

    def place(self, gang: str, places: tuple[PodPlace, ...]) -> None:
        self.places[gang] = places
        self.index[gang] = len(self.order)
        self.order.append(gang)
        for place in places:
            self.on_node.setdefault(place.node, set()).add(gang)
        self._count(gang, 1)

    def forget(self, gang: str) -> None:
        if gang in self.places:
            self._count(gang, -1)
            for place in self.places.pop(gang):
                self.on_node[place.node].discard(gang)
            index, last = self.index.pop(gang), self.order.pop()
            if last != gang:
                self.order[index] = last
                self.index[last] = index
        self.gangs.pop(gang, None)

    def _count(self, gang: str, sign: int) -> None:
        for role in self.gangs[gang].roles:
            self.gpus += sign * role.kind.gpus * len(role.pods)
            self.cpu += sign * role.kind.cpu * len(role.pods)


@dataclass(slots=True)
class Busy:
    """One cluster; ``codes`` counts the reasons of waits, ``decisions`` the decisions."""

    nodes: int
    core: Core
    accounting: Accounting = field(default_factory=Accounting)
    waiting: set[str] = field(default_factory=set)
    leaving: "deque[tuple[int, str]]" = field(default_factory=deque)
    codes: "Counter[str]" = field(default_factory=Counter)
    decisions: "Counter[str]" = field(default_factory=Counter)
    cycles: int = 0
    gpu_share_sum: float = 0.0
    cpu_share_sum: float = 0.0
    shares: int = 0

    def expect(self, gang: Gang) -> None:
        """It is about to be requested."""
        self.accounting.gangs[gang.id] = gang
        self.waiting.add(gang.id)

    def heed(self, decisions: list[Decision], meter: Meter) -> list[str]:
        """Do what was decided; returns those that wait with no promise."""
        self.cycles += 1
        hopeless = []
        for decision in decisions:
            self.decisions[type(decision).__name__] += 1
            match decision:
                case Placed(gang, pods):
                    self.waiting.discard(gang)
                    self.accounting.place(gang, pods)
                    meter.done += 1
                case Preempted(gang):
                    self.leaving.append((self.cycles + GRACE_CYCLES, gang))
                case Deferred(gang, reason):
                    self.codes[reason.code] += 1
                    if reason.code != "preempting":
                        hopeless.append(gang)
                case Refused(gang):
                    self.waiting.discard(gang)
                    self.accounting.forget(gang)
                case _:
                    pass
        return hopeless

    def let_leave(self, meter: Meter) -> None:
        while self.leaving and self.leaving[0][0] <= self.cycles:
            gang = self.leaving.popleft()[1]
            if gang in self.accounting.gangs:
                self.release(gang, meter)

    def release(self, gang: str, meter: Meter) -> None:
        self.waiting.discard(gang)
        self.accounting.forget(gang)
        timed(meter, lambda: self.core.release(gang))

    def sample(self) -> None:
        self.gpu_share_sum += self.accounting.gpus / (self.nodes * GPUS_PER_NODE)
        self.cpu_share_sum += self.accounting.cpu / (self.nodes * NODE_CPU)
        self.shares += 1

    @property
    def gpu_share(self) -> float:
        """Of all GPUs in use, on average over the samples."""
        return self.gpu_share_sum / self.shares if self.shares else 0.0

    @property
    def cpu_share(self) -> float:
        return self.cpu_share_sum / self.shares if self.shares else 0.0

    def begin_anew(self) -> None:
        """Count from here."""
        self.codes.clear()
        self.decisions.clear()
        self.gpu_share_sum = self.cpu_share_sum = 0.0
        self.shares = 0


def timed(meter: Meter, act: Callable[[], object]) -> None:
    cpu = time.process_time()
    act()
    meter.spent(time.process_time() - cpu)


def timed_gang(meter: Meter, decide: Callable[[], list[Decision]]) -> list[Decision]:
    cpu, wall = time.process_time(), time.perf_counter()
    decisions = decide()
    wall_s = time.perf_counter() - wall
    meter.gang(wall_s, time.process_time() - cpu)
    return decisions
