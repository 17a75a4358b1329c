"""W2 over the scheduler's core. A gang that neither gets its place nor a promise of it (a
preemption) in its own cycle is withdrawn; what runs on a node that goes bad ends there and then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from busy import Busy, timed, timed_gang
from clusters import in_quarters
from meter import Meter
from scheduler.domain.core.model import Decision
from scheduler.domain.cores import core_of
from w1 import SEED
from w2 import Comes, Event, Flips, Goes, stream


@dataclass(slots=True)
class MixedRun:
    """One size of cluster with its stream."""

    busy: Busy
    events: Iterator[Event]
    next_event: Event | None
    fill: Meter = field(default_factory=Meter)
    steady: Meter = field(default_factory=Meter)

    @property
    def is_filling(self) -> bool:
        event = self.next_event
        return isinstance(event, Comes) and not event.is_steady

    def advance(self, arrivals: int) -> None:
        """Some arrivals more with what happens before them, not beyond the end of the fill."""
        was_filling = self.is_filling
        meter = self.fill if was_filling else self.steady
        while arrivals and self.next_event is not None and self.is_filling == was_filling:
            match self.next_event:
                case Comes() as event:
                    self._come(event, meter)
                    arrivals -= 1
                case Goes(gang):
                    if gang in self.busy.accounting.gangs:
                        self.busy.release(gang, meter)
                case Flips() as event:
                    self._flip(event, meter)
            self.next_event = next(self.events, None)

    def _come(self, event: Comes, meter: Meter) -> None:
        busy, gang = self.busy, event.gang
        busy.let_leave(meter)
        busy.expect(gang)

        def decide() -> list[Decision]:
            busy.core.request(gang)
            return busy.core.cycle(gang.submitted_at)

        for hopeless in busy.heed(timed_gang(meter, decide), meter):
            if hopeless in busy.waiting:
                busy.release(hopeless, meter)
        if event.is_steady:
            busy.sample()

    def _flip(self, event: Flips, meter: Meter) -> None:
        busy = self.busy
        for gang in sorted(busy.accounting.on_node.get(event.bad, ())):
            busy.release(gang, meter)
        timed(meter, lambda: busy.core.nodes.set_node_health(event.bad, False))
        if event.healed is not None:
            healed = event.healed
            timed(meter, lambda: busy.core.nodes.set_node_health(healed, True))


def start(nodes: int, arrivals: int, seed: int = SEED) -> MixedRun:
    """The core of an empty cluster, and the first event."""
    events = stream(nodes, arrivals, seed)
    core = core_of(in_quarters(nodes, is_limited=True))
    return MixedRun(Busy(nodes, core), events, next(events, None))
