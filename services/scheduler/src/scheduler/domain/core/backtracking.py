"""A place for all pods of a gang, sought in every way within a bound, on a bounded number of nodes.

Two simplifications lose nothing. Leaves in cells that the owner has are as good as one another, so
a cell is bound only where what is bound isn't enough, or pods may be charged leaves that guests
use; and places that look the same are tried once.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.capacity import may_hold_all
from scheduler.domain.core.costless import Costless, pinned_machines
from scheduler.domain.core.covering import undo, ways_to_bind
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.looks import Looks
from scheduler.domain.core.machines import Machine, SlotState
from scheduler.domain.core.model import Kind

if TYPE_CHECKING:
    from scheduler.domain.core.seeking import Seeker

SEARCH_STEPS = 1_600
"""Of one search, of some 30 us each, on up to `SEARCH_NODES`; on more as many fewer as they cost
more.
"""

SEARCH_NODES = 8

SEARCH_DEPTH = 400
"""Pods and cells, one search for the rest inside that of another: so deep calls may be."""

PODS_LOOKED = 640_000
"""Pods whose nodes are looked at in all steps of one search for pods without GPUs, of some 2 us
each, at the most; but for `SEARCH_STEPS`, which there are in any case.
"""

HELD = ""
"""Who holds a cell while it is in question: no gang."""


class Want(NamedTuple):
    """One pod. ``grounds``: where it may be; of a pod without GPUs one for each GPU type."""

    name: str
    kind: Kind
    grounds: Sequence[Ground]


class Search:
    """One search for a place, with what is found taken through the seeker.

    ``is_cut``: not every way was tried, for want of steps, or on nodes without GPUs.
    """

    def __init__(self, seeker: "Seeker", wants: Sequence[Want]) -> None:
        self.seeker = seeker
        self.hardware = seeker.hardware
        self.wants = sorted(wants, key=lambda want: (-_least(want), -want.kind.cpu))
        self.left = 0
        self.is_cut = False
        self.held: list[Binding] = []
        self._failed: set[object] = set()

    def run(self) -> bool:
        """Whether there is a place; it is taken then."""
        if not self._has_enough():
            return False
        if len(self.wants) > SEARCH_DEPTH:
            self.is_cut = True
            return False
        grounds = {ground for want in self.wants for ground in want.grounds}
        self.numbers_of = {ground: sorted(ground.numbers()) for ground in grounds}
        self.numbers = sorted({n for numbers in self.numbers_of.values() for n in numbers})
        owners = sorted({ground.owner or "" for ground in grounds})
        wants_ports = any(want.kind.ports for want in self.wants)
        self._looks = Looks(self.seeker, self.numbers, owners, wants_ports=wants_ports)
        if not all(ground.is_small for ground in grounds):
            self._keep(self._looks.some_of_each(len(self.wants)))
        self.left = self.seeker.search_steps_on(len(self.numbers))
        self.known = frozenset(self.numbers)
        bare = {want.kind: None for want in self.wants if want.kind.costs_nothing}
        if bare:
            self.left = min(self.left, max(SEARCH_STEPS, PODS_LOOKED // len(self.wants)))
        self.costless = Costless(self.seeker, bare, len(self.wants))
        before, allowed = len(self.seeker.pods), self.left
        try:
            found = self._place(0)
            self.seeker.looks_left -= (allowed - self.left) * len(self.numbers)
            self.is_cut = self.left < 0 or self.costless.is_cut
            if found:
                self._put_near(before)
        finally:
            for binding in self.held:
                del binding.users[HELD]
            undo(self.hardware, self.held)
        return found

    def _keep(self, numbers: Collection[int]) -> None:
        """Search these nodes alone."""
        self.numbers = [number for number in self.numbers if number in numbers]
        for ground, known in self.numbers_of.items():
            self.numbers_of[ground] = [number for number in known if number in numbers]

    def _has_enough(self) -> bool:
        """A quick no: fewer places or leaves than wanted, wherever they are."""
        counts: dict[Ground, int] = {}
        for want in self.wants:
            if want.kind.gpus:
                counts[want.grounds[0]] = counts.get(want.grounds[0], 0) + 1
        together: dict[tuple[int, int], list[Ground]] = {}
        for ground, count in counts.items():
            if not may_hold_all(ground, count):
                return False
            together.setdefault((id(ground.bound), id(ground.empty)), []).append(ground)
        for grounds in together.values():
            idle, most = _room(grounds)
            if sum(ground.kind.gpus * counts[ground] for ground in grounds) > idle:
                return False
            if sum(ground.least * counts[ground] for ground in grounds) > most:
                return False
        return True

    def _place(self, at: int) -> bool:
        if at == len(self.wants):
            return True
        self._step(at + len(self.held))
        if self.left < 0:
            return False
        look = self._looks.now()
        key = (at, look.all, self.costless.changed(self.known), self._quota_left())
        if key in self._failed:
            return False
        want, before = self.wants[at], len(self.seeker.pods)
        for machine in self._for_nothing(want.kind):
            self.seeker.put_for_nothing(want.name, want.kind, machine)
            if self._place(at + 1):
                return True
            self.seeker.undo(before)
        tried: set[object] = set()
        for ground in want.grounds:
            for number in self.numbers_of[ground]:
                state = self.hardware.states[number]
                like = look.of[number]
                if like in tried or not ground.takes(state):
                    continue
                tried.add(like)
                if self._bind_enough(at, ground, state, (-1, 0)):
                    return True
        if self.left >= 0:
            self._failed.add(key)
        return False

    def _for_nothing(self, kind: Kind) -> Iterable[Machine]:
        """Machines on which such a pod costs no GPU."""
        if kind.gpus:
            return ()
        if kind.costs_nothing:
            return self.costless.now(kind)
        return pinned_machines(self.seeker, kind)[: None if kind.ports else 1]

    def _step(self, depth: int) -> None:
        """None is left where so many calls would be inside one another."""
        self.left = self.left - 1 if depth <= SEARCH_DEPTH else -1
        self.hardware.steps += 1

    def _quota_left(self) -> tuple[int, ...]:
        """The same leaves may be bound as one cell or as several."""
        return tuple(self.hardware.unbound.get(self.seeker.owner or "", {}).values())

    def _bind_enough(
        self, at: int, ground: Ground, state: SlotState, after: tuple[int, int]
    ) -> bool:
        leaves = _leaves_in_bound(ground, state)
        if leaves:
            before = len(self.seeker.pods)
            ground.take(state, self.wants[at].name, leaves)
            if self._place(at + 1):
                return True
            self.seeker.undo(before)
            if ground.needs[state.sort] == ground.kind.gpus or not _is_shared(ground, state):
                return False  # else it may be charged leaves that guests use, in other cells
        owner = ground.owner
        if owner is None or ground.empty is None:
            return False
        room = state.usable & ~state.charged
        ways = list(ways_to_bind(self.hardware, owner, state, room))
        tried: set[object] = set()
        for quota, cell, part in ways:
            order = (quota.level, part.mask if part is not None else state.slot.shape.full)
            like = quota.path, None if part is None else self._looks.of_part(state, part)
            if order <= after or like in tried:
                continue
            tried.add(like)
            self.left -= 1
            self.hardware.steps += 1
            if self.left < 0:
                return False
            binding = self.hardware.bind(Binding(owner, quota, cell, part))
            binding.users[HELD] = 1
            self.held.append(binding)
            if self._bind_enough(at, ground, state, order):
                return True
            self.held.pop()
            del binding.users[HELD]
            self.hardware.unbind(binding)
        return False

    def _put_near(self, before: int) -> None:
        """The same nodes and cells, and in them the nearest leaves."""
        pods = self.seeker.pods[before:]
        self.seeker.undo(before)
        grounds = {want.name: want.grounds for want in self.wants}
        for pod in pods:
            if pod.state is None:
                self.seeker.put_for_nothing(pod.name, pod.kind, pod.machine)
                continue
            number = pod.state.slot.number
            ground = next(g for g in grounds[pod.name] if number in self.numbers_of[g])
            leaves = _leaves_in_bound(ground, pod.state)
            assert leaves, pod.name
            ground.take(pod.state, pod.name, leaves)


def _least(want: Want) -> int:
    return min((ground.least for ground in want.grounds), default=0)


def _is_shared(ground: Ground, state: SlotState) -> bool:
    """Leaves that could be charged are in use."""
    return state.usable & ~state.charged & ground.hardware.used(state) != 0


def _leaves_in_bound(ground: Ground, state: SlotState) -> int:
    """The nearest leaves for one pod in what is bound already; those that it is charged beside its
    GPUs where guests are, if any are. 0: there are not enough.
    """
    pool = state.usable
    if ground.owner is not None:
        pool &= ~state.charged & state.bound.get(ground.owner, 0)
    idle = pool & ~ground.hardware.used(state)
    pick = state.slot.shape.pick(idle, ground.kind.gpus)
    if pick is None:
        return 0
    leaves, need = pick.leaves, ground.needs[state.sort]
    for rest in (pool & ~idle, idle & ~leaves):
        while rest and leaves.bit_count() < need:
            leaves |= rest & -rest
            rest &= rest - 1
    return leaves if leaves.bit_count() == need else 0


def _room(grounds: Sequence[Ground]) -> tuple[int, int]:
    """Idle leaves, and leaves that may be charged, on nodes that take a pod of any of these kinds,
    which are in the same regions: at the most.
    """
    ground = grounds[0]
    hardware, owner = ground.hardware, ground.owner
    idle = most = fresh = 0
    for number in ground.numbers():
        state = hardware.states[number]
        if not any(each.takes(state) for each in grounds):
            continue
        pool = ground.reach(state) & ~(state.charged if owner is not None else 0)
        idle += (pool & ~hardware.used(state)).bit_count()
        if owner is not None:
            new = (pool & ~state.bound.get(owner, 0)).bit_count()
            most, fresh = most + pool.bit_count() - new, fresh + new
    if owner is None:
        return idle, idle
    if fresh:
        left = hardware.unbound[owner]
        unbound = sum(
            left[quota.path] * quota.chain.leaves(quota.level)
            for quota in hardware.owning.quotas[owner]
            if quota.chain.leaf == ground.gpu_type
        )
        most += min(fresh, unbound)
    return idle, most
