"""Asks a cluster by kubectl what `findings` judges and what `muster deploy status` shows."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from cli.client import CommandError, Exit
from cli.deploy.findings import Cluster, Right, rights
from cli.deploy.kubectl import Kubectl
from cli.deploy.objects import AGENT, NAMESPACES, POD_OF_JOB, SYSTEM, Json, name_of

LEASES = "kube-node-lease"


def look_at(kubectl: Kubectl, objects: Sequence[Json]) -> Cluster:
    """What kubectl tells. Each request is one of reading, or changes nothing."""
    versions = kubectl.json("version")
    names = [each["metadata"]["name"] for each in kubectl.every("get", "namespaces")]
    here = [each for each in NAMESPACES if each in names]
    asked_at = datetime.fromtimestamp(time.time(), UTC)
    return Cluster(
        client=versions["clientVersion"]["gitVersion"],
        server=versions.get("serverVersion", {}).get("gitVersion", "unknown"),
        server_time=_server_time(kubectl),
        asked_at=asked_at,
        denied=_denied(kubectl, rights(objects)),
        nodes=kubectl.every("get", "nodes"),
        leases=kubectl.every("get", "leases.coordination.k8s.io", "-n", LEASES),
        storage_classes=kubectl.every("get", "storageclasses"),
        runtime_classes=kubectl.every("get", "runtimeclasses"),
        namespaces=[each for each in kubectl.every("get", "namespaces") if name_of(each) in here],
        limits=[
            each
            for name in here
            for each in kubectl.every("get", "resourcequotas,limitranges", "-n", name)
        ],
    )


def _server_time(kubectl: Kubectl) -> datetime:
    """The API server's clock, in whole seconds: the time of an object that is not made."""
    made = kubectl.json("create", "configmap", "muster-clock", "-n", "default", "--dry-run=server")
    return datetime.fromisoformat(made["metadata"]["creationTimestamp"])


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


def job_pods(kubectl: Kubectl) -> list[Json]:
    """The pods of people's jobs that have not ended."""
    found = kubectl.every("get", "pods", "-A", "-l", POD_OF_JOB)
    return [each for each in found if each["status"].get("phase") not in ("Succeeded", "Failed")]


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
