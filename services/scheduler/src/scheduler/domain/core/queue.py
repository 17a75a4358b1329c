"""Waiting workloads, in classes: of one virtual cluster those that want the same start alike, or
wait for the same reason.

Example: 400 jobs of one pod with 8 GPUs wait in `research` at priority 5. They are one class. Its
first fails, so none of the others is tried until something is free that could help.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter, le

from scheduler.domain.core.ends import bounds_of
from scheduler.domain.core.fit import ORDER, ROOM, No
from scheduler.domain.core.model import Reason
from scheduler.domain.core.node_models import Want
from scheduler.domain.core.nodes import Phase, Workload
from scheduler.domain.core.ordering import Order, Rank
from scheduler.domain.core.shortage import Wanted, wanted
from scheduler.domain.core.state import State
from scheduler.domain.core.usage import Usage

Key = tuple[object, ...]


@dataclass(eq=False)
class WorkloadClass:
    """``no``: what its first failed on; None while it is to be tried. ``helps``: whether what woke
    it can help it still; ``was``: what its first failed on before that. ``hopeless_beside``: no end
    of others would help its first beside the reservations of these. ``is_bounded``: it is known
    when its gangs end, so they may be on reserved cells. ``reason``: what was published for its
    gangs. ``wanted``: of quota; ``leaves_of_pod``: that the smallest pod takes at least.
    ``tested_nodes``: of preflight gangs.
    """

    key: Key
    wants: tuple[tuple[Want, int], ...]
    owner: str | None
    priority: int
    wanted: Wanted
    leaves_of_pod: int
    is_borrowing: bool = False
    is_surplus: bool = False
    is_bounded: bool = False
    tested_nodes: frozenset[str] | None = None
    no: No | None = None
    was: No | None = None
    helps: Callable[[], bool] | None = None
    hopeless_beside: frozenset[Workload] | None = None
    reason: Reason | None = None
    _by_user: dict[str, list[tuple[Order, int, Workload]]] = field(default_factory=dict)
    _pushed: int = 0

    @property
    def is_opportunistic(self) -> bool:
        """Its gangs want no cells."""
        return self.owner is None

    @cached_property
    def may_use_other_quota(self) -> bool:
        """Other quota than its virtual cluster's may help its gangs."""
        kinds = (want.kind for want, _ in self.wants)
        return self.is_borrowing or any(kind.pin or kind.costs_nothing for kind in kinds)

    def push(self, workload: Workload, order: Order, user: str) -> None:
        """A workload waits. ``user``: gangs of one keep their order among one another."""
        self._pushed += 1  # one that waits again may be in the heap still
        heappush(self._by_user.setdefault(user, []), (order, self._pushed, workload))

    def heads(self) -> list[tuple[Order, Workload]]:
        """The first of each user that waits."""
        found = []
        for user, heap in list(self._by_user.items()):
            while heap and heap[0][2].phase is not Phase.WAITING:
                heappop(heap)
            if heap:
                found.append((heap[0][0], heap[0][2]))
            else:
                del self._by_user[user]
        return found

    def waiting(self) -> Iterator[Workload]:
        """All that wait, in no order."""
        for orders in self.by_user():
            yield from orders

    def by_user(self) -> Iterator[dict[Workload, Order]]:
        """All that wait, of each user."""
        for heap in self._by_user.values():
            yield {each: order for order, _, each in heap if each.phase is Phase.WAITING}


