"""An agent's `/metrics` of a node that this machine is not: on Kubernetes, where tasks have a
network of their own, with two GPUs that NVLink connects.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cli.embedded.process import free_port
from muster.contracts.nodes import Gpu
from muster.contracts.pods import PodRun
from prometheus_client import CollectorRegistry, start_http_server
from runtime_agent.domain.pods import Phase, Pod
from runtime_agent.domain.usage import GpuSample, GpuUsage, Sample, TaskSample, TaskUsage
from runtime_agent.usage_metrics import UsageMetrics

PATIENCE_S = 3600.0
GPU = GpuUsage(
    busy=90, copying=40, memory_used=60 * 2**30, memory_free=20 * 2**30, temperature=60, power=500,
    sm_clock=1980, throttling=0, state=0, corrected=0, uncorrected=0, corrected_ever=1,
    uncorrected_ever=0, remap_pending=0, remap_failed=0, pcie_replays=0, nvlink_bytes=2**40,
    sm_active=0.8, tensor_active=0.6, xid=0,
)  # fmt: skip


def _pod(index: int) -> Pod:
    run = PodRun(
        user="ann", job_name="ann~train", virtual_cluster="vision", role="worker", index=index,
        job_attempt=0, task_attempt=0, command="true", gpus=(index,), cpu=8, memory_mb=65536,
        roles=(), peers=(),
    )  # fmt: skip
    return Pod(f"pod-{index}", "job", "job-0", Phase.RUNNING, run)


@contextmanager
def played_agent(node: str) -> Iterator[int]:
    """It serves the node's usage while the block runs; gives its port."""
    registry = CollectorRegistry()
    pods = [_pod(index) for index in range(2)]
    gpus = [
        GpuSample(Gpu(index=index, uuid=f"GPU-{index}", model="H100", memory_mb=81559), GPU, pod)
        for index, pod in enumerate(pods)
    ]
    used = TaskUsage(cpu_s=9.0, memory=2**30, read=2**20, written=2**20, received=2**30, sent=2**30)
    tasks = [TaskSample(pod, used, cpu_percent=150.0) for pod in pods]
    metrics = UsageMetrics(registry, node, PATIENCE_S, shows_jobs=True)
    metrics.take(Sample(time.monotonic(), gpus, tasks))
    port = free_port()
    server, thread = start_http_server(port, "127.0.0.1", registry)
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
