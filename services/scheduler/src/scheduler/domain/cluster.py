"""The one state that decisions are made from. It is indexed, and only its own methods change it.

Nodes that may take pods are kept by their number of free GPUs (`tiers`), so that a decision looks
at few of them; the sums of what is free are kept up to date. Virtual clusters, cells, reservations
and preemption will stand beside `tiers` and `queue`, behind the same methods.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from muster.contracts.gangs import GangRequest
from muster.contracts.model import Reason
from muster.contracts.nodes import NodeReport

from scheduler.domain.gangs import Changes, Gang, shape_of
from scheduler.domain.model import Demand, Hold, Placement, PodSpec, Policy, Shape, spec_of
from scheduler.domain.nodes import Node, claims_of, covers, is_over
from scheduler.domain.queue import Queue

NO_GPUS = -1
"""The tier of nodes that have no GPU at all: what needs none goes there first."""

Spot = tuple[int, tuple[int, str]]
"""Where a node is indexed: its tier, and its free CPU and name, which sort it there."""


class Cluster:
    """Nodes, gangs and who holds what. ``removed``: the leases of lost nodes that were removed."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.nodes: dict[str, Node] = {}
        self.removed: dict[str, int] = {}
        self.gangs: dict[str, Gang] = {}
        self.holds: dict[str, str] = {}
        self.queue = Queue()
        self.tiers: dict[int, list[tuple[int, str]]] = {}
        self.free = Demand()
        self.generation = 0
        self.shape_version = 0
        self.grown_at: float | None = None
        self.cycle = 0
        self.has_more = False
        self.search_left = 0
        self._spots: dict[str, Spot] = {}
        self._counted: dict[str, Demand] = {}
        self._shapes: dict[str, Shape] = {}
        self._restored: dict[str, dict[str, str]] = {}
        self._changes = Changes()
        self._sizes: tuple[int, Counter[Demand]] = (-1, Counter())
        self._unwell: tuple[tuple[int, int], list[Node]] = ((-1, -1), [])

    # What nodes say.

    def hear(self, name: str, journal: str, now: float) -> bool:
        """A node has spoken. True when it is one that was declared lost."""
        node = self._node(name)
        if node.rival is not None and node.rival.journal == journal != "":
            self._adopt(node, node.rival, now)
        if not node.is_alive and not node.is_lost:
            node.is_alive = True
            self._index(node)
            self.generation += node.is_eligible
        return node.is_lost

    def report(self, report: NodeReport, now: float) -> None:
        """Take a node's report, unless it is older than the one that is known.

        Within one journal the revision decides. Of two journals the one with the later time is
        taken, until a heartbeat names the other.
        """
        node = self._node(report.node)
        known = node.report
        if known is not None and known.journal != report.journal and report.at <= known.at:
            if node.rival is None or node.rival.revision < report.revision:
                node.rival = report
            return
        if known is None or known.journal != report.journal or known.revision < report.revision:
            self._adopt(node, report, now)

    def remove(self, name: str) -> bool:
        """A lost node is gone for good: only its lease is kept, in case it is not. False where it
        is not lost, or the Launcher has not let go of its pods yet.
        """
        node = self.nodes.get(name)
        if node is None or not node.is_lost or node.holds:
            return False
        self._unindex(node)
        del self.nodes[name]
        self.removed[name] = node.lease
        self.shape_version += 1
        self.generation += 1  # the reasons of those who wait may be others now
        return True

    def restore_node(self, name: str, *, lease: int, is_lost: bool) -> None:
        """What the store knows of a node."""
        node = self._node(name)
        node.lease, node.is_lost = lease, is_lost
        self._index(node)

    def lose(self, name: str, now: float, at_ms: int = 0) -> list[str]:
        """The node's lease ran out: its pods are lost for good. Returns their gangs.

        ``at_ms``: the clock, above which the lease's number goes on: a store that was restored from
        a backup knows too little of the numbers that agents have heard since.
        """
        node = self._node(name)
        node.is_lost, node.is_alive, node.lease = True, False, max(node.lease + 1, at_ms)
        gangs: set[str] = set()
        for pod, hold in list(node.holds.items()):
            if hold.lost_lease is None:
                self._set(node, replace(hold, lost_lease=node.lease))
                if hold.is_wanted:
                    gangs.add(hold.placement.gang)
                else:
                    self._release_if_shown(node, pod, now)
        self._index(node)
        self.generation += 1  # the reasons of those who wait may be others now
        return sorted(gangs)

    def take_back(self, name: str) -> None:
        """A lost node speaks again; its GPUs count from the report that names its lease."""
        node = self._node(name)
        node.is_lost, node.is_alive = False, True
        self._index(node)

    # What the Launcher says.

    def request(self, request: GangRequest, now: float) -> None:
        """Apply the Launcher's whole word about a gang."""
        gang = self.gangs.get(request.gang)
        if gang is None:
            gang = self.gangs[request.gang] = Gang(request, {})
        self._apply(gang, request, {ask.pod: spec_of(ask) for ask in request.pods}, now)

    def _apply(
        self, gang: Gang, request: GangRequest, specs: dict[str, PodSpec], now: float
    ) -> None:
        self._dequeue(gang)
        is_new = bool(specs.keys() - gang.specs.keys())
        gang.request, gang.specs = request, specs
        told = {end.pod: end for end in request.released}
        for pod in [pod for pod in gang.places if pod not in specs]:
            node = self.nodes[gang.places.pop(pod)]
            end = told.get(pod)
            hold = node.holds[pod]
            same = end is not None and end.journal == hold.placement.journal
            floor = end.report_revision if end is not None and same else 0
            self._set(node, replace(hold, is_wanted=False, free_from=floor))
            self._release_if_shown(node, pod, now)
        if not specs:
            del self.gangs[request.gang]
            self._changes.ended[request.gang] = request
            return
        gang.is_refused = gang.is_refused and not is_new
        self._enqueue(gang)

    def restore_hold(self, hold: Hold) -> None:
        """What the store knows of a placement; before its gang's request is applied."""
        place = hold.placement
        node = self._node(place.node)
        node.holds[place.pod] = hold
        self.holds[place.pod] = place.node
        if hold.is_wanted:
            self._restored.setdefault(place.gang, {})[place.pod] = place.node

    def restore_gang(
        self, request: GangRequest, said: Reason | None, is_refused: bool, now: float
    ) -> None:
        """What the store knows of a gang; after its placements."""
        specs = {ask.pod: spec_of(ask) for ask in request.pods}
        gang = self.gangs[request.gang] = Gang(request, specs, said=said, is_refused=is_refused)
        gang.said_at = now
        gang.places = self._restored.pop(request.gang, {})
        self._apply(gang, request, specs, now)

    def restored(self, now: float) -> None:
        """Everything is restored: count and index it."""
        for node in self.nodes.values():
            node.recount(now)
            self._index(node)

    # What the cycle does.

    def take(self, spec: PodSpec, gang: str, node: Node, now: float) -> Placement:
        """Place a pod on a node on which it fits."""
        placement = node.assign(spec, gang, now)
        node.occupy(placement.gpus, placement.port_numbers, placement.cpu, placement.memory_mb)
        node.holds[spec.pod] = Hold(placement)
        self.holds[spec.pod] = node.name
        self._index(node)
        return placement

    def undo(self, placement: Placement) -> None:
        """Take back a placement of the same cycle."""
        node = self.nodes[placement.node]
        del node.holds[placement.pod], self.holds[placement.pod]
        node.vacate(placement)
        self._index(node)

    def settle(self, gang: Gang, placements: Iterable[Placement]) -> None:
        """The gang's placements stand."""
        self._dequeue(gang)
        for placement in placements:
            gang.places[placement.pod] = placement.node
            self._changes.placed[placement.pod] = placement
        gang.said = None

    def refuse(self, gang: Gang, reason: Reason) -> None:
        """The gang's waiting pods will never be placed."""
        self._dequeue(gang)
        gang.is_refused, gang.said = True, reason

    def is_settled(self, now: float) -> bool:
        """The cluster is known, and has not grown for a while."""
        return self.grown_at is not None and now - self.grown_at >= self.policy.settle_s

    def expire_ports(self, now: float) -> None:
        """Ports that strangers held a while ago may be used again."""
        for node in self.nodes.values():
            if node.foreign and min(node.foreign.values()) <= now:
                before = node.ports_free
                node.recount(now)
                self._index(node)
                self.generation += node.ports_free > before

    def take_changes(self) -> Changes:
        """What was changed since this was last asked."""
        changes, self._changes = self._changes, Changes()
        changes.changed -= changes.placed.keys() | changes.gone
        return changes

    def hold_of(self, pod: str) -> Hold | None:
        """What is held for a pod."""
        node = self.holds.get(pod)
        return None if node is None else self.nodes[node].holds[pod]

    def shape(self, gang: Gang) -> Shape:
        """The shape of what a waiting gang waits for."""
        return self._shapes[gang.name]

    def is_waiting(self, gang: str) -> bool:
        """The gang has pods to be placed and was not refused."""
        return gang in self._shapes

    @contextmanager
    def as_if_healthy(self) -> Iterator[int]:
        """What-if: every known node and GPU is well. Yields how many nodes were changed."""
        bad = [(node, node.healthy) for node in self._find_unwell()]
        for node, _ in bad:
            node.healthy = node.whole
            self._index(node, anyway=True)
        try:
            yield len(bad)
        finally:
            for node, healthy in bad:
                node.healthy = healthy
                self._index(node)

    def sizes(self) -> Counter[Demand]:
        """What healthy and empty nodes have, counted; nodes that have not reported left out."""
        version, found = self._sizes
        if version != self.shape_version:
            found = Counter(n.capacity() for n in self.nodes.values() if n.report is not None)
            self._sizes = (self.shape_version, found)
        return found

    # The inside.

    def _find_unwell(self) -> list[Node]:
        """Nodes that could take more if all were well; looked for once after each change."""
        version = (self.generation, self.shape_version)
        if self._unwell[0] != version:
            found = [
                node
                for node in self.nodes.values()
                if node.report is not None and not (node.is_eligible and node.healthy == node.whole)
            ]
            self._unwell = (version, found)
        return self._unwell[1]

    def _node(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name)
            if name in self.removed:
                node.lease, node.is_lost = self.removed.pop(name), True
        return node

    def _adopt(self, node: Node, report: NodeReport, now: float) -> None:
        before = node.room
        old_size, was_eligible, was_healthy = node.capacity(), node.is_eligible, node.healthy
        node.report, node.rival = report, None
        for port in report.foreign_ports:
            node.foreign[port] = now + self.policy.foreign_port_s
        for pod in [pod for pod, hold in node.holds.items() if is_over(hold, report)]:
            self._let_go(node, pod, now)
        node.strangers = claims_of(report, node.holds)
        node.recount(now)
        self._index(node)
        size = node.capacity()
        if size != old_size:
            self.shape_version += 1
        if not covers(old_size, size):
            self.grown_at = now
        after = node.room
        if (node.is_eligible, node.healthy) != (was_eligible, was_healthy) or (
            node.is_eligible and not covers(before, after)
        ):
            self.generation += 1

    def _release_if_shown(self, node: Node, pod: str, now: float) -> None:
        """The newest report may show already what the release allows to be free.

        A lost pod needs no row for that: its node takes nothing before a report names the lease,
        and what such a report lists is not free.
        """
        hold = node.holds[pod]
        if hold.lost_lease is not None:
            self._let_go(node, pod, now)
            node.strangers = {} if node.report is None else claims_of(node.report, node.holds)
            node.recount(now)
            self._index(node)
            return
        if hold.is_occupying and (node.report is None or not is_over(hold, node.report)):
            return
        self._let_go(node, pod, now)
        if node.strangers:  # they may hold the same
            node.recount(now)
        elif hold.is_occupying:
            node.vacate(hold.placement)
        self._index(node)
        self.generation += node.is_eligible

    def _let_go(self, node: Node, pod: str, now: float) -> None:
        """The pod takes nothing any more; the caller mends the node's counts."""
        hold = node.holds[pod]
        if hold.is_occupying:
            for port in hold.placement.port_numbers:
                node.resting[port] = now + self.policy.port_rest_s
        if hold.is_wanted:
            self._set(node, replace(hold, is_occupying=False))
        else:
            del node.holds[pod], self.holds[pod]
            self._changes.gone.add(pod)
            self._changes.placed.pop(pod, None)

    def _set(self, node: Node, hold: Hold) -> None:
        node.holds[hold.placement.pod] = hold
        self._changes.changed.add(hold.placement.pod)

    def _enqueue(self, gang: Gang) -> None:
        waiting = gang.waiting()
        if waiting and not gang.is_refused:
            shape = self._shapes[gang.name] = shape_of(waiting)
            self.queue.add(shape, gang.order)
            if gang.said is None:
                self.queue.unexplained.add(gang.name)
            else:
                self.queue.said.append((gang.said_at, gang.name))

    def _dequeue(self, gang: Gang) -> None:
        shape = self._shapes.pop(gang.name, None)
        if shape is not None:
            self.queue.remove(shape, gang.order)

    def _index(self, node: Node, *, anyway: bool = False) -> None:
        self._unindex(node)
        if not (node.is_eligible or anyway) or node.report is None:
            return
        gpus = node.gpus_free
        spot = (gpus if node.report.gpus else NO_GPUS, (node.cpu_free, node.name))
        insort(self.tiers.setdefault(spot[0], []), spot[1])
        self._spots[node.name] = spot
        node.is_indexed = True
        counted = self._counted[node.name] = Demand(
            gpus, max(node.cpu_free, 0), max(node.memory_free, 0), max(node.ports_free, 0)
        )
        self.free += counted

    def _unindex(self, node: Node) -> None:
        spot = self._spots.pop(node.name, None)
        if spot is None:
            return
        node.is_indexed = False
        tier = self.tiers[spot[0]]
        del tier[bisect_left(tier, spot[1])]
        if not tier:
            del self.tiers[spot[0]]
        self.free += self._counted.pop(node.name).times(-1)
