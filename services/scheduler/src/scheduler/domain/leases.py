"""Which nodes have been silent for too long, by the messages that this process has read.

Silence counts on the caller's monotonic clock, and only while the Scheduler's own probe returns on
every partition. Otherwise the bus, or this process, is silent, and all leases start anew. When many
nodes fall silent at once, none is declared lost.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """Times in seconds.

    ``lease_s``: a node that is silent for longer is lost. ``probe_window_s``: a partition whose
    probe was not received for longer does not return it. ``stall_s``: this process judges at least
    this often, or its judging stalled. ``many``: the fraction of nodes above which simultaneous
    losses don't count; a single node's loss always counts.
    """

    lease_s: float = 60.0
    probe_window_s: float = 10.0
    stall_s: float = 5.0
    many: float = 0.2


@dataclass(frozen=True, slots=True)
class Judgement:
    """``lost``: declare these. ``withheld``: silent too, but too many at once to count.
    ``is_round``: the probes return.
    """

    lost: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    is_round: bool = True


@dataclass(slots=True)
class Leases:
    """When each node's message and each partition's probe were last received."""

    policy: LeasePolicy
    received: dict[str, float] = field(default_factory=dict)
    probes: dict[int, float] = field(default_factory=dict)
    recent: dict[str, float] = field(default_factory=dict)
    anew_at: float = 0.0
    probes_from: float = 0.0
    judged_at: float | None = None

    def receive(self, node: str, now: float) -> None:
        """A node has sent a message, or is to be watched from now on."""
        self.received[node] = now

    def forget(self, node: str) -> None:
        """The node is not judged any more."""
        self.received.pop(node, None)

    def probe_received(self, partition: int, now: float) -> None:
        """The Scheduler's own probe returned on a partition."""
        self.probes[partition] = now

    def is_current(self, partition: int) -> bool:
        """Messages read there now were sent after the last new start of leases."""
        return self.probes.get(partition, -1.0) >= self.probes_from

    def begin_anew(self, now: float) -> None:
        """A new leader, bus or reader: earlier silence does not count."""
        self.anew_at = self.probes_from = now

    def judge(self, partitions: int, now: float) -> Judgement:
        """The nodes that are lost now. Call it at least every ``stall_s``."""
        gap = 0.0 if self.judged_at is None else now - self.judged_at
        self.judged_at = now
        if gap > self.policy.stall_s:
            self.begin_anew(now)
        if not self.is_round(partitions, now):
            self.anew_at = now
            return Judgement(is_round=False)
        return self._judge(now)

    def is_round(self, partitions: int, now: float) -> bool:
        """The probes return on all of so many partitions."""
        oldest = max(now - self.policy.probe_window_s, self.probes_from)
        return partitions > 0 and all(self.probes.get(p, -1.0) >= oldest for p in range(partitions))

    def is_over(self, at: float, now: float) -> bool:
        """A node whose last message came at that time has been silent for a lease."""
        return self._silence(at, now) >= self.policy.lease_s

    def _silence(self, at: float, now: float) -> float:
        return now - max(at, self.anew_at)

    def _judge(self, now: float) -> Judgement:
        silence = {node: self._silence(at, now) for node, at in self.received.items()}
        over = sorted(node for node, s in silence.items() if s >= self.policy.lease_s)
        if not over:
            return Judgement()
        suspects = sum(s >= self.policy.lease_s / 2 for s in silence.values())
        self.recent = {n: at for n, at in self.recent.items() if now - at < self.policy.lease_s}
        known = len(self.received) + len(self.recent)
        if suspects + len(self.recent) > max(1.0, known * self.policy.many):
            return Judgement(withheld=tuple(over))
        for node in over:
            self.recent[node] = now
            del self.received[node]
        return Judgement(lost=tuple(over))
