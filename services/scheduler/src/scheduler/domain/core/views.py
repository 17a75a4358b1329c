"""Views: how much is free on the slots of a pool, by question. The only index of free capacity.

A view is derived from the slots, so the journal knows nothing of it. A change, or its undoing,
marks a slot as dirty in the views that show it; a question first updates the dirty slots.
All sets are ints, so that the lowest comes first: a search costs what there are patterns of nodes,
not how many nodes there are.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from scheduler.domain.core.node_models import MOST_UNITS, UNIT_BITS, Patterns, Want
from scheduler.domain.core.nodes import Pool, Slot

TRIED_RACKS = 16
"""Racks that a question tries, at the most."""

EVERYWHERE = -1
"""As a set of racks: all."""


class When(Enum):
    """``SOON``: when those have left that leave. ``CLAIM``: when all had left that could have to,
    and as if nothing but leaves counted.
    """

    NOW = 0
    SOON = 1
    CLAIM = 2


class View:
    """``mask``: a slot's leaves that this view shows. ``shows_full``: slots without such a leaf are
    shown too, for pods without GPUs.

    ``racks``: by key, the racks with such slots. ``slots[rack]``: by key, which of its slots, as
    bits. ``by_whole[n]``: racks with n wholly free slots. ``by_free[n]``: racks with n free leaves.
    """

    def __init__(
        self,
        pool: Pool,
        patterns: Patterns,
        mask: Callable[[Slot], int],
        when: When,
        *,
        shows_full: bool,
    ) -> None:
        self.pool = pool
        self.mask = mask
        self.when = when
        self.dirty: dict[Slot, None] = dict.fromkeys(pool.slots)
        self._patterns = patterns
        self._shows_full = shows_full
        self._keys = [-1] * len(pool.slots)
        self._whole = [0] * len(pool.racks)
        self._free = [0] * len(pool.racks)
        self.racks: dict[int, int] = {}
        self.slots: list[dict[int, int]] = [{} for _ in pool.racks]
        self.by_whole = [0] * (max((len(rack) for rack in pool.racks), default=0) + 1)
        self.by_whole[0] = (1 << len(pool.racks)) - 1
        self.by_free: dict[int, int] = {}

    # Keeping it up to date.

    def flush(self) -> None:
        """Pattern at the slots that have changed."""
        if self.dirty:
            self._update(self.dirty)
            self.dirty.clear()

    def _update(self, some: Iterable[Slot]) -> None:
        keys, when = self._keys, self.when
        for slot in some:
            mask, model = self.mask(slot), slot.model
            key = -1
            if mask or self._shows_full:
                units = MOST_UNITS
                if model.limited and when is not When.CLAIM:
                    node = slot.node
                    units = model.units_left(node.soon if when is When.SOON else node.left)
                number = model.patterns.get(mask)
                key = (
                    self._patterns.key(model, mask, units)
                    if number is None
                    else number << UNIT_BITS | units
                )
            old = keys[slot.number]
            if key != old:
                keys[slot.number] = key
                self._move(slot.rack, slot.bit, old, key)

    def key_of(self, slot: Slot) -> int:
        """The slot's key; -1: the view does not show it."""
        self.flush()
        return self._keys[slot.number]

    def _move(self, rack: int, bit: int, old: int, key: int) -> None:
        slots, racks, patterns, here = self.slots[rack], self.racks, self._patterns.all, 1 << rack
        whole = free = 0
        if old >= 0:
            rest = slots[old] & ~bit
            if rest:
                slots[old] = rest
            else:
                del slots[old]
                _take_bit(racks, old, here)
            pattern = patterns[old >> UNIT_BITS]
            whole, free = -pattern.is_whole, -pattern.free
        if key >= 0:
            before = slots.get(key, 0)
            slots[key] = before | bit
            if not before:
                racks[key] = racks.get(key, 0) | here
            pattern = patterns[key >> UNIT_BITS]
            whole, free = whole + pattern.is_whole, free + pattern.free
        if whole:
            had = self._whole[rack]
            self.by_whole[had] &= ~here
            self.by_whole[had + whole] |= here
            self._whole[rack] = had + whole
        if free:
            had, by_free = self._free[rack], self.by_free
            if had:
                _take_bit(by_free, had, here)
            self._free[rack] = had = had + free
            if had:
                by_free[had] = by_free.get(had, 0) | here

    # For the audit.

    def compared(self) -> Iterator[bool]:
        """By rack, whether the view shows its slots as they are; at last, whether what it keeps of
        all racks is what it keeps of each. Slots may change meanwhile.
        """
        fresh = View(self.pool, self._patterns, self.mask, self.when, shows_full=self._shows_full)
        for rack, slots in enumerate(self.pool.racks):
            dirty = [slot for slot in slots if slot in self.dirty]
            self._update(dirty)
            for slot in dirty:
                del self.dirty[slot]
            fresh._update(slots)
            yield self._of_rack_alone(rack) == fresh._of_rack_alone(rack)
        racks, by_whole, by_free = dict[int, int](), [0] * len(self.by_whole), dict[int, int]()
        for rack, (by_key, whole, free) in enumerate(
            zip(self.slots, self._whole, self._free, strict=True)
        ):
            by_whole[whole] |= 1 << rack
            if free:
                by_free[free] = by_free.get(free, 0) | 1 << rack
            for key in by_key:
                racks[key] = racks.get(key, 0) | 1 << rack
        yield (racks, by_whole, by_free) == (self.racks, self.by_whole, self.by_free)

    def _of_rack_alone(self, rack: int) -> tuple[object, ...]:
        keys = [self._keys[slot.number] for slot in self.pool.racks[rack]]
        return keys, self.slots[rack], self._whole[rack], self._free[rack]

    # Questions.

    def seek(
        self, want: Want, racks: int, near: int, *, is_opportunistic: bool
    ) -> Iterator[tuple[int, Slot]]:
        """Slots for one pod with their ranks, best first: near ones, the tightest, the rack with
        the fewest whole slots (for opportunistic gangs the most), the lowest.
        """
        self.flush()
        by_rank: dict[int, list[int]] = {}
        for key in self.racks:
            rank = want.rank(key)
            if rank is not None:
                by_rank.setdefault(rank, []).append(key)
        ranks = sorted(by_rank)
        wholes = self.by_whole[::-1] if is_opportunistic and want.gpus else self.by_whole
        for part in (near, ~near) if near else (EVERYWHERE,):
            for rank in ranks:
                keys = by_rank[rank]
                if len(keys) > 1:  # of racks as good the slot whose leaves lie closest together
                    keys.sort(key=self._patterns.order)
                for slot in self._of_rank(keys, racks & part, wholes):
                    yield rank, slot

    def _of_rank(self, keys: list[int], racks: int, wholes: list[int]) -> Iterator[Slot]:
        found = 0
        for key in keys:
            found |= self.racks.get(key, 0)
        found &= racks
        for whole in wholes if found else ():
            here = found & whole
            for key in keys if here else ():
                rest = here & self.racks.get(key, 0)
                while rest:
                    low = rest & -rest
                    rest ^= low
                    rack = low.bit_length() - 1
                    slots = self.slots[rack].get(key, 0)
                    while slots:
                        yield self._lowest(rack, slots)
                        slots &= slots - 1

    def _lowest(self, rack: int, slots: int) -> Slot:
        return self.pool.racks[rack][(slots & -slots).bit_length() - 1]

    def room(self, rack: int, want: Want) -> int:
        """Pods for which a rack should have room, by counts."""
        pods = 0
        for key, slots in self.slots[rack].items():
            if want.rank(key) is not None:
                pods += slots.bit_count() * want.room(key)
        return pods

    def racks_for(
        self, want: Want, count: int, racks: int, *, is_opportunistic: bool
    ) -> Iterator[int]:
        """Racks that should hold so many pods: those that should hold fewest first (for
        opportunistic gangs those with most whole slots).
        """
        self.flush()
        leaves = want.least(self.pool.models)
        is_whole = 0 < leaves == max(model.shape.leaves for model in self.pool.models)
        if is_whole or is_opportunistic or not leaves:
            buckets = self.by_whole[count if is_whole else 0 :]
            if is_opportunistic and leaves:
                buckets.reverse()
        else:
            least = max(count * leaves, 1)
            buckets = [self.by_free[free] for free in sorted(self.by_free) if free >= least]
        for rack in _some_of(buckets, racks):
            if self.room(rack, want) >= count:
                yield rack

    def fullest(self, want: Want, racks: int) -> tuple[int, int]:
        """The rack that should hold most pods, and how many; (-1, 0) if none holds any."""
        self.flush()
        buckets = [self.by_free[free] for free in sorted(self.by_free, reverse=True)]
        if not want.least(self.pool.models):
            buckets = self.by_whole
        best, most = -1, 0
        for rack in _some_of(buckets, racks):
            room = self.room(rack, want)
            if room > most:
                best, most = rack, room
        return best, most

    def free(self) -> tuple[int, int]:
        """Free leaves of all slots together, and of the slot that has most."""
        self.flush()
        leaves = sum(free * racks.bit_count() for free, racks in self.by_free.items())
        return leaves, max((self._patterns.of(key).free for key in self.racks), default=0)

    def fullest_first(self) -> Iterator[int]:
        """All racks, those with most free leaves first."""
        self.flush()
        for free in sorted(self.by_free, reverse=True):
            yield from _some_of([self.by_free[free]], EVERYWHERE, len(self.slots))
        some = sum(self.by_free.values())
        yield from _some_of([((1 << len(self.slots)) - 1) & ~some], EVERYWHERE, len(self.slots))

    def in_rack(self, rack: int, want: Want) -> list[tuple[int, int, Slot]]:
        """Slots of a rack for pods of one kind: pods that it has room for, free leaves, slot."""
        found = []
        for key, slots in self.slots[rack].items():
            if want.rank(key) is None:
                continue
            room, free, rest = want.room(key), self._patterns.of(key).free, slots
            while rest:
                found.append((room, free, self._lowest(rack, rest)))
                rest &= rest - 1
        return found


def _take_bit(where: dict[int, int], key: int, bit: int) -> None:
    rest = where[key] & ~bit
    if rest:
        where[key] = rest
    else:
        del where[key]


def _some_of(buckets: list[int], racks: int, most: int = TRIED_RACKS) -> Iterator[int]:
    tried = 0
    for bucket in buckets:
        rest = bucket & racks
        while rest and tried < most:
            low = rest & -rest
            rest ^= low
            tried += 1
            yield low.bit_length() - 1
