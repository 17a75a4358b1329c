"""What a Pod object shows of a task: whose it is, what hinders it, how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.contracts.model import Reason

from runtime_agent.domain.ending import Ending, Loss, Oom, Refusal, unstarted
from runtime_agent.domain.kubernetes.manifest import (
    JOURNAL_ANNOTATION,
    MAIN,
    POD_ANNOTATION,
    TICKET,
)
from runtime_agent.domain.kubernetes.quantities import quantity
from runtime_agent.domain.pods import Stopping
from runtime_agent.domain.verdict import blames_job

NO_PERMIT = 250
"""With it a container ends that was given no start permit; OpenPAI's code of a failed barrier."""
_ALLOWS_NO_IMAGE = re.compile(
    r"not found|manifest unknown|denied|unauthori[sz]ed|forbidden|authentication required"
    r"|invalid reference|couldn't parse image",
    re.IGNORECASE,
)
"""What registries answer where nobody but the user can help."""
_OVER_ITS_LIMIT = re.compile(
    r"exceeded its local ephemeral storage limit"
    r"|ephemeral local storage usage exceeds the total limit"
)
"""kubelet's words where it ends a pod for its own use of disk, not for a lack on the node."""
_SHORT_OF_DISK = re.compile(
    r"low on resource: ephemeral-storage\. Threshold quantity: (?P<kept>[^\s,]+), available: .*"
    rf"Container {MAIN} was using (?P<used>[^\s,]+), request is"
)
"""kubelet's words where it ends a pod for a lack on the node, be it small or large."""
_QUOTED = re.compile(r'"[^"]*"|\'[^\']*\'')
"""Names, which may hold any word."""
_IMAGE_WAITS = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
     "ImageInspectError", "RegistryUnavailable")
)  # fmt: skip
_START_WAITS = frozenset(
    ("CreateContainerError", "CreateContainerConfigError", "RunContainerError",
     "PreCreateHookError", "PreStartHookError", "PostStartHookError")
)  # fmt: skip
_UNMOUNTED = ("FailedAttachVolume", "FailedMapVolume", "FailedMount")
_MOUNTED = frozenset(("Pulling", "Pulled", "Created", "Started"))
"""kubelet mounts all volumes of a pod before it pulls an image."""
EVENT_CHARS = 500
_SLOW = "; its image may still be pulled (MUSTER_IMAGE_WAIT_S), or a volume hangs"
SLOW_S = 30.0
"""A start that takes longer is told."""
_NO_PERMIT = "The agent gave its container no permit; the agent's log has the reason."
_PORT = "; a firewall or a network policy may close the agent's port"
_AT_ONCE = frozenset(("InvalidImageName", "ErrImageNeverPull"))
_FAILED = "ErrImagePull"
"""For seconds only: kubelet repeats the error in its next state."""
_NOT_PULLED = "image-not-pulled"
_RETRIED = "ImagePullBackOff"
"""kubelet has asked the registry and waits to ask again: an answer is not a slip of the line."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A Pod object, as far as Muster cares. `pod`, `journal` and `ticket` are empty where it is not
    Muster's. `address`: the pod's. `waiting`: kubelet's reason why a container does not run, and
    `text` its words. `failed`: why the first container that failed did, in the runtime's words.
    `exit_code`, `is_running`: of the task's container, which `is_own_wait` says of `waiting`. Unix
    times.
    """

    name: str
    namespace: str
    uid: str
    pod: str
    journal: str
    ticket: str
    node: str
    address: str
    phase: str
    created_at_s: float
    reason: str = ""
    text: str = ""
    waiting: str = ""
    failed: str = ""
    is_own_wait: bool = False
    is_running: bool = False
    exit_code: int | None = None
    is_oom: bool = False
    is_unknown: bool = False
    ended_at_s: float | None = None
    is_deleting: bool = False

    @property
    def is_terminal(self) -> bool:
        """Whether kubelet can run no container of it any more."""
        return self.phase in ("Succeeded", "Failed")


