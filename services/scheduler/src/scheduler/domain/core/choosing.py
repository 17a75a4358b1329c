"""Makes room for a gang pod by pod, each time where that costs others least."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, islice

from scheduler.domain.core.capacity import could_hold_all
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.elsewhere import movable
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.holdings import Live, Price
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.model import Kind
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.prices import ANY_PRICE, both, cheapest, price_of, room_at_most
from scheduler.domain.core.removing import Removal, undo_all
from scheduler.domain.core.seeking import NO_END, Seeker
from scheduler.domain.core.victims import TIED

LOOKED = 64
"""Nodes on which a pod's price is worked out exactly, at the most."""

LOOKED_IN_ALL = 4_096
"""The same for all pods of a gang, `LOOKED_AT_LEAST` for each."""

LOOKED_AT_LEAST = 8

PUTS = 16
"""Nodes on which a pod is tried, at the most."""

Place = tuple[Price, int, Sequence[Live]]
"""What a pod's place costs, the number of its node, and who has to leave for it."""


class Chooser:
    """Takes gangs away in thought and puts the pods there, one after the other.

    ``removals``: who would have to leave. ``tied``: some who would do as well at the same price.
    ``looks``: nodes that are looked at for each pod.
    """

    def __init__(self, cluster: Cluster, live: Live, seeker: Seeker) -> None:
        self.cluster = cluster
        self.live = live
        self.seeker = seeker
        self.removals: list[Removal] = []
        self.tied: dict[str, Live] = {}
        pods = sum(len(role.pods) for role in live.waiting)
        self.looks = min(LOOKED, max(LOOKED_AT_LEAST, LOOKED_IN_ALL // pods))

    def place(self) -> bool:
        """Find room for all pods; False, or an exception, leaves nothing changed."""
        self.seeker.soft = self.seeker.hard = NO_END
        found = False
        try:
            kinds = self.seeker.kinds(self.live.waiting)
            found = not self._is_beyond() and all(self._kind(kind, names) for kind, names in kinds)
        finally:
            if not found:
                self.undo()
        return found

    def is_hopeless(self) -> bool:
        """There would not be room for some kind of pods if all who may go were gone."""
        owner, priority = self.live.owner, self.live.reach
        return self._is_beyond() or any(
            room_at_most(self.cluster, owner, kind, priority) < len(names)
            for kind, names in self.seeker.kinds(self.live.waiting)
        )

    def _is_beyond(self) -> bool:
        """Some kind of pods are more than the quota holds."""
        seeker = self.seeker
        return any(
            kind.gpus > 0
            and not any(
                could_hold_all(seeker.ground(kind, each), len(names)) for each in seeker.types(kind)
            )
            for kind, names in seeker.kinds(self.live.waiting)
        )

    def undo(self, pods: int = 0, removals: int = 0) -> None:
        """All but the first pods and removals."""
        self.seeker.undo(pods)
        undo_all(self.removals[removals:])
        del self.removals[removals:]

    def _kind(self, kind: Kind, names: Sequence[str]) -> bool:
        before = len(self.seeker.pods), len(self.removals)
        types = self.seeker.types(kind)
        if not kind.gpus:
            names = self.seeker.for_nothing(kind, names)
            types = types if kind.pin is not None else self.cluster.hardware.gpu_types
        best: tuple[Price, str] | None = None
        for gpu_type in types:
            placed = len(self.seeker.pods), len(self.removals)
            if self._of_type(kind, names, gpu_type):
                if len(types) == 1:
                    return True
                price = price_of(removal.live for removal in self.removals)
                best = min(best or (price, gpu_type), (price, gpu_type))
            self.undo(*placed)
        if (not names) or (best is not None and self._of_type(kind, names, best[1])):
            return True
        self.undo(*before)
        return False

    def _of_type(self, kind: Kind, names: Sequence[str], gpu_type: str) -> bool:
        return all(self._one(kind, gpu_type, name) for name in names)

    def _one(self, kind: Kind, gpu_type: str, name: str) -> bool:
        """One more pod, where it costs least."""
        ground = self.seeker.ground(kind, gpu_type)
        places = self._places(ground)
        first = next(places, None)
        found = [] if first is None else [first]
        below = ANY_PRICE if first is None else first[0]
        others = movable(self.cluster, self.live, ground, below) if kind.gpus else []
        if others:
            # Places were looked for with others away: those here are looked for again.
            found, places = self._elsewhere(ground, others, first), self._places(ground)
        for _, number, gone in islice(chain(found, places), PUTS):
            done = len(self.removals)
            self._remove(gone)
            if any(removal.was_charged for removal in self.removals[done:]):
                # Cells that were theirs alone may be bound anew, there or elsewhere.
                ground = self.seeker.ground(kind, gpu_type)
            if ground.put(number, name):
                return True
            self.undo(len(self.seeker.pods), done)
        return False

    def _remove(self, gone: Iterable[Live]) -> None:
        self.removals.extend(Removal(self.cluster, other) for other in gone)

    def _elsewhere(
        self, ground: Ground, others: Iterable[Sequence[Live]], first: Place | None
    ) -> list[Place]:
        """The cheapest place without some gangs that are not there, if it costs less than the first
        with them.
        """
        best = first
        for some in others:
            done = len(self.removals)
            self._remove(some)
            found = next(self._places(self.seeker.ground(ground.kind, ground.gpu_type)), None)
            self.undo(len(self.seeker.pods), done)
            if found is not None:
                price, number, gone = found
                price = both(price_of(some), price)
                if best is None or price < best[0]:
                    best = price, number, [*some, *gone]
        return [] if best is None or best is first else [best]

    def _places(self, ground: Ground) -> Iterator[Place]:
        """Nodes and who has to leave there, cheapest first."""
        kind = ground.kind
        owner = self.live.owner if kind.pin is None else pin_owner(kind.pin)
        if ground.bound is None and ground.empty is None:
            return
        priority, only = self.live.reach, self.live.gang.allowed_nodes
        states = self.cluster.hardware.states
        ready: list[Place] = []
        looked = 0
        for bound, number in cheapest(self.cluster, owner, ground.gpu_type, ground.needs, priority):
            while ready and ready[0][0] < bound:
                yield self._first(ready)
            if looked == self.looks:
                break
            if only is not None and states[number].machine.name not in only:
                continue
            looked += 1
            found = self._exact(ground, states[number])
            if found is not None:
                heappush(ready, (found[0], number, found[1]))
        while ready:
            yield self._first(ready)

    def _first(self, ready: list[Place]) -> Place:
        """The cheapest, of those that cost the same the lowest; who would do as well is noted."""
        price, number, gone = heappop(ready)
        if gone and ready and ready[0][0] == price and len(self.tied) < TIED:
            others = (other for same, _, some in ready if same == price for other in some)
            self.tied.update((other.id, other) for other in others)
        return price, number, gone

    def _exact(self, ground: Ground, state: SlotState) -> tuple[Price, Sequence[Live]] | None:
        """The cheapest gangs without which one more pod fits on a node."""
        take = state.machine.sort.take(ground.kind)
        if take is None:
            return None
        mine, is_bare = ground.reach(state), self.seeker.is_bare
        ways = self.cluster.ways.of(state, self.live)
        return ways.cheapest(state, take, mine, is_bare=is_bare)
