"""What the agent decides about one pod: what it does, what it publishes, what it refuses.

A pod's phases only go forward: accepted, running, ended. The agent is the last guard: no pod starts
while a live one holds one of its GPUs or ports, none that was placed for another journal, and none
under a name that was there before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from muster.contracts.model import Reason
from muster.contracts.pods import PodAction, PodRequest, PodRun, PodState, PodStatus

from runtime_agent.domain.ending import WITHDRAWN, Ending, Refusal, unstarted
from runtime_agent.domain.verdict import judge

FORGOTTEN = "forgotten"
"""The stop reason of a pod that still lives though its end has been decided elsewhere."""


class Phase(StrEnum):
    """How far a pod has come on this node."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Stopping:
    """The stop that was asked for; `grace_s` lies between asking and killing."""

    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Pod:
    """What the journal keeps of a pod. `run` goes with the pod's end: it names every peer, and
    ended names are kept for days. `is_forgotten`: the Launcher knows its end. `checkpointed_at`,
    `address`, where it has one of its own, and `reason`, why it does not run yet, are in the pod's
    latest message.
    """

    pod: str
    job: str
    gang: str
    phase: Phase
    run: PodRun | None = None
    stop: Stopping | None = None
    is_forgotten: bool = False
    started_at: datetime | None = None
    checkpointed_at: datetime | None = None
    reason: Reason | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The node at the moment of a decision.

    `gpus` are the indices of its GPUs. `held_gpus` and `held_ports` name the live pods that hold
    them; `foreign_ports` are those of the request that a foreign process listens on; `next_report`
    is the revision of the first report to come.
    """

    node: str
    journal: str
    boot: str
    gpus: frozenset[int]
    next_report: int = 0
    is_stopping: bool = False
    default_grace_s: float = 30.0
    held_gpus: Mapping[int, str] = field(default_factory=dict)
    held_ports: Mapping[int, str] = field(default_factory=dict)
    foreign_ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Launch:
    """Have the pod's process started; repeated until it is."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Stop:
    """Have the pod's process end."""

    pod: str
    stopping: Stopping


@dataclass(frozen=True, slots=True)
class Forget:
    """The pod's work directory is no longer needed."""

    pod: str


Effect = Launch | Stop | Forget


@dataclass(frozen=True, slots=True)
class Decision:
    """The pod as it is now, what to publish about it (None: nothing new), and what to do."""

    pod: Pod
    message: PodStatus | None = None
    effects: tuple[Effect, ...] = ()


def requested(pod: Pod | None, request: PodRequest, around: Surroundings) -> Decision:
    """The Launcher wants the pod to run, to stop or to be forgotten."""
    if request.journal != around.journal:
        return _for_another_journal(pod, request, around)
    match request.action:
        case PodAction.RUN:
            return _accept(request, around) if pod is None else Decision(pod)
        case PodAction.STOP:
            return _stop(pod, request, around)
        case PodAction.FORGET:
            return _forget(pod, request, around)
        case PodAction.UNKNOWN:
            if pod is not None:
                return Decision(pod)
            return _refuse(
                request,
                around,
                Refusal.BAD_REQUEST,
                "The request's action is unknown to this agent's version.",
            )
        case never:
            assert_never(never)


def _for_another_journal(pod: Pod | None, request: PodRequest, around: Surroundings) -> Decision:
    """Nothing of that journal runs here or ever will. Pods of this journal are not meant."""
    if pod is not None:
        return Decision(pod)
    over = replace(_pod(request), is_forgotten=request.action is PodAction.FORGET)
    return _over(over, Ending(refusal=Refusal.AGENT_RESET), around)


def _accept(request: PodRequest, around: Surroundings) -> Decision:
    if request.run is None:
        return _refuse(request, around, Refusal.BAD_REQUEST, "The request has no `run`.")
    if around.is_stopping:
        stopping = Stopping(WITHDRAWN, 0.0)
        return _end_unstarted(_pod(request, stop=stopping), around)
    if missing := [gpu for gpu in request.run.gpus if gpu not in around.gpus]:
        detail = f"The node has no GPU {missing[0]}; it has {len(around.gpus)} GPUs."
        return _refuse(request, around, Refusal.BAD_REQUEST, detail)
    if held := _held(request.run, around):
        return _refuse(request, around, Refusal.DEVICE_BUSY, held)
    if foreign := _ports(request.run) & around.foreign_ports:
        detail = f"Port {min(foreign)} is in use."
        return _refuse(request, around, Refusal.PORT_CONFLICT, detail)
    pod = _pod(request)
    return Decision(pod, None, (Launch(pod),))


def _held(run: PodRun, around: Surroundings) -> str:
    for gpu in run.gpus:
        if gpu in around.held_gpus:
            return f"GPU {gpu} is held by pod {around.held_gpus[gpu]}."
    for port in sorted(_ports(run)):
        if port in around.held_ports:
            return f"Port {port} is held by pod {around.held_ports[port]}."
    return ""


def _ports(run: PodRun) -> frozenset[int]:
    return frozenset(port for ports in run.ports.values() for port in ports)


def _stop(pod: Pod | None, request: PodRequest, around: Surroundings) -> Decision:
    grace_s = around.default_grace_s if request.stop is None else request.stop.grace_s
    reason = "stopped" if request.stop is None else request.stop.reason
    stopping = Stopping(reason, grace_s)
    if pod is None:
        return _end_unstarted(_pod(request, stop=stopping), around)
    if pod.phase is Phase.ENDED:
        return Decision(pod)
    if pod.stop is not None:
        stopping = Stopping(pod.stop.reason, min(pod.stop.grace_s, grace_s))
    return Decision(replace(pod, stop=stopping), None, (Stop(pod.pod, stopping),))


