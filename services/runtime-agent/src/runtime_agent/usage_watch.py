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
    Stretch,
    TaskSample,
    TaskUsage,
    cpu_percent,
    holders,
    stretch,
)
from runtime_agent.runner import Runner
from runtime_agent.usage_metrics import UsageMetrics
from runtime_agent.usage_store import UsageStore

COUNTERS = ("cpu_s", "read", "written", "received", "sent")
THIN_S = 600.0
"""How often what is kept is thinned."""


@dataclass
class UsageWatch:
    """`home`: the agent's, whose disk counts. It keeps the last look for what is used a second."""

    home: Path
    runner: Runner
    metrics: UsageMetrics
    store: UsageStore
    _at_s: float | None = None
    _thinned_s: float = -THIN_S
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
        before_s = at_s if self._at_s is None else self._at_s
        tasks = [
            TaskSample(
                pod,
                now[pod.pod],
                cpu_percent(now[pod.pod], at_s, self._tasks.get(pod.pod), before_s),
            )
            for pod in running
        ]
        sampled = [
            GpuSample(gpu, usage.get(gpu.index, GpuUsage()), held.get(gpu.index)) for gpu in gpus
        ]
        external = {index: sorted(each.pid for each in found) for index, found in foreign.items()}
        self.metrics.take(Sample(at_s, sampled, tasks, of_node(self.home), external))
        used = [] if self._at_s is None else self._used(tasks, usage, at_s - self._at_s)
        self._at_s, self._tasks = at_s, now
        self.store.add(used)
        if at_s - self._thinned_s >= THIN_S:
            self._thinned_s = at_s
            self.store.thin(time.time())

    def _used(
        self, tasks: Iterable[TaskSample], usage: Mapping[int, GpuUsage], span_s: float
    ) -> list[Stretch]:
        """Since the look before. What a pod used while no agent ran is not known; of a pod that
        the look before did not find, the counters began after it.
        """
        at_s, found = time.time(), []
        for task in tasks:
            pod, began, lasted_s = task.pod, self._tasks.get(task.pod.pod), span_s
            if began is None:
                began = TaskUsage(**dict.fromkeys(COUNTERS, 0.0))
                if pod.started_at is not None:
                    lasted_s = min(span_s, max(0.0, at_s - pod.started_at.timestamp()))
            gpus = [usage[index] for index in (pod.run.gpus if pod.run else ()) if index in usage]
            found.append(stretch(task, began, gpus, at_s, lasted_s))
        return found
