"""One node as it reports itself, and what pods other than the core's hold there.

A GPU counts if the newest report shows it healthy, and neither a placement nor a pod in the report
holds it: what is unknown is not free.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from muster.contracts.nodes import NodeReport

from scheduler.domain.clashes import Clash
from scheduler.domain.formats.fields import name_problem
from scheduler.domain.placements import Hold

MOST_GPUS, MOST_PORTS = 1024, 65535
"""The most for one node: a report with more is invalid."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The resources of a node that a pod other than the core's holds."""

    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    cpu: int = 0
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """A node's resources, healthy or not. ``gpus``: index and model of each, by index. ``ports``:
    first and last. ``resources``: sorted (name, count) pairs; None: the node counts none.
    """

    gpus: tuple[tuple[int, str], ...]
    cpu: int
    memory_mb: int
    ports: tuple[int, int]
    resources: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A node as the core shall see it. ``well``: its healthy GPUs. ``gpus``, ``cpu``, ``memory_mb``
    and ``ports``: held by pods other than the core's. ``avoided``: ports to use last.
    """

    is_healthy: bool
    well: frozenset[int] = frozenset()
    gpus: frozenset[int] = frozenset()
    cpu: int = 0
    memory_mb: int = 0
    ports: frozenset[int] = frozenset()
    avoided: frozenset[int] = frozenset()


@dataclass(slots=True)
class Node:
    """A node. Only the ledger changes it.

    ``rival``: a report of another journal. ``clash``: two machines report under its name; then the
    reports of the journal count that the placements name. ``orphaned``: pods in its report that no
    placement explains; ``listed``: those, and in a clash those of the other machine. ``overdue``:
    released pods that are no longer waited for. ``foreign``, ``resting``: ports, and until when.
    """

    name: str
    size: Size | None = None
    report: NodeReport | None = None
    rival: NodeReport | None = None
    clash: Clash | None = None
    is_alive: bool = False
    is_lost: bool = False
    lease: int = 0
    holds: dict[str, Hold] = field(default_factory=dict)
    orphaned: dict[str, Claim] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    overdue: set[str] = field(default_factory=set)
    foreign: dict[int, float] = field(default_factory=dict)
    resting: dict[int, float] = field(default_factory=dict)

    @property
    def knows_lease(self) -> bool:
        """The agent has named the lease number of the node's last loss: its GPUs count again."""
        return self.report is not None and self.report.lease >= self.lease

    @property
    def is_known(self) -> bool:
        """Its newest report shows its present state."""
        return self.is_alive and not self.is_lost and self.knows_lease and self.clash is None

    @property
    def forgotten(self) -> list[Hold]:
        """The resources of pods that the report lacks: it is of another journal than their
        placements name, and does not list them. In a clash it proves nothing about them.
        """
        report = self.report
        if report is None or self.clash is not None:
            return []
        others = [
            hold
            for hold in self.holds.values()
            if hold.is_wanted and not hold.is_lost and hold.placement.journal != report.journal
        ]
        return [hold for hold in others if not _lists(report, hold.pod)] if others else []

    @property
    def journals(self) -> set[str]:
        """The journals that live placements name."""
        return {hold.placement.journal for hold in self.holds.values() if not hold.is_lost}

    def is_of_others(self, journal: str) -> bool:
        """In a clash: live placements name other journals than this one."""
        return self.clash is not None and bool(self.journals) and journal not in self.journals

    @property
    def is_eligible(self) -> bool:
        """New pods may go here, by the node's own state."""
        return (
            self.report is not None
            and self.is_known
            and self.report.is_healthy
            and not self.report.is_stopping
        )

    @property
    def trouble(self) -> str | None:
        """Why nothing new is placed here, for people."""
        if self.is_lost:
            return "it is lost"
        if self.report is None:
            return "it has not reported yet"
        if not self.is_alive:
            return "no heartbeat from it has been received yet"
        if self.clash is not None:
            return f"two machines report under its name: {' and '.join(self.clash.addresses)}"
        if not self.knows_lease:
            return "it has returned but not reported yet"
        if not self.report.is_healthy:
            return self.report.problem or "it is unhealthy"
        return "it is stopping" if self.report.is_stopping else None

    def view(self, now: float) -> View:
        """The core's view of it."""
        if self.report is None:
            return View(is_healthy=False)
        for ports in (self.foreign, self.resting):
            for port in [port for port, until in ports.items() if until <= now]:
                del ports[port]
        claims = list(self.claims())
        return View(
            self.is_eligible,
            frozenset(gpu.index for gpu in self.report.gpus if gpu.is_healthy),
            frozenset(gpu for claim in claims for gpu in claim.gpus),
            sum(claim.cpu for claim in claims),
            sum(claim.memory_mb for claim in claims),
            frozenset(port for claim in claims for port in claim.ports) | self.foreign.keys(),
            frozenset(self.resting),
        )

    def claims(self) -> Iterator[Claim]:
        """All resources that pods other than the core's hold."""
        yield from self.orphaned.values()
        for pod, hold in self.holds.items():
            if hold.is_occupying and (hold.is_lost or pod in self.overdue):
                place, kind = hold.placement, hold.placement.kind
                yield Claim(place.gpus, place.port_numbers, kind.cpu, kind.memory_mb)


