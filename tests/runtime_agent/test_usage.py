"""What GPUs, tasks and the node use, as Prometheus scrapes it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.contracts.nodes import Gpu
from muster.contracts.pods import PodRun
from nvml_recording import Recording
from prometheus_client import CollectorRegistry, generate_latest
from runtime_agent import counters
from runtime_agent.counters import of_groups, of_node, of_processes
from runtime_agent.devices import NvmlDevices
from runtime_agent.domain.pods import Phase, Pod
from runtime_agent.domain.usage import GpuSample, GpuUsage, Sample, TaskSample, TaskUsage
from runtime_agent.pods import Phase as PodPhase
from runtime_agent.usage_metrics import UsageMetrics

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(registry: CollectorRegistry) -> Series:
    """Every series by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def values(registry: CollectorRegistry, name: str, **labels: str) -> list[float]:
    """Of the series with this name and, among others, these labels."""
    return [
        value
        for (found, given), value in scraped(registry).items()
        if found == name and labels.items() <= dict(given).items()
    ]


def a_pod(index: int = 0, gpus: tuple[int, ...] = (), job: str = "ann~train") -> Pod:
    run = PodRun(
        user="ann", job_name=job, virtual_cluster="vision", role="worker", index=index,
        job_attempt=0, task_attempt=0, command="true", gpus=gpus, cpu=1, memory_mb=1024, roles=(),
        peers=(),
    )  # fmt: skip
    return Pod(f"pod-{job}-{index}", job, f"{job}-0", Phase.RUNNING, run)


OF_ANN: Mapping[str, str] = {
    "username": "ann", "job_name": "ann~train", "virtual_cluster": "vision",
    "role_name": "worker", "task_index": "0", "job_instance_id": "ann~train-0",
}  # fmt: skip


