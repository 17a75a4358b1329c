"""The ConfigMaps and Secrets without which pods of an installation do not start. Pure."""

from collections.abc import Iterator, Sequence

from muster.contracts.images import STEP_PULL_SECRET

from cli.deploy.credentials import names_of_secrets
from cli.deploy.objects import (
    HOST_JOBS,
    JOBS,
    SYSTEM,
    WORKLOADS,
    Json,
    Key,
    containers,
    find,
    is_step_private,
    key_of,
    namespace_of,
    title_of,
)

KINDS = {
    **dict.fromkeys(("configMap", "configMapRef", "configMapKeyRef"), "ConfigMap"),
    **dict.fromkeys(("secret", "secretRef", "secretKeyRef"), "Secret"),
}
"""By the word with which a pod names one."""
ROOT_CA = "kube-root-ca.crt"
"""Kubernetes makes this ConfigMap in each namespace."""
ACCOUNT = "default"
"""Of a pod that names none."""
PODS_OF_JOBS = "pods of jobs"


def to_be_made(objects: Sequence[Json]) -> dict[Key, list[str]]:
    """Those that a person makes, each with the workloads whose pods need it."""
    made = {key_of(each) for each in objects}
    made |= {("Secret", SYSTEM, name) for name in names_of_secrets()}
    found: dict[Key, list[str]] = {}
    for body in objects:
        if body["kind"] in WORKLOADS:
            names = [*_needed(body), *_to_pull(body, objects)]
            for kind, name in dict.fromkeys(names):
                found.setdefault((kind, namespace_of(body), name), []).append(title_of(body))
    if is_step_private(objects):
        for namespace in (JOBS, HOST_JOBS):
            found["Secret", namespace, STEP_PULL_SECRET] = [PODS_OF_JOBS]
    return {key: parts for key, parts in found.items() if key not in made and key[2] != ROOT_CA}


def _needed(body: Json) -> Iterator[tuple[str, str]]:
    """Kind and name of what its pods mount or read."""
    for volume in body["spec"]["template"]["spec"].get("volumes", []):
        yield from _named(volume)
        for source in volume.get("projected", {}).get("sources", []):
            yield from _named(source)
    for container in containers(body):
        for source in container.get("envFrom", []):
            yield from _named(source)
        for variable in container.get("env", []):
            yield from _named(variable.get("valueFrom", {}))


def _to_pull(body: Json, objects: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """Kind and name of what kubelet pulls its images with: the pod's own, else its account's."""
    pod = body["spec"]["template"]["spec"]
    account = find(objects, "ServiceAccount", pod.get("serviceAccountName", ACCOUNT)) or {}
    for each in pod.get("imagePullSecrets") or account.get("imagePullSecrets", []):
        yield "Secret", each["name"]


def _named(source: Json) -> Iterator[tuple[str, str]]:
    for word, kind in KINDS.items():
        found = source.get(word)
        if found and not found.get("optional"):
            yield kind, str(found.get("secretName") or found["name"])
