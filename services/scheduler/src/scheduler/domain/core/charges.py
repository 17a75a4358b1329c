"""Who is charged what of which quota, and who could have to leave for whom."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain

from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.loans import Loans
from scheduler.domain.core.model import OPPORTUNISTIC, GangClass
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core.prices import can_preempt


class Charges:
    """Counts of what gangs hold. Gangs that leave are charged nothing, and are in no set.

    ``leaves[owner, GPU type]`` (of a pin: its owner and ""): rank → leaves charged.
    ``guaranteed[owner]``: rank → gangs with cells; ``guests``: gangs without, of any owner;
    ``ranked_guests[owner]``: priority → those of them of priority 0 or more.
    ``sizes``: the former in order.
    ``touched``: whose charges have changed since an audit began; None: there is none under way.
    ``left_over``: leaves that gangs which are over are still charged, which is wrong.
    """

    def __init__(self, hardware: Hardware, gangs: dict[str, Live]) -> None:
        self.hardware = hardware
        self.gangs = gangs
        self.leaves: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.guaranteed: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.guests: set[str] = set()
        self.ranked_guests: dict[str, dict[int, set[str]]] = {}
        self.touched: set[str] | None = None
        self.left_over: dict[str, int] = {}
        self.loans = Loans(hardware.forest.config.virtual_clusters)
        self.sizes = SizeOrder()
        self._guests: list[str] | None = None  # in order

    def sort_in(self, live: Live) -> None:
        """The gang's class may have changed, or it is over."""
        before = live.among
        if live.among is not None:
            live.among.discard(live.id)
            live.among = None
        if live.pods and live.preempted_until is None and live.id in self.gangs:
            is_guest = live.gang_class is not GangClass.GUARANTEED
            among = self.guests if is_guest else self.guaranteed[live.owner][live.rank]
            among.add(live.id)
            live.among = among
        elif live.booked and live.id not in self.gangs:
            self.left_over[live.id] = live.booked
        elif self.left_over:  # it has given up a part after another
            self.left_over.pop(live.id, None)
        if live.among is not before and (before is self.guests or live.among is self.guests):
            self._guests = None
            if live.gang.priority > OPPORTUNISTIC and live.extra_of is None:
                self._rank_guest(live)
        if live.lender is not None:
            self.loans.note(live, is_charged=live.among is not None and live.is_lent)

    def _rank_guest(self, live: Live) -> None:
        """It has become a guest, or is none any more."""
        owner = owner_of(live.gang.virtual_cluster)
        ranked = self.ranked_guests.setdefault(owner, {}).setdefault(live.gang.priority, set())
        if live.among is self.guests:
            ranked.add(live.id)
            return
        ranked.discard(live.id)
        if not ranked:
            del self.ranked_guests[owner][live.gang.priority]
            if not self.ranked_guests[owner]:
                del self.ranked_guests[owner]

    def count(self, live: Live, pod: Pod, times: int) -> None:
        """Leaves charged to an owner, by GPU type and priority."""
        state, pin = pod.state, pod.kind.pin
        if state is None:
            return
        key = (live.owner, state.gpu_type) if pin is None else (pin_owner(pin), "")
        leaves = times * pod.leaves.bit_count()
        self.leaves[key][live.rank] += leaves
        live.booked += leaves
        if self.touched is not None:
            self.touched.add(live.id)
        if live.lender is not None:
            self.loans.count(live, state.gpu_type, leaves)

    def left(self, live: Live, pin: str | None, types: Sequence[str], priority: int) -> int:
        """Leaves of a pin or of GPU types that a gang's virtual cluster has and gangs of this
        priority or above don't use.
        """
        hardware = self.hardware
        if pin is not None:
            if hardware.owning.pins_of.get(pin) != live.owner:
                return 0
            return hardware.owning.pin_leaves[pin] - self._charged((pin_owner(pin), ""), priority)
        return self.left_of(live.owner, types, priority)

    def left_of_all(self, owner: str, priority: int) -> int:
        """Leaves of all types that an owner has and its gangs of this priority or above don't use,
        those of pins aside.
        """
        return self.left_of(owner, self.hardware.gpu_types, priority)

    def idle(self, owner: str, gpu_type: str) -> int:
        """Leaves of a type that an owner has and nobody is charged."""
        return max(0, self.left_of(owner, (gpu_type,), OPPORTUNISTIC))

    def left_of(self, owner: str, types: Sequence[str], priority: int) -> int:
        """Leaves of these types that an owner has and its gangs of this priority or above don't
        use.
        """
        left, owned = 0, self.hardware.owning.owned
        for name in types:
            key = (owner, name)
            if key in owned:
                left += owned[key] - self._charged(key, priority)
        return left

    def _charged(self, key: tuple[str, str], priority: int) -> int:
        """Leaves that gangs of this priority or above are charged."""
        charged = 0
        for other, leaves in self.leaves.get(key, {}).items():
            if other >= priority:
                charged += leaves
        return charged

    def has_lower(self, owner: str, priority: int) -> bool:
        """Gangs of a lower priority are charged some of an owner's leaves, those of pins aside."""
        counts = (self.leaves.get((owner, leaf), {}) for leaf in self.hardware.forest.racks)
        return any(p < priority and leaves for count in counts for p, leaves in count.items())

    def has_below(self, owner: str, priority: int) -> bool:
        """An owner has gangs with cells and a lower priority."""
        charged = self.guaranteed.get(owner, {})
        return any(gangs and other < priority for other, gangs in charged.items())

    def priced_anew(self, live: Live) -> None:
        """The gang's class, GPUs or what it has saved may be others now."""
        sizes = self.sizes
        if not sizes.is_read:
            return
        if sizes.is_long:  # before this one is noted, which is not yet what it is to be
            sizes.read(self.guaranteed, self.gangs)
        sizes.note(live)

    def smallest_below(self, owner: str, priority: int) -> Iterator[Live]:
        """Gangs of an owner with cells and a lower priority: those that have them on sufferance,
        then the others, each with the fewest GPUs first, of these the ones that lose least, then by
        id.
        """
        self.sizes.read(self.guaranteed, self.gangs)
        lower = [other for other in self.guaranteed.get(owner, {}) if other < priority]
        first = self.sizes.of(owner, OPPORTUNISTIC) if priority > OPPORTUNISTIC else ()
        rest = merge(*(self.sizes.of(owner, other) for other in lower if other > OPPORTUNISTIC))
        return (self.gangs[gang] for _, _, gang in chain(first, rest))

    def below(self, owner: str, priority: int) -> list[Live]:
        """Gangs of an owner with cells and a lower priority, by id."""
        charged = self.guaranteed.get(owner, {})
        found = (gang for other, gangs in charged.items() if other < priority for gang in gangs)
        return [self.gangs[gang] for gang in sorted(found)]

    def charged_to(self, owner: str) -> Iterator[Live]:
        """An owner's gangs with cells."""
        for gangs in self.guaranteed.get(owner, {}).values():
            yield from (self.gangs[gang] for gang in gangs)

    def count_for(self, live: Live) -> int:
        """How many could have to leave for a gang."""
        ranked = self.ranked_guests.get(live.owner, {})
        spared = sum(len(gangs) for other, gangs in ranked.items() if other >= live.gang.priority)
        return len(self.guests) - spared + self.count_below(live)

    def count_below(self, live: Live) -> int:
        """The same of its own virtual cluster."""
        charged = self.guaranteed.get(live.owner, {})
        return sum(len(gangs) for other, gangs in charged.items() if other < live.reach)

    def candidates_for(self, live: Live) -> list[Live]:
        """Who could have to leave for a gang, by id: guests of any owner, and its own with lower
        priority; who is protected does not.
        """
        if self._guests is None:
            self._guests = sorted(self.guests)
        found = [self.gangs[gang] for gang in self._guests if gang != live.id]
        found += self.below(live.owner, live.reach)
        return [other for other in found if can_preempt(live, other)]

    def spared_by(self, live: Live) -> list[Live]:
        """Opportunistic and downgraded gangs that the gang may not preempt, by id."""
        ranked = self.ranked_guests.get(live.owner, {})
        found = (
            gang for other, gangs in ranked.items() if other >= live.gang.priority for gang in gangs
        )
        return [self.gangs[gang] for gang in sorted(found) if gang != live.id]


