"""Puts one look's figures together: GPUs with the pods that hold them, tasks, the node."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from muster.contracts.nodes import Gpu

from runtime_agent.counters import of_node
from runtime_agent.domain.gpus import ForeignProcess
from runtime_agent.domain.pods import Phase, Pod
from runtime_agent.domain.usage import (
    GpuSample,
    GpuUsage,
    Sample,
    TaskSample,
    TaskUsage,
    cpu_percent,
    holders,
)
from runtime_agent.runner import Runner
from runtime_agent.usage_metrics import UsageMetrics


@dataclass
class UsageWatch:
    """`home`: the agent's, whose disk counts. It keeps the last look for what is used a second."""

    home: Path
    runner: Runner
    metrics: UsageMetrics
    _at_s: float = 0.0
    _tasks: dict[str, TaskUsage] = field(default_factory=dict)

    def look(
        self,
        gpus: Iterable[Gpu],
        usage: Mapping[int, GpuUsage],
        foreign: Mapping[int, Set[ForeignProcess]],
        live: Iterable[Pod],
    ) -> None:
        """One look, for which files of the kernel are read: by a thread."""
        pods = [pod for pod in live if pod.run is not None]
        held = holders(pods)
        running = [pod for pod in pods if pod.phase is Phase.RUNNING]
        at_s = time.monotonic()
        now = {pod.pod: self.runner.usage(pod) for pod in running}
        tasks = [
            TaskSample(
                pod,
                now[pod.pod],
                cpu_percent(now[pod.pod], at_s, self._tasks.get(pod.pod), self._at_s),
            )
            for pod in running
        ]
        self._at_s, self._tasks = at_s, now
        sampled = [
            GpuSample(gpu, usage.get(gpu.index, GpuUsage()), held.get(gpu.index)) for gpu in gpus
        ]
        external = {index: sorted(each.pid for each in found) for index, found in foreign.items()}
        self.metrics.take(Sample(at_s, sampled, tasks, of_node(self.home), external))
