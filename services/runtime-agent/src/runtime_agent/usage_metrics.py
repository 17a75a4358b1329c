"""What GPUs, tasks and the node use, as Prometheus scrapes it.

Names are OpenPAI's where it has one, and those of NVIDIA's DCGM exporter beside and beyond them:
dashboards and rules that were made for either work. A look gives all values (`Sample`), a scrape
only reads the newest. Series of a task end with it, and all end when looks do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from muster.contracts.nodes import Gpu
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from runtime_agent.domain.pods import Pod
from runtime_agent.domain.usage import GpuUsage, NodeUsage, Sample, TaskSample

MEBIBYTE = 1024 * 1024
OF_A_JOB = (
    "username", "job_name", "virtual_cluster", "role_name", "task_index", "job_instance_id",
)  # fmt: skip
"""OpenPAI's labels of a task; empty on a GPU that no task has. `job_instance_id`: the gang."""
OF_A_GPU = ("node_name", "minor_number", "gpu", "UUID", "modelName")
"""OpenPAI's label and DCGM's: `minor_number` and `gpu` are both the GPU's index."""


class _Of(NamedTuple):
    """A series: its value of one GPU, task or node."""

    name: str
    help: str
    kind: str
    read: Callable[..., float | None]


def _scaled(
    read: Callable[[GpuUsage], float | None], by: float
) -> Callable[[GpuUsage], float | None]:
    def scaled(usage: GpuUsage) -> float | None:
        value = read(usage)
        return None if value is None else value * by

    return scaled


GPU: tuple[_Of, ...] = (
    _Of("gpu_utilization", "Percent of time in which a kernel ran.", "gauge", lambda u: u.busy),
    _Of("gpu_mem_utilization", "Used GPU memory in percent.", "gauge",
        lambda u: _memory_percent(u)),
    _Of("nvidiasmi_utilization_gpu", "As gpu_utilization.", "gauge", lambda u: u.busy),
    _Of("nvidiasmi_utilization_memory", "Percent of time in which GPU memory was read or written.",
        "gauge", lambda u: u.copying),
    _Of("nvidiasmi_temperature", "Degrees Celsius.", "gauge", lambda u: u.temperature),
    _Of("DCGM_FI_DEV_GPU_UTIL", "As gpu_utilization.", "gauge", lambda u: u.busy),
    _Of("DCGM_FI_DEV_MEM_COPY_UTIL", "As nvidiasmi_utilization_memory.", "gauge",
        lambda u: u.copying),
    _Of("DCGM_FI_DEV_FB_USED", "Used GPU memory in MiB.", "gauge",
        _scaled(lambda u: u.memory_used, 1 / MEBIBYTE)),
    _Of("DCGM_FI_DEV_FB_FREE", "Free GPU memory in MiB.", "gauge",
        _scaled(lambda u: u.memory_free, 1 / MEBIBYTE)),
    _Of("DCGM_FI_DEV_GPU_TEMP", "Degrees Celsius.", "gauge", lambda u: u.temperature),
    _Of("DCGM_FI_DEV_MEMORY_TEMP", "Of GPU memory, degrees Celsius.", "gauge",
        lambda u: u.memory_temperature),
    _Of("DCGM_FI_DEV_POWER_USAGE", "Watts.", "gauge", lambda u: u.power),
    _Of("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Watts.", "gauge", lambda u: u.power_limit),
    _Of("DCGM_FI_DEV_SM_CLOCK", "MHz.", "gauge", lambda u: u.sm_clock),
    _Of("DCGM_FI_DEV_MEM_CLOCK", "MHz.", "gauge", lambda u: u.memory_clock),
    _Of("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "NVML's bits of why the clocks are low.", "gauge",
        lambda u: u.throttling),
    _Of("DCGM_FI_DEV_PSTATE", "Performance state: 0, the fastest, to 15.", "gauge",
        lambda u: u.state),
    _Of("DCGM_FI_DEV_ROW_REMAP_PENDING", "1: a memory row is to be remapped by a reset.", "gauge",
        lambda u: u.remap_pending),
    _Of("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1: a memory row could not be remapped.", "gauge",
        lambda u: u.remap_failed),
    _Of("DCGM_FI_DEV_XID_ERRORS", "The last Xid; 0: none.", "gauge", lambda u: u.xid),
    _Of("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Share of time with work, 0 to 1.", "gauge",
        lambda u: u.active),
    _Of("DCGM_FI_PROF_SM_ACTIVE", "Share of multiprocessors at work, 0 to 1.", "gauge",
        lambda u: u.sm_active),
    _Of("DCGM_FI_PROF_SM_OCCUPANCY", "Share of warps that are resident, 0 to 1.", "gauge",
        lambda u: u.sm_occupancy),
    _Of("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Share of time of the tensor cores, 0 to 1.", "gauge",
        lambda u: u.tensor_active),
    _Of("DCGM_FI_PROF_DRAM_ACTIVE", "Share of the memory's bandwidth, 0 to 1.", "gauge",
        lambda u: u.dram_active),
)  # fmt: skip
"""With the labels of the GPU and of the task that has it."""

