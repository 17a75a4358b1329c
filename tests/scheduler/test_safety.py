"""Properties of the core over random histories of nodes and gangs.

Safety: no GPU or port twice, nothing oversubscribed, gangs whole or absent. Liveness: what is
released is free again, and what fits is placed (a plain, slow oracle says what fits). A choice
depends on the state alone: the same state, rebuilt, decides the same.
"""

import os
from typing import Any

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
from muster.contracts.nodes import Gpu, NodeReport, PodOnNode
from scheduler.domain.cluster import Cluster
from scheduler.domain.cycle import run_cycle
from scheduler.domain.model import Deferred, Demand, Placed, Policy, Refused
from scheduler.domain.nodes import room
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
                PodOnNode(pod=pod, gpus=p.gpus, ports=p.port_numbers, cpu=p.cpu)
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


def fits_somehow(pods: list[Demand], rooms: list[Demand]) -> bool:
    """Pod by pod on every node: slow and plain."""
    if not pods:
        return True
    first, *rest = pods
    return any(
        room(each, first, 1)
        and fits_somehow(rest, [*rooms[:at], each + first.times(-1), *rooms[at + 1 :]])
        for at, each in enumerate(rooms)
    )


class History(RuleBasedStateMachine):
    """Gangs come and go, pods start and end, nodes fail and return, reports come late or never."""

    def __init__(self, kit: Kit) -> None:
        super().__init__()
        self.kit = kit
        self.world = World(kit)
        self.cluster = Cluster(Policy(settle_s=0.0))
        self.now = 0.0
        self.requests: dict[str, GangRequest] = {}
        self.refused: set[str] = set()
        self.names = 0
        for node in NODES:
            self.cluster.report(self.world.report(node), self.now)
            self.cluster.hear(node, "", self.now)

    def _gangs(self) -> list[str]:
        return sorted(self.requests)

    @rule(
        demand=DEMANDS,
        other=DEMANDS,
        counts=st.sampled_from([(1, 0), (2, 0), (3, 0), (5, 0), (1, 1), (2, 2), (2, 3)]),
        priority=st.integers(0, 2),
    )
    def submit(self, demand: Any, other: Any, counts: tuple[int, int], priority: int) -> None:
        name = f"g{self.names}"
        self.names += 1
        pods = self.kit.pods(name, counts[0], **demand)
        pods += self.kit.pods(f"{name}-o", counts[1], **other)
        self.requests[name] = self.kit.gang(name, *pods, priority=priority, age=self.names % 3)
        self.cluster.request(self.requests[name], self.now)

    @rule()
    def cycle(self) -> None:
        self._check(run_cycle(self.cluster, self.now))

    def _check(self, decisions: list[Any]) -> None:
        for decision in decisions:
            match decision:
                case Placed(gang=gang):
                    word = word_of(self.cluster, self.cluster.gangs[gang], 1)
                    assert {p.state.value for p in word.pods} <= {"placed", "lost"}, word
                case Refused(gang=gang):
                    self.refused.add(gang)
                    assert not self._empty_fits(gang)
                case Deferred(reason=reason):
                    assert reason.code in ("health", "resource")
                    assert reason.numbers

    def _empty_fits(self, gang: str) -> bool:
        kinds: dict[Any, int] = {}
        for ask in self.requests[gang].pods:
            key = (ask.gpus, ask.cpu, ask.memory_mb, sum(ask.ports.values()))
            kinds[key] = kinds.get(key, 0) + 1
        if len(kinds) > 1:
            return False  # the oracle knows gangs of one kind only
        ((gpus, cpu, memory_mb, ports), count) = next(iter(kinds.items()))
        return count <= sum(
            min(
                has_gpus // gpus if gpus else count,
                has_cpu // cpu if cpu else count,
                100 // memory_mb if memory_mb else count,
                6 // ports if ports else count,
            )
            for has_gpus, has_cpu in NODES.values()
        )

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def start_pods(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._gangs()))
        for pod, node in self.cluster.gangs[name].places.items():
            hold = self.cluster.hold_of(pod)
            assert hold is not None
            if hold.lost_lease is None:
                self.world.running[node][pod] = hold.placement

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), whole=st.booleans(), report=st.booleans(), told=st.booleans())
    def end_pods(self, data: st.DataObject, whole: bool, report: bool, told: bool) -> None:
        name = data.draw(st.sampled_from(self._gangs()))
        request = self.requests[name]
        keep = () if whole else request.pods[1:]
        ends = []
        for ask in request.pods:
            node = self.cluster.gangs[name].places.get(ask.pod)
            if ask in keep or node is None:
                continue
            # A lost node's pods may go on, out of sight or until the Launcher's answer comes.
            lost = self.cluster.nodes[node].is_lost or ask.pod in self.world.leftover
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
                self.cluster.report(self.world.report(node), self.now)
        word = request.model_copy(update={"pods": keep, "released": ends if told else ()})
        self.cluster.request(word, self.now)
        self.requests[name] = word
        if not keep:
            del self.requests[name]

    @rule(node=st.sampled_from(sorted(NODES)), gpu=st.integers(0, 3), late=st.booleans())
    def report(self, node: str, gpu: int, late: bool) -> None:
        """A report is made; it is read, or an older one is read once more."""
        self.world.bad[node] ^= {gpu} if gpu < NODES[node][0] and gpu == 3 else set()
        if self.cluster.nodes[node].is_lost:
            return
        newest = self.world.report(node)
        older = self.world.reports[node][len(self.world.reports[node]) // 2]
        self.cluster.report(older if late else newest, self.now)

    @rule(node=st.sampled_from(sorted(NODES)))
    def lose(self, node: str) -> None:
        if not self.cluster.nodes[node].is_lost:
            self.cluster.lose(node, self.now)

    @rule(node=st.sampled_from(sorted(NODES)), are_pods_over=st.booleans())
    def come_back(self, node: str, are_pods_over: bool) -> None:
        """It speaks, is told its lease, and names it; its old pods may need longer to end."""
        if not self.cluster.nodes[node].is_lost:
            return
        assert self.cluster.hear(node, "", self.now)
        self.cluster.take_back(node)
        self.cluster.report(self.world.report(node), self.now)
        self.world.lease[node] = self.cluster.nodes[node].lease
        if are_pods_over:
            self.world.running[node].clear()
            return
        for pod in list(self.world.running[node]):
            hold = self.cluster.hold_of(pod)
            if hold is None or hold.lost_lease is not None:
                self.world.leftover.add(pod)

    @rule(node=st.sampled_from(sorted(NODES)))
    def end_leftovers(self, node: str) -> None:
        """The Launcher's answer has stopped what came back with a lost node."""
        for pod in self.world.leftover & self.world.running[node].keys():
            del self.world.running[node][pod]

    @rule(node=st.sampled_from(sorted(NODES)))
    def remove(self, node: str) -> None:
        """A node that is lost is gone for good, and then speaks again all the same."""
        lease = self.cluster.nodes[node].lease
        if self.cluster.remove(node):
            assert node not in self.cluster.nodes
            self.cluster.report(self.world.report(node), self.now)
            assert self.cluster.nodes[node].is_lost
            assert self.cluster.nodes[node].lease == lease

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_held_twice(self) -> None:
        for node in self.cluster.nodes.values():
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
        for name, node in self.cluster.nodes.items():
            for pod, running in self.world.running[name].items():
                for other, hold in node.holds.items():
                    if other != pod and hold.is_occupying and hold.lost_lease is None:
                        place = hold.placement
                        assert not set(running.gpus) & set(place.gpus), (pod, other)
                        assert not set(running.port_numbers) & set(place.port_numbers)

    @invariant()
    def a_lost_pod_that_nobody_wants_has_no_row(self) -> None:
        for node in self.cluster.nodes.values():
            assert all(h.is_wanted or h.lost_lease is None for h in node.holds.values())

    @invariant()
    def no_node_is_oversubscribed(self) -> None:
        for node in self.cluster.nodes.values():
            held = [h.placement for h in node.holds.values() if h.is_occupying]
            assert sum(p.cpu for p in held) <= NODES[node.name][1]
            assert sum(p.memory_mb for p in held) <= 100

    @invariant()
    def gangs_are_whole_or_absent(self) -> None:
        for name in self.requests:
            gang = self.cluster.gangs[name]
            assert len(gang.waiting()) in (0, len(gang.specs))

    @invariant()
    def counts_match_a_count_from_scratch(self) -> None:
        for node in self.cluster.nodes.values():
            before = (node.free, node.cpu_free, node.memory_free, node.ports_free)
            node.recount(self.now)
            assert before == (node.free, node.cpu_free, node.memory_free, node.ports_free)
        free = sum(n.gpus_free for n in self.cluster.nodes.values() if n.is_eligible)
        assert self.cluster.free.gpus == free

    @invariant()
    def what_fits_is_placed_by_the_next_cycle(self) -> None:
        """The oracle: equal pods fit where the nodes' rooms add up."""
        if self.now % 2 == 0:  # not after every step: it ends every wait
            return
        self._check(run_cycle(self.cluster, self.now))
        for name in self._gangs():
            gang = self.cluster.gangs[name]
            demands = {spec.demand for spec in gang.waiting()}
            if len(demands) == 1 and not gang.is_refused:
                (demand,) = demands
                count = len(gang.waiting())
                rooms = [
                    node.fits(demand, count)
                    for node in self.cluster.nodes.values()
                    if node.is_eligible
                ]
                assert sum(rooms) < count, (name, rooms)
            elif demands and not gang.is_refused:
                nodes = [n.room for n in self.cluster.nodes.values() if n.is_eligible]
                assert not fits_somehow([spec.demand for spec in gang.waiting()], nodes), name

    @invariant()
    def the_same_state_rebuilt_decides_the_same(self) -> None:
        if self.names % 3:
            return
        one, other = rebuilt(self, reverse=False), rebuilt(self, reverse=True)
        assert run_cycle(one, self.now) == run_cycle(other, self.now)

    def teardown(self) -> None:
        """Everything is released, every node well: then everything is free."""
        for name in self._gangs():
            self.cluster.request(self.requests[name].model_copy(update={"pods": ()}), self.now)
        for node in NODES:
            if self.cluster.nodes[node].is_lost:
                self.cluster.take_back(node)
            self.world.lease[node] = self.cluster.nodes[node].lease
            self.world.running[node].clear()
            self.world.bad[node].clear()
            self.cluster.report(self.world.report(node), self.now)
        assert self.cluster.free.gpus == sum(gpus for gpus, _ in NODES.values())
        assert self.cluster.free.cpu == sum(cpu for _, cpu in NODES.values())
        assert self.cluster.free.ports == 6 * len(NODES)
        assert not self.cluster.holds
        assert not self.cluster.gangs
        assert self.cluster.queue.size == 0


def rebuilt(history: History, *, reverse: bool) -> Cluster:
    """The same state, as a restart finds it."""
    old = history.cluster
    cluster = Cluster(old.policy)
    nodes = sorted(old.nodes.values(), key=lambda n: n.name, reverse=reverse)
    for node in nodes:
        cluster.restore_node(node.name, lease=node.lease, is_lost=node.is_lost)
        for hold in node.holds.values():
            cluster.restore_hold(hold)
    for name in sorted(old.gangs, reverse=reverse):
        gang = old.gangs[name]
        cluster.restore_gang(gang.request, gang.said, gang.is_refused, history.now)
    for node in nodes:
        if node.report is not None:
            cluster.report(node.report, history.now)
        if node.is_alive:
            cluster.hear(node.name, "", history.now)
    cluster.restored(history.now)
    return cluster


HISTORIES = int(os.environ.get("MUSTER_TEST_HISTORIES", "60"))
"""How many histories are tried; in a deep run more, and pytest gets --timeout=0."""


def test_random_histories_are_safe_and_live(kit: Kit) -> None:
    run_state_machine_as_test(  # it takes any maker of machines, whatever its stub says
        lambda: History(kit),  # type: ignore[arg-type]
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
