"""W1 over the scheduler's core: each arrival is a request and a cycle, each departure a release."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from clusters import in_quarters, rack_of
from meter import Meter
from quality import Quality, pods_in_worse_blocks
from scheduler.domain.core.model import Decision, Gang, Kind, Placed, PodPlace, Role
from scheduler.domain.cores import core_of
from w1 import GPUS_PER_NODE, SEED, Arrival, Departure, Event, stream

WINDOWS = {128: 20_000, 1_024: 4_000, 4_096: 1_000, 16_384: 4_000}
"""The first so many steady arrivals are what HiveD's figures are about, by nodes."""


def gang_of(event: Arrival) -> Gang:
    pods = tuple(f"w-{number}" for number in range(event.pods))
    return Gang(
        id=f"g{event.id}",
        virtual_cluster=event.virtual_cluster,
        user="u",
        priority=1,
        roles=(Role(Kind(gpus=event.gpus), pods),),
        submitted_at=float(event.id),
    )


class Decider(Protocol):
    """What the stream asks of a scheduler, beside its cycle."""

    def request(self, gang: Gang) -> None: ...

    def release(self, gang: str) -> None: ...


Cycle = Callable[[float], list[Decision]]


@dataclass(slots=True)
class Run:
    """One size of cluster with its stream; a gang that is not placed at once is withdrawn.

    ``cycle``: decides about what was requested, at a time.
    """

    nodes: int
    decider: Decider
    cycle: Cycle
    events: Iterator[Event]
    window: Quality
    steady_quality: Quality
    fill: Meter = field(default_factory=Meter)
    steady: Meter = field(default_factory=Meter)
    live: dict[int, tuple[str, tuple[PodPlace, ...]]] = field(default_factory=dict)
    in_use: int = 0
    next_event: Event | None = None

    @property
    def is_filling(self) -> bool:
        event = self.next_event
        return isinstance(event, Arrival) and not event.is_steady

    def advance(self, arrivals: int) -> None:
        """Some arrivals more with the departures before them, not beyond the end of the fill."""
        was_filling = self.is_filling
        meter = self.fill if was_filling else self.steady
        while arrivals and self.next_event is not None and self.is_filling == was_filling:
            match self.next_event:
                case Arrival() as event:
                    self._arrive(event, meter)
                    arrivals -= 1
                case Departure() as event:
                    self._depart(event, meter)
            self.next_event = next(self.events, None)

    def _arrive(self, event: Arrival, meter: Meter) -> None:
        gang = gang_of(event)
        cpu, wall = time.process_time(), time.perf_counter()
        self.decider.request(gang)
        decisions = self.cycle(gang.submitted_at)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        meter.gang(wall_s, cpu_s)
        places = next(
            (each.pods for each in decisions if isinstance(each, Placed) and each.gang == gang.id),
            None,
        )
        if places is None:
            cpu = time.process_time()
            self.decider.release(gang.id)
            meter.spent(time.process_time() - cpu)
        else:
            meter.done += 1
            self.live[event.id] = event.virtual_cluster, places
            self.in_use += event.pods * event.gpus
        self._judge(event, places)

    def _judge(self, event: Arrival, places: tuple[PodPlace, ...] | None) -> None:
        if not event.is_steady:
            return
        others = (live for gang, live in self.live.items() if gang != event.id)
        worse = pods_in_worse_blocks(event, places or (), others, self.window.rack_of)
        if self.window.arrived < WINDOWS.get(self.nodes, 0):
            self.window.arrival(event, places, self.in_use, worse)
        self.steady_quality.arrival(event, places, self.in_use, worse)

    def _depart(self, event: Departure, meter: Meter) -> None:
        if self.live.pop(event.id, None) is None:
            return
        self.in_use -= event.pods * event.gpus
        name = f"g{event.id}"
        cpu = time.process_time()
        self.decider.release(name)
        meter.spent(time.process_time() - cpu)


def start(nodes: int, arrivals: int, seed: int = SEED) -> Run:
    """The core of an empty cluster, and the first event."""
    core = core_of(in_quarters(nodes))
    return start_with(core, core.cycle, nodes, stream(nodes, arrivals, seed))


def start_with(decider: Decider, cycle: Cycle, nodes: int, events: Iterator[Event]) -> Run:
    """Any scheduler of an empty cluster, and the first event."""
    racks, gpus = rack_of(nodes), nodes * GPUS_PER_NODE
    return Run(
        nodes,
        decider,
        cycle,
        events,
        window=Quality(racks, gpus),
        steady_quality=Quality(racks, gpus),
        next_event=next(events, None),
    )
