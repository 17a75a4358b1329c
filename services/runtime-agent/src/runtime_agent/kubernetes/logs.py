"""The copying of all tasks' output from kubelet's files, while they run and to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from runtime_agent.domain.kubernetes.manifest import MAIN
from runtime_agent.kubernetes.record import KubeRecord
from runtime_agent.kubernetes.tail import KubeletLog
from runtime_agent.pod_files import PodFiles
from runtime_agent.settings import AgentSettings

_log = structlog.get_logger()


@dataclass
class Logs:
    """How far each pod's output is copied, until it is forgotten. `ring`: look at the pod again."""

    settings: AgentSettings
    files: PodFiles
    ring: Callable[[str], None]
    _of: dict[str, KubeletLog] = field(default_factory=dict)

    def _log_of(self, record: KubeRecord) -> KubeletLog:
        if record.name not in self._of:
            folder = f"{record.namespace}_{record.object}_{record.uid}"
            self._of[record.name] = KubeletLog(
                self.settings.kube_logs / folder / MAIN,
                self.files.logs_path(record.name),
                self.settings.log_max_bytes,
            )
        return self._of[record.name]

    def is_read(self, record: KubeRecord) -> bool:
        """Whether all output of an ended container was copied; else the next look goes on."""
        if not record.uid:
            return True
        log = self._log_of(record)
        try:
            if log.step():
                self.ring(record.name)
                return False
        except OSError as error:
            _log.warning("a pod's output can't be copied", pod=record.name, error=str(error))
            return False
        log.finish()
        return True

    async def run(self, records: Mapping[str, KubeRecord]) -> None:
        """Without end, for those that run."""
        while True:
            is_more = False
            for name, record in list(records.items()):
                is_running = record.is_permitted and record.ended_at_s is None
                if record.uid and is_running:
                    try:
                        is_more |= self._log_of(record).step()
                    except OSError as error:
                        _log.warning("a pod's output can't be copied", pod=name, error=str(error))
                    await asyncio.sleep(0)
            await asyncio.sleep(0 if is_more else self.settings.follow_look_s)

    def end(self, name: str) -> None:
        """Nothing of it is left to be copied."""
        if (log := self._of.get(name)) is not None:
            log.close()

    def forget(self, name: str) -> None:
        """The pod is no longer looked at."""
        self.end(name)
        self._of.pop(name, None)

    def close(self) -> None:
        """Copying can go on in another object."""
        for log in self._of.values():
            log.close()
