"""Whether the books are right: what gangs use and are charged is worked out again from their
placements alone, and compared with what is kept as they come and go.

It goes gang by gang and node by node, between cycles. What changes meanwhile is looked at last.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from scheduler.domain.core.binding import Binding, cell_key
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.config import ALL_TYPES
from scheduler.domain.core.extras import EXTRA
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.model import GangClass
from scheduler.domain.core.owning import owner_of

QUOTA, CELLS, GPUS, CLASS = "quota", "cells", "gpus", "class"
"""Books: leaves that are charged, bound cells, GPUs in use, who could have to leave."""

NOBODY_KNOWN = ""
"""The gang of a drift of which nobody can be named."""

SUSPECTS = 3
"""Gangs that are named where a sum is wrong and it can't be told for which of them."""

Key: TypeAlias = tuple[tuple[str, str], int]
"""Of a sum: whose quota, of which GPU type; and the rank."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A book is wrong: ``where`` it ``has`` so many, and ``should`` have others, as ``gang`` is
    placed.
    """

    gang: str
    book: str
    where: str
    has: int
    should: int

    @property
    def text(self) -> str:
        """For people."""
        return (
            f"{self.book} of {self.where}: accounting has {self.has}, placements have {self.should}"
        )


@dataclass(slots=True)
class Held:
    """What a gang has by its placements. ``charged``, ``used``: leaves by node's number; ``cells``:
    how many of its pods are in each bound cell; ``sums``: leaves charged.
    """

    charged: dict[int, int] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    cells: dict[Binding, int] = field(default_factory=dict)
    sums: dict[Key, int] = field(default_factory=dict)
    is_doubled: bool = False


def audited(cluster: Cluster) -> list[Drift]:
    """All in one go, between two cycles."""
    steps = audit(cluster)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[Drift] = end.value
            return found


def audit(cluster: Cluster) -> Generator[None, None, list[Drift]]:
    """What is wrong. It may be left at each ``yield`` for one or more whole cycles."""
    drifts: list[Drift] = []
    charges = cluster.charges
    charges.touched = set()
    try:
        sums: dict[Key, int] = {}
        counted: dict[str, dict[Key, int]] = {}
        for gang in list(cluster.gangs):
            live = cluster.gangs.get(gang)
            if live is not None:
                held = derive(cluster, live)
                drifts += _of_gang(cluster, live, held)
                if held.sums:
                    counted[gang] = held.sums
                    _sum_up(sums, held.sums, 1)
                yield
        for state in cluster.hardware.states:
            drifts += _of_node(cluster, state)
            yield
        for gang in charges.touched:  # they have come, gone or changed since they were looked at
            _sum_up(sums, counted.pop(gang, {}), -1)
            live = cluster.gangs.get(gang)
            if live is not None:
                _sum_up(sums, derive(cluster, live).sums, 1)
    finally:
        charges.touched = None
    drifts += _of_sums(cluster, sums, drifts)
    drifts += _of_cells(cluster)
    return drifts


def by_gang(drifts: Iterable[Drift]) -> dict[str, list[Drift]]:
    """Of each gang, of pods that it has grown by too, in the order in which they were found."""
    found: dict[str, list[Drift]] = {}
    for drift in drifts:
        found.setdefault(drift.gang.partition(EXTRA)[0], []).append(drift)
    return found


def derive(cluster: Cluster, live: Live) -> Held:
    """From the gang's class, its pods and what is kept for it."""
    found = Held()
    is_charged = live.gang_class is GangClass.GUARANTEED and not live.is_leaving
    for name, pod in live.pods.items():
        state = pod.state
        if state is not None and name not in live.reserved and pod.gpus:
            _add(found, found.used, state, pod.gpus)
        if is_charged:
            _charge(found, live, pod)
    kept = cluster.reservations.by_gang.get(live.id)
    for pod in () if kept is None else kept.held:
        _charge(found, live, pod)
    return found


def _charge(found: Held, live: Live, pod: Pod) -> None:
    state, bindings = pod.state, pod.bindings
    for binding in bindings:
        found.cells[binding] = found.cells.get(binding, 0) + 1
    if state is None or not pod.leaves:
        return
    _add(found, found.charged, state, pod.leaves)
    if not bindings:
        key = live.owner, state.gpu_type
    elif bindings[0].quota is None:
        key = bindings[0].owner, ""
    else:
        key = bindings[0].owner, state.gpu_type
    leaves, borrower = pod.leaves.bit_count(), live.gang.virtual_cluster
    _sum_up(found.sums, {(key, live.rank): leaves}, 1)
    if bindings and bindings[0].quota is not None and key[0] != owner_of(borrower):
        for name in (key[1], ALL_TYPES):
            _sum_up(found.sums, {_lent(key[0], name): leaves, _borrowed(borrower, name): leaves}, 1)


def _lent(owner: str, gpu_type: str) -> Key:
    return (f"lent by {owner}", gpu_type), 0


def _borrowed(virtual_cluster: str, gpu_type: str) -> Key:
    return (f"borrowed by {owner_of(virtual_cluster)}", gpu_type), 0


def _sum_up(sums: dict[Key, int], some: Mapping[Key, int], times: int) -> None:
    for key, leaves in some.items():
        sums[key] = sums.get(key, 0) + times * leaves


def _add(found: Held, masks: dict[int, int], state: SlotState, leaves: int) -> None:
    number = state.slot.number
    before = masks.get(number, 0)
    if before & leaves:
        found.is_doubled = True
    masks[number] = before | leaves


# One gang: what it has is in the books.


