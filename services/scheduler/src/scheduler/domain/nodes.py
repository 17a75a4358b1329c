"""One node: what it has, who holds what, and how many pods of a kind still fit.

A GPU counts where the newest report shows it healthy and neither a placement nor a pod in the
report holds it: what is not known is not free.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from muster.contracts.nodes import NodeReport

from scheduler.domain.model import Demand, Hold, Placement, PodSpec


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pod in the node's report holds that no placement explains."""

    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    cpu: int = 0
    memory_mb: int = 0


@dataclass(slots=True)
class Node:
    """A node. Only the cluster changes it."""

    name: str
    report: NodeReport | None = None
    rival: NodeReport | None = None
    is_alive: bool = False
    is_lost: bool = False
    lease: int = 0
    holds: dict[str, Hold] = field(default_factory=dict)
    strangers: dict[str, Claim] = field(default_factory=dict)
    foreign: dict[int, float] = field(default_factory=dict)
    resting: dict[int, float] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    healthy: int = 0
    held: int = 0
    cpu_free: int = 0
    memory_free: int = 0
    ports_free: int = 0
    is_indexed: bool = False

    @property
    def whole(self) -> int:
        """All its GPUs as a bit mask, sick ones too."""
        return 0 if self.report is None else sum(1 << gpu.index for gpu in self.report.gpus)

    @property
    def free(self) -> int:
        """The free GPUs as a bit mask."""
        return self.healthy & ~self.held

    @property
    def gpus_free(self) -> int:
        """How many GPUs are free."""
        return (self.healthy & ~self.held).bit_count()

    @property
    def knows_lease(self) -> bool:
        """The agent has named the number of the node's last loss: its GPUs count again."""
        return self.report is not None and self.report.lease >= self.lease

    @property
    def room(self) -> Demand:
        """What is free."""
        return Demand(self.gpus_free, self.cpu_free, self.memory_free, self.ports_free)

    @property
    def is_eligible(self) -> bool:
        """New pods may go here."""
        return (
            self.report is not None
            and self.is_alive
            and not self.is_lost
            and self.knows_lease
            and self.report.is_healthy
            and not self.report.is_stopping
        )

    @property
    def trouble(self) -> str | None:
        """Why nothing new is placed here, for people."""
        if self.report is None:
            return "it has not reported yet"
        if self.is_lost:
            return "it is lost"
        if not self.is_alive:
            return "it has not been heard yet"
        if not self.knows_lease:
            return "it is back, and has not reported since"
        if not self.report.is_healthy:
            return self.report.problem or "it is unhealthy"
        return "it is stopping" if self.report.is_stopping else None

    def capacity(self) -> Demand:
        """All that a healthy and empty node has, as last reported."""
        if self.report is None:
            return Demand()
        first, last = self.report.port_range
        return Demand(
            len(self.report.gpus), self.report.cpu, self.report.memory_mb, last - first + 1
        )

    def fits(self, demand: Demand, at_most: int) -> int:
        """How many pods of this demand fit now, up to ``at_most``."""
        return room(self.room, demand, at_most)

    def assign(self, spec: PodSpec, gang: str, now: float) -> Placement:
        """The place of a pod that fits: the lowest free GPUs; ports from a start that the pod's
        name gives, so that a freed port is not at once used again.
        """
        assert self.report is not None
        return Placement(
            spec.pod,
            gang,
            self.name,
            self.report.journal,
            self.report.address,
            self.report.log_url,
            _lowest_bits(self.free, spec.demand.gpus),
            self._choose_ports(spec, now),
            spec.demand.cpu,
            spec.demand.memory_mb,
        )

    def occupy(self, gpus: Iterable[int], ports: Iterable[int], cpu: int, memory_mb: int) -> None:
        """Somebody holds these."""
        for gpu in gpus:
            self.held |= 1 << gpu
        for port in ports:
            self._hold_port(port)
        self.cpu_free -= cpu
        self.memory_free -= memory_mb

    def recount(self, now: float) -> None:
        """Count everything anew from the report and who holds what."""
        self.healthy = self.held = 0
        self.ports = {}
        size = self.capacity()
        self.cpu_free, self.memory_free, self.ports_free = size.cpu, size.memory_mb, size.ports
        if self.report is not None:
            for gpu in self.report.gpus:
                self.healthy |= (1 << gpu.index) if gpu.is_healthy else 0
        for port in [port for port, until in self.foreign.items() if until <= now]:
            del self.foreign[port]
        for port in [port for port, until in self.resting.items() if until <= now]:
            del self.resting[port]
        for port in self.foreign:
            self._hold_port(port)
        for hold in self.holds.values():
            if hold.is_occupying:
                place = hold.placement
                self.occupy(place.gpus, place.port_numbers, place.cpu, place.memory_mb)
        for claim in self.strangers.values():
            self.occupy(claim.gpus, claim.ports, claim.cpu, claim.memory_mb)

    def vacate(self, placement: Placement) -> None:
        """The placement takes nothing any more; nobody else holds its GPUs."""
        for gpu in placement.gpus:
            self.held &= ~(1 << gpu)
        for port in placement.port_numbers:
            self._drop_port(port)
        self.cpu_free += placement.cpu
        self.memory_free += placement.memory_mb

    def _hold_port(self, port: int) -> None:
        count = self.ports.get(port, 0)
        self.ports[port] = count + 1
        if count == 0 and self._in_range(port):
            self.ports_free -= 1

    def _drop_port(self, port: int) -> None:
        count = self.ports.pop(port, 0) - 1
        if count > 0:
            self.ports[port] = count
        elif self._in_range(port):
            self.ports_free += 1

    def _in_range(self, port: int) -> bool:
        if self.report is None:
            return False
        first, last = self.report.port_range
        return first <= port <= last

    def _choose_ports(self, spec: PodSpec, now: float) -> dict[str, tuple[int, ...]]:
        if not spec.demand.ports:
            return {}
        assert self.report is not None
        first, last = self.report.port_range
        size = last - first + 1
        start = crc32(spec.pod.encode()) % size
        chosen: list[int] = []
        rested_too: list[int] = []
        for step in range(size):
            if len(chosen) == spec.demand.ports:
                break
            port = first + (start + step) % size
            if port in self.ports:
                continue
            (rested_too if self.resting.get(port, now) > now else chosen).append(port)
        chosen += rested_too[: spec.demand.ports - len(chosen)]
        numbers = iter(chosen)
        return {label: tuple(next(numbers) for _ in range(count)) for label, count in spec.ports}


