"""States of the Scheduler that are made of what another one has stored: by a restart, and by a
standby that follows.
"""

from typing import Any, Protocol

from muster.contracts.node_orders import Order
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.state import State
from scheduler.domain.stored import Stored
from scheduler_world import NODES, RULES, Store


class Deciding(Protocol):
    """Who decides, and what it has stored by now."""

    state: State
    store: Store
    now: float
    file: ClusterConfig | None


def loaded(history: Deciding, *, reverse: bool = False) -> Stored:
    """The same state, as a restart makes it of what is stored and reported."""
    old, store, now = history.state, history.store, history.now
    state = Stored(RULES, history.file)
    nodes = sorted(old.ledger.nodes.values(), key=lambda n: n.name, reverse=reverse)
    for node in nodes:
        state.ledger.restore_node(node.name, lease=node.lease, is_lost=node.is_lost, size=node.size)
    pods = sorted(store.holds, reverse=reverse)
    state.restore_holds([store.holds[pod] for pod in pods], now)
    hear(state, old, now)
    state.remake(now)
    for name in sorted(store.gangs, reverse=reverse):
        state.restore_gang(store.gangs[name], now, now)
    while not state.cluster.hardware.catch_up(1):
        pass
    recall(state, old, now)
    return state


def hear(state: Stored, old: State, now: float) -> None:
    """What nodes have reported, and what was ordered."""
    for node in old.ledger.nodes.values():
        if node.report is not None:
            state.report(node.report, now)
    for name in NODES:
        state.order(name, old.orders.get(name, Order.NONE))


def recall(state: Stored, old: State, now: float) -> None:
    """Whose heartbeats were heard."""
    for node in old.ledger.nodes.values():
        if node.is_alive:
            state.ledger.hear(node.name, "", now)


class Standby:
    """A state that follows what is stored, as the service's does."""

    def __init__(self, history: Deciding) -> None:
        self.state = loaded(history)
        self.hears_first = True
        self.gangs, self.holds = dict(history.store.gangs), dict(history.store.holds)

    def follow(self, history: Deciding) -> None:
        old, store, now, state = history.state, history.store, history.now, self.state
        if self.hears_first:
            hear(state, old, now)
        state.keep_up(now)
        gangs = {
            name
            for name in self.gangs.keys() | store.gangs.keys()
            if self.gangs.get(name) != store.gangs.get(name)
        }
        for pod in self.holds.keys() | store.holds.keys():
            before, after = self.holds.get(pod), store.holds.get(pod)
            if before != after:
                gangs |= {hold.placement.gang for hold in (before, after) if hold is not None}
        gangs |= state.unsure
        self.gangs, self.holds = dict(store.gangs), dict(store.holds)
        touched = state.forget(gangs)
        for node in old.ledger.nodes.values():
            state.ledger.restore_node(
                node.name, lease=node.lease, is_lost=node.is_lost, size=node.size
            )
        holds = [
            store.holds[p] for p in sorted(store.holds) if store.holds[p].placement.gang in gangs
        ]
        state.restore_holds(holds, now)
        state.settle({*touched, *old.ledger.nodes}, now)
        recall(state, old, now)
        for name in sorted(gangs & store.gangs.keys()):
            state.restore_gang(store.gangs[name], now, now)
        hear(state, old, now)
        state.keep_up(now)


def pending(state: Stored) -> Any:
    """What its next transaction writes, whatever it decides."""
    changes = state.take_changes()
    rows = changes.rows
    return changes.ended, changes.kept, rows.placed, rows.changed, rows.gone, rows.sized


def believed(state: State) -> dict[str, Any]:
    """All of a state that decisions depend on."""
    cluster, hardware = state.cluster, state.cluster.hardware
    return {
        "gangs": {
            name: (state.known(name), set(gang.asks), gang.said, gang.is_refused)
            for name, gang in state.gangs.items()
        },
        "core": {
            name: (cluster.exported(name), live.waiting, live.reserved, live.told, live.strangers)
            for name, live in cluster.gangs.items()
        },
        "queue": {key: line.waiting for key, line in cluster.queue.lines.items()},
        "sets": (
            cluster.reserved,
            set(cluster.downgraded),
            cluster.told_to_leave,
            cluster.draining,
        ),
        "said": {said.gang: said for said in cluster.said},
        "charges": (
            {(k, p): n for k, v in cluster.charges.leaves.items() for p, n in v.items() if n},
            cluster.charges.guests,
        ),
        "slots": [
            (
                s.usable,
                s.sick,
                s.blocked,
                s.charged,
                s.held,
                s.reserved,
                s.bound,
                s.holders,
                s.chargers,
            )
            for s in hardware.states
        ],
        "machines": {
            name: (m.free, m.ports, m.blocked, m.blocked_ports, m.is_open, m.avoided, m.pods)
            for name, m in hardware.machines.items()
        },
        "cells": (
            hardware.unbound,
            {name: (c.counts, c.free, c.owed, c.space) for name, c in hardware.cells.items()},
        ),
        "regions": {
            (owner, leaf): {
                number: (tag.free.form, tag.count, tag.sort) for number, tag in region.tags.items()
            }
            for owner, regions in (*hardware.regions.items(), ("", hardware.empty))
            for leaf, region in regions.items()
        },
        "nodes": {
            name: (n.holds, n.strangers, n.is_alive, n.is_lost, n.lease, n.size)
            for name, n in state.ledger.nodes.items()
        },
        "pods": state.ledger.pods,
    }
