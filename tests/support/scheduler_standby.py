"""States of the Scheduler that are made of what another one has stored: by a restart, and by a
standby that follows.
"""

from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pytest
from muster.contracts.node_orders import Order
from muster.contracts.nodes import NodeReport
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.interface import SlotState
from scheduler.domain.core.model import RestoredPreemption, RestoredUsage, UserKey
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core_rows import KnownReservation
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold
from scheduler.domain.run_times import History, Key
from scheduler.domain.state import State
from scheduler.domain.stored import Stored
from scheduler.renewing import renew
from scheduler.store.changes import Changed
from scheduler.store.nodes import KnownNode
from scheduler_world import NODES, RULES, Store

Name = TypeVar("Name", str, Key, UserKey)


class Deciding(Protocol):
    """The Scheduler that decides, and what it has stored by now."""

    state: State
    store: Store
    now: float
    file: ClusterConfig | None


def loaded(history: Deciding, *, reverse: bool = False) -> Stored:
    """The same state, as a restart makes it of what is stored and reported."""
    old, store, now = history.state, history.store, history.now
    state = Stored(RULES, history.file)
    state.run_times.restore(store.histories)
    nodes = sorted(old.ledger.nodes.values(), key=lambda n: n.name, reverse=reverse)
    for node in nodes:
        state.ledger.restore_node(node.name, lease=node.lease, is_lost=node.is_lost, size=node.size)
    pods = sorted(store.holds, reverse=reverse)
    state.restore_holds([store.holds[pod] for pod in pods], now)
    receive(state, old, now)
    state.change(state.file, now)
    for name in sorted(store.gangs, reverse=reverse):
        state.restore_gang(store.gangs[name], now, now)
    state.restore_usage(_ordered(store.usage, reverse=reverse))
    state.restore_preemptions(store.preemptions)
    recall(state, old, now)
    state.keep_up(now)
    state.restore_reservations(_ordered(store.reservations, reverse=reverse))
    return state


def _ordered(table: Mapping[Name, Any], *, reverse: bool) -> dict[Name, Any]:
    return {key: table[key] for key in sorted(table, reverse=reverse)}


def receive(state: Stored, old: State, now: float) -> None:
    """What nodes have reported, and what was ordered."""
    for node in old.ledger.nodes.values():
        if node.report is not None:
            state.report(node.report, now)
    for name in NODES:
        state.order(name, old.orders.get(name, Order.NONE))


def recall(state: Stored, old: State, now: float, nodes: Collection[str] = tuple(NODES)) -> None:
    """Record heartbeats of these nodes."""
    for node in old.ledger.nodes.values():
        if node.is_alive and node.name in nodes:
            state.ledger.receive(node.name, "", now)


class Standby:
    """A state that follows what is stored, as the service's does."""

    def __init__(self, history: Deciding) -> None:
        self.state = loaded(history)
        self.hears_first = True
        self.gangs, self.holds = dict(history.store.gangs), dict(history.store.holds)
        self.histories = dict(history.store.histories)
        self.reservations = dict(history.store.reservations)
        self.usage = dict(history.store.usage)
        self.preemptions = list(history.store.preemptions)
        self.nodes = _nodes(history.state)
        self.reports = _reports(history.state)
        self.orders = dict(history.state.orders)

    def follow(self, history: Deciding) -> None:
        """Heartbeats arrive at any time: before the look, or after it, or both."""
        old, store, now, state = history.state, history.store, history.now, self.state
        if self.hears_first:
            self._receive(history)
        nodes = _nodes(old)
        gangs = set(_changed(self.gangs, store.gangs))
        for pod in _changed(self.holds, store.holds):
            before, after = self.holds.get(pod), store.holds.get(pod)
            gangs |= {hold.placement.gang for hold in (before, after) if hold is not None}
        changed = Changed(
            "",
            frozenset(gangs),
            frozenset(_changed(self.nodes, nodes)),
            frozenset(_changed(self.histories, store.histories)),
            frozenset(_changed(self.reservations, store.reservations)),
            frozenset(_changed(self.usage, store.usage)),
            frozenset(range(len(self.preemptions), len(store.preemptions))),
        )
        self.gangs, self.holds, self.nodes = dict(store.gangs), dict(store.holds), nodes
        self.histories = dict(store.histories)
        self.reservations, self.usage = dict(store.reservations), dict(store.usage)
        self.preemptions = list(store.preemptions)
        _finish(renew(state, changed, _Rows(self, history), now, is_last=True))
        self._receive(history)
        state.keep_up(now)

    def restore_reservations(self) -> None:
        """All of them once more, as a restart does it."""
        self.state.restore_reservations(_ordered(self.reservations, reverse=False))

    def _receive(self, history: Deciding) -> None:
        """What nodes have reported since, and what was ordered: each once."""
        old = history.state
        reports, orders = _reports(old), dict(old.orders)
        for name in _changed(self.reports, reports):
            if name in reports:
                self.state.report(reports[name], history.now)
        for name in _changed(self.orders, orders):
            self.state.order(name, orders.get(name, Order.NONE))
        self.reports, self.orders = reports, orders