def room(free: Demand, demand: Demand, at_most: int) -> int:
    """How many pods of one demand fit into what is free, up to ``at_most``."""
    if demand.gpus:
        at_most = min(at_most, free.gpus // demand.gpus)
    if demand.cpu:
        at_most = min(at_most, free.cpu // demand.cpu)
    if demand.memory_mb:
        at_most = min(at_most, free.memory_mb // demand.memory_mb)
    if demand.ports:
        at_most = min(at_most, free.ports // demand.ports)
    return max(at_most, 0)


def _lowest_bits(mask: int, count: int) -> tuple[int, ...]:
    found: list[int] = []
    while len(found) < count:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)


def claims_of(report: NodeReport, holds: dict[str, Hold]) -> dict[str, Claim]:
    """What the report's pods hold beyond the placements that are known here."""
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


MOST_GPUS, MOST_PORTS = 1024, 65535
"""Of one node: beyond it a report is nonsense."""


def nonsense(report: NodeReport) -> str | None:
    """What no node can be like, in a report that can be read all the same; None in a good one."""
    first, last = report.port_range
    indices = [gpu.index for gpu in report.gpus]
    held = [gpu for pod in report.pods for gpu in pod.gpus]
    ports = [*report.foreign_ports, *(port for pod in report.pods for port in pod.ports)]
    sizes = [report.cpu, report.memory_mb]
    sizes += [size for pod in report.pods for size in (pod.cpu, pod.memory_mb)]
    if not report.node:
        return "the node has no name"
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
        return "it has, or a pod holds, less than nothing"
    return None


def is_over(hold: Hold, report: NodeReport) -> bool:
    """Whether this newest report of the node shows that the hold takes nothing any more.

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
    return not (
        any(pod.pod == place.pod for pod in report.pods)
        or any(gpu.pod == place.pod for gpu in report.gpus)
    )


def covers(one: Demand, other: Demand) -> bool:
    """Nothing of the other is more than of the one."""
    return (
        one.gpus >= other.gpus
        and one.cpu >= other.cpu
        and one.memory_mb >= other.memory_mb
        and one.ports >= other.ports
    )
