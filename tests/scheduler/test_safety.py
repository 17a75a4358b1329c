"""Properties of the service's state over random histories of nodes and gangs.

No GPU or port twice, nothing oversubscribed, gangs whole or absent; what is released is free again.
What is stored is enough: a state that is rebuilt from it decides the same, in any order of rows,
and so does one that has followed what was stored all along. Where the store has lost placements,
pods that run stay where they are.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from muster.contracts.gangs import GangEnd, GangRequest, PodRelease
from muster.contracts.node_orders import Order
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Deferred, Grown, Placed, Refused, Reserved
from scheduler.domain.known import KnownGang
from scheduler.domain.messages import message_of
from scheduler.domain.requests import surplus_of
from scheduler.domain.state import State
from scheduler.domain.stored import Stored
from scheduler_invariants import Invariants
from scheduler_standby import Standby, believed, loaded, pending
from scheduler_world import FILE, KEEPING, NODES, RULES, STRICT, Store, World
from seeds import how_many

Kit = Any
CODES = (
    "health",
    "quota",
    "shape",
    "resource",
    "preempting",
    "order",
    "reservation",
    "still-running",
)
DEMANDS = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5]),
        "cpu": st.integers(0, 7),
        "memory_mb": st.sampled_from([0, 10, 40]),
        "ports": st.sampled_from([{}, {}, {"x": 1}, {"x": 2, "y": 1}]),
    }
)


TIMES = st.sampled_from([(None, None), (None, 1), (None, 50), (100, 50), (2, None), (70, None)])
"""Of a gang: its limit, and what it expects."""

ORDERS = [Order.NONE, Order.NONE, Order.NONE, Order.CORDON, Order.DRAIN]


class History(Invariants):
    """Gangs come and go, pods start and end, nodes fail and return, reports come late or never."""

    def __init__(self, kit: Kit, file: ClusterConfig | None) -> None:
        super().__init__(World(kit), State(RULES, file))
        self.kit = kit
        self.file = file
        self.store = Store()
        self.now = 0.0
        self.refused: set[str] = set()
        self.names = 0
        self.steps_to_cycle = 1
        self.cycles_to_look = self.rhythm = 3
        self.is_taken_over = False
        self.standby: Standby | None = None
        for node in NODES:
            self.state.report(self.world.report(node), self.now)
            self.state.ledger.receive(node, "", self.now)

    def _gangs(self) -> list[str]:
        return sorted(self.requests)

    def _say(self, message: GangRequest) -> None:
        self.store.record(message)
        self.state.request(message, self.now, self.now)

    @rule(
        demand=DEMANDS,
        other=DEMANDS,
        counts=st.sampled_from([(1, 0), (2, 0), (3, 0), (5, 0), (1, 1), (2, 2), (2, 3)]),
        priority=st.integers(-1, 2),
        is_lazy=st.sampled_from([None, True]),
        is_borrowing=st.booleans(),
        vc=st.sampled_from(["default", "lab"]),
        user=st.sampled_from(["ada", "bob", "eve"]),
        times=TIMES,
        surplus=st.sampled_from([0, 0, 1, 2]),
    )
    def submit(
        self,
        demand: Any,
        other: Any,
        counts: tuple[int, int],
        priority: int,
        is_lazy: bool | None,
        is_borrowing: bool,
        vc: str,
        user: str,
        times: tuple[int | None, int | None],
        surplus: int,
    ) -> None:
        name = f"g{self.names}"
        self.names += 1
        pods = self.kit.pods(name, counts[0], **demand)
        pods += self.kit.pods(f"{name}-o", counts[1], **other)
        first = len(pods) - surplus
        pods = (*pods[:first], *self._surplus(pods[first:]))
        message = self.kit.gang(name, *pods, priority=priority, age=self.names % 3)
        self.requests[name] = message.model_copy(
            update={
                "lazy_preemption": is_lazy,
                "borrow": is_borrowing,
                "virtual_cluster": "default" if self.file is None else vc,
                "user": user,
                "limit_s": times[0],
                "expected_s": times[1],
            }
        )
        self._say(self.requests[name])

    @staticmethod
    def _surplus(pods: Any) -> Any:
        return tuple(pod.model_copy(update={"surplus": True}) for pod in pods)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), demand=DEMANDS, is_surplus=st.booleans())
    def grow(self, data: st.DataObject, demand: Any, is_surplus: bool) -> None:
        name = data.draw(st.sampled_from(self._gangs()))
        message = self.requests[name]
        self.names += 1
        more = self.kit.pods(f"{name}-more{self.names}", 1, **demand)
        more = self._surplus(more) if is_surplus else more
        self.requests[name] = message.model_copy(update={"pods": message.pods + more})
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
        decisions = self._cycle()
        for other in others:
            found = self.kit.decide(other, self.now)
            if any(isinstance(each, Grown) and each not in decisions for each in found):
                continue  # who was just restored is tried once more, and grew by what was missed
            self._is_same(decisions, found)
            assert other.ledger.pods == self.state.ledger.pods
            assert other.ledger.forgetful == self.state.ledger.forgetful
        self.now += 0.001

    def _cycle(self) -> list[Any]:
        decisions: list[Any] = self.kit.decide(self.state, self.now)
        self._check(decisions)
        self.store.write(self.state, decisions)
        return decisions

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
        followed, expected = believed(standby.state), believed(cold)
        slots = zip(followed["slots"], expected["slots"], strict=True)
        if any(one != other and other[0].reserved for one, other in slots):
            # Cells that are kept on a node which takes no pods any more go at its first cycle.
            standby.restore_reservations()
            followed = believed(standby.state)
        for each in (followed, expected):  # users rank as of the last cycle; it has had none
            each["order"].sort()
        for part in expected:
            assert followed[part] == expected[part], part
        if not self.is_taken_over:
            return None
        self.standby, self.is_taken_over = None, False
        standby.state.restored(self.now, self.now)
        return standby.state

    @staticmethod
    def _is_same(decisions: list[Any], others: list[Any]) -> None:
        """All but what is said about waits, and cells that are kept for later: who is tried once
        more after a restart may get some. `test_kept` counts how often that changes decisions.
        """
        sure = [
            [d for d in found if not isinstance(d, Deferred | Reserved)]
            for found in (decisions, others)
        ]
        assert sure[0] == sure[1]

    def _check(self, decisions: list[Any]) -> None:
        for decision in decisions:
            match decision:
                case Placed(gang=gang, pods=pods) | Grown(gang=gang, pods=pods):
                    message = message_of(self.state, self.state.gangs[gang], 1)
                    surplus = surplus_of(self.state.gangs[gang].asks.values())
                    if all(place.pod in surplus for place in pods):
                        continue
                    assert {p.state.value for p in message.pods if p.pod not in surplus} <= {
                        "placed",
                        "lost",
                        "preempted",
                    }, message
                case Refused(gang=gang):
                    self.refused.add(gang)
                case Deferred(reason=reason):
                    assert reason.code in CODES

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), have_started=st.booleans(), is_whole=st.booleans())
    def lose_rows(self, data: st.DataObject, have_started: bool, is_whole: bool) -> None:
        """A backup is restored that knows nothing of a gang, or not of its last pods, which the
        Launcher asks for again. The agents have reported what runs.
        """
        name = data.draw(st.sampled_from(self._gangs()))
        holds = [hold for hold in self.store.holds.values() if hold.placement.gang == name]
        nodes = self.state.ledger.nodes
        if any(hold.is_lost or nodes[hold.placement.node].is_lost for hold in holds):
            return
        if have_started:
            self._start(name)
        for node in NODES:
            if not nodes[node].is_lost:
                self.state.report(self.world.report(node), self.now)
        for hold in holds if is_whole else holds[1:]:
            del self.store.holds[hold.pod]
        if is_whole or not holds:
            self.store.reservations.pop(name, None)
            self.store.gangs[name] = KnownGang(self.requests[name])
        self.state, self.standby = loaded(self), None
        self.state.restored(self.now, self.now)
        self.lost_rows.add(name)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def start_pods(self, data: st.DataObject) -> None:
        self._start(data.draw(st.sampled_from(self._gangs())))

    def _start(self, name: str) -> None:
        for pod in self.state.gangs[name].asks:
            hold = self.state.ledger.hold_of(pod)
            if hold is None or hold.is_lost:
                continue
            place = hold.placement
            if place.journal == self.world.journal[place.node]:  # else its agent refuses it
                self.world.running[place.node][pod] = place

    @precondition(lambda self: self.requests)
    @rule(
        data=st.data(),
        whole=st.booleans(),
        report=st.booleans(),
        told=st.booleans(),
        end=st.sampled_from([GangEnd.SUCCEEDED, GangEnd.SUCCEEDED, GangEnd.TAKEN, None]),
    )
    def end_pods(
        self, data: st.DataObject, whole: bool, report: bool, told: bool, end: GangEnd | None
    ) -> None:
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
            ran = not lost and self.world.running[node].pop(ask.pod, None) is not None
            if told or ran:  # else the Launcher may not know more than that it is over
                ends.append(
                    PodRelease(
                        pod=ask.pod,
                        journal=self.world.journal[node],
                        report_revision=self.world.revision[node] + 1,
                    )
                )
            if report and not lost:
                self.state.report(self.world.report(node), self.now)
        message = request.model_copy(
            update={
                "pods": keep,
                "released": ends,
                "end": None if keep else end,
            }
        )
        self._say(message)
        self.requests[name] = message
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
            self._cycle()

    @rule(node=st.sampled_from(sorted(NODES)), rarely=st.integers(0, 3), is_told=st.booleans())
    def lose_journal(self, node: str, rarely: int, is_told: bool) -> None:
        """It is told the node's lease soon, or later."""
        if rarely or self.state.ledger.nodes[node].is_lost:
            return
        self.world.lose_journal(node)
        if is_told:
            self.world.lease[node] = self.state.ledger.nodes[node].lease
        self.state.report(self.world.report(node), self.now)

    @rule()
    def lose_forgotten(self) -> None:
        """The journals before were silent for a lease."""
        for node in sorted(self.state.ledger.forgetful):
            self.state.lose_forgotten(node, self.now)
        assert not self.state.ledger.forgetful
        self._cycle()

    @rule(node=st.sampled_from(sorted(NODES)), are_pods_over=st.booleans())
    def come_back(self, node: str, are_pods_over: bool) -> None:
        """It speaks, is told its lease, and names it; its old pods may need longer to end."""
        if not self.state.ledger.nodes[node].is_lost:
            return
        assert self.state.ledger.receive(node, "", self.now)
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
        """A node that is lost was removed, and then speaks again all the same."""
        lease = self.state.ledger.nodes[node].lease
        if self.state.remove(node):
            assert node not in self.state.ledger.nodes
            self.state.report(self.world.report(node), self.now)
            assert self.state.ledger.nodes[node].is_lost
            assert self.state.ledger.nodes[node].lease == lease

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

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
            self.state.ledger.receive(node, "", self.now)
        self.now += 61.0
        assert self.kit.free(self.state, self.now) == sum(gpus for gpus, _ in NODES.values())
        cluster = self.state.core
        for name, (_, cpu) in NODES.items():
            machine = cluster.nodes.of(name)
            assert machine.left == {"cpu": cpu, "memoryMB": 100, "ports": 6}
            assert not machine.used_ports
        assert not self.state.ledger.pods
        assert not self.state.gangs
        assert not cluster.gang_ids()
        self.store.write(self.state, [])
        assert not self.store.gangs
        assert not self.store.holds


HISTORIES = how_many(30, deep=60)


FILES = {"made by nodes": None, "by file": FILE, "cells are kept": KEEPING, "strict": STRICT}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
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