def size_of(report: NodeReport) -> Size:
    """The node's resources, by its report."""
    gpus = sorted((gpu.index, gpu.model) for gpu in report.gpus)
    counted = None if report.resources is None else tuple(sorted(report.resources.items()))
    return Size(tuple(gpus), report.cpu, report.memory_mb, report.port_range, counted)


def claims_of(report: NodeReport, holds: dict[str, Hold]) -> dict[str, Claim]:
    """The resources of the report's pods beyond their placements."""
    claims: dict[str, Claim] = {}
    for pod in report.pods:
        hold = holds.get(pod.pod)
        if hold is None or not hold.is_occupying:
            claims[pod.pod] = Claim(pod.gpus, pod.ports, pod.cpu, pod.memory_mb)
    for gpu in report.gpus:
        if gpu.pod is None:
            continue
        hold = holds.get(gpu.pod)
        if hold is not None and hold.is_occupying and gpu.index in hold.placement.gpus:
            continue
        claim = claims.get(gpu.pod, Claim())
        if gpu.index not in claim.gpus:
            claims[gpu.pod] = Claim(
                (*claim.gpus, gpu.index), claim.ports, claim.cpu, claim.memory_mb
            )
    return claims


def nonsense(report: NodeReport) -> str | None:
    """The first impossible value in a readable report; None in a good one."""
    first, last = report.port_range
    indices = [gpu.index for gpu in report.gpus]
    held = [gpu for pod in report.pods for gpu in pod.gpus]
    ports = [*report.foreign_ports, *(port for pod in report.pods for port in pod.ports)]
    resources = report.resources or {}
    sizes = [report.cpu, report.memory_mb, *resources.values()]
    sizes += [size for pod in report.pods for size in (pod.cpu, pod.memory_mb)]
    problem = name_problem(report.node)
    if problem is not None:
        return f"the node's name {problem}"
    if report.at.tzinfo is None:
        return f"its time {report.at} has no time zone"
    if not 1 <= first <= last <= MOST_PORTS:
        return f"its port range is {first} to {last}"
    if any(not 0 <= index < MOST_GPUS for index in (*indices, *held)):
        return f"a GPU's index is not within 0 to {MOST_GPUS - 1}"
    if len(set(indices)) < len(indices):
        return "it lists a GPU twice"
    if any(not 0 <= port <= MOST_PORTS for port in ports):
        return f"a port is not within 0 to {MOST_PORTS}"
    if min(sizes) < 0:
        return "an amount is negative"
    for name in resources:
        if (problem := name_problem(name)) is not None:
            return f"the name of a resource {problem}"
    return None


def is_over(hold: Hold, report: NodeReport) -> bool:
    """Whether this newest report of the node shows that the pod holds nothing any more.

    A released pod: a report that does not list it and is not older than the one that its end names
    (of another journal: the agent ended all supervisors before it). A lost pod: one that does not
    list it and names the lease of the loss, so it was made after the node came back.
    """
    if not hold.is_occupying:
        return not hold.is_wanted
    place = hold.placement
    if hold.lost_lease is not None:
        if report.lease < hold.lost_lease:
            return False
    elif hold.is_wanted or (report.journal == place.journal and report.revision < hold.free_from):
        return False
    return not _lists(report, place.pod)


def _lists(report: NodeReport, pod: str) -> bool:
    listed = any(each.pod == pod for each in report.pods)
    return listed or any(gpu.pod == pod for gpu in report.gpus)
