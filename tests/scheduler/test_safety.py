"""Properties of the service's state over random histories of nodes and gangs.

No GPU or port twice, nothing oversubscribed, gangs whole or absent; what is released is free again.
What is stored is enough: a state that is rebuilt from it decides the same, in any order of rows,
and so does one that has followed what was stored all along.
"""

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from muster.contracts.gangs import GangRequest, PodRelease
from muster.contracts.node_orders import Order
from muster.contracts.nodes import Gpu, NodeReport, PodOnNode
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.model import Deferred, Grown, Placed, Refused
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold
from scheduler.domain.rules import Rules
from scheduler.domain.state import State
from scheduler.domain.stored import Stored
from scheduler.domain.words import word_of

Kit = Any
NODES = {"a": (4, 8), "b": (4, 6), "c": (2, 16), "d": (0, 12)}
"""Name → GPUs, CPUs."""
PORTS = (20000, 20005)
DEMANDS = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5]),
        "cpu": st.integers(0, 7),
        "memory_mb": st.sampled_from([0, 10, 40]),
        "ports": st.sampled_from([{}, {}, {"x": 1}, {"x": 2, "y": 1}]),
    }
)


FILE = ClusterConfig(
    cell_types={
        "pair": CellType("t", 2),
        "node": CellType("pair", 2, is_node=True),
        "rack": CellType("node", 2),
        "box": CellType("t", 2, is_node=True),
    },
    physical_cells=(PhysicalCell("rack", "r", ("a", "b")), PhysicalCell("box", "c")),
    nodes={"d": NodeLimits()},
    virtual_clusters={
        "default": VirtualCluster((QuotaCells("rack/node", 1), QuotaCells("rack/node/pair", 1))),
        "lab": VirtualCluster((QuotaCells("rack/node/pair", 1), QuotaCells("box", 1))),
    },
)
"""A rack of two nodes and a node of another kind, shared by two virtual clusters."""

ORDERS = [Order.NONE, Order.NONE, Order.NONE, Order.CORDON, Order.DRAIN]
RULES = Rules(settle_s=0.0, port_rest_s=0.0, overdue_s=1e9)
"""Which ports rest, and since when an ended pod is waited for, begins anew with a restart."""


class World:
    """The truth beside the core: what the agents run and what they would report."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.running: dict[str, dict[str, Any]] = {node: {} for node in NODES}
        self.revision = dict.fromkeys(NODES, 0)
        self.lease = dict.fromkeys(NODES, 0)
        self.bad: dict[str, set[int]] = {node: set() for node in NODES}
        self.reports: dict[str, list[NodeReport]] = {node: [] for node in NODES}
        self.leftover: set[str] = set()

    def report(self, node: str) -> NodeReport:
        self.revision[node] += 1
        gpus, cpu = NODES[node]
        owner = {g: pod for pod, p in self.running[node].items() for g in p.gpus}
        report: NodeReport = self.kit.report(
            node,
            revision=self.revision[node],
            cpu=cpu,
            memory_mb=100,
            port_range=PORTS,
            lease=self.lease[node],
            pods=tuple(
                PodOnNode(pod=pod, gpus=p.gpus, ports=p.port_numbers, cpu=p.kind.cpu)
                for pod, p in self.running[node].items()
            ),
        ).model_copy(
            update={
                "gpus": tuple(
                    Gpu(
                        index=i,
                        uuid=f"{node}{i}",
                        model="T",
                        memory_mb=1,
                        is_healthy=i not in self.bad[node],
                        pod=owner.get(i),
                    )
                    for i in range(gpus)
                )
            }
        )
        self.reports[node].append(report)
        return report


class Store:
    """What the database has, written as the service writes it."""

    def __init__(self) -> None:
        self.gangs: dict[str, KnownGang] = {}
        self.holds: dict[str, Hold] = {}

    def record(self, word: GangRequest) -> None:
        """A word is recorded before any cycle sees it."""
        known = self.gangs.get(word.gang)
        if known is None:
            self.gangs[word.gang] = KnownGang(word)
            return
        is_refused = known.is_refused and known.request.pods == word.pods
        self.gangs[word.gang] = replace(known, request=word, is_refused=is_refused)

    def write(self, state: State, decisions: list[Any]) -> None:
        """A cycle's transaction."""
        changes = state.take_changes()
        rows = changes.rows
        for pod in rows.gone:
            self.holds.pop(pod, None)
        for pod in rows.changed:
            hold = state.ledger.hold_of(pod)
            if hold is not None:
                self.holds[pod] = hold
        for pod, placement in rows.placed.items():
            self.holds[pod] = Hold(placement)
        for gang in changes.ended:
            self.gangs.pop(gang, None)
        for gang in {*changes.kept, *(d.gang for d in decisions)}:
            self.gangs[gang] = state.known(gang)


