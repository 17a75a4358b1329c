"""Where the pods of a gang go: all of them or none, on the fewest nodes, best fit, lowest id.

Equal pods are placed together, the largest kind first. For pods of one kind a placement is found
whenever one exists; for several kinds a few orders are tried, then all ways within a bound.
"""

from collections.abc import Callable, Iterable, Sequence

from scheduler.domain.arranging import arrange
from scheduler.domain.cluster import Cluster
from scheduler.domain.model import Demand, Placement, PodSpec
from scheduler.domain.nodes import Node, covers

Group = tuple[Demand, list[PodSpec]]

LARGEST_FIRST: tuple[Callable[[Demand], tuple[int, ...]], ...] = (
    lambda d: (d.gpus, d.cpu, d.memory_mb, d.ports),
    lambda d: (d.cpu, d.memory_mb, d.gpus, d.ports),
    lambda d: (d.memory_mb, d.cpu, d.gpus, d.ports),
)
"""The orders that are tried."""


def place(
    cluster: Cluster, gang: str, pods: Sequence[PodSpec], near: Iterable[str], now: float
) -> tuple[Placement, ...] | None:
    """Place all pods, or change nothing and return None. ``near``: nodes that the gang is on."""
    groups = _groups(pods)
    for largest in LARGEST_FIRST if len(groups) > 1 else LARGEST_FIRST[:1]:
        groups.sort(key=lambda group: largest(group[0]), reverse=True)
        trial = _Trial(cluster, gang, sorted(set(near)), now)
        if all(trial.place(demand, list(specs)) for demand, specs in groups):
            by_pod = {placement.pod: placement for placement in trial.placements}
            return tuple(by_pod[spec.pod] for spec in pods)
        trial.undo()
    if len(groups) > 1:
        return _search(cluster, gang, groups, now)
    return None


def _search(
    cluster: Cluster, gang: str, groups: list[Group], now: float
) -> tuple[Placement, ...] | None:
    """Every way to place the kinds, within the policy's bounds."""
    wanted = sum((demand.times(len(specs)) for demand, specs in groups), Demand())
    if cluster.search_left <= 0 or not covers(cluster.free, wanted):
        return None
    nodes: list[Node] = []
    for name in sorted(name for tier in cluster.tiers.values() for _, name in tier):
        if any(cluster.nodes[name].fits(demand, 1) for demand, _ in groups):
            nodes.append(cluster.nodes[name])
            if len(nodes) > cluster.policy.search_nodes:
                return None
    kinds = [(demand, len(specs)) for demand, specs in groups]
    rooms = [node.room for node in nodes]
    counts, cluster.search_left = arrange(rooms, kinds, cluster.search_left)
    if counts is None:
        return None
    placements: list[Placement] = []
    for (_, specs), by_node in zip(groups, counts, strict=True):
        rest = iter(specs)
        for node, count in zip(nodes, by_node, strict=True):
            placements += [cluster.take(next(rest), gang, node, now) for _ in range(count)]
    return tuple(placements)


def _groups(pods: Sequence[PodSpec]) -> list[Group]:
    groups: dict[Demand, list[PodSpec]] = {}
    for spec in pods:
        groups.setdefault(spec.demand, []).append(spec)
    return list(groups.items())


class _Trial:
    """One attempt to place a gang."""

    def __init__(self, cluster: Cluster, gang: str, near: list[str], now: float) -> None:
        self.placements: list[Placement] = []
        self._cluster = cluster
        self._gang = gang
        self._near = near
        self._now = now

    def undo(self) -> None:
        """Take everything back."""
        for placement in reversed(self.placements):
            self._cluster.undo(placement)

    def place(self, demand: Demand, pods: list[PodSpec]) -> bool:
        """Place equal pods; False where they don't all fit."""
        for name in self._near:
            node = self._cluster.nodes[name]
            if pods and node.is_indexed:
                pods = self._fill(node, demand, pods)
        while pods:
            node_or_none = _best(self._cluster, demand, len(pods))
            if node_or_none is None:
                return False
            pods = self._fill(node_or_none, demand, pods)
        return True

    def _fill(self, node: Node, demand: Demand, pods: list[PodSpec]) -> list[PodSpec]:
        """Put as many as fit on one node; returns the rest."""
        count = node.fits(demand, len(pods))
        for spec in pods[:count]:
            placement = self._cluster.take(spec, self._gang, node, self._now)
            self.placements.append(placement)
        if count and node.name not in self._near:
            self._near.append(node.name)
        return pods[count:]


def _best(cluster: Cluster, demand: Demand, count: int) -> Node | None:
    """The node for as many as possible of ``count`` equal pods: the tightest that takes them all,
    else the one that takes most.
    """
    if not demand.gpus:
        return _best_without_gpus(cluster, demand, count)
    return _tightest(cluster, demand, count) or _roomiest(cluster, demand, count)


def _tightest(cluster: Cluster, demand: Demand, count: int) -> Node | None:
    for tier in sorted(cluster.tiers):
        if tier >= demand.gpus * count:
            for cpu, name in cluster.tiers[tier]:
                node = cluster.nodes[name]
                if cpu >= demand.cpu * count and node.fits(demand, count) == count:
                    return node
    return None


def _roomiest(cluster: Cluster, demand: Demand, count: int) -> Node | None:
    """Where most fit; of such nodes the one with the fewest free GPUs."""
    best: Node | None = None
    most = 1
    for tier in sorted(cluster.tiers, reverse=True):
        bound = min(tier // demand.gpus, count)
        if bound < most:
            break
        in_tier = 0
        for _, name in cluster.tiers[tier]:
            node = cluster.nodes[name]
            fitting = node.fits(demand, count)
            if fitting >= most and fitting > in_tier:
                best, most, in_tier = node, fitting, fitting
            if in_tier == bound:
                break
    return best


def _best_without_gpus(cluster: Cluster, demand: Demand, count: int) -> Node | None:
    """CPU-only pods: on nodes without GPUs if possible, then where the fewest GPUs are free."""
    for tier in sorted(cluster.tiers):
        best: Node | None = None
        most = 0
        for cpu, name in cluster.tiers[tier]:
            node = cluster.nodes[name]
            if cpu < demand.cpu:
                continue
            fitting = node.fits(demand, count)
            if fitting == count:
                return node
            if fitting > most:
                best, most = node, fitting
        if best is not None:
            return best
    return None