def _forget(pod: Pod | None, request: PodRequest, around: Surroundings) -> Decision:
    if pod is None:
        gone = _pod(request, stop=Stopping(FORGOTTEN, 0.0))
        return _end_unstarted(replace(gone, is_forgotten=True), around)
    if pod.is_forgotten:
        return Decision(pod)
    forgotten = replace(pod, is_forgotten=True)
    if pod.phase is Phase.ENDED:
        return Decision(forgotten, None, (Forget(pod.pod),))
    stopping = pod.stop or Stopping(FORGOTTEN, around.default_grace_s)
    return Decision(replace(forgotten, stop=stopping), None, (Stop(pod.pod, stopping),))


def withdrawn(pod: Pod, grace_s: float) -> Decision:
    """The agent itself is asked to end, and takes the pod down."""
    if pod.phase is Phase.ENDED:
        return Decision(pod)
    stopping = pod.stop or Stopping(WITHDRAWN, grace_s)
    stopping = replace(stopping, grace_s=min(stopping.grace_s, grace_s))
    return Decision(replace(pod, stop=stopping), None, (Stop(pod.pod, stopping),))


def waits(pod: Pod, reason: Reason | None, around: Surroundings) -> Decision:
    """It does not run yet, for this reason; None: it is on its way."""
    if pod.phase is not Phase.ACCEPTED or pod.reason == reason:
        return Decision(pod)
    now = replace(pod, reason=reason)
    return Decision(now, _status(now, around, PodState.ACCEPTED))


def started(pod: Pod, at: datetime, around: Surroundings, address: str | None = None) -> Decision:
    """Its process was seen to have begun, at an address of its own where it has one."""
    if pod.phase is not Phase.ACCEPTED:
        return Decision(pod)
    now = replace(pod, phase=Phase.RUNNING, started_at=at, address=address)
    return Decision(now, _status(now, around, PodState.RUNNING))


def checkpointed(pod: Pod, at: datetime, around: Surroundings) -> Decision:
    """It has reported that its gang's work up to then is saved."""
    if pod.phase is not Phase.RUNNING:
        return Decision(pod)
    now = replace(pod, checkpointed_at=at)
    return Decision(now, _status(now, around, PodState.RUNNING))


def still_there(pod: Pod, around: Surroundings) -> Decision:
    """The agent was away: the other services get a message that the pod lives, as they may have
    taken it for lost.
    """
    if pod.phase is Phase.ENDED:
        return Decision(pod)
    state = PodState.RUNNING if pod.phase is Phase.RUNNING else PodState.ACCEPTED
    return Decision(pod, _status(pod, around, state))


def ended(
    pod: Pod, ending: Ending, at: datetime, started_at: datetime | None, around: Surroundings
) -> Decision:
    """It was seen to have ended, or can't run any more."""
    if pod.phase is Phase.ENDED:
        return Decision(pod)
    verdict = judge(ending)
    started_at = pod.started_at or started_at
    now = replace(pod, phase=Phase.ENDED, run=None, started_at=started_at)
    state = PodState.SUCCEEDED if verdict.code == 0 else PodState.FAILED
    message = _status(now, around, state).model_copy(
        update={
            "ended_at": at,
            "exit_code": ending.exit_code,
            "signal": ending.signal,
            "verdict": verdict,
            "report_revision": around.next_report,
        }
    )
    return Decision(now, message, (Forget(pod.pod),) if now.is_forgotten else ())


def _refuse(
    request: PodRequest, around: Surroundings, refusal: Refusal, detail: str = ""
) -> Decision:
    return _over(_pod(request), Ending(refusal=refusal, detail=detail), around)


def _end_unstarted(pod: Pod, around: Surroundings) -> Decision:
    """A pod that this node does not know is answered as ended: it did not run, and never will."""
    reason = None if pod.stop is None or pod.stop.reason != WITHDRAWN else WITHDRAWN
    return _over(pod, unstarted(reason), around)


def _over(pod: Pod, ending: Ending, around: Surroundings) -> Decision:
    verdict = judge(ending)
    now = replace(pod, phase=Phase.ENDED, run=None)
    message = _status(now, around, PodState.FAILED)
    return Decision(
        now, message.model_copy(update={"verdict": verdict, "report_revision": around.next_report})
    )


def _pod(request: PodRequest, stop: Stopping | None = None) -> Pod:
    return Pod(request.pod, request.job, request.gang, Phase.ACCEPTED, request.run, stop)


def _status(pod: Pod, around: Surroundings, state: PodState) -> PodStatus:
    return PodStatus(
        pod=pod.pod,
        job=pod.job,
        gang=pod.gang,
        node=around.node,
        journal=around.journal,
        boot=around.boot,
        state=state,
        started_at=pod.started_at,
        checkpointed_at=pod.checkpointed_at,
        reason=pod.reason if state is PodState.ACCEPTED else None,
        address=pod.address,
    )


TOPIC_OF: Mapping[PodState, str] = {
    PodState.ACCEPTED: "pod-started",
    PodState.RUNNING: "pod-started",
    PodState.SUCCEEDED: "pod-succeeded",
    PodState.FAILED: "pod-failed",
}
"""The topic of each message."""
