"""What virtual clusters lend one another: cells of idle quota, to gangs that may borrow, on
sufferance and within limits.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from scheduler.domain.core.config import ALL_TYPES, VirtualCluster

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster
    from scheduler.domain.core.holdings import Live
    from scheduler.domain.core.queue import Line, Queue, Stamp

NO_LIMIT = 1 << 60
"""More leaves than there are."""

Amounts = defaultdict[tuple[str, str], int]
"""By virtual cluster and GPU type (`ALL_TYPES`: of all together): leaves."""


class Lendable(NamedTuple):
    """What a virtual cluster could lend another now: leaves of all GPU types, and by type."""

    leaves: int
    by_type: Mapping[str, int]


class Loans:
    """``lent``, ``borrowed``: by whom. ``gangs``: those that have borrowed cells. ``lines``: of
    waiting gangs that may borrow; ``_failed``: those to whom nobody could lend, as things are
    ``_under`` these versions.
    """

    def __init__(self, virtual_clusters: Mapping[str, VirtualCluster]) -> None:
        self.lent: Amounts = defaultdict(int)
        self.borrowed: Amounts = defaultdict(int)
        self.gangs: set[str] = set()
        self.lines: dict[Line, None] = {}
        self._lending = {name: vc.lending_limit for name, vc in virtual_clusters.items()}
        self._borrowing = {name: vc.borrowing_limit for name, vc in virtual_clusters.items()}
        self._failed: set[tuple[object, ...]] = set()
        self._under: Stamp = ()

    def note(self, live: "Live", *, is_charged: bool) -> None:
        """Whether the gang has borrowed cells may have changed."""
        (self.gangs.add if is_charged else self.gangs.discard)(live.id)

    def count(self, live: "Live", gpu_type: str, leaves: int) -> None:
        """The gang has borrowed so many leaves more."""
        lender, borrower = live.lender or "", live.gang.virtual_cluster
        for name in (gpu_type, ALL_TYPES):
            self.lent[lender, name] += leaves
            self.borrowed[borrower, name] += leaves

    def lent_by(self, name: str) -> int:
        """Leaves of its quota that a virtual cluster has lent."""
        return self.lent.get((name, ALL_TYPES), 0)

    def borrowed_by(self, name: str) -> int:
        """Leaves of others' quota that a virtual cluster's gangs have."""
        return self.borrowed.get((name, ALL_TYPES), 0)

    def lendable(self, lender: str, borrower: str, idle: Mapping[str, int]) -> Lendable:
        """``idle``: by GPU type, leaves of the lender's quota that nobody is charged."""
        return self._within(lender, borrower, idle, self.lent, self.borrowed)

    def ever_lendable(self, lender: str, borrower: str, owned: Mapping[str, int]) -> Lendable:
        """What could be lent if nothing were: of all that the lender owns."""
        return self._within(lender, borrower, owned, {}, {})

    def _within(
        self,
        lender: str,
        borrower: str,
        idle: Mapping[str, int],
        *taken: Mapping[tuple[str, str], int],
    ) -> Lendable:
        """As far as limits go, of which this much is taken by what is lent, and borrowed."""
        lent, borrowed = taken
        lending, borrowing = self._lending.get(lender, {}), self._borrowing.get(borrower, {})

        def left(name: str) -> int:
            may_lend = lending.get(name, NO_LIMIT) - lent.get((lender, name), 0)
            return min(may_lend, borrowing.get(name, NO_LIMIT) - borrowed.get((borrower, name), 0))

        by_type = {name: max(0, min(leaves, left(name))) for name, leaves in idle.items()}
        return Lendable(max(0, min(sum(by_type.values()), left(ALL_TYPES))), by_type)

    # Who waits for a loan.

    def due(self, queue: "Queue", state: "Stamp", below: float) -> "list[Line]":
        """Lines of classes below this one to whom somebody might lend. ``state``: what could help
        them, as versions.
        """
        if state != self._under:
            self._under = state
            self._failed.clear()
        for line in [line for line in self.lines if queue.lines.get(line.key) is not line]:
            del self.lines[line]
        return [
            line
            for line in self.lines
            if line.waiting[0][0][0] < below and not self.has_failed(line)
        ]

    def has_failed(self, line: "Line") -> bool:
        """Nobody can lend to gangs like these before something becomes free."""
        return _wish(line) in self._failed

    def fail(self, line: "Line") -> None:
        """Nobody could lend to the first of the line."""
        self._failed.add(_wish(line))


def _wish(line: "Line") -> tuple[object, ...]:
    """What a loan depends on: whose quota it is beside, what is wanted, what is near, on which
    nodes, and of what gang it is a part.
    """
    owner, _, shape, near, _, only, alone = line.key
    return owner, shape, near, only, alone


def set_lender(cluster: "Cluster", live: "Live", lender: str | None) -> None:
    """In whose quota a gang is that has no cells at the moment."""
    if live.lender != lender:
        live.set_lender(lender)
        returned(cluster, live)


def returned(cluster: "Cluster", live: "Live") -> None:
    """A gang has other cells than those that it had borrowed, or none."""
    cluster.charges.loans.gangs.discard(live.id)
    cluster.preemptions.moved(live)
    cluster.sort_in(live)


def total(leaves: Iterable[tuple[str, int]]) -> dict[str, int]:
    """By GPU type."""
    found: dict[str, int] = {}
    for name, count in leaves:
        found[name] = found.get(name, 0) + count
    return found
