"""Plays the Launcher towards a runtime agent, which runs in this process or in one of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from cli.embedded.process import free_port
from muster.contracts.model import Model
from muster.contracts.nodes import NodeReport, NodeReturned
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged, SettingChanged
from muster.contracts.pods import (
    PodAction,
    PodRequest,
    PodRun,
    PodState,
    PodStatus,
    PodStop,
    RoleShape,
)
from muster.contracts.topics import TOPICS, Service
from muster.service import running
from muster.service_keys import agent, service_key
from runtime_agent.app import build
from runtime_agent.settings import AgentSettings
from service_auth import CLUSTER_KEY

DEADLINE_S = 60.0
RECEIVED = (
    "pod-started", "pod-succeeded", "pod-failed", "node-reported", "node-heartbeat",
    "pod-acknowledged", "pod-requested.dead-letter",
)  # fmt: skip


def settings_for(bootstrap: str, home: Path, **more: Any) -> AgentSettings:
    """Of an agent below a folder that it shares with its tasks."""
    home.parent.chmod(0o777)
    return AgentSettings(
        kafka_bootstrap=bootstrap,
        agent_home=home,
        task_paths=str(home.parent),
        node="node-a",
        http_port=free_port(),
        fake_gpus=2,
        heartbeat_s=1.0,
        fetch_wait_busy_ms=10,
        fetch_wait_idle_ms=10,
        bus_timeout_s=5.0,
        memory_limits=False,
        cpu_limits=False,
        service_key=service_key(CLUSTER_KEY, agent("node-a")),
        **more,
    )


class Launcher:
    """Publishes messages about pods and receives the agent's, as the Launcher would."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._revisions: dict[str, int] = {}
        self.messages: list[tuple[str, Model]] = []
        self._seen: dict[tuple[str, str], int] = {}

    async def __aenter__(self) -> Launcher:
        self._since_ms = time.time_ns() // 1_000_000
        self._producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap)
        await self._producer.start()
        self._consumer = AIOKafkaConsumer(
            *RECEIVED,
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=10,
        )
        await self._consumer.start()
        self._task = asyncio.create_task(self._receive())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await self._consumer.stop()
        await self._producer.stop()

    async def _receive(self) -> None:
        async for record in self._consumer:
            if record.timestamp < self._since_ms:
                continue  # of another test over the same broker
            topic = TOPICS.get(record.topic)
            if topic is None:
                self.messages.append((record.topic, Model()))
                continue
            message = topic.model.model_validate_json(record.value)
            self.messages.append((record.topic, message))
            if isinstance(message, PodStatus):
                of = (message.pod, message.journal)
                self._seen[of] = max(message.revision, self._seen.get(of, 0))

    async def until(self, find: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := find()):
            assert time.monotonic() < deadline, f"not received: {self.messages[-8:]}"
            await asyncio.sleep(0.01)
        return found

    async def report(self, fits: Callable[[NodeReport], bool] = lambda _: True) -> NodeReport:
        """The newest report, once it fits."""

        def find() -> NodeReport | None:
            reports = self.reports()
            return reports[-1] if reports and fits(reports[-1]) else None

        found = await self.until(find)
        assert isinstance(found, NodeReport)
        return found

    def reports(self) -> list[NodeReport]:
        return [message for _, message in self.messages if isinstance(message, NodeReport)]

    async def status(self, pod: str, *states: PodState) -> PodStatus:
        """The first message about the pod with one of these states."""

        def find() -> PodStatus | None:
            for _, message in self.messages:
                if (
                    isinstance(message, PodStatus)
                    and message.pod == pod
                    and message.state in states
                ):
                    return message
            return None

        found = await self.until(find)
        assert isinstance(found, PodStatus)
        return found

    async def ended(self, pod: str) -> PodStatus:
        return await self.status(pod, PodState.SUCCEEDED, PodState.FAILED)

    def statuses(self, pod: str) -> list[PodStatus]:
        return [w for _, w in self.messages if isinstance(w, PodStatus) and w.pod == pod]

    def newest(self, pod: str) -> PodStatus:
        """The message with the highest revision, for topics keep no order among each other."""
        return max(self.statuses(pod), key=lambda status: status.revision)

    def has_published(self, pod: str) -> bool:
        return pod in self._revisions

    async def publish(
        self, request: PodRequest, *, again: bool = False, traceparent: str | None = None
    ) -> None:
        pod = request.pod
        if not again:
            self._revisions[pod] = self._revisions.get(pod, 0) + 1
        message = request.model_copy(
            update={
                "revision": self._revisions[pod],
                "seen": self._seen.get((pod, request.journal), 0),
            }
        )
        event_id = f"launcher/pod/{pod}/{message.revision}"
        await self.send(message.model_dump_json().encode(), event_id, traceparent=traceparent)

    async def send(
        self,
        value: bytes,
        event_id: str,
        topic: str = "pod-requested",
        traceparent: str | None = None,
        key: str = "node-a",
    ) -> None:
        headers = [("ce_id", event_id.encode())]
        if traceparent is not None:
            headers.append(("traceparent", traceparent.encode()))
        await self._producer.send_and_wait(topic, value, key=key.encode(), headers=headers)

    def applied(self) -> list[AppliedRevision]:
        """What the agent has acknowledged."""
        notices = [w for _, w in self.messages if isinstance(w, RevisionAcknowledged)]
        return [applied for notice in notices for applied in notice.applied]

    def has_applied(self, pod: str, revision: int) -> bool:
        """Whether the agent has answered the request, by an acknowledgement or by a message."""
        answers = [a.revision for a in self.applied() if a.subject == pod]
        return revision in answers or any(s.seen >= revision for s in self.statuses(pod))

    async def acknowledge(self, status: PodStatus, *, dead: bool = False) -> None:
        applied = AppliedRevision(
            kind="pod",
            subject=status.pod,
            revision=status.revision,
            sender_revision=self._revisions[status.pod],
            is_rejected=dead,
        )
        notice = RevisionAcknowledged(
            sender="launcher", receiver="runtime-agent", journal=status.journal, applied=(applied,)
        )
        value = notice.model_dump_json().encode()
        await self.send(value, f"launcher/ack/{status.pod}", "revision-acknowledged")

    async def returned(self, lease: int) -> None:
        """Says, as the Scheduler does, that the node was lost and is so no more."""
        message = NodeReturned(node="node-a", lease=lease, at=datetime.fromtimestamp(0, UTC))
        await self.send(message.model_dump_json().encode(), "scheduler/returned", "node-returned")

    async def set(self, setting: str, revision: int) -> None:
        """Says a setting, as an operator's command does."""
        message = SettingChanged(setting=setting, revision=revision, value={})
        value = message.model_dump_json().encode()
        await self.send(value, f"cli/{revision}", "settings-changed", key=setting)

    async def run(self, pod: str, command: str, **run: Any) -> PodRequest:
        """Asks for the pod, for the journal that the newest report names."""
        report = await self.report()
        request = wanted(pod, command, report.journal, **run)
        await self.publish(request)
        return request

    async def stop(self, request: PodRequest, reason: str = "stopped", grace_s: float = 5) -> None:
        stop = PodStop(reason=reason, grace_s=grace_s)
        await self.publish(request.model_copy(update={"action": PodAction.STOP, "stop": stop}))

    async def forget(self, request: PodRequest) -> None:
        await self.publish(request.model_copy(update={"action": PodAction.FORGET, "run": None}))


