"""Settings of the runtime agent, all from the environment (`MUSTER_…`). Units are in the names."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from muster.contracts.images import ImagePullPolicy
from muster.settings import JobNamespaceSettings, Port, ReadByRestSettings, names_in
from muster.taints import TOLERATED
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from runtime_agent.domain.kubernetes.manifest import GpuMode

MEBIBYTE = 1024 * 1024
LAST_PORT = 65535
FIRST_TASK_UID, LAST_UID = 65536, 2**31 - 2
"""Below are a machine's own users; NFS and older programs take larger numbers for negative ones.

The default range is free by systemd's list (1879048192 to 2147352575 are unused), and above what
sssd gives to users of a directory by default (to 2000200000).
"""
LONGEST_NAME = 64
LONGEST_URL = 96
"""Placements name the node, its address and its log URL for every pod; their size counts on it."""


class OnStop(StrEnum):
    """What becomes of the pods when the agent is asked to end."""

    WITHDRAW = "withdraw"
    KEEP = "keep"


class RunnerKind(StrEnum):
    """What pods are on this node."""

    SUPERVISED = "supervised"
    KUBERNETES = "kubernetes"
    PRETENDED = "pretended"


class KubernetesSettings(JobNamespaceSettings):
    """Where on Kubernetes the pods of tasks are: for agents, and for the fence."""

    kube_config: Path | None = Field(
        None, description="A kubeconfig file; else the API server of the service account."
    )


class AgentSettings(ReadByRestSettings, KubernetesSettings):
    """The node, its pods, and intervals and limits of the agent."""

    http_port: Port = Field(
        8084, description="Logs, health and metrics; 0: any free, where nobody needs the logs."
    )
    node: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=LONGEST_NAME,
        description="The node's name.",
    )
    address: str = Field(
        "127.0.0.1",
        min_length=1,
        max_length=LONGEST_NAME,
        description="Where other nodes' tasks reach this node.",
    )
    log_url: str | None = Field(
        None,
        max_length=LONGEST_URL,
        description="Where REST reads logs; else http://<address>:<http port>.",
    )
    agent_home: Path = Field(Path(".muster/agent"), description="Journal, pods and their logs.")
    machine_id: str | None = Field(
        None,
        min_length=1,
        description="An id of this machine that survives restarts, or the absolute path of a file"
        " with one. By default /etc/machine-id, /var/lib/dbus/machine-id, or the node's"
        " name. A journal of another machine counts as lost.",
    )
    agent_on_stop: OnStop = Field(
        OnStop.WITHDRAW,
        description="At SIGTERM: withdraw (pods end with grace, and are started anew later, at no"
        " cost to their jobs) or keep (pods go on under their supervisors).",
    )
    runner: RunnerKind = Field(
        RunnerKind.SUPERVISED,
        description="What pods are: supervised (processes of this machine), kubernetes (pods of"
        " this node of a cluster) or, for benchmarks, pretended (no process is started, each pod"
        " succeeds at once).",
    )

    kube_host_network: str = Field(
        "",
        description="Virtual clusters, with commas, whose jobs may have more than one task (their"
        " tasks use the node's network) or `rdma` (their tasks lock memory). *: all.",
    )
    kube_step_image: str = Field(
        "muster-step", description="The image of the container that runs before each task's."
    )
    kube_step_pull_secret: bool = Field(
        False,
        description="That image is pulled with the Secret `muster-step`, which both namespaces of"
        " jobs have.",
    )
    kube_image_pull_policy: ImagePullPolicy | Literal[""] = Field(
        "",
        description="When kubelet asks the registry for the image of a task whose job file has no"
        " `imagePullPolicy`: Always, IfNotPresent or Never. Always binds all tasks. Empty:"
        " Kubernetes' default, which is Always for the tag `latest`, else IfNotPresent.",
    )
    kube_gpu_mode: GpuMode = Field(
        GpuMode.NONE,
        description="How containers get their GPUs: visible-devices (NVIDIA's container runtime"
        " gives those that the Scheduler chose) or none (for simulated GPUs).",
    )
    kube_runtime_class: str = Field(
        "nvidia", description="The runtime class of pods with GPUs; empty: the node's default."
    )
    kube_tolerated_taints: str = Field(
        TOLERATED,
        description="Keys of taints, with commas, that do not keep tasks off the node. Other taints"
        " do; taint a node with muster/only to keep other people's pods off.",
    )
    kube_logs: Path = Field(Path("/var/log/pods"), description="Where kubelet writes output.")
    kube_pods: Path = Field(
        Path("/var/lib/kubelet/pods"), description="Where kubelet has pods' volumes."
    )
    image_wait_s: PositiveFloat = Field(
        600.0, description="A pod whose image can't be pulled by then fails."
    )
    fake_gpus: NonNegativeInt | None = Field(
        None, description="Pretend to have this many GPUs; 0 or unset: those of the driver."
    )
    cpu: PositiveInt | None = Field(None, description="CPUs to offer; else those of the machine.")
    memory_mb: PositiveInt | None = Field(None, description="Memory to offer; else the machine's.")
    port_first: PositiveInt = Field(20000, description="Ports that pods can be given: from …")
    port_last: PositiveInt = Field(29999, description="… to, inclusive.")

    @model_validator(mode="after")
    def _ports_are_a_range(self) -> Self:
        if not self.port_first <= self.port_last <= LAST_PORT:
            raise ValueError(
                f"MUSTER_PORT_FIRST ({self.port_first}) to MUSTER_PORT_LAST ({self.port_last}) is"
                f" no range of ports up to {LAST_PORT}"
            )
        return self

    @field_validator("task_paths", "storage_paths")
    @classmethod
    def _paths_are_absolute(cls, paths: str) -> str:
        for path in names_in(paths):
            if not Path(path).is_absolute():
                raise ValueError(f"{path} is a relative path; give the absolute one")
        return paths

    def logs_at(self) -> str:
        """Where REST reads logs."""
        host = f"[{self.address}]" if ":" in self.address else self.address  # of IPv6
        return self.log_url or f"http://{host}:{self.http_port}"

    def task_folders(self) -> list[str]:
        """The paths in `task_paths`."""
        return names_in(self.task_paths)

    def storage_folders(self) -> list[str]:
        """The paths in `storage_paths`."""
        return names_in(self.storage_paths)

    @model_validator(mode="after")
    def _uids_are_those_of_nobody_else(self) -> Self:
        last = self.task_uid_first + self.task_uid_count
        if self.task_uid_first < FIRST_TASK_UID or last > LAST_UID:
            raise ValueError(
                f"MUSTER_TASK_UID_FIRST ({self.task_uid_first}) plus MUSTER_TASK_UID_COUNT"
                f" ({self.task_uid_count}) must lie between {FIRST_TASK_UID} and {LAST_UID}"
            )
        return self

    heartbeat_s: PositiveFloat = Field(10.0, description="How often the agent sends a heartbeat.")
    report_s: PositiveFloat = Field(60.0, description="A node report at the latest after this.")
    report_coalesce_s: NonNegativeFloat = Field(
        0.02, description="Changes within this time make one report."
    )
    device_timeout_s: PositiveFloat = Field(5.0, description="The GPU driver must answer by then.")
    device_look_s: PositiveFloat = Field(4.0, description="How often the GPUs are looked at.")
    foreign_port_s: PositiveFloat = Field(
        600.0, description="How long a port is reported that another process held."
    )

    pod_look_s: PositiveFloat = Field(1.0, description="Pods are looked at this often, unasked.")
    checkpoint_every_s: PositiveFloat = Field(
        30.0, description="The least time between two messages on a pod's saved work."
    )
    launch_timeout_s: PositiveFloat = Field(5.0, description="A supervisor is there by then.")
    launch_attempts: PositiveInt = Field(5, description="Then the pod fails: launch-failed.")
    grace_s: NonNegativeFloat = Field(30.0, description="Between SIGTERM and SIGKILL by default.")
    withdraw_grace_s: NonNegativeFloat = Field(
        20.0, description="The same when the agent itself is asked to end."
    )
    supervisor_patience_s: PositiveFloat = Field(
        30.0, description="A supervisor that has not acted this long after a grace is killed."
    )
    memory_limits: bool = Field(
        True, description="Hold pods to their memory, where control groups can be made."
    )
    cpu_limits: bool = Field(
        True, description="Hold pods to their CPUs, where control groups can be made."
    )
    pod_processes: PositiveInt = Field(
        16384,
        description="Processes and threads that a pod may have; without control groups, that its"
        " user may have on the node, where the agent is root.",
    )
    task_uid_first: PositiveInt = Field(
        2_001_000_000,
        description="Where the agent is root, each task runs under a uid of its user: this one plus"
        " the user's number. The same on all nodes that share storage.",
    )
    task_paths: str = Field(
        "",
        description="Folders that tasks reach, which lie below /tmp or a folder closed to others,"
        " for example shared storage: absolute paths, with commas. Links in them are resolved once,"
        " at the agent's start. The agent's own Python is always reached.",
    )
    storage_paths: str = Field(
        "",
        description="Folders of this node that storages may lie in, where the agent is root:"
        " absolute paths without links, with commas. Empty: the node mounts no storage. Not for"
        " Kubernetes nodes.",
    )
    task_uid_count: PositiveInt = Field(1_000_000, description="The number of uids for tasks.")
    cgroup_parent: Path | None = Field(
        None, description="A delegated control group to make the pods' groups in; else found."
    )
    pod_environment: str = Field(
        "PATH,HOME,LANG,LC_ALL,TZ,USER,LOGNAME,TMPDIR,LD_LIBRARY_PATH,SSL_CERT_FILE,SSL_CERT_DIR",
        description="Names of the agent's variables that pods inherit, with commas.",
    )

    disk_min_mb: NonNegativeInt = Field(
        256, description="With less room for pods and logs the node reports itself as unhealthy."
    )
    log_max_bytes: PositiveInt = Field(
        256 * MEBIBYTE, description="Of each log file of a pod; the one before it is kept as well."
    )
    keep_logs_s: PositiveFloat = Field(
        30 * 86400.0, description="Logs and records of an ended pod are kept this long."
    )
    logs_max_mb: PositiveInt = Field(
        20 * 1024, description="Of all pods' logs together; beyond it the oldest ended pods' go."
    )
    keep_ended_s: PositiveFloat = Field(
        8 * 86400.0, description="Names of ended pods are known this long; longer than topics."
    )
    clean_s: PositiveFloat = Field(60.0, description="How often what is too old is removed.")
    clean_pods: PositiveInt = Field(500, description="Pods removed in one go.")
    follow_look_s: PositiveFloat = Field(0.2, description="A followed log is looked at this often.")
    log_streams: PositiveInt = Field(200, description="Followed logs at a time.")

    repeats_per_s: PositiveInt = Field(50, description="The most messages republished a second.")
    retry_s: PositiveFloat = Field(0.5, description="Between tries to reach a bus that is away.")
    partitions_look_s: PositiveFloat = Field(60.0, description="The partition count is looked at.")
    old_partition_s: PositiveFloat = Field(
        86400.0, description="The partition before a change of their count is read this long."
    )
