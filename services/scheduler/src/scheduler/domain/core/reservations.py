"""What is kept for the first gang of a virtual cluster that can't start: cells, and a time.

The leaves of a reservation that nobody is charged are charged to its gang, which uses none of their
GPUs: others of its virtual cluster find them taken, and opportunistic gangs may use them meanwhile.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from scheduler.domain.core.charges import Charges
from scheduler.domain.core.covering import bind_exactly, cover, uncover
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.machines import SlotState, Take
from scheduler.domain.core.model import CellUse, Kind, NodeGpus, RestoredReservation
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.reservation import Leaves, Reservation, leaves_at
from scheduler.domain.core.wanting import free_elsewhere, short_of

NOTHING = Kind()


class Reservations:
    """At most one for each virtual cluster and chain.

    ``versions``: by owner, raised when more is kept, or other cells or until another time, and
    ``version`` with each; ``looked``: in which state, and under which ``version``, it was last seen
    to that all is kept that should be; ``full``: in which state, and under which of
    `Queue.changes`, each chain had one.
    ``changed``: gangs for which something else may be kept than before, until the caller clears it.
    ``set_rank``: as `Cluster` has it. ``passers``: by the gang on whose kept cells they are, those
    that should be gone in time.
    """

    def __init__(
        self, hardware: Hardware, charges: Charges, set_rank: Callable[[Live, int], None]
    ) -> None:
        self.hardware = hardware
        self.charges = charges
        self.set_rank = set_rank
        self.by_gang: dict[str, Reservation] = {}
        self.versions: defaultdict[str, int] = defaultdict(int)
        self.version = 0
        self.looked: dict[str, tuple[int, ...]] = {}
        self.full: dict[str, tuple[int, ...]] = {}
        self.changed: set[str] = set()
        self.passers: dict[str, dict[Live, None]] = {}
        self._numbered = 0
        self._by_owner: dict[str, list[Reservation]] = {}

    def of(self, owner: str) -> list[Reservation]:
        """An owner's, the oldest first."""
        return self._by_owner.get(owner, [])

    def exported(self) -> list[RestoredReservation]:
        """All that is kept of them, the oldest first."""
        return [self.exported_of(each) for each in self.by_gang.values()]

    def exported_of(self, reservation: Reservation) -> RestoredReservation:
        """All that is kept of it."""
        return RestoredReservation(
            reservation.live.id,
            reservation.cells(self.hardware),
            reservation.starts_at,
            reservation.since,
            reservation.bound(),
            reservation.charged_gpus(self.hardware),
            reservation.number,
            reservation.patient_until,
        )

    def restore(self, live: Live, restored: RestoredReservation) -> bool:
        """Keep them again; False: some of them are there no longer."""
        leaves = self._leaves(restored.cells)
        held = None if restored.held is None else self._leaves(restored.held)
        if leaves is None or (held is None) != (restored.held is None):
            return False
        reservation = Reservation(live, leaves, restored.starts_at, restored.since)
        reservation.number, reservation.patient_until = restored.number, restored.patient_until
        self.add(reservation, restored.bound, held)
        return True

    def _leaves(self, cells: Iterable[NodeGpus]) -> Leaves | None:
        """None where some are not there."""
        leaves: dict[int, int] = {}
        for node, gpus in cells:
            machine = self.hardware.machines.get(node)
            found = 0
            for state in () if machine is None else machine.slots:
                if mask := state.slot.mask_of(gpus):
                    leaves[state.slot.number] = mask
                    found += mask.bit_count()
            if found < len(gpus):
                return None
        return leaves

    def owners(self) -> Iterable[str]:
        """Virtual clusters that have some."""
        return self._by_owner

    def next_at(self, now: float) -> float | None:
        """When the next one's time comes, or somebody should be gone; None: never."""
        times = [each.starts_at for each in self.by_gang.values()]
        if self.passers:
            times += [
                leaves_at(other, each)
                for gang, each in self.by_gang.items()
                for other in self.passers.get(gang, ())
                if other.is_charged
            ]
        return min((at for at in times if at > now), default=None)

    def due(self, now: float) -> Iterator[Live]:
        """Gangs whose time has come, or for which somebody may have to leave from now on."""
        for gang, each in self.by_gang.items():
            late = (leaves_at(other, each) for other in self.passers.get(gang, ()))
            if each.starts_at <= now or any(each.tried_at < at <= now for at in late):
                each.tried_at = now
                yield each.live

    def overdue(self, live: Live, now: float) -> list[Live]:
        """Who should be gone from the cells that are kept for the gang, and is still there."""
        passers, own = self.passers.get(live.id), self.by_gang.get(live.id)
        if not passers or own is None:
            return []
        has_come = own.starts_at <= now
        return [
            each
            for each in passers
            if each.is_charged and (has_come or leaves_at(each, own) <= now)
        ]

    def passes(self, live: Live, gang: str | None) -> None:
        """The gang is on cells that are kept for another, as it should be gone in time."""
        live.passed = gang
        if gang is not None:
            self.passers.setdefault(gang, {})[live] = None

    def forget(self, live: Live) -> None:
        """The gang is there no longer."""
        if live.passed is not None and live in (passers := self.passers.get(live.passed, {})):
            del passers[live]
            if not passers:
                del self.passers[live.passed]
            live.passed = None

    def add(
        self,
        reservation: Reservation,
        cells: Iterable[CellUse] = (),
        leaves: Leaves | None = None,
    ) -> None:
        """It is kept from now on, as far as nobody has it yet; in these cells if that can be.
        ``leaves``: no others of it for now.
        """
        live = reservation.live
        reservation.number = reservation.number or self._numbered + 1
        self._numbered = max(self._numbered, reservation.number)
        self.by_gang[live.id] = reservation
        self._by_owner.setdefault(live.owner, []).append(reservation)
        self.is_another(live.owner)
        self.changed.add(live.id)
        self.hold(reservation, cells, leaves)

    def remove(self, reservation: Reservation) -> None:
        """It is over: what it was charged is free for others."""
        live = reservation.live
        self.lift(reservation)
        del self.by_gang[live.id]
        self._by_owner[live.owner].remove(reservation)
        if not self._by_owner[live.owner]:
            del self._by_owner[live.owner]
        self.is_another(live.owner)
        self.changed.add(live.id)

    def is_another(self, owner: str) -> None:
        """More is kept for an owner's gangs, or other cells, or until another time."""
        self.versions[owner] += 1
        self.version += 1

    def hold_again(self, reservation: Reservation, held: Leaves) -> None:
        """`hold` after `lift`; nobody is woken where it is what was ``held`` before."""
        owner = reservation.live.owner
        before = self.versions[owner]
        self.hold(reservation)
        if reservation.charged_leaves() == held:
            self.version -= self.versions[owner] - before
            self.versions[owner] = before

    def hold(
        self,
        reservation: Reservation,
        cells: Iterable[CellUse] = (),
        only: Leaves | None = None,
    ) -> None:
        """Charge what nobody is charged of it, in these cells if that can be. Where its virtual
        cluster has no quota left for some, as that is in cells elsewhere, what is free in as many
        of these is charged: else others would have them for ever.
        """
        hardware, live = self.hardware, reservation.live
        before, known = _as_is(reservation), (self.version, self.versions[live.owner])
        versions = hardware.versions()
        beside = reservation.beside()
        for pod in beside:
            self._give_back(reservation, pod)
        bound = [bind_exactly(hardware, live.owner, use.quota, use.cell) for use in cells]
        for number, leaves in sorted((reservation.leaves if only is None else only).items()):
            state = hardware.states[number]
            for kind, owner, mask in self._parts(live, state, leaves & ~state.charged):
                if not self._charge(reservation, kind, owner, state, mask):
                    for leaf in _each(mask):
                        self._charge(reservation, kind, owner, state, leaf)
        uncover(hardware, (binding for binding in bound if binding is not None))
        reservation.short = short_of(hardware, reservation)
        if reservation.short and only is None:
            found = free_elsewhere(hardware, live.owner, reservation.leaves, reservation.short)
            for state, mask in list(found):
                self._charge(reservation, NOTHING, live.owner, state, mask)
        if _as_is(reservation) != before:
            self.is_another(live.owner)
        elif beside:  # nobody is woken
            hardware.unchanged(versions)
            self.version, self.versions[live.owner] = known
        self.lend(reservation)

    def _charge(
        self, reservation: Reservation, kind: Kind, owner: str, state: SlotState, mask: int
    ) -> bool:
        """False, with nothing changed: the owner has no quota left for these leaves."""
        live, bindings = reservation.live, cover(self.hardware, owner, state, mask)
        if bindings is None:
            return False
        take = Take(0, (0,) * len(state.machine.free))
        pod = Pod("", live.id, kind, state.machine, take, state, mask, 0)
        self.hardware.recharge(pod, bindings)
        self.charges.count(live, pod, 1)
        reservation.held.append(pod)
        self.changed.add(live.id)
        return True

    def _give_back(self, reservation: Reservation, pod: Pod) -> None:
        reservation.held.remove(pod)
        self.charges.count(reservation.live, pod, -1)
        self.hardware.discharge(pod)
        self.changed.add(reservation.live.id)

    def lend(self, reservation: Reservation) -> None:
        """Who would have to leave its cells for its gang leaves them for nobody who comes after
        that.
        """
        rank, gangs = reservation.live.gang.priority, self.charges.gangs
        for number, leaves in reservation.leaves.items():
            state = self.hardware.states[number]
            if leaves & state.charged:
                for gang, mask in state.chargers.items():
                    other = gangs[gang]
                    # Who only has cells kept for it has nothing that it could leave.
                    if mask & leaves and other.rank < rank and not other.is_kept_for:
                        reservation.lent[other] = None
        self.lend_again(reservation, reservation.lent)

    def lend_again(self, reservation: Reservation, lent: dict[Live, None]) -> None:
        """The same, of those that it was before."""
        rank, reservation.lent = reservation.live.gang.priority, lent
        for other in lent:
            if other.rank < rank:
                self.set_rank(other, rank)

    def call_in(self, reservation: Reservation) -> None:
        """They may have to leave for others too, for the moment."""
        lent, reservation.lent = reservation.lent, {}
        for other in lent:
            others = (r for r in self.of(other.owner) if other in r.lent)
            kept = max((each.live.gang.priority for each in others), default=None)
            rank = other.usual_rank if kept is None else kept
            if self.charges.gangs.get(other.id) is other and other.rank != rank:
                self.set_rank(other, rank)

    def lift(self, reservation: Reservation) -> None:
        """It is charged nothing for the moment."""
        self.call_in(reservation)
        for pod in reservation.held[::-1]:
            self._give_back(reservation, pod)

    @contextmanager
    def uncounted(self, owner: str) -> Iterator[None]:
        """What is kept for an owner's gangs is charged to nobody, and who would have to leave it is
        by its own rank: in the numbers of `Charges` alone, for the moment.
        """
        kept = self.of(owner)
        held = [(each.live, pod) for each in kept for pod in each.held]
        lent = {other: other.rank for each in kept for other in each.lent if other.is_charged}
        for live, pod in held:
            self.charges.count(live, pod, -1)
        for other in lent:
            self._recount(other, other.usual_rank)
        try:
            yield
        finally:
            for other, rank in lent.items():
                self._recount(other, rank)
            for live, pod in held:
                self.charges.count(live, pod, 1)

    def _recount(self, live: Live, rank: int) -> None:
        for pod in live.pods.values():
            self.charges.count(live, pod, -1)
        live.rank = rank
        for pod in live.pods.values():
            self.charges.count(live, pod, 1)

    def left(self, owner: str) -> int:
        """Leaves that are charged for what is kept."""
        held = (pod for each in self.of(owner) for pod in each.held if pod.kind.pin is None)
        return sum(pod.leaves.bit_count() for pod in held)

    def most(self, owner: str) -> int:
        """Leaves that others might have if nothing were kept for an owner, at the most."""
        lent = {other for each in self.of(owner) for other in each.lent}
        pods = [pod for other in lent for pod in other.pods.values()]
        return self.left(owner) + sum(pod.leaves.bit_count() for pod in pods)

    def _parts(self, live: Live, state: SlotState, mask: int) -> Iterator[tuple[Kind, str, int]]:
        """Of leaves those in pinned cells that the gang wants, and the others."""
        for pin in sorted({r.kind.pin for r in live.waiting if r.kind.pin is not None}):
            pinned = mask & state.bound.get(pin_owner(pin), 0)
            mask &= ~pinned
            if pinned:
                yield Kind(pin=pin), pin_owner(pin), pinned
        if mask:
            yield NOTHING, live.owner, mask


def _as_is(reservation: Reservation) -> tuple[Leaves, Mapping[str, int]]:
    return reservation.charged_leaves(), reservation.short


def _each(leaves: int) -> Iterator[int]:
    while leaves:
        yield leaves & -leaves
        leaves &= leaves - 1