GPU_COUNTS: tuple[_Of, ...] = (
    _Of("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Millijoules since the driver was loaded.",
        "counter", _scaled(lambda u: u.energy, 1000)),
    _Of("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected memory errors since the driver was loaded.",
        "counter", lambda u: u.corrected),
    _Of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected memory errors since the driver was loaded.",
        "counter", lambda u: u.uncorrected),
    _Of("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Corrected memory errors ever.", "counter",
        lambda u: u.corrected_ever),
    _Of("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Uncorrected memory errors ever.", "counter",
        lambda u: u.uncorrected_ever),
    _Of("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for corrected errors.", "counter",
        lambda u: u.remapped_corrected),
    _Of("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrected errors.",
        "counter", lambda u: u.remapped_uncorrected),
    _Of("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Repeated transfers of PCIe.", "counter",
        lambda u: u.pcie_replays),
    _Of("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Bytes over all NVLinks, both ways.", "counter",
        lambda u: u.nvlink_bytes),
    _Of("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "Checksum errors of all NVLinks.",
        "counter", lambda u: u.nvlink_crc_errors),
    _Of("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Repeated transfers of all NVLinks.",
        "counter", lambda u: u.nvlink_replays),
    _Of("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "Recoveries of all NVLinks.", "counter",
        lambda u: u.nvlink_recoveries),
)  # fmt: skip
"""With the labels of the GPU alone, so that they rise while tasks come and go."""

TASK: tuple[_Of, ...] = (
    _Of("task_cpu_percent", "CPU in percent of one.", "gauge", lambda t: t.cpu_percent),
    _Of("task_mem_usage_byte", "Memory in bytes.", "gauge", lambda t: t.usage.memory),
    _Of("task_mem_usage_percent", "Memory in percent of what was asked for.", "gauge",
        lambda t: _task_memory_percent(t)),
    _Of("task_mem_limit_byte", "Memory that was asked for, in bytes.", "gauge",
        lambda t: _memory_limit(t.pod)),
    _Of("task_block_in_byte", "Bytes read from disks.", "counter", lambda t: t.usage.read),
    _Of("task_block_out_byte", "Bytes written to disks.", "counter", lambda t: t.usage.written),
    _Of("task_net_in_byte", "Bytes received; tasks on the node's network have none.", "counter",
        lambda t: t.usage.received),
    _Of("task_net_out_byte", "Bytes sent; tasks on the node's network have none.", "counter",
        lambda t: t.usage.sent),
    _Of("muster_agent_task_cpu_seconds", "CPU seconds.", "counter", lambda t: t.usage.cpu_s),
)  # fmt: skip

NODE: tuple[_Of, ...] = (
    _Of("muster_agent_node_load1", "Processes that run or want to, over a minute.", "gauge",
        lambda n: n.load1),
    _Of("muster_agent_node_memory_bytes", "Memory.", "gauge", lambda n: n.memory_total),
    _Of("muster_agent_node_memory_available_bytes", "Memory that programs could still have.",
        "gauge", lambda n: n.memory_available),
    _Of("muster_agent_node_disk_bytes", "The file system of MUSTER_AGENT_HOME.", "gauge",
        lambda n: n.disk_total),
    _Of("muster_agent_node_disk_available_bytes", "What is free of it.", "gauge",
        lambda n: n.disk_available),
    _Of("muster_agent_node_disk_read_bytes", "Bytes read from disks.", "counter",
        lambda n: n.read),
    _Of("muster_agent_node_disk_written_bytes", "Bytes written to disks.", "counter",
        lambda n: n.written),
    _Of("muster_agent_node_received_bytes", "Bytes from networks but loopback.", "counter",
        lambda n: n.received),
    _Of("muster_agent_node_sent_bytes", "Bytes to networks but loopback.", "counter",
        lambda n: n.sent),
)  # fmt: skip

ECC_TYPES: tuple[tuple[str, Callable[[GpuUsage], float | None]], ...] = (
    ("volatile_single", lambda u: u.corrected),
    ("volatile_double", lambda u: u.uncorrected),
    ("aggregated_single", lambda u: u.corrected_ever),
    ("aggregated_double", lambda u: u.uncorrected_ever),
)


