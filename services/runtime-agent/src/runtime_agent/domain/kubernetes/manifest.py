"""The Pod object of a task: everything but the command, which comes with the start permit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

from muster.contracts.images import STEP_PULL_SECRET
from muster.contracts.node_access import is_permitted, needs_host, uses_node_network, uses_rdma
from muster.contracts.pods import PodRun
from muster.contracts.secrets import PullCredentials

from runtime_agent.domain.kubernetes.labels import labels, names_of, unlabelled
from runtime_agent.domain.pods import Pod

Json = dict[str, Any]

MANAGED_BY = {"app.kubernetes.io/managed-by": "muster"}
"""The labels by which Muster's pods are listed."""
NODE_ANNOTATION = "muster/node"
POD_ANNOTATION = "muster/pod"
JOURNAL_ANNOTATION = "muster/journal"
TICKET, PROOF = "MUSTER_TICKET", "MUSTER_PROOF"
HOST_IP, AGENT_PORT = "MUSTER_HOST_IP", "MUSTER_AGENT_PORT"
FOR_PERMIT = (TICKET, PROOF, HOST_IP, AGENT_PORT)
"""What the container needs only until its command begins."""

DOCKER_HUB = "https://index.docker.io/v1/"
"""The name by which kubelet finds the log-in for images without a registry."""
ALWAYS = "Always"
MAIN = "main"
STEP = "step"
BIN_DIR = "/muster"
"""Where the step container puts what the task's container begins with, in any image."""
RUN_DIR = "/muster/run"
"""In memory: the answer to the start permit."""
WORK_DIR = "/muster/work"
RUN_MB = 32
DEFAULT_SHM_MB = 512
"""OpenPAI's; the 64 MiB of container runtimes are too few for PyTorch's data loaders."""
HASH_DIGITS = 12
LEAST_MEMORY_MB = 12
"""CRI-O makes no container with less. containerd tries, and the kernel kills the pod's sandbox,
of which kubelet tells nothing in the pod's status.
"""
DROPPED = {"drop": ["NET_RAW"]}
"""On the host network it would read what passes there, also other tasks' start permits."""
SHM_PATH = "/dev/shm"  # noqa: S108  where programs expect it


class GpuMode(StrEnum):
    """How a container gets the GPUs that the Scheduler chose."""

    NONE = "none"
    VISIBLE_DEVICES = "visible-devices"


@dataclass(frozen=True, slots=True)
class PodRules:
    """What holds for all pods of a node. `host_namespace`: of pods on the host network or with
    rdma, which the virtual clusters in `host_network` may have, or all where "*" is in it.
    `image_pull_policy`: of tasks that choose none; empty: Kubernetes' default. "Always" binds all.
    `step_is_private`: the step image is pulled with a secret.
    """

    namespace: str
    host_namespace: str
    step_image: str
    agent_port: int
    grace_s: float
    gpu_mode: GpuMode = GpuMode.NONE
    runtime_class: str = ""
    host_network: frozenset[str] = frozenset()
    image_pull_policy: str = ""
    step_is_private: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose pod it is, and the ticket with which its container asks for the start permit. `proof`:
    the digest of the answer's first line. `pull`: who pulls its image, where that is private.
    """

    node: str
    journal: str
    ticket: str
    proof: str = ""
    pull: PullCredentials | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What the pod gets of the node beside CPUs and memory: GPUs, and by Kubernetes' names how many
    of other resources.
    """

    gpu_uuids: Sequence[str] = ()
    counted: Mapping[str, int] = field(default_factory=dict)


def object_name(pod: Pod) -> str:
    """A name that Kubernetes takes: a role may hold "_" and capitals."""
    return f"{pod.job.lower()}-{sha256(pod.pod.encode()).hexdigest()[:HASH_DIGITS]}"


def is_on_host_network(run: PodRun) -> bool:
    """Whether the pod has the node's address."""
    return uses_node_network(role.instances for role in run.roles)


def own_address(run: PodRun, address: str) -> str | None:
    """The address, where it is the pod's own and not its node's."""
    return None if is_on_host_network(run) else address or None


