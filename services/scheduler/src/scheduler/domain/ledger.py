"""The nodes, and which pods hold what on them until a report shows it free. It knows no cells.

``touched`` lists changed nodes, and ``freed`` released pods that hold nothing any more: the caller
passes both on to the core.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from muster.contracts.nodes import NodeReport

from scheduler.domain.clashes import Clash
from scheduler.domain.nodes import Node, Size, claims_of, is_over, size_of
from scheduler.domain.placements import Hold, Placement
from scheduler.domain.rules import Rules


@dataclass(slots=True)
class Rows:
    """The rows that a transaction must write: placements made or changed, and those that are over;
    ``sized``: nodes with another size.
    """

    placed: dict[str, Placement] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    sized: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.placed or self.changed or self.gone or self.sized)


class Ledger:
    """Nodes by name. ``removed``: the leases of removed nodes. ``pods``: the node of each placed
    pod that may hold something. ``listed``: the nodes that report each pod without a placement
    there. ``forgetful``: nodes whose report lacks pods that are placed there. ``version``: raised
    when a node's size changes; ``grown_at``: when one last grew, None: never.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.nodes: dict[str, Node] = {}
        self.removed: dict[str, int] = {}
        self.pods: dict[str, str] = {}
        self.listed: dict[str, set[str]] = {}
        self.forgetful: set[str] = set()
        self.touched: set[str] = set()
        self.freed: list[Hold] = []
        self.overdue: list[Hold] = []
        self.version = 0
        self.grown_at: float | None = None
        self._rows = Rows()
        self._due: list[tuple[float, str, str]] = []
        self._watched: set[str] = set()

    # Messages of nodes.

    def receive(self, name: str, journal: str, now: float) -> bool:
        """A node has sent a message. True if it was declared lost."""
        node = self._node(name)
        rival = node.rival
        if rival is not None and rival.journal == journal != "" and node.clash is None:
            self._adopt(node, rival, now)
        if not node.is_alive and not node.is_lost:
            node.is_alive = True
            self.touched.add(name)
        return node.is_lost

    def doubt(self, name: str) -> None:
        """The node was silent for long, unjudged: nothing new is placed there until it sends a
        message.
        """
        node = self.nodes.get(name)
        if node is not None and node.is_alive:
            node.is_alive = False
            self.touched.add(name)

    def report(self, report: NodeReport, now: float) -> None:
        """Take a node's report, unless it is older than the known one.

        Within one journal the revision decides. Of two journals the later time decides, until a
        heartbeat names the other; in a clash the journal that the placements name.
        """
        node = self._node(report.node)
        known = node.report
        if known is None or known.journal == report.journal:
            is_taken = known is None or known.revision < report.revision
        elif node.clash is None:
            is_taken = report.at > known.at
        else:
            is_taken = node.is_of_others(known.journal) and not node.is_of_others(report.journal)
        if is_taken:
            self._adopt(node, report, now)
        elif known is not None and known.journal != report.journal:
            rival = node.rival
            is_same = rival is not None and rival.journal == report.journal
            if rival is None or not is_same or rival.revision < report.revision:
                node.rival = report
                self._find_orphaned(node)

    def clash(self, name: str, clash: Clash | None, now: float) -> None:
        """Two machines report under the node's name, or no longer."""
        node = self._node(name)
        if node.clash != clash:
            node.clash = clash
            self.settle(name, now)

    def remove(self, name: str) -> bool:
        """A lost node was removed: only its lease is kept, as it may return. False if it is not
        lost, or the Launcher still lists some of its pods.
        """
        node = self.nodes.get(name)
        if node is None or not node.is_lost or node.holds:
            return False
        self._list(self.nodes.pop(name), frozenset())
        self.forgetful.discard(name)
        self.removed[name] = node.lease
        self.version += 1
        return True

    def lose(self, name: str, now: float, at_ms: int = 0) -> list[Hold]:
        """The node's lease ran out: its pods are lost for good. Returns what they held.

        ``at_ms``: the clock. The new lease number is above it: a store that was restored from a
        backup lacks later numbers that agents have received.
        """
        node = self._node(name)
        node.is_lost, node.is_alive, node.lease = True, False, max(node.lease + 1, at_ms)
        lost = [hold for hold in node.holds.values() if not hold.is_lost]
        self._lose(node, lost, now)
        self._find_orphaned(node)
        return lost

    def lose_forgotten(self, name: str, now: float) -> list[Hold]:
        """The node's agent has lost its journal: the pods that its report lacks are lost for good,
        and hold nothing any more. Returns what they held.
        """
        node = self.nodes[name]
        lost = node.forgotten
        self._lose(node, lost, now)
        self.settle(name, now)
        return lost

    def take_back(self, name: str) -> None:
        """A lost node sends messages again; its GPUs count from the report that names its lease."""
        node = self._node(name)
        node.is_lost, node.is_alive = False, True
        self.touched.add(name)

    # Pods.

    def put(self, placement: Placement) -> None:
        """A pod was placed."""
        node = self.nodes[placement.node]
        node.holds[placement.pod] = Hold(placement)
        self.pods[placement.pod] = placement.node
        self._rows.placed[placement.pod] = placement
        if placement.pod in node.orphaned:  # an adopted pod
            self._find_orphaned(node)

    def charge(self, pod: str, charged: tuple[int, ...]) -> None:
        """The charged GPUs of the pod have changed."""
        hold = self.hold_of(pod)
        if hold is not None and hold.placement.charged != charged:
            place = replace(hold.placement, charged=charged)
            self._set(self.nodes[place.node], replace(hold, placement=place))

    def release(self, pod: str, free_from: int, now: float) -> bool:
        """The pod is not wanted any more. Returns whether its resources are known to be free.

        A lost pod needs no row for that: its node takes nothing before a report names the lease,
        and what such a report lists is not free.
        """
        node = self.nodes[self.pods[pod]]
        hold = replace(node.holds[pod], is_wanted=False, free_from=free_from)
        self._set(node, hold)
        if hold.is_lost or self._is_over(node, hold):
            self._let_go(node, pod, now)
            self._find_orphaned(node)
            return True
        heappush(self._due, (now + self.rules.overdue_s, node.name, pod))
        return False

    def hold_of(self, pod: str) -> Hold | None:
        """The resources held for a pod."""
        node = self.pods.get(pod)
        return None if node is None else self.nodes[node].holds[pod]

    def expire(self, now: float) -> None:
        """Ports may be used again, and some pods are overdue."""
        while self._due and self._due[0][0] <= now:
            _, name, pod = heappop(self._due)
            node = self.nodes.get(name)
            if not pod:
                self._watched.discard(name)
            if node is None:
                continue
            self.touched.add(name)
            hold = node.holds.get(pod)
            if not pod:
                later = [at for at in (*node.foreign.values(), *node.resting.values()) if at > now]
                if later:
                    self._look_again(node, min(later))
            elif hold is not None and hold.is_occupying and not (hold.is_wanted or hold.is_lost):
                node.overdue.add(pod)
                self.overdue.append(hold)

    # The store.

    def restore_node(self, name: str, *, lease: int, is_lost: bool, size: Size | None) -> None:
        """The stored row of a node, first or changed."""
        node = self._node(name)
        node.is_alive = node.is_alive and not is_lost
        node.lease, node.is_lost = lease, is_lost
        if node.report is None:
            self.version += size != node.size
            node.size = size
        elif size == node.size:
            self._rows.sized.discard(name)
        else:  # the report is newer than the row
            self._rows.sized.add(name)
        self.touched.add(name)

    def restore_removed(self, name: str, lease: int) -> None:
        """A stored removal of a node."""
        node = self.nodes.pop(name, None)
        self.removed[name] = lease
        self.forgetful.discard(name)
        if node is not None:
            self._list(node, frozenset())
            self.version += node.size is not None

    def restore_hold(self, hold: Hold, now: float) -> None:
        """A stored placement; `settle` its node after all of them."""
        place = hold.placement
        self._node(place.node).holds[place.pod] = hold
        self.pods[place.pod] = place.node
        if not hold.is_wanted and not hold.is_lost:
            heappush(self._due, (now + self.rules.overdue_s, place.node, place.pod))

    def forget_hold(self, pod: str) -> str | None:
        """As if the pod had never been stored. Returns its node."""
        self._rows.placed.pop(pod, None)
        self._rows.changed.discard(pod)
        self._rows.gone.discard(pod)
        name = self.pods.pop(pod, None)
        if name is not None:
            node = self.nodes[name]
            del node.holds[pod]
            node.overdue.discard(pod)
        return name

    def settle(self, name: str, now: float) -> None:
        """The node's stored placements changed: compare its report with them."""
        node = self.nodes.get(name)
        if node is None:
            return
        self._let_go_of_those_over(node, now)
        self._find_orphaned(node)

    def take_rows(self) -> Rows:
        """The changes since the last call."""
        rows, self._rows = self._rows, Rows()
        rows.changed -= rows.placed.keys() | rows.gone
        return rows

    def sizes(self) -> dict[str, Size]:
        """The nodes whose size is known, by name."""
        return {n: node.size for n in sorted(self.nodes) if (node := self.nodes[n]).size}

    # The inside.

    def _node(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name)
            if name in self.removed:
                node.lease, node.is_lost = self.removed.pop(name), True
        return node

    def _adopt(self, node: Node, report: NodeReport, now: float) -> None:
        before, node.report = node.report, report
        if node.clash is None:
            node.rival = None
        elif before is not None and before.journal != report.journal:
            node.rival = before
        self.touched.add(node.name)
        self._avoid(node, node.foreign, report.foreign_ports, now + self.rules.foreign_port_s)
        self._let_go_of_those_over(node, now)
        self._find_orphaned(node)
        size = size_of(report)
        if size != node.size:
            if node.size is None or not _covers(node.size, size):
                self.grown_at = now
            node.size = size
            self.version += 1
            self._rows.sized.add(node.name)
        elif self.grown_at is None:
            self.grown_at = now

    def _lose(self, node: Node, lost: Iterable[Hold], now: float) -> None:
        for hold in lost:
            self._set(node, replace(hold, lost_lease=node.lease))
            if not hold.is_wanted:
                self._let_go(node, hold.pod, now)

    def _avoid(
        self, node: Node, kept: dict[int, float], ports: Iterable[int], until: float
    ) -> None:
        """Avoid ports until then; the node is checked again when one may be used."""
        more = dict.fromkeys(ports, until)
        kept.update(more)
        if more:
            self._look_again(node, until)

    def _look_again(self, node: Node, at: float) -> None:
        """Once for each node: else a standby's list would grow without bound."""
        if node.name not in self._watched:
            self._watched.add(node.name)
            heappush(self._due, (at, node.name, ""))

    def _find_orphaned(self, node: Node) -> None:
        node.orphaned = {} if node.report is None else claims_of(node.report, node.holds)
        pods = set(node.orphaned)
        if node.clash is not None and node.rival is not None:
            pods.update(each.pod for each in node.rival.pods if each.pod not in node.holds)
        self._list(node, frozenset(pods))
        self.touched.add(node.name)
        if node.forgotten:
            self.forgetful.add(node.name)
        else:
            self.forgetful.discard(node.name)

    def _list(self, node: Node, pods: frozenset[str]) -> None:
        """The node reports these pods without a placement there."""
        for pod in node.listed - pods:
            self.listed[pod].discard(node.name)
            if not self.listed[pod]:
                del self.listed[pod]
        for pod in pods - node.listed:
            self.listed.setdefault(pod, set()).add(node.name)
        node.listed = pods

    @staticmethod
    def _is_over(node: Node, hold: Hold) -> bool:
        """In a clash, a report does not show the other machine's pods."""
        report = node.report
        if report is None:
            return False
        is_of_other = node.clash is not None and report.journal != hold.placement.journal
        return not is_of_other and is_over(hold, report)

    def _let_go_of_those_over(self, node: Node, now: float) -> None:
        for pod in [pod for pod, hold in node.holds.items() if self._is_over(node, hold)]:
            self._let_go(node, pod, now)

    def _let_go(self, node: Node, pod: str, now: float) -> None:
        """The pod holds nothing any more; the caller looks for orphaned pods then."""
        hold = node.holds[pod]
        if hold.is_occupying:
            until = now + self.rules.port_rest_s
            self._avoid(node, node.resting, hold.placement.port_numbers, until)
        if hold.is_wanted:
            self._set(node, replace(hold, is_occupying=False))
        else:
            del node.holds[pod], self.pods[pod]
            node.overdue.discard(pod)
            self.freed.append(hold)
            self._rows.gone.add(pod)
            self._rows.placed.pop(pod, None)

    def _set(self, node: Node, hold: Hold) -> None:
        node.holds[hold.pod] = hold
        self._rows.changed.add(hold.pod)


def _covers(one: Size, other: Size) -> bool:
    """Every amount of the other is at most this one's."""
    return (
        len(one.gpus) >= len(other.gpus)
        and one.cpu >= other.cpu
        and one.memory_mb >= other.memory_mb
        and one.ports[1] - one.ports[0] >= other.ports[1] - other.ports[0]
        and all(dict(one.resources or ()).get(name, 0) >= n for name, n in other.resources or ())
    )
