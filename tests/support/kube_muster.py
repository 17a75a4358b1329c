"""A whole Muster whose only node is one of a Kubernetes cluster: a real control plane, and a
kubelet double that really runs the containers.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_plane import KubePlane
from kubelet_double import KubeletDouble, Settings
from step_image import step_image
from whole_muster import Muster, a_muster

NODE = "node-1"
JOBS, HOST_JOBS = "muster-jobs", "muster-jobs-host"


@dataclass
class KubeMuster:
    """The services, the control plane and the node."""

    muster: Muster
    plane: KubePlane
    kubelet: KubeletDouble

    def pods(self) -> list[dict[str, Any]]:
        """Muster's pod objects."""
        query = "labelSelector=app.kubernetes.io/managed-by%3Dmuster"
        status, answer = self.plane.ask("GET", f"/api/v1/pods?{query}")
        assert status == 200, answer
        return list(answer["items"])

    def log_path(self, job: str, which: str = "stdout") -> str:
        """Where the first task's output is."""
        task = f"/api/v2/jobs/{job}/attempts/0/taskRoles/worker/taskIndex/0"
        return f"{task}/attempts/0/logs/{which}"

    async def log_of(self, job: str, which: str = "stdout") -> str:
        """The first task's output, as its user reads it."""
        answer = await self.muster.call("GET", self.log_path(job, which))
        assert answer.status_code == 200, answer.text
        return answer.text


def make_namespaces(plane: KubePlane) -> None:
    """Those of jobs, as the manifests have them."""
    for name, level in ((JOBS, "baseline"), (HOST_JOBS, "privileged")):
        labels = {"pod-security.kubernetes.io/enforce": level}
        plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})


@contextlib.contextmanager
def a_kubelet(
    plane: KubePlane, home: Path, node: str = NODE, **more: Any
) -> Iterator[KubeletDouble]:
    """A node that runs pods, and leaves none when it is over."""
    settings = Settings(
        home=str(home),
        node=node,
        server=plane.url,
        ca=str(plane.ca_path),
        token=plane.token,
        images={"muster-step": step_image()},
        **more,
    )
    with KubeletDouble(settings) as kubelet:
        try:
            yield kubelet
        finally:
            plane.ask("DELETE", f"/api/v1/nodes/{node}")


def agent_settings(plane: KubePlane, kubelet: KubeletDouble, home: Path) -> dict[str, Any]:
    """Of an agent of this node."""
    return {
        "runner": "kubernetes",
        "kube_config": plane.write_kubeconfig(home / "kube.json"),
        "kube_step_image": "muster-step:test",
        "kube_logs": kubelet.home / "log" / "pods",
        "kube_pods": kubelet.home / "pods",
        "agent_on_stop": "keep",
        "supervisor_patience_s": 5.0,
    }


@contextlib.asynccontextmanager
async def a_kube_muster(
    plane: KubePlane, database_url: str, bootstrap: str, home: Path, **settings: dict[str, Any]
) -> AsyncIterator[KubeMuster]:
    """All five services; the agent's node is one of the cluster."""
    make_namespaces(plane)
    with a_kubelet(plane, home / "kubelet") as kubelet:
        agent = agent_settings(plane, kubelet, home) | settings.pop("runtime_agent", {})
        async with a_muster(
            database_url, bootstrap, home, runtime_agent=agent, **settings
        ) as muster:
            yield KubeMuster(muster, plane, kubelet)
