"""What an operation cost: CPU seconds and wall time of each, beside a plain loop in the same
moment.

CPU time is no steady unit where a machine is shared: the same loop takes 50 ns at one time and 150
ns at another. So the loop is timed after each slice of the work, and each slice's CPU time is
given as measured and also *normed*: as it would be if the loop took `NORM_NS`.
"""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

NORM_NS = 55.0
LOOP = 20_000


def loop_ns() -> float:
    """CPU nanoseconds of one turn of the plain loop now."""
    total = 0
    started = time.process_time()
    for i in range(LOOP):
        total += i & 3
    return (time.process_time() - started) / LOOP * 1e9


def rss_mb() -> float:
    """What this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order; 0 where there are none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass(slots=True)
class Meter:
    """Sums over slices. ``walls`` and ``cpus`` are seconds of each gang; ``done`` counts gangs
    of a rate; ``cpu_s`` has all that was spent, also on departures and failures.
    """

    done: int = 0
    cpu_s: float = 0.0
    normed_s: float = 0.0
    walls: "array[float]" = field(default_factory=lambda: array("d"))
    cpus: "array[float]" = field(default_factory=lambda: array("d"))
    loops: list[float] = field(default_factory=list)
    _open_s: float = 0.0

    def spent(self, cpu_s: float) -> None:
        self._open_s += cpu_s

    def gang(self, wall_s: float, cpu_s: float) -> None:
        """One gang's request and the cycle that decided on it."""
        self.walls.append(wall_s)
        self.cpus.append(cpu_s)
        self._open_s += cpu_s

    def slice_ends(self, loop: float) -> None:
        """The plain loop takes ``loop`` ns now."""
        if self._open_s:
            self.loops.append(loop)
        self.cpu_s += self._open_s
        self.normed_s += self._open_s * NORM_NS / loop
        self._open_s = 0.0

    @property
    def total_s(self) -> float:
        """CPU seconds up to now."""
        return self.cpu_s + self._open_s

    def join(self, other: "Meter") -> None:
        """What the other one measured, too."""
        self.done += other.done
        self.cpu_s += other.cpu_s
        self.normed_s += other.normed_s
        self.walls.extend(other.walls)
        self.cpus.extend(other.cpus)
        self.loops.extend(other.loops)

    @property
    def per_s(self) -> float:
        return self.done / self.cpu_s if self.cpu_s else 0.0

    @property
    def normed_per_s(self) -> float:
        return self.done / self.normed_s if self.normed_s else 0.0

    @property
    def normed_us(self) -> float:
        """Of one gang."""
        return self.normed_s / self.done * 1e6 if self.done else 0.0

    def wall_us(self, share: float) -> float:
        return quantile(sorted(self.walls), share) * 1e6

    def cpu_us(self, share: float) -> float:
        """The same in CPU time: other programs don't count."""
        return quantile(sorted(self.cpus), share) * 1e6

    @property
    def longest_cpu_ms(self) -> float:
        return max(self.cpus, default=0.0) * 1e3

    @property
    def longest_wall_ms(self) -> float:
        return max(self.walls, default=0.0) * 1e3

    @property
    def loop_range(self) -> tuple[float, float, float]:
        """Lowest, median and highest ns of the loop while this was measured."""
        ordered = sorted(self.loops)
        return quantile(ordered, 0), quantile(ordered, 0.5), quantile(ordered, 1)