def observed(body: dict[str, Any]) -> Observed:
    """Of a Pod object as the API server gives it."""
    metadata, spec, status = body["metadata"], body.get("spec", {}), body.get("status", {})
    annotations = metadata.get("annotations") or {}
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    main: dict[str, Any] = next((each for each in containers if each["name"] == MAIN), {})
    ended = (main.get("state") or {}).get("terminated") or {}
    states = [each.get("state") or {} for each in containers]
    waits = [each["waiting"] for each in states if "waiting" in each]
    ends = [each["terminated"] for each in states if "terminated" in each]
    failed: dict[str, Any] = next((each for each in ends if each.get("exitCode")), {})
    told: dict[str, Any] = next(
        (each for each in waits if _is_hindrance(each.get("reason", ""))), {}
    )
    return Observed(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        pod=annotations.get(POD_ANNOTATION, ""),
        journal=annotations.get(JOURNAL_ANNOTATION, ""),
        ticket=_ticket(spec),
        node=spec.get("nodeName") or "",
        address=status.get("podIP") or "",
        phase=status.get("phase") or "Pending",
        created_at_s=_seconds(metadata.get("creationTimestamp")) or 0.0,
        reason=status.get("reason") or "",
        text=told.get("message") or status.get("message") or "",
        waiting=told.get("reason") or "",
        failed=": ".join(filter(None, (failed.get("reason"), failed.get("message")))),
        is_own_wait=told is (main.get("state") or {}).get("waiting"),
        is_running="running" in (main.get("state") or {}),
        exit_code=ended.get("exitCode"),
        is_oom=ended.get("reason") == "OOMKilled",
        is_unknown=ended.get("reason") == "ContainerStatusUnknown",
        ended_at_s=_seconds(ended.get("finishedAt")),
        is_deleting="deletionTimestamp" in metadata,
    )


def _is_hindrance(reason: str) -> bool:
    return reason in _IMAGE_WAITS or reason in _START_WAITS


