"""Waiting gangs that may borrow are placed in idle quota of another virtual cluster, at nobody's
cost; its own gangs make them leave before all others (docs/scheduling.md, "Borrowing").
"""

from collections.abc import Iterator, Sequence

from scheduler.domain.core.admitting import may_be_guest
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.groups import racks_near
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.keeping import unreserve
from scheduler.domain.core.loans import Lendable, total
from scheduler.domain.core.model import OPPORTUNISTIC, Decision, GangClass, Kind, Role
from scheduler.domain.core.names import wrong_name
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.passing import first_of, keep
from scheduler.domain.core.queue import Line, Stamp
from scheduler.domain.core.seeking import Kinds, Seeker
from scheduler.domain.core.starting import begin

LENDERS_TRIED = 8
"""Virtual clusters in whose quota room is sought for one gang, at the most."""

EVERYBODY = 9.0
"""Above the class of every gang (`Ordering.order`)."""


class LoanSeeker(Seeker):
    """Seeks places for what a gang waits for in what a virtual cluster could lend. ``together``:
    how many pods of each kind are on GPUs of one type at the least.
    """

    __slots__ = ("lendable", "together")

    def __init__(self, hardware: Hardware, live: Live, lender: str, lendable: Lendable) -> None:
        super().__init__(hardware, live.gang, owner_of(lender))
        self.lendable = lendable
        self.together: dict[Kind, int] = {}
        for role in live.waiting:
            pods, before = len(role.pods), self.together.get(role.kind)
            if before is None:
                self.together[role.kind] = pods
            elif len(role.kind.gpu_types) == 1:  # each other role has its own type
                self.together[role.kind] = before + pods
            else:
                self.together[role.kind] = min(pods, before)

    def types(self, kind: Kind) -> Sequence[str]:
        """Without such as too little could be lent of."""
        found, by_type = super().types(kind), self.lendable.by_type
        need = self._least(kind) * self.together.get(kind, 1)
        if not kind.gpus or not need:
            return found
        return [each for each in found if by_type.get(each, 0) >= need]

    def choices(self, kinds: Kinds) -> Iterator[Sequence[str]]:
        """Without such as too little could be lent of for all together."""
        by_type = self.lendable.by_type
        for types in super().choices(kinds):
            needs = total(
                (each, self._least(kind) * len(names))
                for (kind, names), each in zip(kinds, types, strict=True)
                if kind.gpus
            )
            if all(count <= by_type.get(name, 0) for name, count in needs.items()):
                yield types

    def _least(self, kind: Kind) -> int:
        """Leaves that one pod needs."""
        return max(self.hardware.demands.least_leaves(kind), kind.gpus)

    def borrow(self, roles: Sequence[Role]) -> bool:
        """Place all pods within the limits, or none."""
        if not self.place(roles):
            return False
        leaves = total(
            (pod.state.gpu_type, pod.leaves.bit_count()) for pod in self.pods if pod.state
        )
        by_type = self.lendable.by_type
        if sum(leaves.values()) <= self.lendable.leaves and all(
            count <= by_type.get(name, 0) for name, count in leaves.items()
        ):
            return True
        self.undo()
        return False


def may_borrow(live: Live) -> bool:
    """It may have all that it waits for, or more of what it has borrowed, of another's quota."""
    gang = live.gang
    if gang.priority == OPPORTUNISTIC or live.is_guest or may_be_guest(live):
        return False
    if live.lender is None and (live.pods or live.strangers):
        return False
    return all(role.kind.pin is None for role in live.waiting)