class History(RuleBasedStateMachine):
    """Gangs come and go, pods start and end, nodes fail and return, reports come late or never."""

    def __init__(self, kit: Kit, file: ClusterConfig | None) -> None:
        super().__init__()
        self.kit = kit
        self.file = file
        self.world = World(kit)
        self.store = Store()
        self.state = State(RULES, file)
        self.now = 0.0
        self.requests: dict[str, GangRequest] = {}
        self.refused: set[str] = set()
        self.names = 0
        self.steps_to_cycle = 1
        self.cycles_to_look = self.rhythm = 3
        self.is_taken_over = False
        self.standby: Standby | None = None
        for node in NODES:
            self.state.report(self.world.report(node), self.now)
            self.state.ledger.hear(node, "", self.now)

    def _gangs(self) -> list[str]:
        return sorted(self.requests)

    def _say(self, word: GangRequest) -> None:
        self.store.record(word)
        self.state.request(word, self.now, self.now)

    @rule(
        demand=DEMANDS,
        other=DEMANDS,
        counts=st.sampled_from([(1, 0), (2, 0), (3, 0), (5, 0), (1, 1), (2, 2), (2, 3)]),
        priority=st.integers(-1, 2),
        is_lazy=st.sampled_from([None, True]),
        vc=st.sampled_from(["default", "lab"]),
    )
    def submit(
        self,
        demand: Any,
        other: Any,
        counts: tuple[int, int],
        priority: int,
        is_lazy: bool | None,
        vc: str,
    ) -> None:
        name = f"g{self.names}"
        self.names += 1
        pods = self.kit.pods(name, counts[0], **demand)
        pods += self.kit.pods(f"{name}-o", counts[1], **other)
        word = self.kit.gang(name, *pods, priority=priority, age=self.names % 3)
        self.requests[name] = word.model_copy(
            update={
                "lazy_preemption": is_lazy,
                "virtual_cluster": "default" if self.file is None else vc,
            }
        )
        self._say(self.requests[name])

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), demand=DEMANDS)
    def grow(self, data: st.DataObject, demand: Any) -> None:
        name = data.draw(st.sampled_from(self._gangs()))
        word = self.requests[name]
        self.names += 1
        more = self.kit.pods(f"{name}-more{self.names}", 1, **demand)
        self.requests[name] = word.model_copy(update={"pods": word.pods + more})
        self._say(self.requests[name])

    @rule(node=st.sampled_from(sorted(NODES)), order=st.sampled_from(ORDERS))
    def order(self, node: str, order: Order) -> None:
        self.state.order(node, order)

    @rule(steps=st.sampled_from([1, 2, 5]))
    def let_cycles_wait(self, steps: int) -> None:
        self.steps_to_cycle = steps

    @rule(cycles=st.sampled_from([1, 3, 5]), is_taken_over=st.booleans())
    def let_standby_wait(self, cycles: int, is_taken_over: bool) -> None:
        self.cycles_to_look = self.rhythm = cycles
        self.is_taken_over = is_taken_over

    @rule(is_first=st.booleans())
    def look(self, is_first: bool) -> None:
        """The standby follows between two cycles; it hears nodes before or after it."""
        if self.standby is not None:
            self.standby.hears_first = is_first
            self.standby.follow(self)

    @invariant()
    def a_state_from_what_is_stored_decides_the_same(self) -> None:
        self.steps_to_cycle -= 1
        if self.steps_to_cycle > 0:
            return
        cold = loaded(self)
        others = [loaded(self, reverse=True), cold]
        for other in others:
            other.restored(self.now, self.now)
        followed = self._followed()
        if followed is not None:
            assert pending(followed) == pending(cold)
            others.append(followed)
        decisions = self.kit.decide(self.state, self.now)
        self._check(decisions)
        self.store.write(self.state, decisions)
        for other in others:
            self._is_same(decisions, self.kit.decide(other, self.now))

    def _followed(self) -> Stored | None:
        """The standby's state, where it takes over now; another one begins to follow then."""
        standby = self.standby
        if standby is None:
            self.standby = Standby(self)
            return None
        self.cycles_to_look -= 1
        if self.cycles_to_look > 0:
            return None
        self.cycles_to_look = self.rhythm
        standby.follow(self)
        cold = loaded(self)
        cold.keep_up(self.now)
        followed = believed(standby.state)
        for part, expected in believed(cold).items():
            assert followed[part] == expected, part
        if not self.is_taken_over:
            return None
        self.standby, self.is_taken_over = None, False
        standby.state.restored(self.now, self.now)
        return standby.state

    @staticmethod
    def _is_same(decisions: list[Any], others: list[Any]) -> None:
        """All but what is said about waits, whose rhythm begins anew."""
        one, other = (
            [d for d in found if not isinstance(d, Deferred)] for found in (decisions, others)
        )
        assert one == other

    def _check(self, decisions: list[Any]) -> None:
        for decision in decisions:
            match decision:
                case Placed(gang=gang) | Grown(gang=gang):
                    word = word_of(self.state, self.state.gangs[gang], 1)
                    assert {p.state.value for p in word.pods} <= {
                        "placed",
                        "lost",
                        "give-back",
                    }, word
                case Refused(gang=gang):
                    self.refused.add(gang)
                case Deferred(reason=reason):
                    codes = ("health", "quota", "shape", "resource", "preempting")
                    assert reason.code in codes

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def start_pods(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._gangs()))
        for pod in self.state.gangs[name].asks:
            hold = self.state.ledger.hold_of(pod)
            if hold is not None and not hold.is_lost:
                self.world.running[hold.placement.node][pod] = hold.placement

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), whole=st.booleans(), report=st.booleans(), told=st.booleans())
    def end_pods(self, data: st.DataObject, whole: bool, report: bool, told: bool) -> None:
        name = data.draw(st.sampled_from(self._gangs()))
        request = self.requests[name]
        keep = () if whole else request.pods[1:]
        ends = []
        for ask in request.pods:
            node = self.state.ledger.pods.get(ask.pod)
            if ask in keep or node is None:
                continue
            # A lost node's pods may go on, out of sight or until the Launcher's answer comes.
            lost = self.state.ledger.nodes[node].is_lost or ask.pod in self.world.leftover
            if not lost:
                self.world.running[node].pop(ask.pod, None)
            ends.append(
                PodRelease(
                    pod=ask.pod,
                    journal=f"journal-of-{node}",
                    report_revision=self.world.revision[node] + 1,
                )
            )
            if report and not lost:
                self.state.report(self.world.report(node), self.now)
        word = request.model_copy(update={"pods": keep, "released": ends if told else ()})
        self._say(word)
        self.requests[name] = word
        if not keep:
            del self.requests[name]

    @rule(node=st.sampled_from(sorted(NODES)), gpu=st.integers(0, 3), late=st.booleans())
    def report(self, node: str, gpu: int, late: bool) -> None:
        """A report is made; it is read, or an older one is read once more."""
        self.world.bad[node] ^= {gpu} if gpu < NODES[node][0] and gpu == 3 else set()
        if self.state.ledger.nodes[node].is_lost:
            return
        newest = self.world.report(node)
        older = self.world.reports[node][len(self.world.reports[node]) // 2]
        self.state.report(older if late else newest, self.now)

    @rule(node=st.sampled_from(sorted(NODES)), rarely=st.integers(0, 3))
    def lose(self, node: str, rarely: int) -> None:
        if not rarely and not self.state.ledger.nodes[node].is_lost:
            self.state.lose(node, self.now)
            self.store.write(self.state, [])

    @rule(node=st.sampled_from(sorted(NODES)), are_pods_over=st.booleans())
    def come_back(self, node: str, are_pods_over: bool) -> None:
        """It speaks, is told its lease, and names it; its old pods may need longer to end."""
        if not self.state.ledger.nodes[node].is_lost:
            return
        assert self.state.ledger.hear(node, "", self.now)
        self.state.ledger.take_back(node)
        self.state.report(self.world.report(node), self.now)
        self.world.lease[node] = self.state.ledger.nodes[node].lease
        if are_pods_over:
            self.world.running[node].clear()
            return
        for pod in list(self.world.running[node]):
            hold = self.state.ledger.hold_of(pod)
            if hold is None or hold.is_lost:
                self.world.leftover.add(pod)

    @rule(node=st.sampled_from(sorted(NODES)))
    def end_leftovers(self, node: str) -> None:
        """The Launcher's answer has stopped what came back with a lost node."""
        for pod in self.world.leftover & self.world.running[node].keys():
            del self.world.running[node][pod]

    @rule(node=st.sampled_from(sorted(NODES)))
    def remove(self, node: str) -> None:
        """A node that is lost is gone for good, and then speaks again all the same."""
        lease = self.state.ledger.nodes[node].lease
        if self.state.remove(node):
            assert node not in self.state.ledger.nodes
            self.state.report(self.world.report(node), self.now)
            assert self.state.ledger.nodes[node].is_lost
            assert self.state.ledger.nodes[node].lease == lease

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_held_twice(self) -> None:
        for node in self.state.ledger.nodes.values():
            gpus = [g for h in node.holds.values() if h.is_occupying for g in h.placement.gpus]
            ports = [
                p for h in node.holds.values() if h.is_occupying for p in h.placement.port_numbers
            ]
            assert len(gpus) == len(set(gpus))
            assert len(ports) == len(set(ports))
            assert set(gpus) <= set(range(NODES[node.name][0]))
            assert all(PORTS[0] <= port <= PORTS[1] for port in ports)

    @invariant()
    def nothing_is_given_that_a_pod_of_the_agent_holds(self) -> None:
        """What the agents run, listed or lost or not yet stopped, against what is placed."""
        for name, node in self.state.ledger.nodes.items():
            for pod, running in self.world.running[name].items():
                for other, hold in node.holds.items():
                    if other != pod and hold.is_occupying and not hold.is_lost:
                        place = hold.placement
                        assert not set(running.gpus) & set(place.gpus), (pod, other)
                        assert not set(running.port_numbers) & set(place.port_numbers)

    @invariant()
    def a_lost_pod_that_nobody_wants_has_no_row(self) -> None:
        for node in self.state.ledger.nodes.values():
            assert all(h.is_wanted or not h.is_lost for h in node.holds.values())

    @invariant()
    def no_node_is_oversubscribed(self) -> None:
        for node in self.state.ledger.nodes.values():
            held = [h.placement for h in node.holds.values() if h.is_occupying]
            assert sum(p.kind.cpu for p in held) <= NODES[node.name][1]
            assert sum(p.kind.memory_mb for p in held) <= 100

    @invariant()
    def gangs_are_whole_or_absent(self) -> None:
        for word in self.requests.values():
            first = [ask.pod for ask in word.pods if "more" not in ask.pod]
            held = [pod for pod in first if self.state.ledger.hold_of(pod)]
            assert len(held) in (0, len(first))

    @invariant()
    def what_is_reserved_or_placed_is_in_the_core(self) -> None:
        for name, gang in self.state.gangs.items():
            live = self.state.cluster.gangs.get(name)
            for pod in gang.asks:
                hold = self.state.ledger.hold_of(pod)
                if hold is not None and not hold.is_lost:
                    assert live is not None
                    assert pod in live.pods
                    assert live.pods[pod].machine.name == hold.placement.node

    def teardown(self) -> None:
        """Everything is released, every node well: then everything is free."""
        for name in self._gangs():
            self._say(self.requests[name].model_copy(update={"pods": ()}))
        nodes = self.state.ledger.nodes
        for node in NODES:
            self.state.order(node, Order.NONE)
            if nodes[node].is_lost:
                self.state.ledger.take_back(node)
            self.world.lease[node] = nodes[node].lease
            self.world.running[node].clear()
            self.world.bad[node].clear()
            self.state.report(self.world.report(node), self.now)
            self.state.ledger.hear(node, "", self.now)
        self.now += 61.0
        assert self.kit.free(self.state, self.now) == sum(gpus for gpus, _ in NODES.values())
        cluster = self.state.cluster
        for name, (_, cpu) in NODES.items():
            machine = cluster.hardware.machines[name]
            assert dict(zip(machine.sort.names, machine.free, strict=True)) == {
                "cpu": cpu,
                "memoryMB": 100,
                "ports": 6,
            }
            assert not machine.ports
        assert not self.state.ledger.pods
        assert not self.state.gangs
        assert not cluster.gangs
        assert not cluster.queue.gangs
        self.store.write(self.state, [])
        assert not self.store.gangs
        assert not self.store.holds


def loaded(history: History, *, reverse: bool = False) -> Stored:
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

    def __init__(self, history: History) -> None:
        self.state = loaded(history)
        self.hears_first = True
        self.gangs, self.holds = dict(history.store.gangs), dict(history.store.holds)

    def follow(self, history: History) -> None:
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
        "sets": (cluster.reserved, cluster.downgraded, cluster.told_to_leave, cluster.draining),
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
                number: (tag.free.form, tag.count, tag.sort, tag.room)
                for number, tag in region.tags.items()
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


HISTORIES = int(os.environ.get("MUSTER_TEST_HISTORIES", "60"))
"""How many histories are tried; in a deep run more, and pytest gets --timeout=0."""


@pytest.mark.parametrize("file", [None, FILE], ids=["made by nodes", "by file"])
def test_random_histories_are_safe_and_live(kit: Kit, file: ClusterConfig | None) -> None:
    run_state_machine_as_test(  # it takes any maker of machines, whatever its stub says
        lambda: History(kit, file),  # type: ignore[arg-type]
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
