"""Settings of the runtime agent, all from the environment (`MUSTER_…`). Units are in the names."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path
from typing import Self

from muster.settings import ServiceSettings
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

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


class AgentSettings(ServiceSettings):
    """Settings of a node, its pods and its intervals."""

    http_port: NonNegativeInt = Field(
        8084, description="Port of logs, health and metrics; 0: any free, if nobody reads logs."
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
        description="Address at which tasks on other nodes reach this node.",
    )
    log_url: str | None = Field(
        None,
        max_length=LONGEST_URL,
        description="URL at which REST reads logs; else http://<address>:<http port>.",
    )
    agent_home: Path = Field(Path(".muster/agent"), description="Journal, pods and their logs.")
    machine_id: str | None = Field(
        None,
        min_length=1,
        description="What tells this machine from all others, also after a restart: an id, or the"
        " absolute path of a file with one; else that of /etc/machine-id or"
        " /var/lib/dbus/machine-id, else the node's name. On another machine a journal counts as"
        " lost.",
    )
    agent_on_stop: OnStop = Field(
        OnStop.WITHDRAW,
        description="At SIGTERM: withdraw (pods end with grace, and are started anew later, at no"
        " cost to their jobs) or keep (pods go on under their supervisors).",
    )
    agent_pretend: bool = Field(
        False, description="For benchmarks: no process is started, each pod succeeds at once."
    )
    fake_gpus: NonNegativeInt | None = Field(
        None, description="Pretend to have this many GPUs; 0 or unset: those of the driver."
    )
    cpu: PositiveInt | None = Field(None, description="CPUs to offer; else those of the machine.")
    memory_mb: PositiveInt | None = Field(None, description="Memory to offer; else the machine's.")
    port_first: PositiveInt = Field(20000, description="First port for pods.")
    port_last: PositiveInt = Field(29999, description="Last port for pods, inclusive.")

    @model_validator(mode="after")
    def _ports_are_a_range(self) -> Self:
        if not self.port_first <= self.port_last <= LAST_PORT:
            raise ValueError(
                f"MUSTER_PORT_FIRST ({self.port_first}) to MUSTER_PORT_LAST ({self.port_last}) is"
                f" no range of ports up to {LAST_PORT}"
            )
        return self

    @model_validator(mode="after")
    def _uids_are_those_of_nobody_else(self) -> Self:
        last = self.task_uid_first + self.task_uid_count
        if self.task_uid_first < FIRST_TASK_UID or last > LAST_UID:
            raise ValueError(
                f"MUSTER_TASK_UID_FIRST ({self.task_uid_first}) plus MUSTER_TASK_UID_COUNT"
                f" ({self.task_uid_count}) must lie between {FIRST_TASK_UID} and {LAST_UID}"
            )
        return self

    heartbeat_s: PositiveFloat = 10.0
    report_s: PositiveFloat = Field(60.0, description="Longest time between two node reports.")
    report_coalesce_s: NonNegativeFloat = Field(
        0.02, description="Time within which changes are combined into one report."
    )
    device_timeout_s: PositiveFloat = Field(10.0, description="Timeout of the GPU driver.")
    device_look_s: PositiveFloat = Field(15.0, description="Interval of checking the GPUs.")
    foreign_port_s: PositiveFloat = Field(
        600.0, description="Time that a port used by a foreign process is reported."
    )

    pod_look_s: PositiveFloat = Field(1.0, description="Interval of checking pods.")
    checkpoint_every_s: PositiveFloat = Field(
        30.0, description="Least time between two notices of a pod's checkpoint."
    )
    launch_timeout_s: PositiveFloat = Field(5.0, description="Time for a supervisor to start.")
    launch_attempts: PositiveInt = Field(
        5, description="Launch attempts before a pod fails with launch-failed."
    )
    grace_s: NonNegativeFloat = Field(
        30.0, description="Default grace between SIGTERM and SIGKILL."
    )
    withdraw_grace_s: NonNegativeFloat = Field(
        20.0, description="Grace of pods when the agent itself ends."
    )
    supervisor_patience_s: PositiveFloat = Field(
        30.0, description="Time after a grace before an inactive supervisor is killed."
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
        description="Folders that tasks reach, with commas, which lie below /tmp or a folder closed"
        " to others; say shared storage. The agent's own Python is always reached.",
    )
    task_uid_count: PositiveInt = Field(1_000_000, description="So many uids are for tasks.")
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
        256 * MEBIBYTE,
        description="Size of each log file of a pod; the previous file is kept as well.",
    )
    keep_logs_s: PositiveFloat = Field(
        30 * 86400.0, description="Retention of an ended pod's logs and records."
    )
    logs_max_mb: PositiveInt = Field(
        20 * 1024,
        description="Size of all pods' logs together; beyond it the oldest are removed.",
    )
    keep_ended_s: PositiveFloat = Field(
        8 * 86400.0, description="Retention of ended pods' names; longer than that of topics."
    )
    clean_s: PositiveFloat = Field(60.0, description="Interval of removing old logs and names.")
    clean_pods: PositiveInt = Field(500, description="Pods removed in one pass.")
    follow_look_s: PositiveFloat = Field(0.2, description="Interval of reading a followed log.")
    log_streams: PositiveInt = Field(200, description="Followed logs, at most.")

    repeats_per_s: PositiveInt = Field(50, description="Messages republished a second, at most.")
    retry_s: PositiveFloat = Field(
        0.5, description="Time between two attempts to reach an unavailable bus."
    )
    partitions_look_s: PositiveFloat = Field(
        60.0, description="Interval of checking the partition count."
    )
    old_partition_s: PositiveFloat = Field(
        86400.0,
        description="Time that the old partition is still read after a change of the count.",
    )
