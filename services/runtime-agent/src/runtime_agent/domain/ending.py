"""How a pod ended, as far as its node could observe it: the evidence for a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Loss(StrEnum):
    """Why there is no exit record though the pod had started."""

    SUPERVISOR = "supervisor-lost"
    REBOOT = "node-rebooted"
    DIRECTORY = "record-lost"
    CONTAINER = "container-lost"
    EVICTED = "evicted"
    DISK_LIMIT = "disk-limit"
    DISK_FILLED = "disk-filled"
    DISPLACED = "displaced"
    NODE_SHUTDOWN = "node-shutdown"
    DELETED = "deleted"


class Refusal(StrEnum):
    """Why the agent never started the pod."""

    AGENT_RESET = "agent-reset"
    PORT_CONFLICT = "port-conflict"
    DEVICE_BUSY = "device-busy"
    BAD_REQUEST = "bad-request"
    NEVER_RAN = "never-ran"
    LAUNCH_FAILED = "launch-failed"
    REJECTED = "rejected"
    NAME_TAKEN = "name-taken"
    OUT_OF_RESOURCES = "out-of-resources"
    NOT_ADMITTED = "not-admitted"
    IMAGE_DENIED = "image-denied"
    IMAGE_NOT_PULLED = "image-not-pulled"
    NO_STORAGE = "no-storage"
    STORAGE_NOT_MOUNTED = "storage-not-mounted"
    NO_HOST_NETWORK = "no-host-network"


class Oom(StrEnum):
    """What is known of a lack of memory: `certain` by the pod's own control group."""

    NONE = "none"
    SUSPECTED = "suspected"
    CERTAIN = "certain"


WITHDRAWN = "withdrawn"
"""The stop reason of an agent that takes its pods down because it itself is asked to end."""
AGENT_RESET = "agent-reset"
"""The stop reason of a supervisor that an agent without journal finds."""
PREEMPTED = "preempted"
COMPLETED = "completed"
NODE_LOST = "node-lost"
OVER = "over"
SUPERVISOR_TERMINATED = "supervisor-terminated"


@dataclass(frozen=True)
class Ending:
    """`exit_code` and `signal` exclude each other; `detail` is a sentence for people.

    `stop_reason` is set where the pod was asked to stop while it ran (or before it could run).
    """

    exit_code: int | None = None
    signal: int | None = None
    oom: Oom = Oom.NONE
    stop_reason: str | None = None
    forced: bool = False
    start_error: str | None = None
    loss: Loss | None = None
    refusal: Refusal | None = None
    detail: str = ""
    log_tail: tuple[str, ...] = ()


def unstarted(stop_reason: str | None) -> Ending:
    """Of a pod that was to stop before any of it ran."""
    return Ending(refusal=Refusal.NEVER_RAN, stop_reason=stop_reason)