def wanted(pod: str, command: str, journal: str, **run: Any) -> PodRequest:
    shape = RoleShape(
        name="worker", instances=1, gpus=0, cpu=1, memory_mb=64,
        min_failed_instances=1, min_succeeded_instances=-1,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "user": "ada", "user_number": 1, "job_name": "ada~try",
        "virtual_cluster": "default", "role": "worker", "index": 0,
        "job_attempt": 0, "task_attempt": 0, "command": command, "cpu": 1,
        "memory_mb": 64, "roles": (shape,), "peers": (),
    }  # fmt: skip
    return PodRequest(
        pod=pod,
        job="job1",
        gang="job1-0",
        node="node-a",
        journal=journal,
        action=PodAction.RUN,
        run=PodRun(**(fields | run)),
    )


@asynccontextmanager
async def an_agent(settings: AgentSettings) -> AsyncIterator[None]:
    async with running(Service.RUNTIME_AGENT, settings, settings.http_port, build):
        yield


def agent_process(
    settings: AgentSettings, within: Sequence[str] = (), more: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """The agent as its own process, which can be killed; `within` is a command that runs it, `more`
    has variables of its environment.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "MUSTER_KAFKA_BOOTSTRAP": settings.kafka_bootstrap,
        "MUSTER_AGENT_HOME": str(settings.agent_home),
        "MUSTER_TASK_PATHS": settings.task_paths,
        "MUSTER_NODE": settings.node,
        "MUSTER_SERVICE_KEY": settings.service_key.get_secret_value(),
        "MUSTER_HTTP_PORT": str(settings.http_port),
        "MUSTER_FAKE_GPUS": "2",
        "MUSTER_FETCH_WAIT_BUSY_MS": "10",
        "MUSTER_FETCH_WAIT_IDLE_MS": "10",
        "MUSTER_LOG_LEVEL": "WARNING",
        "MUSTER_MEMORY_LIMITS": "false",
        "MUSTER_CPU_LIMITS": "false",
        **(more or {}),
    }
    command = [*within, sys.executable, "-m", "runtime_agent"]
    return subprocess.Popen(command, env=environment)
