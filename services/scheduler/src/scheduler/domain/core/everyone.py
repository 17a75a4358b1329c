"""All that wait, in order, without a look at each of them: those of one user, virtual cluster and
class are in order already, and what comes between them is their users' ranks alone.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge, nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from scheduler.domain.core.holdings import Live, Order
from scheduler.domain.core.ordering import Ordering, Rank, class_rank
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.queue import Place

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Waiting:
    """Gangs of one user, virtual cluster and class that wait, in order. ``of_user``: his ranks, by
    the policies that are of users. ``count``: of them, without what gangs grow by, which comes
    after them.
    """

    ordering: Ordering
    place: Place
    orders: Sequence[Order]
    of_user: tuple[float, ...]
    count: int

    def ranks(self, end: int) -> Iterator[Rank]:
        """Of the first ``end``."""
        return (self.rank(order) for order in islice(self.orders, end))

    def rank(self, order: Order) -> Rank:
        """The place of one of them among all, now."""
        return self.ordering.rank(order, self.of_user)

    def before(self, rank: Rank) -> int:
        """How many of them come before it."""
        return bisect_left(self.orders, rank, 0, self.count, key=self.rank)


def waiting(cluster: "Cluster") -> Iterator[Waiting]:
    """All of them."""
    ordering = cluster.ordering
    for (virtual_cluster, is_opportunistic, _), orders in cluster.queue.orders.items():
        of_user: tuple[float, ...] = ()
        if ordering.has_users:
            of_user = cluster.usage.ranks(cluster.gangs[orders[0][1]], cluster.now)
        place = owner_of(virtual_cluster), is_opportunistic
        extras = class_rank(is_opportunistic=is_opportunistic, is_extra=True)
        yield Waiting(ordering, place, orders, of_user, bisect_left(orders, ((extras,), "")))


def counted(cluster: "Cluster") -> int:
    """How many wait, or have a reservation; what gangs grow by does not count here, nor below."""
    return sum(each.count for each in waiting(cluster)) + len(cluster.reserved)


def first(cluster: "Cluster", limit: int) -> list[str]:
    """The first of them, in order."""
    found = merge(_reserved(cluster), *(each.ranks(each.count) for each in waiting(cluster)))
    return [gang for _, gang in islice(found, limit)]


def before(cluster: "Cluster", live: Live, limit: int) -> tuple[int, list[str]]:
    """How many of them come before a gang, and the first of these."""
    own = cluster.rank_of(live)
    ranks = [rank for rank in _reserved(cluster) if rank < own]
    count = len(ranks)
    for each in waiting(cluster):
        found = each.before(own)
        count += found
        ranks += each.ranks(min(found, limit))
    return count, [gang for _, gang in nsmallest(limit, ranks)]


def _reserved(cluster: "Cluster") -> list[Rank]:
    return sorted(cluster.rank_of(cluster.gangs[gang]) for gang in cluster.reserved)
