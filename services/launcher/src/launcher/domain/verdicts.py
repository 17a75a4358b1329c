"""The verdicts that the Launcher itself gives. Codes and phrases are those of OpenPAI's exit
specification where it has one.
"""

from typing import assert_never

from muster.contracts.gangs import GangEnd
from muster.contracts.model import Reason
from muster.contracts.verdicts import Behavior, Fault, Verdict

from launcher.domain.model import StopCause


def _verdict(
    names: tuple[int, str, str], nature: tuple[Fault, Behavior], cause: str, outcome: str
) -> Verdict:
    """``names``: code, phrase and rule; ``nature``: the party at fault, and whether to retry."""
    (code, phrase, rule), (fault, behavior) = names, nature
    return Verdict(
        code=code,
        phrase=phrase,
        rule=rule,
        fault=fault,
        behavior=behavior,
        cause=cause,
        outcome=outcome,
    )


SUCCEEDED = _verdict(
    (0, "Succeeded", "succeeded"),
    (Fault.NOBODY, Behavior.UNKNOWN),
    "The job fulfilled its completion policy.",
    "The job attempt succeeded.",
)
NODE_LOST = _verdict(
    (-1001, "PodNodeLost", "node-lost"),
    (Fault.PLATFORM, Behavior.TRANSIENT),
    "The Scheduler declared the task's placement lost.",
    "The task failed.",
)
FORGOTTEN = _verdict(
    (-1019, "PodForgotten", "forgotten"),
    (Fault.PLATFORM, Behavior.TRANSIENT),
    "The Launcher's database was restored to a time when the task waited. Whether it has run since"
    " is not known.",
    "The task is retried under a new pod name.",
)
NO_AGENT_KEY = _verdict(
    (-1020, "PodAgentWithoutKey", "agent-without-key"),
    (Fault.PLATFORM, Behavior.TRANSIENT),
    "The job has secrets, and the agent of the node reports no key to seal them to: it is of an"
    " older version. Upgrade it.",
    "The task never ran, and is retried.",
)
SECRETS_SEALED = _verdict(
    (-1021, "JobSecretsSealed", "secrets-sealed"),
    (Fault.PLATFORM, Behavior.TRANSIENT),
    "No key of the Launcher opens the job's secrets. An operator must put the key back into"
    " MUSTER_SECRETS_KEYS, or the job must be submitted again.",
    "The task never ran, and is retried.",
)
UNEXPLAINED = _verdict(
    (-300, "PodFailedWithoutFailedContainer", "unexplained"),
    (Fault.UNKNOWN, Behavior.UNKNOWN),
    "The pod failed and its agent gave no reason.",
    "The task failed.",
)
DEADLINE = _verdict(
    (-1004, "PodDeadlineExceeded", "deadline-exceeded"),
    (Fault.USER, Behavior.PERMANENT),
    "The job attempt has run for as long as its time limit allows.",
    "The job attempt was ended.",
)
_COMPLETED = _verdict(
    (-220, "FrameworkAttemptCompletion", "completed"),
    (Fault.STOP, Behavior.PERMANENT),
    "The job attempt was complete without this task.",
    "The task was stopped.",
)
_PREEMPTED = _verdict(
    (-1003, "PodPreemptedForCriticalPod", "preempted"),
    (Fault.PLATFORM, Behavior.TRANSIENT),
    "The Scheduler preempted the task.",
    "The task was stopped, to be retried.",
)
_DRAINED = _verdict(
    (-1003, "PodPreemptedForCriticalPod", "drained"),
    (Fault.PLATFORM, Behavior.TRANSIENT),
    "An operator or an alert rule drained a node of the attempt.",
    "The task was stopped, to be retried.",
)
_STOPPED = _verdict(
    (-210, "StopFrameworkRequested", "stopped"),
    (Fault.STOP, Behavior.PERMANENT),
    "The job was stopped.",
    "It was stopped.",
)
_REFUSED = _verdict(
    (-200, "PodCreationPermanentError", "placement-refused"),
    (Fault.USER, Behavior.PERMANENT),
    "The cluster can never run this job.",
    "The job never ran.",
)