def test_a_recorded_h100_is_exported_under_the_names_of_openpai_and_dcgm(tmp_path: Path) -> None:
    h100, registry = Recording(), CollectorRegistry()
    devices = NvmlDevices(h100, 20.0, boot="boot", home=tmp_path)
    metrics = UsageMetrics(registry, "node-a", 60.0, shows_jobs=True)
    energy = -1.0
    for at, recorded in enumerate(h100.looks):
        h100.at = at
        look = devices.look()
        (gpu,) = look.gpus
        metrics.take(Sample(time.monotonic(), [GpuSample(gpu, look.usage[0], a_pod(gpus=(0,)))]))
        (spent,) = values(registry, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", node_name="node-a")
        assert spent > energy
        energy = spent
        if recorded["during"] != "matrix products" or at < 4:
            continue
        assert values(registry, "gpu_utilization", minor_number="0", **OF_ANN) == [100]
        assert values(registry, "task_gpu_percent", minor_number="0", **OF_ANN) == [100]
        assert values(registry, "DCGM_FI_DEV_GPU_UTIL", gpu="0", UUID=gpu.uuid) == [100]
        (tensor,) = values(registry, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", **OF_ANN)
        (watts,) = values(registry, "DCGM_FI_DEV_POWER_USAGE", modelName=gpu.model)
        (used,) = values(registry, "DCGM_FI_DEV_FB_USED")
        (percent,) = values(registry, "task_gpu_mem_percent")
        (degrees,) = values(registry, "nvidiasmi_temperature")
        assert 0.9 < tensor < 1
        assert 600 < watts < 720
        assert percent == pytest.approx(100 * used / 81559, rel=0.01)
        assert 45 < degrees < 60
        assert values(registry, "DCGM_FI_DEV_XID_ERRORS", **OF_ANN) == [0]
        for kind in ("volatile_single", "volatile_double", "aggregated_double"):
            assert values(registry, "nvidiasmi_ecc_error_count", type=kind) == [0]
        assert values(registry, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL") == []  # it has none
    assert energy > 0


def test_series_of_a_task_end_with_it_and_all_end_with_the_looks() -> None:
    registry = CollectorRegistry()
    metrics = UsageMetrics(registry, "node-a", 60.0, shows_jobs=True)
    gpu = Gpu(index=0, uuid="GPU-a", model="m", memory_mb=1)
    task = TaskSample(a_pod(gpus=(0,)), TaskUsage(cpu_s=3.0, memory=2**29), cpu_percent=150.0)
    now = time.monotonic()
    metrics.take(Sample(now, [GpuSample(gpu, GpuUsage(busy=7), task.pod)], [task]))
    assert values(registry, "task_cpu_percent", **OF_ANN) == [150]
    assert values(registry, "task_mem_usage_percent", **OF_ANN) == [50]
    assert values(registry, "task_mem_limit_byte", **OF_ANN) == [2**30]
    assert values(registry, "task_net_in_byte") == []  # nobody counts it here
    metrics.take(Sample(now, [GpuSample(gpu, GpuUsage(busy=7))]))
    assert values(registry, "gpu_utilization", job_name="") == [7]
    assert not [name for name, _ in scraped(registry) if name.startswith("task_")]
    metrics.take(Sample(now - 61, [GpuSample(gpu, GpuUsage(busy=7))], node=of_node(Path("/"))))
    assert scraped(registry) == {}


def test_of_two_live_attempts_of_a_task_the_later_one_is_exported() -> None:
    registry = CollectorRegistry()
    metrics = UsageMetrics(registry, "node-a", 60.0, shows_jobs=True)
    earlier = a_pod()
    assert earlier.run is not None
    run = earlier.run.model_copy(update={"task_attempt": 1})
    later = replace(earlier, pod=f"{earlier.pod}-1", run=run)
    tasks = [TaskSample(pod, TaskUsage(memory=used)) for pod, used in ((later, 7), (earlier, 3))]
    metrics.take(Sample(time.monotonic(), tasks=tasks))
    lines = generate_latest(registry).decode().splitlines()
    shown = [line for line in lines if line.startswith("task_mem_usage_byte{")]
    assert [line.split()[-1] for line in shown] == ["7.0"]


def test_ten_thousand_jobs_leave_no_series_behind() -> None:
    registry = CollectorRegistry()
    metrics = UsageMetrics(registry, "node-a", 60.0, shows_jobs=True)
    gpus = [Gpu(index=n, uuid=f"GPU-{n}", model="m", memory_mb=1) for n in range(8)]
    counts = set()
    for number in range(10_000):
        pods = [a_pod(n, (n,), f"ann~job-{number}") for n in range(8)]
        full = GpuUsage(**dict.fromkeys(GpuUsage.__dataclass_fields__, 1))
        metrics.take(
            Sample(
                time.monotonic(),
                [GpuSample(gpu, full, pod) for gpu, pod in zip(gpus, pods, strict=True)],
                [TaskSample(pod, TaskUsage(1, 1, 1, 1, 1, 1), 1.0) for pod in pods],
                of_node(Path("/")) if number == 0 else None,
                {0: [1, 2]},
            )
        )
        if number % 1000 == 0:
            counts.add(len(scraped(registry)))
    assert max(counts) < 600


def test_a_real_pods_processors_and_memory_are_counted(
    node: Any, patience: Callable[[Callable[[], bool]], None]
) -> None:
    burn = "import time; kept = bytearray(64 << 20); began = time.process_time()\n"
    burn += "while time.process_time() - began < 0.5: pass\nopen('burnt', 'w'); time.sleep(600)"
    name = node.start(f'python3 -c "{burn}"')
    patience(lambda: (node.pods.path(name) / "work" / "burnt").exists())
    start = node.until(name, PodPhase.RUNNING).start
    assert start is not None
    used = of_processes(start.supervisor_pid)
    assert used.cpu_s is not None
    assert used.memory is not None
    assert used.cpu_s >= 0.5
    assert used.memory >= 64 << 20


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
                "memory.current": "1000\n",
                "memory.stat": "anon 5\ninactive_file 300\n",
                "io.stat": "999:0 rbytes=10 wbytes=20 rios=1\n999:9 rbytes=1 wbytes=2 rios=1\n",
            },
            TaskUsage(2.5, 700, 11, 22),
        ),
        (
            {
                "cpuacct.usage": "2500000000\n",
                "memory.usage_in_bytes": "1000\n",
                "memory.stat": "inactive_file 9\ntotal_inactive_file 300\n",
                "blkio.throttle.io_service_bytes_recursive": "999:0 Read 10\n999:0 Write 20\n",
            },
            TaskUsage(2.5, 700, 10, 20),
        ),
        ({"io.stat": ""}, TaskUsage(read=0, written=0)),
        ({}, TaskUsage()),
    ],
)
def test_control_groups_of_both_versions_are_read(
    files: Mapping[str, str], expected: TaskUsage, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert of_groups([tmp_path]) == expected


def test_without_a_token_neither_users_nor_jobs_are_shown() -> None:
    registry = CollectorRegistry()
    metrics = UsageMetrics(registry, "node-a", 60.0, shows_jobs=False)
    gpu = Gpu(index=0, uuid="GPU-a", model="m", memory_mb=1)
    task = TaskSample(a_pod(gpus=(0,)), TaskUsage(cpu_s=3.0), cpu_percent=1.0)
    metrics.take(Sample(time.monotonic(), [GpuSample(gpu, GpuUsage(busy=7), task.pod)], [task]))
    assert values(registry, "gpu_utilization", job_name="", minor_number="0") == [7]
    assert "ann" not in str(scraped(registry))


def test_a_pod_of_kubernetes_is_found_in_both_layouts_of_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "CGROUPS", tmp_path)
    made = [
        tmp_path / "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice",
        tmp_path / "kubepods/burstable/poda-b",
        tmp_path / "cpu/kubepods/poda-b",
        tmp_path / "kubelet.slice/kubelet-kubepods.slice/x.slice/kubelet-kubepods-poda_b.slice",
    ]
    for each in (*made, tmp_path / "kubepods/burstable/podother"):
        each.mkdir(parents=True)
    assert sorted(counters.groups_of("a-b")) == sorted(made)
    assert counters.groups_of("") == []
    (made[0] / "cri-1.scope").mkdir()
    (made[0] / "cri-1.scope/cgroup.procs").write_text("4711\n")
    assert counters.first_of(made) == 4711


def test_the_nodes_figures_are_those_of_the_kernel() -> None:
    used = of_node(Path("/"))
    assert 0 < used.memory_available < used.memory_total
    assert 0 < used.disk_available < used.disk_total
    assert used.cpu_s["user"] > 0
    assert abs(used.load1 - os.getloadavg()[0]) < 100
