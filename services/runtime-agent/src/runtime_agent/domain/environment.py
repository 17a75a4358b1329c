"""The environment that a task sees: OpenPAI's `PAI_*`, Muster's own, and which GPUs are its.

What makes no sense without containers is left out; the service's docs/task.md lists it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.contracts.pods import PodRun, RolePeers

CHECKPOINT_FILE = ".checkpointed"
"""In the work directory: a task touches it to report that its gang's work is saved."""

_OF_THE_AGENT = ("HOME", "USER", "LOGNAME", "TMPDIR")

HTTP_LABEL = "http"
SSH_LABEL = "ssh"


@dataclass(frozen=True)
class Place:
    """Where the pod runs. `work_dir` is an absolute path; `inherited` comes from the node.
    `gpu_names`: what CUDA calls each GPU, by index.
    """

    pod: str
    job: str
    node: str
    address: str
    work_dir: str
    simulated_gpus: bool
    gpu_names: Mapping[int, str]
    inherited: Mapping[str, str]


@dataclass(frozen=True)
class _Peer:
    """A task of the job attempt that has a place; `ports` is label → numbers."""

    role: str
    index: int
    address: str
    ports: Mapping[str, Sequence[int]]


def task_environment(run: PodRun, place: Place) -> dict[str, str]:
    """All variables, nothing else is inherited."""
    return {
        **place.inherited,
        **_job(run, place),
        **_roles(run, place),
        **_current(run, place),
        **_devices(run, place),
        **_muster(run, place),
    }


def of_user(inherited: Mapping[str, str], user: str, home: str) -> dict[str, str]:
    """The node's variables for a task that runs under a uid of its user: those that name the
    agent's own user and folders are replaced.
    """
    kept = {name: value for name, value in inherited.items() if name not in _OF_THE_AGENT}
    return kept | {"HOME": home, "USER": user, "LOGNAME": user}


def _job(run: PodRun, place: Place) -> dict[str, str]:
    names = ",".join(role.name for role in run.roles)
    tasks = str(sum(role.instances for role in run.roles))
    roles = str(len(run.roles))
    placed = (peer for role in run.peers for peer in _peers(role))
    return {
        "PAI_FRAMEWORK_NAME": run.job_name,
        "PAI_JOB_NAME": run.job_name,
        "PAI_USER_NAME": run.user,
        "PAI_USERNAME": run.user,
        "PAI_DEFAULT_FS_URI": "",
        "PAI_VIRTUAL_CLUSTER": run.virtual_cluster,
        "PAI_TASK_ROLE_COUNT": roles,
        "PAI_TASK_ROLES_NUM": roles,
        "PAI_JOB_TASK_ROLE_COUNT": roles,
        "PAI_TASK_ROLE_LIST": names,
        "PAI_JOB_TASK_ROLE_LIST": names,
        "PAI_TASKS_NUM": tasks,
        "PAI_JOB_TASK_COUNT": tasks,
        "PAI_TASK_ROLE_INSTANCES": ",".join(f"{peer.role}:{peer.index}" for peer in placed),
        "PAI_WORK_DIR": place.work_dir,
    }


def _roles(run: PodRun, place: Place) -> dict[str, str]:
    found: dict[str, str] = {}
    placed = {role.role: role for role in run.peers}
    for role in run.roles:
        sizes = (role.gpus, role.cpu, role.memory_mb, role.shm_mb)
        least = role.instances if role.min_instances is None else role.min_instances
        found |= {
            f"PAI_TASK_ROLE_TASK_COUNT_{role.name}": str(role.instances),
            f"MUSTER_MIN_TASK_COUNT_{role.name}": str(least),
            f"PAI_RESOURCE_{role.name}": ",".join(map(str, sizes)),
            f"PAI_MIN_FAILED_TASK_COUNT_{role.name}": str(role.min_failed_instances),
            f"PAI_MIN_SUCCEEDED_TASK_COUNT_{role.name}": str(role.min_succeeded_instances),
        }
        peers = list(_peers(placed[role.name])) if role.name in placed else []
        if role.name == run.role:  # a pod on Kubernetes may have another address than its node
            own = {run.index: place.address}
            peers = [replace(peer, address=own.get(peer.index, peer.address)) for peer in peers]
        for peer in peers:
            found.update(_peer(peer))
        if hosts := [_host(peer) for peer in peers]:
            found[f"PAI_TASK_ROLE_{role.name}_HOST_LIST"] = ",".join(hosts)
    return found


