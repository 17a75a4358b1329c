"""What GPUs, tasks and the node use, as the driver and the kernel count it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from muster.contracts.nodes import Gpu

from runtime_agent.domain.pods import Pod


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """A GPU's figures at one look; None: this driver or GPU does not have it.

    ``busy``, ``copying``: in percent of the driver's last period (up to a second), how long a
    kernel ran, and how long memory was read or written. ``memory_used``, ``memory_free``: bytes.
    ``temperature``, ``memory_temperature``: degrees Celsius. ``power``, ``power_limit``: watts.
    ``energy``: joules since the driver was loaded. ``sm_clock``, ``memory_clock``: MHz.
    ``throttling``: NVML's bits of why the clocks are low. ``state``: 0, the fastest, to 15.
    ``corrected``, ``uncorrected``: memory errors since the driver was loaded, ``…_ever``: since the
    GPU was made. ``remapped_…``: rows of memory. ``pcie_replays``, ``nvlink_…``: sums over all
    links since the driver was loaded; bytes both ways. ``active``, ``sm_active``,
    ``sm_occupancy``, ``tensor_active``, ``dram_active``: shares, 0 to 1, since the look before.
    ``xid``: the last one since the agent's start, or that of a fault; 0: none.
    """

    busy: float | None = None
    copying: float | None = None
    memory_used: float | None = None
    memory_free: float | None = None
    temperature: float | None = None
    memory_temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    energy: float | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    throttling: int | None = None
    state: int | None = None
    corrected: float | None = None
    uncorrected: float | None = None
    corrected_ever: float | None = None
    uncorrected_ever: float | None = None
    remapped_corrected: float | None = None
    remapped_uncorrected: float | None = None
    remap_pending: float | None = None
    remap_failed: float | None = None
    pcie_replays: float | None = None
    nvlink_bytes: float | None = None
    nvlink_crc_errors: float | None = None
    nvlink_replays: float | None = None
    nvlink_recoveries: float | None = None
    active: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    xid: float | None = None


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """What the processes of a pod use; None: nobody counts it here.

    ``cpu_s``: seconds of CPU since its start. ``memory``: bytes, without what the kernel can drop.
    ``read``, ``written``: bytes of block devices. ``received``, ``sent``: bytes of a network of
    its own.
    """

    cpu_s: float | None = None
    memory: float | None = None
    read: float | None = None
    written: float | None = None
    received: float | None = None
    sent: float | None = None


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """What the whole node uses, whoever uses it. ``cpu_s``: seconds since its start by mode. Memory
    and the agent's disk in bytes. ``read``, ``written``, ``received``, ``sent``: bytes since the
    node's start, of disks, and of networks but loopback.
    """

    cpu_s: Mapping[str, float]
    load1: float
    memory_total: float
    memory_available: float
    disk_total: float
    disk_available: float
    read: float
    written: float
    received: float
    sent: float


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at a look, and the live pod that holds it."""

    gpu: Gpu
    usage: GpuUsage
    pod: Pod | None = None


@dataclass(frozen=True, slots=True)
class TaskSample:
    """One live pod at a look. ``cpu_percent``: since the look before; 100: one CPU."""

    pod: Pod
    usage: TaskUsage
    cpu_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything, at ``at_s`` of the monotonic clock."""

    at_s: float
    gpus: Sequence[GpuSample] = ()
    tasks: Sequence[TaskSample] = ()
    node: NodeUsage | None = None
    external: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By the GPU's index, the processes on it that are no pod's."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a pod used in ``span_s`` seconds that end at ``at_s`` (Unix). All are sums, so that
    stretches add up; None: nobody counts it here.

    ``memory``: byte seconds. ``gpu_known_s``: GPU seconds in which the driver told how busy the GPU
    was; ``gpu_busy_s`` of them with a kernel running, ``gpu_idle_s`` at looks that found 0 percent.
    ``gpu_memory``: byte seconds. The others: bytes.
    """

    job: str
    pod: str
    at_s: float
    span_s: float
    cpu_s: float | None = None
    memory: float | None = None
    gpu_known_s: float | None = None
    gpu_busy_s: float | None = None
    gpu_idle_s: float | None = None
    gpu_memory: float | None = None
    received: float | None = None
    sent: float | None = None
    read: float | None = None
    written: float | None = None


SUMS = tuple(each.name for each in fields(Stretch))[3:]
"""The columns that add up."""


def stretch(
    task: TaskSample, before: TaskUsage, gpus: Sequence[GpuUsage], at_s: float, span_s: float
) -> Stretch:
    """What a pod used between two looks. Gauges count as if they were so all the time."""
    pod, now = task.pod, task.usage
    busy = [each.busy for each in gpus if each.busy is not None]
    held = [each.memory_used for each in gpus if each.memory_used is not None]
    return Stretch(
        job=pod.job,
        pod=pod.pod,
        at_s=at_s,
        span_s=span_s,
        cpu_s=_risen(before.cpu_s, now.cpu_s),
        memory=None if now.memory is None else now.memory * span_s,
        gpu_known_s=len(busy) * span_s if busy else None,
        gpu_busy_s=sum(busy) / 100 * span_s if busy else None,
        gpu_idle_s=busy.count(0) * span_s if busy else None,
        gpu_memory=sum(held) * span_s if held else None,
        received=_risen(before.received, now.received),
        sent=_risen(before.sent, now.sent),
        read=_risen(before.read, now.read),
        written=_risen(before.written, now.written),
    )


def _risen(before: float | None, now: float | None) -> float | None:
    """A counter that fell began anew, or a process that it counted is gone."""
    return None if now is None or before is None else max(0.0, now - before)


def holders(pods: Sequence[Pod]) -> dict[int, Pod]:
    """By the GPU's index, the live pod that holds it."""
    return {gpu: pod for pod in pods if pod.run is not None for gpu in pod.run.gpus}


def cpu_percent(
    now: TaskUsage, at_s: float, before: TaskUsage | None, then_s: float
) -> float | None:
    """Of one CPU, between two looks; None without a look before."""
    if before is None or now.cpu_s is None or before.cpu_s is None or at_s <= then_s:
        return None
    return max(0.0, now.cpu_s - before.cpu_s) / (at_s - then_s) * 100