class Queue:
    """``classes``: those in which some wait. ``ready``: those whose first is to be tried. ``new``:
    workloads that came since reasons were published, with their classes. ``now``: the cycle's time.
    ``has_users``: ranks change with what users use.
    """

    def __init__(self, state: State, usage: Usage) -> None:
        self.classes: dict[Key, WorkloadClass] = {}
        self.ready: dict[WorkloadClass, None] = {}
        self.new: dict[Workload, WorkloadClass] = {}
        self.now = 0.0
        self._state = state
        self.has_users = usage.is_kept
        self._usage = usage

    def rank_of(self, workload: Workload, order: Order) -> Rank:
        """The workload's place among all that wait, now."""
        return self._usage.rank_of(workload.gang, order, self.now)

    def in_order(
        self, found: WorkloadClass
    ) -> Iterator[tuple[list[tuple[Order, Workload]], Callable[[Order], Rank]]]:
        """All of a class that wait: those of each user in order, and what their ranks are."""
        for orders in found.by_user():
            for first in islice(orders, 1):
                some = [(order, workload) for workload, order in orders.items()]
                some.sort(key=itemgetter(0))
                yield some, self._usage.rank_as(first.gang, self.now)

    def head(self, found: WorkloadClass) -> tuple[Rank, Workload] | None:
        """The first of a class, with its rank."""
        best: tuple[Rank, Workload] | None = None
        for order, workload in found.heads():
            rank = self.rank_of(workload, order)
            if best is None or rank < best[0]:
                best = rank, workload
        return best

    def add(self, workload: Workload, order: Order) -> WorkloadClass:
        """A workload waits."""
        found = self.new[workload] = self.class_of(workload)
        found.push(workload, order, workload.gang.user if self.has_users else "")
        may_go_before = not self._usage.is_by_priority or workload.gang.follows is not None
        if found.no is None:
            self.ready[found] = None
        elif may_go_before and self.head(found) == (self.rank_of(workload, order), workload):
            self.try_again(found)  # a reservation held the others back
        return found

    def class_of(self, workload: Workload) -> WorkloadClass:
        """The class that a workload is in while it waits."""
        key = self._key_of(workload)
        found = self.classes.get(key)
        if found is None:
            wants, models = _counts(workload), self._state.models
            found = self.classes[key] = WorkloadClass(
                key,
                wants,
                workload.owner,
                workload.priority,
                wanted(self._state, workload),
                min([want.least(models) for want, _ in wants], default=0),
                workload.gang.is_borrowing,
                workload.is_surplus,
                bounds_of(workload.gang) != (None, None),
                workload.gang.allowed_nodes if workload.gang.is_preflight else None,
            )
        return found

    def take_ready(self, *, is_opportunistic: bool) -> list[WorkloadClass]:
        """Classes that are to be tried; they are no more."""
        taken = [each for each in self.ready if each.is_opportunistic is is_opportunistic]
        for each in taken:
            del self.ready[each]
        return taken

    def try_again(self, found: WorkloadClass) -> None:
        """The class's first may be helped by what has changed."""
        found.no = found.was = found.helps = None
        self.ready[found] = None

    def wake(self, found: WorkloadClass, helps: Callable[[], bool]) -> None:
        """The same, unless others take what has become free before its turn comes."""
        found.was, found.no, found.helps = found.no, None, helps
        self.ready[found] = None

    def note_tried(self, published: Callable[[Workload], str | None]) -> None:
        """Classes whose gangs have all the same published reason were tried in this state."""
        self.new.clear()
        for found in self.classes.values():
            codes = {published(each) for each in found.waiting()}
            code = next(iter(codes), None)
            if code is not None and len(codes) == 1:
                no = No(ORDER if code == ORDER else ROOM)
                found.no, found.reason = no, Reason(code, "", {})
                self.ready.pop(found, None)

    def leave(self, workload: Workload) -> None:
        """A workload waits no longer."""
        self.new.pop(workload, None)
        found = self.classes.get(self._key_of(workload))
        if found is not None and not found.heads():
            self.forget(found)

    def forget(self, found: WorkloadClass) -> None:
        """None of the class wait."""
        self.ready.pop(found, None)
        if self.classes.get(found.key) is found:  # else there is a new one of the same key
            del self.classes[found.key]

    def _key_of(self, workload: Workload) -> Key:
        gang = workload.gang
        return (
            gang.virtual_cluster,
            workload.owner,
            workload.priority,
            _counts(workload),
            gang.is_borrowing,
            workload.parent is not None,
            workload.is_surplus,
            bounds_of(gang),
            (gang.allowed_nodes, gang.is_preflight),
        )


def _counts(workload: Workload) -> tuple[tuple[Want, int], ...]:
    """How many pods want the same."""
    return tuple([(want, len(pods)) for want, pods in workload.wants])


class Sizes:
    """Sizes of some classes, to compare others with. Only classes of one kind and of the same
    virtual cluster compare.
    """

    def __init__(self) -> None:
        self._sizes: dict[object, list[tuple[int, Want, int]]] = {}

    def add(self, waiting: WorkloadClass) -> None:
        """One more of these classes."""
        if len(waiting.wants) == 1:
            (want, count) = waiting.wants[0]
            kept = self._sizes.setdefault(self._key(waiting), [])
            kept.append((waiting.priority, want, count))

    def has_easier(self, waiting: WorkloadClass) -> bool:
        """One is no harder to place: of no lower priority, with no more or larger pods."""
        if len(waiting.wants) != 1:
            return False
        want, count = waiting.wants[0]
        return any(
            waiting.priority <= priority and count >= others and is_within(other, want)
            for priority, other, others in self._sizes.get(self._key(waiting), ())
        )

    def has_harder(self, waiting: WorkloadClass) -> bool:
        """One is no easier to place."""
        if len(waiting.wants) != 1:
            return False
        want, count = waiting.wants[0]
        return any(
            waiting.priority >= priority and count <= others and is_within(want, other)
            for priority, other, others in self._sizes.get(self._key(waiting), ())
        )

    def clear(self) -> None:
        """None is left."""
        self._sizes.clear()

    @staticmethod
    def _key(waiting: WorkloadClass) -> object:
        # The last two of a class's key: bounds, allowed nodes.
        kind = waiting.wants[0][0].kind
        return waiting.owner, kind.gpu_types, kind.pin, waiting.key[-2:]


def is_within(small: Want, large: Want) -> bool:
    """A pod of one wants no more of anything than a pod of the other."""
    return small.gpus <= large.gpus and all(map(le, small.amounts, large.amounts))