class _Rows:
    """The store's rows, one at a time."""

    def __init__(self, standby: Standby, history: Deciding) -> None:
        self._standby = standby
        self._history = history

    async def nodes(self, names: Sequence[str]) -> list[KnownNode]:
        return [self._standby.nodes[name] for name in names]

    async def run_times(self, keys: Collection[Key]) -> dict[Key, History]:
        return {key: history for key, history in self._standby.histories.items() if key in keys}

    async def usage(self, keys: Collection[UserKey]) -> dict[UserKey, RestoredUsage]:
        return {key: row for key, row in self._standby.usage.items() if key in keys}

    async def preemptions(self, numbers: Collection[int]) -> list[RestoredPreemption]:
        return [self._standby.preemptions[number] for number in sorted(numbers)]

    async def reservations(self, gangs: Collection[str]) -> dict[str, KnownReservation]:
        return {gang: row for gang, row in self._standby.reservations.items() if gang in gangs}

    async def holds(self, gangs: Sequence[str]) -> AsyncIterator[list[Hold]]:
        for _, hold in sorted(self._standby.holds.items()):
            if hold.placement.gang in gangs:
                yield [hold]

    async def gangs(self, gangs: Sequence[str]) -> AsyncIterator[list[KnownGang]]:
        for name in gangs:
            if name in self._standby.gangs:
                yield [self._standby.gangs[name]]

    def recall(self, nodes: Sequence[str]) -> None:
        recall(self._standby.state, self._history.state, self._history.now, nodes)

    def at(self) -> float:
        return self._history.now


def _changed(before: Mapping[Name, Any], after: Mapping[Name, Any]) -> list[Name]:
    names = before.keys() | after.keys()
    return [name for name in names if before.get(name) != after.get(name)]


def _reports(state: State) -> dict[str, NodeReport]:
    nodes = state.ledger.nodes.values()
    return {node.name: node.report for node in nodes if node.report is not None}


def _nodes(state: State) -> dict[str, KnownNode]:
    """What is stored of nodes."""
    nodes = state.ledger.nodes.values()
    return {n.name: KnownNode(n.name, n.lease, n.is_lost, None, size=n.size) for n in nodes}


def _finish(work: Coroutine[Any, Any, object]) -> None:
    """Run what waits for nothing."""
    with pytest.raises(StopIteration):
        work.send(None)


def pending(state: Stored) -> Any:
    """What its next transaction writes, whatever it decides."""
    changes = state.take_changes()
    rows = changes.rows
    learnt = changes.runs, changes.histories
    core = changes.core
    written = rows.placed, rows.changed, rows.gone, rows.sized
    return changes.ended, changes.kept, core, learnt, written


def believed(state: State) -> dict[str, Any]:
    """All of a state that decisions depend on."""
    core = state.core
    gangs = {name: core.gang(name) for name in core.gang_ids()}
    owners = [owner_of(name) for name in core.cells.quotas()]
    owners += [pin_owner(pin) for pin in core.forest.pins]
    return {
        "gangs": {
            name: (state.known(name), set(gang.asks), gang.published_reason, gang.is_refused)
            for name, gang in state.gangs.items()
        },
        "core": gangs,
        "places": {
            name: core.exported(name)
            for name, gang in gangs.items()
            if gang is not None and (gang.started_at is not None or gang.is_nominated)
        },
        "order": core.questions.first(len(gangs)),
        "unpublished": core.unpublished(),
        "leaving": sorted(core.leaving()),
        "machines": {name: core.nodes.of(name) for name in core.forest.machines},
        "slots": [_in_order(core.cells.slot(slot)) for slot in core.forest.slots],
        "bound": sorted((each.address, each.owner) for each in core.cells.bound(owners)),
        "quotas": core.cells.quotas(),
        "nodes": {
            name: (n.holds, n.orphaned, n.is_alive, n.is_lost, n.lease, n.size)
            for name, n in state.ledger.nodes.items()
        },
        "pods": state.ledger.pods,
        "run times": list(state.run_times.histories.items()),
        "reservations": core.rows.reservations(),
        "preemptions": core.rows.preemptions(),
        "usage": core.rows.usages(),
    }


def _in_order(slot: SlotState) -> Any:
    """Its gangs and cells may come in any order; cells by what they are called."""
    cells = sorted((each.address, each.owner, mask) for mask, each in slot.cells)
    return replace(slot, gangs=tuple(sorted(slot.gangs)), cells=()), cells
