"""Jobs as OpenPAI's clients know them: its field names and states, and times in both forms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.contracts.jobs import (
    JobSpec,
    JobState,
    JobStatus,
    TaskRoleStatus,
    TaskState,
    TaskStatus,
)
from muster.contracts.verdicts import Behavior, Fault, Verdict

from rest.domain.times import iso, milliseconds

Json = dict[str, Any]

_SUB_STATES: Mapping[str, str] = {
    "WAITING": "AttemptPreparing",
    "RUNNING": "AttemptRunning",
    "STOPPING": "AttemptDeletionRequested",
    "SUCCEEDED": "Completed",
    "STOPPED": "Completed",
    "FAILED": "Completed",
}

_TYPES: Mapping[Fault, str] = {
    Fault.NOBODY: "USER_SUCCESS",
    Fault.USER: "USER_FAILURE",
    Fault.PLATFORM: "PLATFORM_FAILURE",
    Fault.STOP: "USER_STOP",
    Fault.UNKNOWN: "UNKNOWN_FAILURE",
}


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job as a list shows it; the columns of the read model."""

    id: str
    username: str
    name: str
    virtual_cluster: str
    priority_class: str | None
    total_tasks: int
    total_gpus: int
    total_task_roles: int
    execution: str
    submitted_at: datetime
    state: str
    attempt: int
    retries_user: int
    retries_platform: int
    retries_resource: int
    retry_at: datetime | None
    created_at: datetime | None
    launched_at: datetime | None
    completed_at: datetime | None
    exit_code: int | None
    tags: list[str]


@dataclass(frozen=True, slots=True)
class WholeJob:
    """A job with all that is known of it. ``spec`` (JSON) is there until the Launcher has
    published the job.
    """

    listed: ListedJob
    reason: Json | None
    status: Json | None
    warnings: list[Json]
    spec: str | None = None


def _times(**moments: datetime | None) -> Json:
    """Each time as OpenPAI's ``<name>Time`` in milliseconds, and as ``<name>At``."""
    shown: Json = {}
    for name, at in moments.items():
        shown[f"{name}Time"] = milliseconds(at)
        shown[f"{name}At"] = iso(at)
    return shown


def _job_times(job: ListedJob) -> Json:
    return {
        "submissionTime": milliseconds(job.submitted_at),
        "submittedAt": iso(job.submitted_at),
        **_times(created=job.created_at, launched=job.launched_at, completed=job.completed_at),
    }


def list_item(job: ListedJob) -> Json:
    """One entry of the list of jobs."""
    return {
        "debugId": job.id,
        "name": job.name,
        "username": job.username,
        "state": job.state,
        "subState": _SUB_STATES.get(job.state, job.state),
        "executionType": job.execution,
        "tags": job.tags,
        **_retries(job),
        **_job_times(job),
        "appExitCode": job.exit_code,
        "virtualCluster": job.virtual_cluster,
        "totalGpuNumber": job.total_gpus,
        "totalTaskNumber": job.total_tasks,
        "totalTaskRoleNumber": job.total_task_roles,
        "jobPriority": job.priority_class,
    }


def _retries(job: ListedJob) -> Json:
    return {
        "retries": job.retries_user + job.retries_platform + job.retries_resource,
        "retryDetails": {
            "user": job.retries_user,
            "platform": job.retries_platform,
            "resource": job.retries_resource,
        },
        "retryDelayTime": milliseconds(job.retry_at),
        "retryAt": iso(job.retry_at),
    }


def detail(job: WholeJob, status: JobStatus | None, state: str | None = None) -> Json:
    """One job, or one attempt of it: ``status`` is the Launcher's message about that attempt.
    ``state``: of an attempt that is not the latest; what the job waits for is none of its.
    """
    listed = job.listed
    shown = state or listed.state
    return {
        "debugId": listed.id,
        "name": listed.name,
        "tags": listed.tags,
        "jobPriority": listed.priority_class,
        "warnings": job.warnings,
        "jobStatus": {
            "username": listed.username,
            "state": shown,
            "subState": _SUB_STATES.get(shown, shown),
            "executionType": listed.execution,
            **_retries(listed),
            **_job_times(listed),
            "virtualCluster": listed.virtual_cluster,
            "reason": job.reason if state is None else None,
            "gangClass": status.gang_class.value if status and status.gang_class else None,
            "lender": status.lender if status else None,
            "appId": listed.id,
            "appProgress": 1 if shown in ("SUCCEEDED", "STOPPED", "FAILED") else 0,
            **_attempt(status, shown, 0 if status is None else status.attempt),
        },
        "taskRoles": {role.name: task_role(role) for role in _task_roles(job, status)},
    }


def _task_roles(job: WholeJob, status: JobStatus | None) -> Sequence[TaskRoleStatus]:
    """The tasks as the Launcher publishes them; before its first message, those of the job file."""
    if status is not None:
        return status.task_roles
    if job.spec is None:
        return ()
    spec = JobSpec.model_validate_json(job.spec)
    state = TaskState.STOPPING if job.listed.state == "STOPPING" else TaskState.WAITING
    return [
        TaskRoleStatus(
            name=role.name,
            min_instances=role.min_instances if spec.gang else None,
            tasks=tuple(TaskStatus(index=n, state=state) for n in range(role.instances)),
        )
        for role in spec.task_roles
    ]