def _peers(role: RolePeers) -> Iterator[_Peer]:
    """The role's tasks that have a place, by index."""
    for index, position in enumerate(role.address_of):
        if position is not None:
            ports = {label: numbers[index] for label, numbers in role.ports.items()}
            yield _Peer(
                role=role.role,
                index=index,
                address=role.addresses[position],
                ports={label: numbers for label, numbers in ports.items() if numbers},
            )


def _peer(peer: _Peer) -> dict[str, str]:
    found = {f"PAI_HOST_IP_{peer.role}_{peer.index}": peer.address}
    for label, ports in peer.ports.items():
        found[f"PAI_PORT_LIST_{peer.role}_{peer.index}_{label}"] = _list(ports)
        found[f"PAI_{peer.role}_{peer.index}_{label}_PORT"] = _list(ports)
    return found


def _host(peer: _Peer) -> str:
    """`address:port` with the port of the label http, else of the first label, else none."""
    ports = peer.ports.get(HTTP_LABEL) or next(iter(peer.ports.values()), ())
    return f"{peer.address}:{ports[0]}" if ports else peer.address


def _current(run: PodRun, place: Place) -> dict[str, str]:
    found = {
        "PAI_CURRENT_TASK_ROLE_NAME": run.role,
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(run.index),
        "PAI_TASK_INDEX": str(run.index),
        "PAI_CURRENT_CONTAINER_IP": place.address,
        "PAI_CONTAINER_HOST_IP": place.address,
        "PAI_CONTAINER_HOST_PORT_LIST": "".join(
            f"{label}:{_list(ports)};" for label, ports in run.ports.items()
        ),
    }
    for label, ports in run.ports.items():
        found[f"PAI_CONTAINER_HOST_{label}_PORT_LIST"] = _list(ports)
    if http := run.ports.get(HTTP_LABEL):
        found["PAI_CURRENT_CONTAINER_PORT"] = found["PAI_CONTAINER_HOST_PORT"] = str(http[0])
    if ssh := run.ports.get(SSH_LABEL):
        found["PAI_CONTAINER_SSH_PORT"] = str(ssh[0])
    return found


def _devices(run: PodRun, place: Place) -> dict[str, str]:
    """A task without GPUs sees none: by "void" NVIDIA's container runtime leaves a container alone.
    Numbers follow the PCI bus, as NVML counts them.
    """
    visible = ",".join(place.gpu_names[gpu] for gpu in run.gpus)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible or "void",
        **({"MUSTER_GPUS_SIMULATED": "1"} if run.gpus and place.simulated_gpus else {}),
    }


def _muster(run: PodRun, place: Place) -> dict[str, str]:
    """Attempts count up, so that peers can recognise and refuse an older attempt's data."""
    return {
        "MUSTER_POD": place.pod,
        "MUSTER_CHECKPOINT_FILE": f"{place.work_dir}/{CHECKPOINT_FILE}",
        "MUSTER_JOB": place.job,
        "MUSTER_NODE": place.node,
        "MUSTER_JOB_ATTEMPT": str(run.job_attempt),
        "MUSTER_TASK_ATTEMPT": str(run.task_attempt),
        "FC_FRAMEWORK_NAME": run.job_name,
        "FC_TASKROLE_NAME": run.role,
        "FC_TASK_INDEX": str(run.index),
        "FC_FRAMEWORK_ATTEMPT_ID": str(run.job_attempt),
        "FC_TASK_ATTEMPT_ID": str(run.task_attempt),
        "FC_POD_NAME": place.pod,
    }


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