_REMOVED = "unknown-virtual-cluster"
"""REST takes no job for a virtual cluster that is not there: an administrator has removed it."""

_LEAST_LOSS = -1000
"""Codes from here down are about nodes and their agents; above are signals and exit codes, which a
program can cause itself."""


def stop_verdict(why: StopCause, by: str | None, symptom: str = "") -> Verdict:
    """A task, or the whole job, was stopped; ``by`` is the user who asked for it."""
    match why:
        case StopCause.COMPLETION:
            return _COMPLETED.model_copy(update={"symptom": symptom})
        case StopCause.PREEMPTION:
            return _PREEMPTED.model_copy(update={"symptom": symptom})
        case StopCause.USER:
            cause = f"{by} stopped the job." if by else _STOPPED.cause
            return _STOPPED.model_copy(update={"cause": cause, "symptom": symptom})
        case never:
            assert_never(never)


def drained(verdict: Verdict) -> Verdict:
    """The end of a pod that was stopped for a drain. If it was lost meanwhile, it was lost."""
    if is_loss(verdict) and verdict.rule != _PREEMPTED.rule:
        return verdict
    return _DRAINED.model_copy(update={"symptom": verdict.symptom})


def stop_of(verdict: Verdict | None) -> StopCause | None:
    """Why the Launcher had requested the stop in an agent's verdict; None: not for a cause that
    ends the job or its attempt.
    """
    causes = {_STOPPED.code: StopCause.USER, _COMPLETED.code: StopCause.COMPLETION}
    return None if verdict is None else causes.get(verdict.code)


def refused(reason: Reason | None) -> Verdict:
    """The cluster can never run the gang."""
    if reason is None:
        return _REFUSED
    fault = Fault.PLATFORM if reason.code == _REMOVED else Fault.USER
    return _REFUSED.model_copy(update={"rule": reason.code, "cause": reason.text, "fault": fault})


def end_by(verdict: Verdict | None) -> GangEnd:
    """The kind of end that this verdict describes; None: success."""
    if verdict is None or verdict.code == SUCCEEDED.code:
        return GangEnd.SUCCEEDED
    if verdict.rule == DEADLINE.rule:
        return GangEnd.LIMIT
    if verdict.fault is Fault.STOP:
        return GangEnd.STOPPED
    return GangEnd.TAKEN if verdict.fault is Fault.PLATFORM else GangEnd.FAILED


def storable(verdict: Verdict | None) -> Verdict | None:
    """The verdict without NUL characters: programs write them, PostgreSQL takes none in JSON."""
    if verdict is None:
        return None
    texts = {name: text for name, text in verdict if isinstance(text, str) and "\0" in text}
    if not texts:
        return verdict
    return verdict.model_copy(update={n: text.replace("\0", "\ufffd") for n, text in texts.items()})


def waits_again(verdict: Verdict | None) -> bool:
    """It was preempted for another job or a drain, or was forgotten: it is requested again at once,
    and waits in the Scheduler's queue.
    """
    again = (_PREEMPTED.rule, _DRAINED.rule, FORGOTTEN.rule)
    return verdict is not None and verdict.rule in again


def is_drained(verdict: Verdict | None) -> bool:
    """Its node was drained."""
    return verdict is not None and verdict.rule == _DRAINED.rule


def is_refunded(verdict: Verdict | None) -> bool:
    """The platform's own fault ended it, or a drain. A preemption is what the policy wants."""
    if verdict is None or verdict.fault is not Fault.PLATFORM:
        return False
    return verdict.rule != _PREEMPTED.rule


def is_taken(verdict: Verdict | None) -> bool:
    """The platform ended it, and it may be retried."""
    again = (Behavior.TRANSIENT, Behavior.TRANSIENT_CONFLICT)
    return verdict is not None and verdict.fault is Fault.PLATFORM and verdict.behavior in again


def is_loss(verdict: Verdict | None) -> bool:
    """The platform took the task away: its node or the node's agent, not anything in the task."""
    return (
        verdict is not None
        and verdict.fault is Fault.PLATFORM
        and verdict.behavior is Behavior.TRANSIENT
        and verdict.code <= _LEAST_LOSS
    )