CHANGES_KEPT = 1_000
"""After so many changes an order of gangs is brought up to date, whether it is asked for or not."""

Size = tuple[int, int, str]
"""GPUs, up to when its work is saved, negated, and id."""


class SizeOrder:
    """Gangs with cells by size, by owner and priority. Nothing is noted before it is first read."""

    def __init__(self) -> None:
        self.is_read = False
        self._changed: dict[str, Live] = {}
        self._sizes: dict[tuple[str, int], list[Size]] = {}
        self._known: dict[str, tuple[tuple[str, int], Size]] = {}

    @property
    def is_long(self) -> bool:
        """So many changes are noted that they should be read."""
        return len(self._changed) >= CHANGES_KEPT

    def note(self, live: Live) -> None:
        """A gang's size may be another one from now on."""
        self._changed[live.id] = live

    def read(self, gangs: Mapping[str, Mapping[int, set[str]]], every: Mapping[str, Live]) -> None:
        """Bring it up to date with the gangs that have cells."""
        changed = self._changed if self.is_read else every
        for live in changed.values():
            known = self._known.pop(live.id, None)
            if known is not None:
                sizes = self._sizes[known[0]]
                del sizes[bisect_left(sizes, known[1])]
            key = (live.owner, live.rank)
            if live.id in gangs.get(key[0], {}).get(key[1], ()):
                size = (live.gpus, -live.saved_ms, live.id)
                insort(self._sizes.setdefault(key, []), size)
                self._known[live.id] = key, size
        self.is_read = True
        self._changed = {}

    def of(self, owner: str, priority: int) -> Sequence[Size]:
        """Of an owner's gangs of a priority."""
        return self._sizes.get((owner, priority), ())