def _attempt(status: JobStatus | None, shown: str, attempt: int) -> Json:
    verdict = status.verdict if status else None
    trigger = status.trigger if status else None
    return {
        "attemptId": attempt,
        "attemptState": _SUB_STATES.get(shown, shown),
        **_times(
            appCreated=status.attempt_created_at if status else None,
            appLaunched=status.attempt_launched_at if status else None,
            appCompleted=status.attempt_completed_at if status else None,
        ),
        "appExitCode": verdict.code if verdict else None,
        "appExitSpec": exit_spec(verdict),
        "appExitDiagnostics": verdict.cause if verdict else None,
        "appExitMessages": {
            "container": verdict.evidence if verdict else None,
            "runtime": None,
            "launcher": trigger.message if trigger else None,
        },
        "appExitTriggerMessage": trigger.message if trigger else None,
        "appExitTriggerTaskRoleName": trigger.role if trigger else None,
        "appExitTriggerTaskIndex": trigger.index if trigger else None,
        "appExitType": _TYPES[verdict.fault] if verdict else None,
    }


def exit_spec(verdict: Verdict | None) -> Json | None:
    """A verdict as a row of OpenPAI's exit specification, with Muster's evidence."""
    if verdict is None:
        return None
    behavior = verdict.behavior.value.upper().replace("-", "_")
    return {
        "code": verdict.code,
        "phrase": verdict.phrase,
        "type": _TYPES[verdict.fault],
        "behavior": "UNKNOWN" if verdict.behavior is Behavior.UNKNOWN else behavior,
        "rule": verdict.rule,
        "cause": verdict.cause,
        "symptom": verdict.symptom,
        "outcome": verdict.outcome,
        "evidence": verdict.evidence,
    }


def verdict_reason(status: JobStatus | None) -> Json | None:
    """Why a job ended as it did, in the shape of a reason."""
    verdict = status.verdict if status else None
    if verdict is None:
        return None
    return {"code": verdict.phrase, "text": verdict.cause, "numbers": {"exitCode": verdict.code}}


def task_role(role: TaskRoleStatus) -> Json:
    """The tasks of one role."""
    return {
        "taskRoleStatus": {"name": role.name, "minInstances": role.min_instances},
        "taskStatuses": [task(each) for each in role.tasks],
    }


def task(status: TaskStatus) -> Json:
    """One task and its current attempt. Without containers the container is the pod."""
    shown = status.state.value.upper()
    verdict = status.verdict
    return {
        "taskIndex": status.index,
        "taskUid": status.pod,
        "taskState": shown,
        "reason": None if status.reason is None else status.reason.model_dump(mode="json"),
        "containerId": status.pod,
        "containerIp": status.address,
        "containerNodeName": status.node,
        "containerPorts": {
            label: ",".join(map(str, ports)) for label, ports in status.ports.items()
        },
        "containerGpus": sum(1 << gpu for gpu in status.gpus if gpu < 53) if status.gpus else None,
        "gpus": list(status.gpus),
        "containerLog": None,
        "containerExitCode": status.exit_code,
        "containerExitSpec": exit_spec(verdict),
        "containerExitDiagnostics": verdict.cause if verdict else None,
        "retries": status.retries,
        "accountableRetries": status.accountable_retries,
        **_times(
            created=status.created_at,
            launched=status.launched_at,
            completed=status.completed_at,
            currentAttemptLaunched=status.launched_at,
            currentAttemptCompleted=status.completed_at,
        ),
        "attemptId": status.attempt,
        "attemptState": _SUB_STATES.get(shown, shown),
    }


def find_task(status: JobStatus | None, role: str, index: int) -> TaskStatus | None:
    """One task of a job attempt."""
    for each in status.task_roles if status else ():
        if each.name == role:
            return next((task for task in each.tasks if task.index == index), None)
    return None


def is_to_grow(status: JobStatus | None, role: str, task: TaskStatus) -> bool:
    """Whether a running job goes on without this task of a role until there is room for it."""
    least = (
        [each.min_instances for each in status.task_roles if each.name == role] if status else []
    )
    is_surplus = any(count is not None and task.index >= count for count in least)
    return is_surplus and task.state is TaskState.WAITING


def ended(status: TaskStatus) -> bool:
    """Whether the task's attempt writes no more logs."""
    return status.state in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED)


def attempt_state(status: JobStatus) -> str:
    """The state of a job attempt that was retried: it failed, or succeeded and runs anew."""
    if status.state in (JobState.SUCCEEDED, JobState.STOPPED, JobState.FAILED):
        return status.state.value
    verdict = status.verdict
    return "SUCCEEDED" if verdict is not None and verdict.code == 0 else "FAILED"