def _ticket(spec: dict[str, Any]) -> str:
    for container in spec.get("containers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == TICKET:
                return str(variable.get("value") or "")
    return ""


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def ending(
    seen: Observed, asked: Stopping | None, *, was_permitted: bool, denied: str = ""
) -> Ending | None:
    """How the task ended; None where kubelet may still run something of it.

    `was_permitted`: the container had its start permit, so that its command has begun.
    `denied`: why the agent gave it none, or since then another one of the pod.
    """
    if not seen.is_terminal:
        return None
    if (refused := _refusal(seen)) is not None and not was_permitted:
        return Ending(refusal=refused, detail=seen.text)
    if (lost := _loss(seen)) is not None:
        return Ending(loss=lost, detail=seen.text)
    if seen.is_deleting and asked is None:  # its exit code is that of the signal
        return Ending(loss=Loss.DELETED)
    reason = None if asked is None else asked.reason
    if not was_permitted:
        # An image that ends before it asks can only be stopped, or lack what runs the step.
        if reason is not None:
            return unstarted(reason)
        if seen.exit_code == NO_PERMIT:
            return Ending(start_error=denied or _NO_PERMIT)
        return Ending(start_error=f"The container ended before it began: {_words(seen)}")
    is_lost = denied != "" and seen.exit_code == NO_PERMIT
    if (is_lost or seen.is_unknown) and reason is None:
        return Ending(loss=Loss.CONTAINER, detail=seen.text)
    return Ending(
        exit_code=seen.exit_code,
        oom=Oom.CERTAIN if seen.is_oom else Oom.NONE,
        stop_reason=reason,
        forced=reason is not None and seen.exit_code == 128 + 9,
        loss=Loss.CONTAINER if seen.exit_code is None and reason is None else None,
    )


def stray(seen: Observed, journal: str, *, is_known: bool, ticket: str | None) -> str | None:
    """Why an object of a pod was never the journal's; None: it is, or was until the pod's end.
    `is_known`: the journal has the pod. `ticket`: of the pod's record.
    """
    if seen.journal != journal:
        return "other-journal"
    if not is_known:
        return "unknown"
    return None if seen.ticket == ticket else "other-record"


def _words(seen: Observed) -> str:
    code = "" if seen.exit_code is None else f"exit code {seen.exit_code}"
    parts = (seen.reason, seen.text, seen.failed, code)
    return ", ".join(filter(None, parts)) or "no reason is known"


def _refusal(seen: Observed) -> Refusal | None:
    """kubelet has not taken the pod at all."""
    if seen.reason.startswith("OutOf"):
        return Refusal.OUT_OF_RESOURCES
    if seen.reason in ("TaintToleration", "UnexpectedAdmissionError", "NodeAffinity"):
        return Refusal.NOT_ADMITTED
    return None


def _loss(seen: Observed) -> Loss | None:
    """Kubernetes has ended it. kubelet names the reason in the pod's status."""
    match seen.reason:
        case "Evicted":
            if _OVER_ITS_LIMIT.search(seen.text):
                return Loss.DISK_LIMIT
            return Loss.DISK_FILLED if _has_filled_disk(seen.text) else Loss.EVICTED
        case "Preempting" | "Preempted":
            return Loss.DISPLACED
        case "NodeShutdown" | "Terminated" | "Shutdown" | "NodeLost":
            return Loss.NODE_SHUTDOWN
        case _:
            return None


def _has_filled_disk(text: str) -> bool:
    """Whether the pod has used more than what kubelet keeps free: elsewhere it would do so again,
    at the cost of other pods.
    """
    found = _SHORT_OF_DISK.search(text)
    try:
        return found is not None and quantity(found["used"]) > quantity(found["kept"])
    except ValueError:
        return False


def vanished(asked: Stopping | None, *, was_permitted: bool) -> Ending:
    """The object is gone, and no process of it is left, before an end was seen."""
    reason = None if asked is None else asked.reason
    if reason is not None:
        if not was_permitted:
            return unstarted(reason)
        return Ending(stop_reason=reason, forced=True)
    return Ending(loss=Loss.DELETED)


def unmounted(events: Iterable[Mapping[str, Any]]) -> str:
    """Kubernetes' latest words on the volumes that a pod waits for; empty: it waits for none. They
    may be an hour old.
    """
    told = sorted(events, key=_told_at)
    latest = {each.get("reason", ""): each.get("message") or "" for each in told}
    if _MOUNTED.intersection(latest):
        return ""
    found = [f"{reason}: {latest[reason]}" for reason in _UNMOUNTED if reason in latest]
    return "; ".join(each[:EVENT_CHARS] for each in found)


def _told_at(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def given_up(
    seen: Observed,
    waited_s: float,
    patience_s: float,
    *,
    is_secret_late: bool = False,
    volumes: str = "",
) -> Ending | None:
    """Whether a pod that does not start never will. A registry that denies the task's image is
    believed once kubelet has asked it, and a runtime whose words blame the job or the image; all
    else has until `patience_s`. `waited_s`: of a container that runs, since when it could have
    asked for its permit and has not. `is_secret_late`: the registry may have denied the image to
    anybody, before the pull secret was there. `volumes`: why some are not mounted.
    """
    if seen.waiting in _START_WAITS and blames_job(seen.text):
        return Ending(start_error=f"{seen.waiting}: {seen.text}")
    is_denied = _ALLOWS_NO_IMAGE.search(_QUOTED.sub("", seen.text)) is not None
    is_final = seen.waiting in _AT_ONCE or (seen.waiting == _RETRIED and is_denied)
    is_users = is_final and seen.is_own_wait and not (is_denied and is_secret_late)
    if not (is_users or waited_s > patience_s):
        return None
    if seen.is_running:
        return Ending(
            start_error=f"Its container did not reach the agent in {patience_s:g} s{_PORT}"
        )
    if volumes and not seen.waiting:
        return Ending(refusal=Refusal.STORAGE_NOT_MOUNTED, detail=volumes)
    late = f"Not started in {patience_s:g} s{_SLOW}"
    text = ": ".join(filter(None, (seen.waiting or late, seen.text)))
    if seen.waiting not in _IMAGE_WAITS:
        return Ending(start_error=text)
    refusal = Refusal.IMAGE_DENIED if is_users else Refusal.IMAGE_NOT_PULLED
    return Ending(refusal=refusal, detail=text)


def not_taken(why: str, what: str = "pod") -> Reason:
    """The object can't be made yet, in the words of the API server, its connection or the agent."""
    return Reason(code="not-taken", text=f"The {what} can't be created in Kubernetes yet: {why}")


def may_lack_volumes(seen: Observed, waited_s: float) -> bool:
    """Whether the object shows no other reason for a start that takes long."""
    return waited_s > SLOW_S and not seen.waiting and not seen.is_running


def waits(
    seen: Observed, waited_s: float, known: Reason | None, volumes: str = ""
) -> Reason | None:
    """Why a pod that may still start does not run; None: it is on its way. `known`: what was told
    last. `waited_s`, `volumes` as above.
    """
    if seen.waiting == _FAILED:
        return known if known is not None and known.code == _NOT_PULLED else None
    if seen.waiting:
        code = _NOT_PULLED if seen.waiting in _IMAGE_WAITS else "not-started"
        return Reason(code=code, text=": ".join(filter(None, (seen.waiting, seen.text))))
    if waited_s <= SLOW_S:
        return None
    if volumes and may_lack_volumes(seen, waited_s):
        return Reason(code=Refusal.STORAGE_NOT_MOUNTED.value, text=volumes)
    late = f"does not reach the agent{_PORT}" if seen.is_running else f"is not there yet{_SLOW}"
    return Reason(code="not-started", text=f"The container {late}.")
