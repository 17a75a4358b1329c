"""Reads rendered manifests as the tests ask about them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

KINDS_WITH_PODS = ("Deployment", "DaemonSet", "StatefulSet", "Job")


def named(objects: Sequence[Json], kind: str, name: str, namespace: str | None = None) -> Json:
    """The one object of this kind and name."""
    (found,) = [
        each
        for each in objects
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
        and (namespace is None or each["metadata"].get("namespace") == namespace)
    ]
    return found


@dataclass(frozen=True)
class Workload:
    """An object that makes pods."""

    kind: str
    name: str
    body: Json

    @property
    def template(self) -> Json:
        """The pod's metadata and spec."""
        found: Json = self.body["spec"]["template"]
        return found

    @property
    def pod(self) -> Json:
        """The pod's spec."""
        found: Json = self.template["spec"]
        return found

    @property
    def containers(self) -> list[Json]:
        """All containers, the initial ones too."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def main(self) -> Json:
        """The container that goes on."""
        (found,) = self.pod["containers"]
        assert isinstance(found, dict)
        return found

    def secrets(self) -> set[str]:
        """The names of the Secrets that the pod mounts or takes variables from."""
        found = set()
        for volume in self.pod.get("volumes", []):
            if "secret" in volume:
                found.add(volume["secret"]["secretName"])
            for source in volume.get("projected", {}).get("sources", []):
                if "secret" in source:
                    found.add(source["secret"]["name"])
        for container in self.containers:
            for variable in container.get("env", []):
                key = variable.get("valueFrom", {}).get("secretKeyRef")
                if key:
                    found.add(key["name"])
        return found


def workloads(objects: Sequence[Json]) -> Iterator[Workload]:
    """All objects that make pods."""
    for each in objects:
        if each["kind"] in KINDS_WITH_PODS:
            yield Workload(each["kind"], each["metadata"]["name"], each)


def workload(objects: Sequence[Json], name: str) -> Workload:
    """The one of this name."""
    (found,) = [each for each in workloads(objects) if each.name == name]
    return found


def variables(
    objects: Sequence[Json], container: Json, fields: Mapping[str, str]
) -> dict[str, str]:
    """The environment that kubelet would give. `fields` has the values of the pod's fields;
    variables from Secrets get a word.
    """
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container.get("env", []):
        if "value" in variable:
            value = str(variable["value"])
            for name, known in found.items():
                value = value.replace(f"$({name})", known)
        elif "fieldRef" in variable["valueFrom"]:
            value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            value = "from a Secret"
        found[variable["name"]] = value
    return found
