"""Pods that only pretend, for benchmarks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from runtime_agent.domain.ending import Ending
from runtime_agent.domain.pods import Pod, Stopping
from runtime_agent.domain.report import Offer
from runtime_agent.domain.usage import TaskUsage
from runtime_agent.runner import Seen
from runtime_agent.supervisor.records import ring


@dataclass
class PretendedPods:
    """Starts nothing: each pod has run and succeeded as soon as it is launched. For benchmarks."""

    doorbell: Path
    offered: Offer
    _launched: dict[str, float] = field(default_factory=dict)
    _stopped: dict[str, str] = field(default_factory=dict)

    def launch(self, pod: Pod) -> None:
        """Note the time."""
        self._launched[pod.pod] = time.time()
        ring(self.doorbell, f"{pod.pod}\n".encode())

    def stop(self, name: str, stopping: Stopping) -> None:
        """Only a pod that this process has not launched (after a restart) can still be stopped."""
        self._stopped[name] = stopping.reason
        ring(self.doorbell, f"{name}\n".encode())

    def look(self, pods: Iterable[Pod]) -> list[Seen]:
        """Every pod has ended, also one that a lost agent had pretended to run."""
        found = []
        for pod in pods:
            at_s = self._launched.pop(pod.pod, None) or time.time()
            reason = self._stopped.pop(pod.pod, None)
            ending = Ending(exit_code=0, stop_reason=reason)
            found.append(Seen(pod.pod, at_s, time.time(), ending))
        return found

    def has(self, name: str) -> bool:
        """Nothing is ever there."""
        return False

    def forget(self, name: str) -> None:
        """Nothing is kept."""

    async def ready(self) -> None:
        """At once."""

    def names(self) -> list[str]:
        """There are none."""
        return []

    def end_now(self, name: str, *, of_another_machine: bool) -> bool:
        """Nothing is ever there."""
        return True

    def owns(self, pid: int) -> bool:
        """No process is a pod's."""
        return False

    def usage(self, pod: Pod) -> TaskUsage:
        """Nothing runs."""
        return TaskUsage()

    def offer(self) -> Offer:
        """As it was given."""
        return self.offered

    async def run(self) -> None:
        """There is nothing to do."""

    async def close(self) -> None:
        """Nothing is open."""
