"""The verdicts that the Launcher itself gives. Codes and phrases are those of OpenPAI's exit
specification where it has one.
"""

from muster.contracts.model import Reason
from muster.contracts.verdicts import Behavior, Fault, Verdict

from launcher.domain.model import StopCause

SUCCEEDED = Verdict(
    code=0,
    phrase="Succeeded",
    rule="succeeded",
    fault=Fault.NOBODY,
    behavior=Behavior.UNKNOWN,
    cause="The job did what its completion policy asks for.",
    outcome="The job attempt succeeded.",
)

NODE_LOST = Verdict(
    code=-1001,
    phrase="PodNodeLost",
    rule="node-lost",
    fault=Fault.PLATFORM,
    behavior=Behavior.TRANSIENT,
    cause="The node that ran the task was declared lost.",
    outcome="The task failed.",
)

UNEXPLAINED = Verdict(
    code=-300,
    phrase="PodFailedWithoutFailedContainer",
    rule="unexplained",
    fault=Fault.UNKNOWN,
    behavior=Behavior.UNKNOWN,
    cause="The pod failed and its agent gave no reason.",
    outcome="The task failed.",
)

DEADLINE = Verdict(
    code=-1004,
    phrase="PodDeadlineExceeded",
    rule="deadline-exceeded",
    fault=Fault.USER,
    behavior=Behavior.PERMANENT,
    cause="The job attempt has run for as long as its time limit allows.",
    outcome="The job attempt was ended.",
)

_STOPS = {
    StopCause.COMPLETION: Verdict(
        code=-220,
        phrase="FrameworkAttemptCompletion",
        rule="completed",
        fault=Fault.STOP,
        behavior=Behavior.PERMANENT,
        cause="The job attempt was complete without this task.",
        outcome="The task was stopped.",
    ),
    StopCause.PREEMPTION: Verdict(
        code=-1003,
        phrase="PodPreemptedForCriticalPod",
        rule="preempted",
        fault=Fault.PLATFORM,
        behavior=Behavior.TRANSIENT,
        cause="The task's GPUs were given to another job.",
        outcome="The task was stopped, to be retried.",
    ),
}

_LEAST_LOSS = -1000
"""Codes from here down tell of nodes and their agents; above are signals and exit codes, which a
program can make itself."""


def stop_verdict(cause: StopCause, by: str | None, symptom: str = "") -> Verdict:
    """A task, or the whole job, was stopped; ``by`` is the user who asked for it."""
    if cause is not StopCause.USER:
        return _STOPS[cause].model_copy(update={"symptom": symptom})
    return Verdict(
        code=-210,
        phrase="StopFrameworkRequested",
        rule="stopped",
        fault=Fault.STOP,
        behavior=Behavior.PERMANENT,
        cause=f"{by} stopped the job." if by else "The job was stopped.",
        symptom=symptom,
        outcome="It was stopped.",
    )


def refused(reason: Reason | None) -> Verdict:
    """The cluster can never run the gang."""
    return Verdict(
        code=-200,
        phrase="PodCreationPermanentError",
        rule=reason.code if reason else "placement-refused",
        fault=Fault.USER,
        behavior=Behavior.PERMANENT,
        cause=reason.text if reason else "The cluster can never run what the job asks for.",
        outcome="The job never ran.",
    )


def is_loss(verdict: Verdict | None) -> bool:
    """The platform took the task away: its node or the node's agent, not anything in the task."""
    return (
        verdict is not None
        and verdict.fault is Fault.PLATFORM
        and verdict.behavior is Behavior.TRANSIENT
        and verdict.code <= _LEAST_LOSS
    )
