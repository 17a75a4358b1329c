"""`muster-fence`: on Kubernetes it deletes the pods of lost nodes, so that a kubelet that outlives
its agent ends their processes.

A pod that was lost once is lost for good, and no other pod gets its name. So records can be carried
out late, again and in any order: each start reads all of them, and nothing is stored.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from kubernetes_asyncio.client import ApiClient
from muster.contracts.acls import FENCE, FENCES_BY
from muster.contracts.model import Model
from muster.contracts.nodes import NodeLost
from muster.records import Received
from muster.service import Runtime, run_service
from muster.settings import Port, read
from prometheus_client import CollectorRegistry, Counter, Gauge
from pydantic import Field

from runtime_agent.domain.kubernetes.fence import to_delete
from runtime_agent.domain.kubernetes.manifest import MANAGED_BY
from runtime_agent.domain.kubernetes.status import observed
from runtime_agent.kubernetes.api import Refused, Unavailable
from runtime_agent.kubernetes.api_server import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    ApiServer,
    open_client,
)
from runtime_agent.settings import KubernetesSettings

LABELS = ",".join(f"{name}={value}" for name, value in MANAGED_BY.items())

_log = structlog.get_logger()


class FenceSettings(KubernetesSettings):
    """Where pods are deleted."""

    http_port: Port = Field(8085, description="Health and metrics; 0: any free.")


class FenceMetrics:
    """What the fence counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deleted = Counter(
            "muster_fence_pods_deleted", "Deleted pods of lost nodes.", registry=registry
        )
        self.waiting = Gauge(
            "muster_fence_nodes_waiting",
            "Lost nodes whose pods are still to be deleted.",
            registry=registry,
        )


class Fence:
    """Deletes what records name, however long the API server is away. `_lost`: by node, the pods
    that are still to be looked for.
    """

    def __init__(self, settings: FenceSettings, client: ApiClient, metrics: FenceMetrics) -> None:
        self._namespaces = (settings.kube_namespace, settings.kube_host_namespace)
        self._client = client
        self._metrics = metrics
        self._lost: dict[str, set[str]] = {}
        self._is_needed = asyncio.Event()
        self._complaint = ""

    def on_record(self, _record: Received, message: Model | None) -> None:
        """A node is lost; repeated every minute while it is."""
        if isinstance(message, NodeLost) and message.pods:
            self._put(message.node, message.pods)

    def _put(self, node: str, pods: tuple[str, ...]) -> None:
        self._lost.setdefault(node, set()).update(pods)
        self._metrics.waiting.set(len(self._lost))
        self._is_needed.set()

    async def run(self) -> None:
        """Deletes until cancelled. What fails is tried again, after the other nodes."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            await self._is_needed.wait()
            self._is_needed.clear()
            after_s: float | None = None
            for node in list(self._lost):
                pods = tuple(self._lost.pop(node))
                try:
                    await self._delete(node, pods)
                except (Unavailable, Refused) as error:
                    self._put(node, pods)
                    self._complain(node, str(error))
                    after_s = error.after_s if isinstance(error, Unavailable) else 0.0
                    break
            else:
                backoff_s = FIRST_BACKOFF_S
                self._complaint = ""
            self._metrics.waiting.set(len(self._lost))
            if after_s is not None:
                await asyncio.sleep(after_s + backoff_s * random.uniform(0.5, 1.5))  # noqa: S311  jitter
                backoff_s = min(LONGEST_BACKOFF_S, backoff_s * 2)

    def _complain(self, node: str, why: str) -> None:
        """Once for each reason."""
        if why != self._complaint:
            self._complaint = why
            _log.warning("a lost node's pods can't be deleted yet", node=node, why=why)

    async def _delete(self, node: str, lost: tuple[str, ...]) -> None:
        """By uid, with each pod's own grace. Raises Unavailable, Refused."""
        api = ApiServer(node, self._client)
        for namespace in self._namespaces:
            bodies = await api.list_pods(namespace, LABELS)
            for seen in to_delete(map(observed, bodies), node, lost):
                if await api.delete(seen.namespace, seen.name, seen.uid, None):
                    self._metrics.deleted.inc()
                    _log.warning(
                        "deleted a pod of a lost node",
                        pod=seen.pod,
                        node=node,
                        object=f"{seen.namespace}/{seen.name}",
                        uid=seen.uid,
                    )


@asynccontextmanager
async def build(runtime: Runtime) -> AsyncIterator[None]:
    """Set the fence up. Raises Broken where nothing leads to an API server."""
    settings = runtime.settings
    assert isinstance(settings, FenceSettings)
    async with await open_client(settings.kube_config) as client:
        fence = Fence(settings, client, FenceMetrics(runtime.registry))
        runtime.follow([FENCES_BY], fence.on_record)
        runtime.spawn("deletions", fence.run)
        yield


def main() -> None:
    """Run the fence until it is asked to end."""
    settings = read(FenceSettings)
    run_service(FENCE, settings, settings.http_port, build)


if __name__ == "__main__":
    main()