def lend(cluster: Cluster, below: float = EVERYBODY) -> Iterator[list[Decision]]:
    """Place waiting gangs of classes below this one that may borrow, in order, where somebody lends
    to them: when all others of these classes were tried.
    """
    loans, hardware = cluster.charges.loans, cluster.hardware
    due = loans.due(cluster.queue, _free(cluster), below)
    if due and cluster.is_keeping:  # what has become free is kept for their own first
        before = cluster.stamps.progress()
        for virtual_cluster in sorted(hardware.forest.quotas):
            if said := keep(cluster, owner_of(virtual_cluster)):
                yield said
        if cluster.stamps.progress() != before:
            return  # what is kept no longer may help their own: they are tried first
        due = loans.due(cluster.queue, _free(cluster), below)

    def woken() -> Sequence[Line]:
        nonlocal due
        lines, due = due, []
        return lines

    ranked = cluster.usage.ranked
    for line, name in cluster.queue.candidates(woken, loans.has_failed, cluster.rank, ranked):
        live = cluster.gangs[name]
        if cluster.policy.is_strict and first_of(cluster, live) is not live:
            continue
        versions = hardware.versions()
        is_right = may_borrow(live) and wrong_name(hardware, live) is None
        found = borrow(cluster, live) if is_right else None
        if found is None:
            hardware.unchanged(versions)
            loans.fail(line)
        yield found or []


def _free(cluster: Cluster) -> Stamp:
    """What could help those to whom nobody lends, as versions."""
    return cluster.hardware.usable_version, *cluster.stamps.progress()


def borrow(cluster: Cluster, live: Live) -> list[Decision] | None:
    """Place a gang on what another virtual cluster lends; None, with nothing changed, where nobody
    lends it enough.
    """
    found = seek_loan(cluster, live)
    if found is None:
        return None
    lender, seeker = found
    pods = seeker.pods
    cluster.queue.remove(live)
    unreserve(cluster, live)
    live.set_lender(lender)
    return begin(cluster, live, pods, GangClass.GUARANTEED, cluster.at)


def seek_loan(cluster: Cluster, live: Live) -> tuple[str, LoanSeeker] | None:
    """Who lends, and who has taken the places in thought."""
    near = racks_near(cluster, live) if live.pods or live.gang.group or live.extra_of else ()
    for lender, lendable in lenders(cluster, live)[:LENDERS_TRIED]:
        seeker = LoanSeeker(cluster.hardware, live, lender, lendable)
        seeker.near = near
        if seeker.borrow(live.waiting):
            return lender, seeker
    return None


def could_be_lent(cluster: Cluster, live: Live) -> bool:
    """Some other virtual cluster could lend the gang all that it wants, were it healthy and empty;
    or that can't be told within the bounds.
    """
    if not live.gang.is_borrowing or not may_borrow(live):
        return False
    hardware, loans = cluster.blank, cluster.charges.loans
    need, borrower = _least(cluster, live), live.gang.virtual_cluster
    for lender in sorted(hardware.forest.quotas.keys() - {borrower}):
        owner = owner_of(lender)
        owned = {n: hardware.owning.owned.get((owner, n), 0) for n in wanted_types(hardware, live)}
        lendable = loans.ever_lendable(lender, borrower, owned)
        if need <= lendable.leaves:
            seeker = LoanSeeker(hardware, live, lender, lendable)
            if seeker.could_place(live.waiting):
                return True
    return False


def _least(cluster: Cluster, live: Live) -> int:
    """Leaves that a gang needs at the least."""
    least = cluster.hardware.demands.least_leaves
    return sum(least(role.kind) * len(role.pods) for role in live.waiting)


def lenders(cluster: Cluster, live: Live) -> list[tuple[str, Lendable]]:
    """Virtual clusters that could lend a gang as much as it needs at the least: who could lend most
    of the GPU types that it wants first, then by name. What runs on a loan gets more of the same.
    """
    hardware, charges = cluster.hardware, cluster.charges
    types = wanted_types(hardware, live)
    need = _least(cluster, live)
    borrower, found = live.gang.virtual_cluster, list[tuple[str, Lendable]]()
    for lender in hardware.forest.quotas if live.lender is None else (live.lender,):
        if lender == borrower:
            continue
        idle = {name: charges.idle(owner_of(lender), name) for name in types}
        lendable = charges.loans.lendable(lender, borrower, idle)
        if need <= lendable.leaves:
            found.append((lender, lendable))
    return sorted(found, key=lambda each: (-each[1].leaves, each[0]))


def wanted_types(hardware: Hardware, live: Live) -> Sequence[str]:
    """GPU types that its pods may have; those without GPUs may be charged of any."""
    types: set[str] = set()
    for role in live.waiting:
        types.update((role.kind.gpus and role.kind.gpu_types) or hardware.gpu_types)
    return sorted(types)
