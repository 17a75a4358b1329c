"""The one sequence in which memory takes another process's changed rows, from whatever source: each
changed part is restored again.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from scheduler.domain.core.model import RestoredPreemption, RestoredUsage, UserKey
from scheduler.domain.core_rows import KnownReservation
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold
from scheduler.domain.run_times import History, Key
from scheduler.domain.stored import Stored
from scheduler.store.changes import Changed
from scheduler.store.nodes import KnownNode


class Source(Protocol):
    """The stored rows, as of one moment; and this process's received messages."""

    async def nodes(self, names: Sequence[str]) -> Sequence[KnownNode]:
        """These nodes."""
        ...

    async def run_times(self, keys: Collection[Key]) -> Mapping[Key, History]:
        """The run times of these keys."""
        ...

    async def usage(self, keys: Collection[UserKey]) -> Mapping[UserKey, RestoredUsage]:
        """These users' usage."""
        ...

    async def preemptions(self, numbers: Collection[int]) -> Sequence[RestoredPreemption]:
        """These preemptions, in order."""
        ...

    async def reservations(self, gangs: Collection[str]) -> Mapping[str, KnownReservation]:
        """These gangs' reservations."""
        ...

    def holds(self, gangs: Sequence[str]) -> AsyncIterator[Sequence[Hold]]:
        """These gangs' placements, some at a time."""
        ...

    def gangs(self, gangs: Sequence[str]) -> AsyncIterator[Sequence[KnownGang]]:
        """These gangs, some at a time."""
        ...

    def recall(self, nodes: Sequence[str]) -> None:
        """Pass these nodes' last heartbeats to the state again: it lacked the stored rows then."""
        ...

    def at(self) -> float:
        """The core's clock."""
        ...


async def renew(
    state: Stored, changed: Changed, source: Source, now: float, *, is_last: bool
) -> int:
    """Forget the changed gangs, and restore them as a restart would. ``is_last``: also those that
    they may have blocked. Returns the number of gangs. Node messages arrive between parts.
    """
    state.keep_up(now)
    if changed.run_times:
        histories = await source.run_times(changed.run_times)
        state.run_times.restore(histories, changed.run_times - histories.keys())
    gangs = sorted(changed.gangs | state.unsure if is_last else changed.gangs)
    nodes = sorted(changed.nodes)
    if changed.usage:
        usage = await source.usage(changed.usage)
        state.restore_usage(usage, changed.usage - usage.keys())
    if changed.preemptions:
        state.restore_preemptions(await source.preemptions(changed.preemptions))
    if not gangs and not nodes and not changed.reservations:
        return 0
    state.let_go()
    touched = state.forget(gangs)
    if nodes:
        restore_nodes(state, await source.nodes(nodes))
        touched.update(nodes)
    async for holds in source.holds(gangs):
        state.restore_holds(holds, now)
        touched.update(hold.placement.node for hold in holds)
    state.settle(touched, now)
    source.recall(nodes)
    async for some in source.gangs(gangs):
        for gang in some:
            state.restore_gang(gang, now, source.at())
    kept = await source.reservations(changed.reservations)
    state.keep_up(now)  # cells are reserved on nodes that were heard
    state.restore_reservations(kept, changed.reservations - kept.keys())
    return len(gangs)


def restore_nodes(state: Stored, nodes: Iterable[KnownNode]) -> None:
    """Pass the stored rows of nodes to a state."""
    for node in nodes:
        if node.is_removed:
            state.restore_removed(node.node, node.lease)
        else:
            state.ledger.restore_node(
                node.node, lease=node.lease, is_lost=node.is_lost, size=node.size
            )
