"""What was changed is restored again: the one sequence in which a memory that follows the rows of
another process takes them, wherever the rows come from.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from scheduler.domain.core.holdings import UserKey
from scheduler.domain.core.model import RestoredPreemption, RestoredUsage
from scheduler.domain.core_rows import KnownReservation
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold
from scheduler.domain.run_times import History, Key
from scheduler.domain.stored import Stored
from scheduler.store.changes import Changed
from scheduler.store.nodes import KnownNode


class Source(Protocol):
    """What is stored, as of one moment; and what was heard."""

    async def nodes(self, names: Sequence[str]) -> Sequence[KnownNode]:
        """These nodes."""
        ...

    async def run_times(self, keys: Collection[Key]) -> Mapping[Key, History]:
        """What is known of these keys."""
        ...

    async def usage(self, keys: Collection[UserKey]) -> Mapping[UserKey, RestoredUsage]:
        """What these users have used."""
        ...

    async def preemptions(self, numbers: Collection[int]) -> Sequence[RestoredPreemption]:
        """These preemptions, in order."""
        ...

    async def calibration(self, kinds: Collection[str]) -> Mapping[str, Sequence[float]]:
        """What came of expectations of these kinds."""
        ...

    async def reservations(self, gangs: Collection[str]) -> Mapping[str, KnownReservation]:
        """What is kept for these gangs."""
        ...

    def holds(self, gangs: Sequence[str]) -> AsyncIterator[Sequence[Hold]]:
        """The placements of these gangs, some at a time."""
        ...

    def gangs(self, gangs: Sequence[str]) -> AsyncIterator[Sequence[KnownGang]]:
        """These gangs, some at a time."""
        ...

    def recall(self, nodes: Sequence[str]) -> None:
        """Tell the state again who of these was heard: it did not know then what is stored."""
        ...

    def at(self) -> float:
        """The core's clock."""
        ...


async def renew(
    state: Stored, changed: Changed, source: Source, now: float, *, is_last: bool
) -> int:
    """Forget what has changed, and restore it as a restart would; ``is_last``: and those in whose
    way it may have been. Returns of how many gangs. Between parts nodes are heard.
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
    if changed.calibration:
        state.restore_calibration(await source.calibration(changed.calibration))
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
    state.restore_reservations(kept, changed.reservations - kept.keys())
    state.keep_up(now)
    return len(gangs)


def restore_nodes(state: Stored, nodes: Iterable[KnownNode]) -> None:
    """Tell a state what is stored of nodes."""
    for node in nodes:
        if node.is_removed:
            state.restore_removed(node.node, node.lease)
        else:
            state.ledger.restore_node(
                node.node, lease=node.lease, is_lost=node.is_lost, size=node.size
            )
