"""Clusters and plans for the tests of `muster deploy check`."""

from datetime import UTC, datetime, timedelta
from typing import Any

from cli.deploy.findings import Cluster, Plan
from cli.deploy.objects import Images
from manifests import Json

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IMAGES = Images("localhost/muster:1", "localhost/muster-step:1")
LABEL = {"muster/agent": "true"}


def a_node(name: str = "gpu-1", gpus: int = 0, is_ready: bool = True, **info: str) -> Json:
    """A node for jobs that has both images."""
    facts = {"operatingSystem": "linux", "architecture": "amd64", "kubeletVersion": "v1.35.4"}
    return {
        "metadata": {"name": name, "labels": LABEL},
        "status": {
            "nodeInfo": facts | info,
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {},
            "images": [{"names": [IMAGES.muster]}, {"names": [IMAGES.step]}],
        },
    }


def a_lease(ahead_s: float, name: str = "gpu-1") -> Json:
    """The heartbeat of a node."""
    at = NOW + timedelta(seconds=ahead_s)
    return {
        "metadata": {"name": name},
        "spec": {"renewTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }


def named(kind: str, name: str, **more: Any) -> Json:
    """An object with a name."""
    metadata = {"name": name, **more.pop("metadata", {})}
    return {"kind": kind, "apiVersion": "v1", "metadata": metadata, **more}


GOOD = Cluster(
    client="v1.33.0",
    server="v1.32.1+k3s1",
    denied=(),
    groups=("apps",),
    nodes=[a_node()],
    leases=[a_lease(-5)],
    storage_classes=[
        named(
            "StorageClass",
            "standard",
            metadata={"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        )
    ],
    runtime_classes=(),
    namespaces=(),
    limits=(),
    made=(),
    server_time=NOW,
    asked_at=NOW,
    answered_at=NOW,
)
CLAIMS: Json = {"volumeClaimTemplates": [{"spec": {}}]}
STATEFUL = named("StatefulSet", "kafka", spec=CLAIMS | {"template": {"spec": {"containers": []}}})
PLAN = Plan([STATEFUL], IMAGES)
MODE = {"name": "MUSTER_KUBE_GPU_MODE", "value": "visible-devices"}
AGENT = {"containers": [{"name": "runtime-agent", "env": [MODE]}]}
DIRECT = named("DaemonSet", "runtime-agent", spec={"template": {"spec": AGENT}})