def is_of_host(run: PodRun) -> bool:
    """Whether the pod needs what Pod Security refuses to ordinary ones."""
    return needs_host((role.instances for role in run.roles), [run.resources])


def why_too_small(run: PodRun) -> str | None:
    """Why no container runtime can start the pod; None: one can. With 0 it has no limit."""
    if not 0 < run.memory_mb < LEAST_MEMORY_MB:
        return None
    return f"memory limit {run.memory_mb} too low; on Kubernetes {LEAST_MEMORY_MB} MiB is the least"


def why_not_of_host(run: PodRun, rules: PodRules) -> str | None:
    """Why the pod may not have that; None: it may."""
    if not is_of_host(run) or is_permitted(run.virtual_cluster, rules.host_network):
        return None
    return (
        f"MUSTER_KUBE_HOST_NETWORK of the node's agent does not name {run.virtual_cluster}. Virtual"
        f" clusters that may: {', '.join(sorted(rules.host_network)) or 'none'}. An operator can"
        " add it, and the job can be submitted again."
    )


def namespace_of(run: PodRun, rules: PodRules) -> str:
    """Where the pod's object is."""
    return rules.host_namespace if is_of_host(run) else rules.namespace


def manifest(pod: Pod, run: PodRun, who: Identity, rules: PodRules, given: Given) -> Json:
    """The whole object. Requests equal limits. It names its own pull secret where the pod has
    secrets, for the image may be private; without that secret kubelet pulls as anybody.
    """
    host, names = is_on_host_network(run), names_of(run)
    volumes, mounts = _volumes(run)
    locking: Json = {"add": ["IPC_LOCK"]} if uses_rdma(run.resources) else {}
    main: Json = {
        "name": MAIN,
        "image": run.image,
        "command": [f"{BIN_DIR}/bin/tini", "-g", "--", f"{BIN_DIR}/bin/sh", f"{BIN_DIR}/bin/begin"],
        "env": _environment(pod, who, rules, given.gpu_uuids),
        "resources": _resources(run, given.counted),
        "volumeMounts": mounts,
        "securityContext": {"capabilities": DROPPED | locking},
    }
    step: Json = {
        "name": STEP,
        "image": rules.step_image,
        "command": ["/bin/busybox", "cp", "-R", "/bin", f"{BIN_DIR}/"],
        "volumeMounts": [{"name": "muster", "mountPath": BIN_DIR}],
        "resources": _resources(run, {}),
        "securityContext": {"capabilities": DROPPED},
    }
    spec: Json = {
        "nodeName": who.node,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(1, round(rules.grace_s)),
        "hostNetwork": host,
        "dnsPolicy": "ClusterFirstWithHostNet" if host else "ClusterFirst",
        # kubelet obeys only taints of this effect; a lost node is the Scheduler's to decide.
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [step],
        "containers": [main],
        "volumes": volumes,
    }
    if policy := _image_pull_policy(run, who, rules):
        main["imagePullPolicy"] = policy
    secrets = [object_name(pod)] if run.secrets is not None else []
    if rules.step_is_private:
        secrets.append(STEP_PULL_SECRET)
    if secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    if rules.gpu_mode is GpuMode.VISIBLE_DEVICES and run.gpus and rules.runtime_class:
        spec["runtimeClassName"] = rules.runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": object_name(pod),
            "namespace": namespace_of(run, rules),
            "labels": {**MANAGED_BY, "muster/job": pod.job, **labels(names)},
            "annotations": {
                **unlabelled(names),
                NODE_ANNOTATION: who.node,
                POD_ANNOTATION: pod.pod,
                JOURNAL_ANNOTATION: who.journal,
            },
        },
        "spec": spec,
    }


def _image_pull_policy(run: PodRun, who: Identity, rules: PodRules) -> str:
    """Empty: Kubernetes' default. An image with a log-in is asked for each time, whatever the job
    file says: else whoever gives a wrong one would get the node's copy.
    """
    if who.pull is not None or rules.image_pull_policy == ALWAYS:
        return ALWAYS
    return run.image_pull_policy or rules.image_pull_policy


