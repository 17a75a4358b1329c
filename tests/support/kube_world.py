"""One node's agent over an API server in memory, without a bus."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from muster.contracts.pods import PodRun, RoleShape
from muster.metrics import PlumbingMetrics
from pod_api_double import PodApiDouble
from prometheus_client import CollectorRegistry
from runtime_agent.devices import SimulatedDevices
from runtime_agent.domain.kubernetes.manifest import PodRules
from runtime_agent.domain.kubernetes.status import Observed
from runtime_agent.domain.pods import Phase, Pod, Stopping
from runtime_agent.handlers import Handlers
from runtime_agent.kubernetes.permits import PermitServer
from runtime_agent.kubernetes.runner import KubernetesPods
from runtime_agent.metrics import AgentMetrics
from runtime_agent.pod_files import PodFiles
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings, RunnerKind
from runtime_agent.step import Memory, Node
from runtime_agent.store import Entry, Journal, new_subject
from runtime_agent.supervisor import proc
from runtime_agent.watch import Watch
from starlette.applications import Starlette

DEADLINE_S = 60.0
JOB = "01m8b3y9xmt7kh0ye296nxpx9e"
NONCE, OTHER_NONCE = "a" * 32, "b" * 32


def a_run(instances: int = 1, **more: Any) -> PodRun:
    shape = RoleShape(
        name="w-1", instances=instances, gpus=0, cpu=1, memory_mb=64, min_failed_instances=1,
        min_succeeded_instances=-1,
    )  # fmt: skip
    return PodRun(
        user="u", user_number=7, job_name="u~j", virtual_cluster="default", role="w-1", index=0,
        job_attempt=0, task_attempt=0, image="an/image:1", command="echo 'it''s'", cpu=1,
        memory_mb=64, roles=(shape,), peers=(), **more,
    )  # fmt: skip


class World:
    """One node's agent, without a bus; `restart` is a kill and a new start."""

    def __init__(self, home: Path, api: PodApiDouble) -> None:
        self.home, self.api = home, api
        self.settings = AgentSettings(
            node="n", runner=RunnerKind.KUBERNETES, kube_logs=home / "kubelet",
            kube_pods=home / "volumes", supervisor_patience_s=0.2, image_wait_s=600.0,
            follow_look_s=0.01,
        )  # fmt: skip
        self.caught_up = asyncio.Event()
        self.caught_up.set()
        self.key = SecretsKey(home)
        self.registry = CollectorRegistry()
        self._metrics = AgentMetrics(self.registry)
        self._start()

    def _start(self) -> None:
        self.journal = Journal(self.home / "journal.sqlite", "id")
        self.files = PodFiles(self.home / "pods")
        devices = SimulatedDevices("n", 8)
        rules = PodRules(
            "jobs", "jobs-host", "step:1", 8084, 30.0, host_network=frozenset({"default"})
        )
        self.runner = KubernetesPods(
            self.settings, rules, self.files, self.journal, self.api, devices,
            self.key, self._metrics, self.home / "bell",
        )  # fmt: skip
        memory = Memory(
            self.journal, Node("n", proc.boot_id(), 30.0), self.runner.has, self.key.masked
        )
        self.handlers = Handlers(memory, lambda _records: None, lambda: None)
        registry = CollectorRegistry()
        self.watch = Watch(
            self.handlers, self.runner, self.files, self.settings, AgentMetrics(registry),
            PlumbingMetrics(registry), self.caught_up,
        )  # fmt: skip
        permits = PermitServer(self.handlers, self.runner, self.caught_up)
        transport = httpx2.ASGITransport(app=Starlette(routes=permits.routes()))
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://node")
        self._task = asyncio.create_task(self.runner.run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.runner.close()
        await self.http.aclose()
        self.journal.close()

    async def restart(self) -> None:
        await self.stop()
        self._start()

    def accept(self, name: str = "pod-1", run: PodRun | None = None) -> None:
        pod = Pod(name, JOB, f"{JOB}-0", Phase.ACCEPTED, run or a_run())
        self.journal_pod(pod)

    def ask_to_stop(self, name: str = "pod-1", grace_s: float = 5.0) -> None:
        self.journal_pod(replace(self.pod(name), stop=Stopping("stopped", grace_s)))

    def journal_pod(self, pod: Pod) -> None:
        """The journal has it so."""
        entry = Entry(pod, new_subject(pod, "id"))
        self.journal.save([entry])
        self.handlers.memory.entries[pod.pod] = entry

    def pod(self, name: str = "pod-1") -> Pod:
        found = self.handlers.memory.entries.get(name) or self.journal.load([name])[name]
        return found.pod

    def rule(self, name: str = "pod-1") -> str | None:
        """Of the verdict, once the pod has ended."""
        entry = self.journal.load([name])[name]
        if entry.is_live:
            return None
        return str(self.verdict(name)["rule"])

    def verdict(self, name: str = "pod-1") -> dict[str, Any]:
        found: dict[str, Any] = self.message(name)["verdict"]
        return found

    def message(self, name: str = "pod-1") -> dict[str, Any]:
        """The latest one on the pod; empty where there is none."""
        found: dict[str, Any] = json.loads(self.journal.load([name])[name].subject.message or "{}")
        return found

    def reason(self) -> str:
        """Why the pod does not run yet, as last published."""
        found = self.message().get("reason") or {"code": "", "text": ""}
        return f"{found['code']}: {found['text']}" if found["code"] else ""

    def revision(self, name: str = "pod-1") -> int:
        """Of the latest message on the pod."""
        return self.journal.load([name])[name].subject.exchange.revision

    def strays(self) -> dict[str, float]:
        """Deleted objects that the journal does not want, by why."""
        return {
            sample.labels["why"]: sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == "muster_agent_kube_strays_total"
        }

    async def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, "what the test waited for has not come"
            self.watch.look(None)
            await asyncio.sleep(0.005)

    async def created(self, name: str = "pod-1", run: PodRun | None = None) -> dict[str, Any]:
        self.accept(name, run=run)
        await self.until(lambda: self.api.objects and not self.runner._works[name].request)
        return self.api.only()

    def observed(self, body: dict[str, Any]) -> Observed:
        """The object as the agent last saw it."""
        return self.runner._mirror.objects["jobs", body["metadata"]["name"]]

    async def permit(
        self, nonce: str = NONCE, name: str = "pod-1", ticket: str | None = None
    ) -> httpx2.Response:
        record = self.runner.record(name)
        if ticket is None:
            assert record is not None
            ticket = record.ticket
        body = {"ticket": ticket, "nonce": nonce}
        return await self.http.post(f"/start-permit/{name}", data=body)

    async def running(self, name: str = "pod-1") -> dict[str, Any]:
        body = await self.created(name)
        self.api.running(body)
        assert (await self.permit(name=name)).status_code == 200
        return body
