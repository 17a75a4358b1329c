"""The ConfigMaps and Secrets without which pods of an installation do not start. Pure."""

from collections.abc import Iterator, Sequence

from cli.deploy.credentials import names_of_secrets
from cli.deploy.objects import (
    SYSTEM,
    WORKLOADS,
    Json,
    Key,
    containers,
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


def to_be_made(objects: Sequence[Json]) -> dict[Key, list[str]]:
    """Those that a person makes, each with the workloads whose pods need it."""
    made = {key_of(each) for each in objects}
    made |= {("Secret", SYSTEM, name) for name in names_of_secrets()}
    found: dict[Key, list[str]] = {}
    for body in objects:
        needed = dict.fromkeys(_needed(body)) if body["kind"] in WORKLOADS else ()
        for kind, name in needed:
            key = kind, namespace_of(body), name
            if key not in made and name != ROOT_CA:
                found.setdefault(key, []).append(title_of(body))
    return found


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


def _named(source: Json) -> Iterator[tuple[str, str]]:
    for word, kind in KINDS.items():
        found = source.get(word)
        if found and not found.get("optional"):
            yield kind, str(found.get("secretName") or found["name"])
