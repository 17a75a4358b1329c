"""Asks a cluster by kubectl what `findings` judges and what `muster deploy status` shows."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from cli.client import CommandError, Exit
from cli.deploy.findings import Cluster, Right, agents, is_ready, rights
from cli.deploy.kubectl import Kubectl
from cli.deploy.objects import (
    AGENT,
    HOST_JOBS,
    JOBS,
    NAMESPACES,
    OF_MUSTER,
    POD_OF_JOB,
    SYSTEM,
    Json,
    Key,
    key_of,
    name_of,
    namespace_of,
)
from cli.deploy.references import to_be_made
from cli.deploy.rollout import refusals, troubles, warnings

LEASES = "kube-node-lease"
LOOKED_AT = (
    *("nodes", "leases.coordination.k8s.io", "storageclasses", "runtimeclasses", "namespaces"),
    *("resourcequotas", "limitranges"),
)


def look_at(kubectl: Kubectl, objects: Sequence[Json]) -> Cluster:
    """What kubectl tells. Each request is one of reading, or changes nothing."""
    versions = kubectl.json("version")
    asked_at, server_time, answered_at = time.time(), _server_time(kubectl), time.time()
    found: dict[str, list[Json]] = {}
    for each in kubectl.every("get", ",".join(LOOKED_AT), "-A"):
        found.setdefault(each["kind"], []).append(each)
    limits = [*found.get("ResourceQuota", ()), *found.get("LimitRange", ())]
    return Cluster(
        client=versions["clientVersion"]["gitVersion"],
        server=versions.get("serverVersion", {}).get("gitVersion", "unknown"),
        server_time=server_time,
        asked_at=datetime.fromtimestamp(asked_at, UTC),
        answered_at=datetime.fromtimestamp(answered_at, UTC),
        denied=_denied(kubectl, rights(objects)),
        groups=[each["name"] for each in kubectl.raw("/apis")["groups"]],
        nodes=found.get("Node", ()),
        leases=[each for each in found.get("Lease", ()) if namespace_of(each) == LEASES],
        storage_classes=found.get("StorageClass", ()),
        runtime_classes=found.get("RuntimeClass", ()),
        namespaces=[each for each in found.get("Namespace", ()) if name_of(each) in NAMESPACES],
        limits=[each for each in limits if namespace_of(each) in NAMESPACES],
        made=_made(kubectl, objects),
    )


def _made(kubectl: Kubectl, objects: Sequence[Json]) -> list[Key]:
    asked = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"namespace": namespace, "name": name}}
        for kind, namespace, name in to_be_made(objects)
    ]
    return [key_of(each) for each in kubectl.live(asked)] if asked else []


def _server_time(kubectl: Kubectl) -> datetime:
    """The API server's clock, in whole seconds: of an answer that it stores nowhere. A dry run
    would do, but policies of clusters refuse objects.
    """
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    [answer] = kubectl.every("create", "-f", "-", objects=[asked])
    return datetime.fromisoformat(answer["metadata"]["creationTimestamp"])


def _denied(kubectl: Kubectl, asked: Sequence[Right]) -> list[Right]:
    """The server answers a list of access reviews in its order."""
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": {
                    "verb": each.verb,
                    "group": each.group,
                    "resource": each.resource,
                    "namespace": each.namespace,
                }
            },
        }
        for each in asked
    ]
    answers = kubectl.every("create", "-f", "-", objects=reviews)
    return [
        right
        for right, answer in zip(asked, answers, strict=True)
        if not answer["status"]["allowed"]
    ]


def live_agent(kubectl: Kubectl) -> Json | None:
    """The DaemonSet of an installation; None where there is none."""
    return kubectl.get("daemonset", AGENT, SYSTEM)


def live_secrets(kubectl: Kubectl) -> list[Json]:
    """The Secrets of an installation; none where there is no installation."""
    return kubectl.every("get", "secrets", "-n", SYSTEM, "-l", OF_MUSTER)


def job_nodes(kubectl: Kubectl, named: Sequence[str] = ()) -> list[str]:
    """The nodes that run jobs, and those named."""
    return [name_of(each) for each in agents(kubectl.every("get", "nodes"), named)]


def job_pods(kubectl: Kubectl) -> list[Json]:
    """The pods of people's jobs that have not ended."""
    found = kubectl.every("get", "pods", "-A", "-l", POD_OF_JOB)
    return [each for each in found if each["status"].get("phase") not in ("Succeeded", "Failed")]


def lost_claims(kubectl: Kubectl) -> list[str]:
    """The claims of storages whose data go with their namespaces."""
    volumes = [each["spec"] for each in kubectl.every("get", "persistentvolumes")]
    held = [
        e["claimRef"]
        for e in volumes
        if e["persistentVolumeReclaimPolicy"] == "Delete" and "claimRef" in e
    ]
    return [f"{e['name']} in {e['namespace']}" for e in held if e["namespace"] in (JOBS, HOST_JOBS)]


def why_not_ready(kubectl: Kubectl, parts: Sequence[str], pods: Sequence[Json]) -> list[str]:
    """Why pods of these parts can't be made, then what their statuses say of these pods of Muster,
    else the last warnings about them.
    """
    waiting = [e for e in pods if not (is_ready(e) or e["status"].get("phase") == "Succeeded")]
    if not (parts or waiting):
        return []
    events = kubectl.every("get", "events", "-n", SYSTEM, "--field-selector", "type=Warning")
    return [*refusals(parts, pods, events), *(troubles(waiting) or warnings(waiting, events))]


def installed_or_refuse(kubectl: Kubectl) -> Json:
    """The DaemonSet of the installation. Raises CommandError where there is none."""
    found = live_agent(kubectl)
    if found is None:
        raise CommandError(
            Exit.REFUSED,
            f"Muster is not installed in this cluster: {SYSTEM} has no DaemonSet {AGENT}."
            " `muster deploy apply` installs it; --context names another cluster.",
        )
    return found