def _of_gang(cluster: Cluster, live: Live, held: Held) -> Iterator[Drift]:
    states, gang = cluster.hardware.states, live.id
    for book, masks in ((QUOTA, held.charged), (GPUS, held.used)):
        for number, mask in masks.items():
            state = states[number]
            known = (state.chargers if book is QUOTA else state.holders).get(gang, 0)
            if known != mask:
                name = state.slot.machine
                yield Drift(gang, book, name, known.bit_count(), mask.bit_count())
    for binding, pods in held.cells.items():
        if binding.users.get(gang, 0) != pods:
            yield Drift(gang, CELLS, binding.address, binding.users.get(gang, 0), pods)
        if cluster.hardware.bindings.get(cell_key(binding.cell, binding.part)) is not binding:
            yield Drift(gang, CELLS, binding.address, 0, 1)
    charged = sum(mask.bit_count() for mask in held.charged.values())
    if live.booked != charged:
        yield Drift(gang, QUOTA, live.gang.virtual_cluster, live.booked, charged)
    if held.is_doubled:
        yield Drift(gang, GPUS, "two of its pods", 1, 0)
    yield from _of_class(cluster, live)


def _of_class(cluster: Cluster, live: Live) -> Iterator[Drift]:
    """It is among those of its virtual cluster and rank, or among the guests, or in no set."""
    charges, gang = cluster.charges, live.id
    is_there = bool(live.pods) and not live.is_leaving
    is_guest = live.gang_class is not GangClass.GUARANTEED
    mine = charges.guaranteed.get(live.owner, {}).get(live.rank, ())
    for where, among, should in (
        ("guests", charges.guests, is_there and is_guest),
        (f"{live.owner}, rank {live.rank}", mine, is_there and not is_guest),
    ):
        if (gang in among) != should:
            yield Drift(gang, CLASS, where, int(not should), int(should))


# One node: nobody else is in the books.


def _of_node(cluster: Cluster, state: SlotState) -> Iterator[Drift]:
    name = state.slot.machine
    for book, by_gang, total in (
        (QUOTA, state.chargers, state.charged),
        (GPUS, state.holders, state.held | state.leaving),
    ):
        together, worst = 0, NOBODY_KNOWN
        for gang, mask in by_gang.items():
            worst = gang if together & mask or mask & ~total else worst
            together |= mask
            if not _is_there(cluster, gang, state, book):
                yield Drift(gang, book, name, mask.bit_count(), 0)
        if together != total or worst:
            yield Drift(worst, book, name, total.bit_count(), together.bit_count())


def _is_there(cluster: Cluster, gang: str, state: SlotState, book: str) -> bool:
    live = cluster.gangs.get(gang)
    if live is None:
        return False
    pods = [pod for pod in live.pods.values() if pod.state is state]
    if book is GPUS:
        return any(pod.gpus for pod in pods)
    kept = cluster.reservations.by_gang.get(gang)
    if kept is not None and any(pod.state is state for pod in kept.held):
        return True
    is_charged = live.gang_class is GangClass.GUARANTEED and not live.is_leaving
    return is_charged and any(pod.leaves for pod in pods)


# All together.


def _of_sums(cluster: Cluster, sums: Mapping[Key, int], found: Iterable[Drift]) -> Iterator[Drift]:
    """Of whom it is known already is not said again; who is gone and left something is."""
    charges = cluster.charges
    for gang, leaves in charges.left_over.items():
        yield Drift(gang, QUOTA, "a gang that is over", leaves, 0)
    is_explained = bool(charges.left_over) or any(drift.book in (QUOTA, CLASS) for drift in found)
    books = {(key, rank): n for key, ranks in charges.leaves.items() for rank, n in ranks.items()}
    books |= {_lent(owner_of(vc), name): n for (vc, name), n in charges.loans.lent.items()}
    books |= {_borrowed(vc, name): n for (vc, name), n in charges.loans.borrowed.items()}
    for key in sorted(books.keys() | sums.keys()):
        has, should = books.get(key, 0), sums.get(key, 0)
        if has != should:
            (owner, leaf), rank = key
            where = f"{owner} {leaf}".strip() + f", rank {rank}"
            names = [] if is_explained else _suspects(cluster, key, has - should)
            yield from (Drift(name, QUOTA, where, has, should) for name in names)


def _suspects(cluster: Cluster, key: Key, off: int) -> list[str]:
    """Gangs that are charged as much as the sum is off, else any in it."""
    among = [each for each in cluster.gangs.values() if key in derive(cluster, each).sums]
    same = [each.id for each in among if each.booked == abs(off)]
    return same[:SUSPECTS] or [each.id for each in among[:SUSPECTS]] or [NOBODY_KNOWN]


def _of_cells(cluster: Cluster) -> Iterator[Drift]:
    """Cells that are bound and to be bound are as many as each owns, and all are used."""
    hardware = cluster.hardware
    bound: Counter[tuple[str, str]] = Counter()
    for binding in hardware.bindings.values():
        if binding.quota is None:
            continue
        bound[binding.owner, binding.quota.path] += 1
        gone = [gang for gang in binding.users if gang not in cluster.gangs]
        for gang in gone or ([] if binding.users else [NOBODY_KNOWN]):
            yield Drift(gang, CELLS, binding.address, binding.users.get(gang, 1), 0)
    for owner, quotas in hardware.owning.quotas.items():
        for quota in quotas:
            has, should = hardware.unbound[owner][quota.path], quota.count
            should -= bound[owner, quota.path]
            if has != should:
                yield Drift(NOBODY_KNOWN, CELLS, f"{owner} {quota.path}, unbound", has, should)
