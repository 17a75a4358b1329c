"""A whole Muster whose only node is one of a Kubernetes cluster: a real control plane, and a
kubelet double that really runs the containers, or a real kubelet.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.home import write_private
from kube_plane import KubePlane
from kubelet_double import KubeletDouble, Settings
from real_kubelet import STEP_IMAGE, RealKubelet
from scheduler_watched import until
from step_image import step_image
from whole_muster import Muster, a_muster, eventually

IS_FULL = "MUSTER_KUBE_FULL" in os.environ
NODE = "node-1"
JOBS, HOST_JOBS = "muster-jobs", "muster-jobs-host"
BASE = Path(__file__).parents[2] / "deploy" / "k8s" / "base"
KINDS = (
    *("api/v1/pods", "api/v1/secrets", "api/v1/persistentvolumeclaims"),
    "apis/resource.k8s.io/v1/resourceclaims",
)
"""Of the objects that a job may have."""
MANIFESTS = ("namespaces", "agent-rights", "own-node-policy", "rest-rights")


def size(usual: int, full: int) -> int:
    """How much of something a test does; the full size takes minutes for each test."""
    return full if IS_FULL else usual


@dataclass
class OnCluster:
    """The services and the control plane."""

    muster: Muster
    plane: KubePlane

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


@dataclass
class KubeMuster(OnCluster):
    """The node is a kubelet double."""

    kubelet: KubeletDouble


async def until_nothing_is_left(plane: KubePlane) -> None:
    """Wait until agents have deleted all that they make, in all namespaces."""
    query = "labelSelector=app.kubernetes.io/managed-by%3Dmuster"

    async def left() -> list[str]:
        found = []
        for kind in KINDS:
            status, answer = plane.ask("GET", f"/{kind}?{query}")
            items = answer["items"] if status == 200 else [{"metadata": {"name": "?"}}]
            found += [f"{kind}/{each['metadata']['name']}" for each in items]
        return found

    await eventually(left, lambda found: not found)


def with_pull_secret(job: str) -> str:
    """The job file, whose images are private."""
    auth = "auth: {username: ann, password: a-password, registryuri: registry.example}"
    return job.replace("{type: dockerimage,", f"{{type: dockerimage, {auth},")


def grant(plane: KubePlane) -> None:
    """The namespaces, the rights and the policy of agents, as an operator applies them."""
    files = [f"--filename={BASE / name}.yaml" for name in MANIFESTS]
    plane.kubectl("apply", "--server-side", *files)


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


def agent_token(plane: KubePlane, node: str = NODE) -> str:
    """As kubelet gives it to the pod of the node's agent."""
    _, found = plane.ask("GET", f"/api/v1/nodes/{node}")
    named = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found["metadata"]["uid"]}
    return plane.service_account_token("muster-system", "muster-agent", named)


def agent_settings(
    plane: KubePlane,
    kubelet: KubeletDouble | RealKubelet,
    home: Path,
    api_url: str | None = None,
) -> dict[str, Any]:
    """Of an agent of this node. `api_url`: of a proxy before the API server."""
    token = agent_token(plane)
    return {
        "runner": "kubernetes",
        "kube_host_network": "*",
        "kube_config": plane.write_kubeconfig(home / "kube.json", token=token, url=api_url),
        "kube_step_image": STEP_IMAGE,
        "kube_logs": kubelet.home / "log" / "pods",
        "kube_pods": kubelet.home / "pods",
        "supervisor_patience_s": 5.0,
    }


def claims_path(namespace: str) -> str:
    """Of the API server."""
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"


async def bind_a_claim(
    plane: KubePlane, name: str, files: Path, namespace: str = JOBS, mode: str = "ReadWriteMany"
) -> None:
    """A claim and its volume, which the controller manager binds."""
    volume = {
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": [mode],
            "storageClassName": "",
            "hostPath": {"path": str(files)},
            "claimRef": {"namespace": namespace, "name": name},
        },
    }
    claim = {
        "metadata": {"name": name},
        "spec": {
            "accessModes": [mode],
            "storageClassName": "",
            "volumeName": f"{namespace}-{name}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    claims = claims_path(namespace)
    for path, body in (("/api/v1/persistentvolumes", volume), (claims, claim)):
        status, answer = plane.ask("POST", path, body)
        assert status == 201, answer
    await until(lambda: plane.ask("GET", f"{claims}/{name}")[1]["status"].get("phase") == "Bound")


def rest_settings(plane: KubePlane, home: Path) -> dict[str, Any]:
    """Of a REST that reads claims, with its service account as kubelet mounts it."""
    home.mkdir()
    write_private(home / "token", plane.service_account_token("muster-system", "rest"))
    (home / "ca.crt").write_bytes(plane.ca_path.read_bytes())
    return {"kube_api_url": plane.url, "kube_service_account": home}


@contextlib.asynccontextmanager
async def a_kube_muster(
    plane: KubePlane,
    database_url: str,
    bootstrap: str,
    home: Path,
    api_url: str | None = None,
    **settings: dict[str, Any],
) -> AsyncIterator[KubeMuster]:
    """All five services; the agent's node is one of the cluster. `api_url`: of the agent's proxy
    before the API server.
    """
    grant(plane)
    with a_kubelet(plane, home / "kubelet") as kubelet:
        own = agent_settings(plane, kubelet, home, api_url) | {"agent_on_stop": "keep"}
        agent = own | settings.pop("runtime_agent", {})
        rest = rest_settings(plane, home / "rest") | settings.pop("rest", {})
        async with a_muster(
            database_url, bootstrap, home, runtime_agent=agent, rest=rest, **settings
        ) as muster:
            yield KubeMuster(muster, plane, kubelet)


@contextlib.asynccontextmanager
async def muster_on(
    kubelet: RealKubelet, database_url: str, bootstrap: str, home: Path
) -> AsyncIterator[OnCluster]:
    """All five services; the agent's node is a real one."""
    agent = agent_settings(kubelet.plane, kubelet, home) | {
        "http_host": "0.0.0.0",  # where containers ask for their start permit
        "cpu": None,
        "image_wait_s": 60.0,
    }
    quick = {"stop_grace_s": 3.0}
    async with a_muster(
        database_url, bootstrap, home, runtime_agent=agent, launcher=quick
    ) as muster:
        yield OnCluster(muster, kubelet.plane)
