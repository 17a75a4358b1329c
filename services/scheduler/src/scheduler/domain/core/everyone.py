"""All that wait, in order, without a look at each of them: those of one user, virtual cluster and
class are in order already, and what comes between them is their users' ranks alone.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge, nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from scheduler.domain.core.holdings import Order
from scheduler.domain.core.ordering import Ordering, Rank, class_rank
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.queue import Place

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster


EXTRAS: tuple[Order, ...] = tuple(
    ((class_rank(is_opportunistic=each, is_extra=True),), "") for each in (False, True)
)
"""By class: before all by which its gangs grow, and after all its others."""


@dataclass(slots=True)
class Waiting:
    """Gangs of one user, virtual cluster and class that wait, in order. ``of_user``: his ranks, by
    the policies that are of users. ``count``: of them, without what gangs grow by, which comes
    after them.
    """

    ordering: Ordering
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


class Everyone:
    """All of them, as long as nothing changes. ``of_places``: by virtual cluster and class;
    ``count``: how many wait, or have a reservation. What gangs grow by does not count, nor is it
    named.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self.of_places: defaultdict[Place, list[Waiting]] = defaultdict(list)
        self.count = len(cluster.reserved)
        ordering = cluster.ordering
        of_user: tuple[float, ...] = ()
        for (virtual_cluster, is_opportunistic, _), orders in cluster.queue.orders.items():
            if ordering.has_users:
                of_user = cluster.usage.ranks(cluster.gangs[orders[0][1]], cluster.now)
            count = bisect_left(orders, EXTRAS[is_opportunistic])
            of_place = self.of_places[owner_of(virtual_cluster), is_opportunistic]
            of_place.append(Waiting(ordering, orders, of_user, count))
            self.count += count
        self._reserved = sorted(cluster.rank_of(cluster.gangs[gang]) for gang in cluster.reserved)

    def first(self, limit: int) -> list[str]:
        """The first of them, in order."""
        found = merge(self._reserved, *(each.ranks(each.count) for each in self._waiting()))
        return [gang for _, gang in islice(found, limit)]

    def before(self, rank: Rank, limit: int) -> tuple[int, list[str]]:
        """How many of them come before a gang of this rank, and the first of these."""
        ranks = [each for each in self._reserved if each < rank]
        count = len(ranks)
        for each in self._waiting():
            found = each.before(rank)
            count += found
            ranks += each.ranks(min(found, limit))
        return count, [gang for _, gang in nsmallest(limit, ranks)]

    def _waiting(self) -> Iterator[Waiting]:
        for of_place in self.of_places.values():
            yield from of_place