class UsageMetrics(Collector):
    """Exports the newest sample while it is not older than ``patience_s``. ``shows_jobs``: also the
    names of users and jobs, which then whoever may scrape can read.
    """

    def __init__(
        self, registry: CollectorRegistry, node: str, patience_s: float, *, shows_jobs: bool
    ) -> None:
        self._node = node
        self._patience_s = patience_s
        self._shows_jobs = shows_jobs
        self._sample = Sample(at_s=-math.inf)
        registry.register(self)

    def take(self, sample: Sample) -> None:
        """The newest look replaces the one before."""
        if not self._shows_jobs:
            gpus = [replace(each, pod=None) for each in sample.gpus]
            sample = replace(sample, gpus=gpus, tasks=())
        self._sample = sample

    def describe(self) -> Iterable[Metric]:
        """All names, of which a node without GPUs or tasks has no series."""
        return self._families(Sample(at_s=0.0))

    def collect(self) -> Iterable[Metric]:
        """What a scrape reads."""
        sample = self._sample
        is_fresh = time.monotonic() - sample.at_s <= self._patience_s
        return self._families(sample if is_fresh else Sample(at_s=0.0))

    def _families(self, sample: Sample) -> Iterator[Metric]:
        yield from self._of_gpus(sample)
        tasks = [(_job_labels(task.pod), task) for task in _newest(sample.tasks)]
        for of in TASK:
            yield _family(of, ((labels, of.read(task)) for labels, task in tasks))
        for of in NODE:
            nodes: tuple[NodeUsage, ...] = () if sample.node is None else (sample.node,)
            yield _family(of, (({"node_name": self._node}, of.read(node)) for node in nodes))
        cpu = _Of("muster_agent_node_cpu_seconds", "CPU seconds of the node.", "counter", float)
        by_mode = {} if sample.node is None else sample.node.cpu_s
        yield _family(
            cpu, (({"node_name": self._node, "mode": mode}, s) for mode, s in by_mode.items())
        )

    def _of_gpus(self, sample: Sample) -> Iterator[Metric]:
        gpus = [(each, self._gpu_labels(each.gpu), _job_labels(each.pod)) for each in sample.gpus]
        for of in GPU:
            yield _family(of, ((own | job, of.read(each.usage)) for each, own, job in gpus))
        for of in GPU_COUNTS:
            yield _family(of, ((own, of.read(each.usage)) for each, own, _ in gpus))
        ecc = _Of("nvidiasmi_ecc_error_count", "Memory errors of the GPU.", "gauge", float)
        yield _family(
            ecc,
            (
                (own | {"type": kind}, read(each.usage))
                for each, own, _ in gpus
                for kind, read in ECC_TYPES
            ),
        )
        state = _Of("nvidiasmi_performance_state", "0, the fastest, to 15.", "gauge", float)
        yield _family(
            state,
            (
                (
                    own | {"clocks_throttle_reasons": f"0x{each.usage.throttling or 0:x}"},
                    each.usage.state,
                )
                for each, own, _ in gpus
            ),
        )
        for name, help_, read in (
            ("task_gpu_percent", "Percent of time in which a kernel ran.", lambda u: u.busy),
            ("task_gpu_mem_percent", "Used GPU memory in percent.", _memory_percent),
        ):
            of = _Of(name, help_, "gauge", read)
            labels = (
                (_job_labels(each.pod) | {"minor_number": str(each.gpu.index)}, of.read(each.usage))
                for each in sample.gpus
                if each.pod is not None
            )
            yield _family(of, labels)
        external = _Of(
            "gpu_used_by_external_process_count", "1: this process is no task's.", "gauge", float
        )
        yield _family(
            external,
            (
                ({"node_name": self._node, "minor_number": str(index), "pid": str(pid)}, 1.0)
                for index, pids in sample.external.items()
                for pid in pids
            ),
        )

    def _gpu_labels(self, gpu: Gpu) -> dict[str, str]:
        index = str(gpu.index)
        return dict(zip(OF_A_GPU, (self._node, index, index, gpu.uuid, gpu.model), strict=True))


def _family(of: _Of, values: Iterable[tuple[dict[str, str], float | None]]) -> Metric:
    # OpenPAI's and DCGM's names of counters lack the suffix that the type "counter" would add.
    is_counter = of.kind == "counter" and of.name.startswith("muster_")
    kind = "unknown" if of.kind == "counter" and not is_counter else of.kind
    family = Metric(of.name, of.help, kind)
    for labels, value in values:
        if value is not None:
            family.add_sample(f"{of.name}_total" if is_counter else of.name, labels, value)
    return family


def _newest(tasks: Iterable[TaskSample]) -> Iterable[TaskSample]:
    """Of two live attempts of a task the later one: their labels are equal, and Prometheus takes
    no series twice.
    """
    by_attempt = sorted(tasks, key=lambda each: each.pod.run.task_attempt if each.pod.run else 0)
    return {tuple(_job_labels(each.pod).values()): each for each in by_attempt}.values()


def _job_labels(pod: Pod | None) -> dict[str, str]:
    if pod is None or pod.run is None:
        return dict.fromkeys(OF_A_JOB, "")
    run = pod.run
    told = (run.user, run.job_name, run.virtual_cluster, run.role, str(run.index), pod.gang)
    return dict(zip(OF_A_JOB, told, strict=True))


def _memory_percent(usage: GpuUsage) -> float | None:
    if usage.memory_used is None or usage.memory_free is None:
        return None
    total = usage.memory_used + usage.memory_free
    return 100 * usage.memory_used / total if total else None


def _memory_limit(pod: Pod) -> float | None:
    return None if pod.run is None else pod.run.memory_mb * MEBIBYTE


def _task_memory_percent(task: TaskSample) -> float | None:
    limit = _memory_limit(task.pod)
    return None if task.usage.memory is None or not limit else 100 * task.usage.memory / limit