def pull_secret(pod: Pod, run: PodRun, who: Identity, rules: PodRules, uid: str) -> Json:
    """The Secret with which kubelet pulls the pod's image. It has the pod's name. `uid`: of the
    pod's object.
    """
    assert who.pull is not None
    login = {"username": who.pull.username, "password": who.pull.password}
    content = json.dumps({"auths": {_registry(run.image, who.pull.registry): login}})
    name = object_name(pod)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace_of(run, rules),
            "labels": MANAGED_BY,
            "annotations": {NODE_ANNOTATION: who.node},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
        },
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": content},
    }


def _registry(image: str, named: str) -> str:
    """The registry that the job file names, else the image's own, else Docker Hub."""
    host, slash, _ = image.partition("/")
    is_host = bool(slash) and ("." in host or ":" in host or host == "localhost")
    found = named or (host if is_host else DOCKER_HUB)
    return DOCKER_HUB if found == "docker.io" else found


def _environment(pod: Pod, who: Identity, rules: PodRules, gpu_uuids: Sequence[str]) -> list[Json]:
    """What a container needs to ask for its permit; NVIDIA's runtime reads the last one before any
    process starts. Its "void" keeps GPUs from images that ask for all.
    """
    plain: Mapping[str, str] = {
        "MUSTER_POD": pod.pod,
        TICKET: who.ticket,
        PROOF: who.proof,
        AGENT_PORT: str(rules.agent_port),
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpu_uuids)
        if rules.gpu_mode is GpuMode.VISIBLE_DEVICES and gpu_uuids
        else "void",
    }
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        {"name": HOST_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ]


def _resources(run: PodRun, counted: Mapping[str, int]) -> Json:
    """A limit of 0 CPUs would be none at all, so it is left out."""
    amounts = {name: str(count) for name, count in counted.items()}
    amounts |= {"memory": f"{run.memory_mb}Mi"} if run.memory_mb else {}
    if run.cpu:
        amounts["cpu"] = str(run.cpu)
    return {"requests": amounts, "limits": amounts}


def _volumes(run: PodRun) -> tuple[list[Json], list[Json]]:
    """What is in memory counts on the container's own memory, where that has a limit."""
    asked_mb = next((role.shm_mb for role in run.roles if role.name == run.role), 0)
    shm_mb = asked_mb or DEFAULT_SHM_MB
    shm_mb = min(shm_mb, run.memory_mb or shm_mb)
    volumes: list[Json] = [
        {"name": "muster", "emptyDir": {}},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": f"{RUN_MB}Mi"}},
        {"name": "work", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_mb}Mi"}},
    ]
    mounts: list[Json] = [
        {"name": "muster", "mountPath": BIN_DIR},
        {"name": "run", "mountPath": RUN_DIR},
        {"name": "work", "mountPath": WORK_DIR},
        {"name": "shm", "mountPath": SHM_PATH},
    ]
    of_claims, in_tasks = _storages(run)
    return volumes + of_claims, mounts + in_tasks


def claims_of(run: PodRun) -> list[str]:
    """The claims that the pod's storages are in, each once: kubelet waits for ever for one that a
    pod names twice.
    """
    return list(dict.fromkeys(mount.claim for mount in run.mounts if mount.claim))


def volume_of(number: int) -> str:
    """The name that the pod gives the volume of its claim of this number."""
    return f"storage-{number}"


def _storages(run: PodRun) -> tuple[list[Json], list[Json]]:
    claims = claims_of(run)
    volumes: list[Json] = [
        {"name": volume_of(number), "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(claims)
    ]
    mounts: list[Json] = [
        {
            "name": volume_of(claims.index(mount.claim)),
            "mountPath": mount.mount_path,
            "readOnly": mount.read_only,
        }
        | ({"subPath": mount.sub_path} if mount.sub_path else {})
        for mount in run.mounts
        if mount.claim
    ]
    return volumes, mounts
