"""Reads and changes the objects of an installation. Pure."""

import base64
import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name."""

SYSTEM, JOBS, HOST_JOBS = "muster-system", "muster-jobs", "muster-jobs-host"
NAMESPACES = (HOST_JOBS, JOBS, SYSTEM)
AGENT_LABEL = "muster/agent"
OF_MUSTER = "app.kubernetes.io/part-of=muster"
POD_OF_JOB = "app.kubernetes.io/managed-by=muster"
AGENT, LAUNCHER, REST, STEP = "runtime-agent", "launcher", "rest", "step"
SECRETS_MARK = "muster/secrets"
STEP_VARIABLE = "MUSTER_KUBE_STEP_IMAGE"
MARK_LENGTH = 16
GPU = "nvidia.com/gpu"
STEP_PULL_SETTING = "MUSTER_KUBE_STEP_PULL_SECRET"
WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet", "Job")


@dataclass(frozen=True)
class Images:
    """The two images that Muster runs."""

    muster: str
    step: str


LEAST_RIGHTS = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""The security context of containers that a command starts."""


def name_of(body: Json) -> str:
    """The object's name."""
    return str(body["metadata"]["name"])


def namespace_of(body: Json) -> str:
    """The object's namespace; empty where it is in none."""
    return str(body["metadata"].get("namespace", ""))


def key_of(body: Json) -> Key:
    """What tells it from all others."""
    return body["kind"], namespace_of(body), name_of(body)


def title_of(body: Json) -> str:
    """How people name it."""
    namespace = body["metadata"].get("namespace", SYSTEM)
    where = "" if namespace == SYSTEM else f" in {namespace}"
    return f"{body['kind']} {name_of(body)}{where}"


def find(objects: Sequence[Json], kind: str, name: str) -> Json | None:
    """The first of this kind and name."""
    for each in objects:
        if each["kind"] == kind and name_of(each) == name:
            return each
    return None


def plural(kind: str) -> str:
    """The resource of a kind: `networkpolicies` of NetworkPolicy."""
    word = kind.lower()
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith("s") else "s")


def group_of(body: Json) -> str:
    """The API group; empty for the core's."""
    group, slash, _ = str(body["apiVersion"]).partition("/")
    return group if slash else ""


def containers(body: Json) -> Iterator[Json]:
    """All containers of the pods that it makes."""
    pod = body["spec"]["template"]["spec"]
    yield from pod.get("initContainers", [])
    yield from pod["containers"]


def images_of(agent: Json) -> Images:
    """The images of an installation: its DaemonSet, the last to be rolled out, has both."""
    found = {each["name"]: str(each["image"]) for each in containers(agent)}
    return Images(found[AGENT], found[STEP])


def with_images(objects: Sequence[Json], now: Images, then: Images) -> list[Json]:
    """The same objects with other images of Muster."""
    changed = copy.deepcopy(list(objects))
    new = {now.muster: then.muster, now.step: then.step}
    for body in changed:
        if body["kind"] in WORKLOADS:
            for container in containers(body):
                container["image"] = new.get(container["image"], container["image"])
                for variable in container.get("env", []):
                    if variable["name"] == STEP_VARIABLE:
                        variable["value"] = then.step
    return changed


def with_marks(objects: Sequence[Json], secrets: Sequence[Json]) -> list[Json]:
    """The same objects, each Deployment's pods marked by the content of the Secrets that they
    mount: a service reads these at its start, so other content starts it anew.
    """
    changed = copy.deepcopy(list(objects))
    known = {name_of(each): each.get("data", {}) for each in secrets}
    for body in changed:
        if body["kind"] == "Deployment":
            template = body["spec"]["template"]
            found = {name: known[name] for name in _mounted(template["spec"]) if name in known}
            digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
            marks = template["metadata"].setdefault("annotations", {})
            marks[SECRETS_MARK] = digest[:MARK_LENGTH]
    return changed


def _mounted(pod: Json) -> Iterator[str]:
    for volume in pod.get("volumes", []):
        for source in volume.get("projected", {}).get("sources", []):
            if "secret" in source:
                yield source["secret"]["name"]


def gpus_of(node: Json) -> int:
    """The GPUs that NVIDIA's device plug-in has announced."""
    return int(node.get("status", {}).get("allocatable", {}).get(GPU, 0))


def settings_of(agent: Json) -> list[str]:
    """The ConfigMaps that a workload's pods have settings from."""
    sources = [each for c in containers(agent) for each in c.get("envFrom", [])]
    names = [each["configMapRef"]["name"] for each in sources if "configMapRef" in each]
    return list(dict.fromkeys(names))


def agent_setting(objects: Sequence[Json], name: str) -> str | None:
    """A setting of the agents: their own, else that of all services."""
    agent = find(objects, "DaemonSet", AGENT)
    own = [] if agent is None else [e for c in containers(agent) for e in c.get("env", [])]
    for each in own:
        if each["name"] == name:
            return str(each["value"])
    for each in objects:
        if each["kind"] == "ConfigMap" and name in each.get("data", {}):
            return str(each["data"][name])
    return None


def is_step_private(objects: Sequence[Json]) -> bool:
    """Whether pods of jobs need a Secret to pull `muster-step`."""
    return agent_setting(objects, STEP_PULL_SETTING) == "true"


def encoded(secret: Json) -> Json:
    """A Secret with `data` instead of `stringData`: server-side apply owns only what it names, and
    the server turns `stringData` into fields that nobody owns.
    """
    if "stringData" not in secret:
        return secret
    plain: Mapping[str, str] = secret["stringData"]
    data = {name: base64.b64encode(text.encode()).decode() for name, text in plain.items()}
    return {name: part for name, part in secret.items() if name != "stringData"} | {"data": data}


def decoded(secret: Json, name: str) -> str | None:
    """An entry of a Secret as the server has it."""
    text = secret.get("data", {}).get(name)
    return None if text is None else base64.b64decode(text).decode()
