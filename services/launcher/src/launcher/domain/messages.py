"""The Launcher's state messages on jobs, gangs and pods, made from its state."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from muster.contracts.gangs import GangEnd, GangRequest, PodAsk
from muster.contracts.jobs import JobStatus, TaskRoleStatus, TaskStatus
from muster.contracts.model import Reason
from muster.contracts.pods import (
    PodAction,
    PodRequest,
    PodRun,
    PodStatus,
    PodStop,
    RolePeers,
    RoleShape,
)
from muster.contracts.topics import Kind
from muster.contracts.verdicts import Verdict
from muster.decisions import Publish

from launcher.domain.model import HOLDING, Job, JobWithTasks, Placement, StopCause, Task
from launcher.domain.states import JOB_SHOWN, TASK_SHOWN, JobPhase, TaskPhase
from launcher.domain.verdicts import SUCCEEDED, is_taken, stop_verdict

JOB_UPDATED = "job-updated"
GANG_REQUESTED = "gang-requested"
GANG_RELEASED = "gang-released"
POD_REQUESTED = "pod-requested"

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)

EVIDENCE_BYTES = 500
"""Of a task's verdict, or its reason, in `job-updated`; muster.protocol.sizes counts on it."""


def job_message(job_with_tasks: JobWithTasks) -> Publish:
    """The job's state, as users see it; the last message where it is final."""
    job = job_with_tasks.job
    return Publish(
        Kind.JOB,
        job.id,
        JOB_UPDATED,
        job.id,
        _job_status(job_with_tasks),
        is_open=not job.is_final,
        delayed_repeats=job.is_final,
    )


def gang_message(
    job_with_tasks: JobWithTasks,
    gang: str,
    tasks: Iterable[Task],
    topic: str,
    end: GangEnd | None = None,
) -> Publish:
    """All pods that a gang of these tasks wants or holds, and the ended ones that are free. Without
    pods the gang has ended, and ``end`` is how.
    """
    job, found = job_with_tasks.job, tuple(tasks)
    groups = {job.role(role).group for role in {task.role for task in found}}
    pods = tuple(_ask_of(job_with_tasks, task) for task in found if task.phase in HOLDING)
    saved = [task.checkpointed_at for task in found if task.checkpointed_at is not None]
    message = GangRequest(
        gang=gang,
        job=job.id,
        name=job.name,
        user=job.user,
        virtual_cluster=job.spec.virtual_cluster,
        priority=job.spec.priority,
        submitted_at=job.submitted_at,
        group=groups.pop() if len(groups) == 1 else None,
        lazy_preemption=job.spec.lazy_preemption,
        limit_s=job.spec.time_limit_s,
        expected_s=job.spec.expected_s,
        min_run_s=job.spec.min_run_s,
        checkpoint_s=job.spec.checkpoint_s,
        borrow=job.spec.borrow,
        checkpointed_at=max(saved, default=None),
        needs_keys=job.spec.secrets is not None,
        end=end,
        failed=_failed(job_with_tasks, found) if end is GangEnd.REQUEUED else (),
        follows=job.follows,
        node=job.spec.node,
        pods=pods,
        released=tuple(task.release for task in found if task.release is not None),
    )
    return Publish(Kind.GANG, gang, topic, gang, message, is_open=bool(pods))


def _failed(job_with_tasks: JobWithTasks, tasks: Iterable[Task]) -> tuple[str, ...]:
    return tuple(job_with_tasks.pod(task) for task in tasks if is_taken(task.verdict))


def no_gang_message(gang: str, job: str) -> Publish:
    """The Scheduler has a gang that no job wants. The answer is always the same message."""
    message = GangRequest(
        gang=gang, job=job, name="", user="", virtual_cluster="", priority=0, submitted_at=_NEVER
    )
    return Publish(Kind.GANG, gang, GANG_RELEASED, gang, message, is_open=False)


def _ask_of(job_with_tasks: JobWithTasks, task: Task) -> PodAsk:
    """What the task's pod needs."""
    role = job_with_tasks.job.role(task.role)
    return PodAsk(
        pod=job_with_tasks.pod(task),
        role=task.role,
        gpus=role.gpus,
        gpu_types=role.gpu_types,
        pin=role.pin,
        cpu=role.cpu,
        memory_mb=role.memory_mb,
        ports=role.ports,
        resources=role.resources,
        surplus=job_with_tasks.job.is_surplus(task),
    )


def run_messages(
    job_with_tasks: JobWithTasks, tasks: Iterable[tuple[Task, str | None]]
) -> list[Publish]:
    """Run these tasks' pods, each with its sealed secrets; each gets the places of all tasks."""
    job = job_with_tasks.job
    roles = tuple(
        RoleShape(
            name=role.name,
            instances=role.instances,
            gpus=role.gpus,
            cpu=role.cpu,
            memory_mb=role.memory_mb,
            shm_mb=role.shm_mb or 0,
            min_failed_instances=role.min_failed_instances,
            min_succeeded_instances=role.min_succeeded_instances,
            min_instances=role.min_instances if job.spec.gang else None,
        )
        for role in job.spec.task_roles
    )
    peers = _peers(job_with_tasks)
    return [_run_message(job_with_tasks, task, secrets, roles, peers) for task, secrets in tasks]


def _peers(job_with_tasks: JobWithTasks) -> tuple[RolePeers, ...]:
    places: dict[str, dict[int, Placement]] = {}
    for task in job_with_tasks.tasks.values():
        if task.placement is not None:
            places.setdefault(task.role, {})[task.index] = task.placement
    return tuple(_role_peers(role, placed) for role, placed in places.items())


def _role_peers(role: str, placed: Mapping[int, Placement]) -> RolePeers:
    """``placed`` is not empty: the places of the role's tasks, by index."""
    places = [placed.get(index) for index in range(max(placed) + 1)]
    known = [place for place in places if place is not None]
    addresses = tuple(dict.fromkeys(place.address for place in known))
    position = {address: number for number, address in enumerate(addresses)}
    labels = dict.fromkeys(label for place in known for label in place.ports)
    return RolePeers(
        role=role,
        addresses=addresses,
        address_of=tuple(None if place is None else position[place.address] for place in places),
        ports={
            label: tuple(() if place is None else place.ports.get(label, ()) for place in places)
            for label in labels
        },
    )


def _run_message(
    job_with_tasks: JobWithTasks,
    task: Task,
    secrets: str | None,
    roles: tuple[RoleShape, ...],
    peers: tuple[RolePeers, ...],
) -> Publish:
    job, role, place = job_with_tasks.job, job_with_tasks.job.role(task.role), _place(task)
    run = PodRun(
        user=job.user,
        user_number=job.spec.user_number,
        job_name=f"{job.user}~{job.name}",
        virtual_cluster=job.spec.virtual_cluster,
        role=task.role,
        index=task.index,
        job_attempt=job.attempt,
        task_attempt=task.attempt,
        image=role.image,
        image_pull_policy=role.image_pull_policy,
        command=role.command,
        gpus=place.gpus,
        cpu=role.cpu,
        memory_mb=role.memory_mb,
        ports=dict(place.ports),
        resources=role.resources,
        secrets=secrets,
        mounts=job.spec.mounts,
        roles=roles,
        peers=peers,
    )
    return _pod_message(job_with_tasks, task, run)


def stop_message(job_with_tasks: JobWithTasks, task: Task, reason: str, grace_s: float) -> Publish:
    """Stop the task's pod. Its agent has what it runs, or never will."""
    stop = PodStop(reason=reason, grace_s=grace_s)
    return _pod_message(job_with_tasks, task, stop)


def lost_message(job_with_tasks: JobWithTasks, task: Task, grace_s: float) -> Publish:
    """Its node was lost: if the node returns and the pod still runs, it must stop."""
    stop = PodStop(reason="node-lost", grace_s=grace_s)
    return _pod_message(job_with_tasks, task, stop, is_open=False)


def _place(task: Task) -> Placement:
    if task.placement is None:
        raise AssertionError("a pod without a place has no agent")
    return task.placement


def _pod_message(
    job_with_tasks: JobWithTasks, task: Task, ask: PodRun | PodStop, *, is_open: bool = True
) -> Publish:
    place = _place(task)
    run, stop = (ask, None) if isinstance(ask, PodRun) else (None, ask)
    message = PodRequest(
        pod=job_with_tasks.pod(task),
        job=job_with_tasks.job.id,
        gang=job_with_tasks.gang(task),
        node=place.node,
        journal=place.journal,
        action=PodAction.STOP if run is None else PodAction.RUN,
        run=run,
        stop=stop,
    )
    return Publish(Kind.POD, message.pod, POD_REQUESTED, message.node, message, is_open=is_open)


def ended_message(message: PodStatus, grace_s: float | None) -> Publish:
    """An agent reports a pod that has ended for the Launcher: forget it; with ``grace_s`` it still
    runs and must stop first.
    """
    request = PodRequest(
        pod=message.pod,
        job=message.job,
        gang=message.gang,
        node=message.node,
        journal=message.journal,
        action=PodAction.FORGET if grace_s is None else PodAction.STOP,
        stop=None if grace_s is None else PodStop(reason="over", grace_s=grace_s),
    )
    return Publish(Kind.POD, message.pod, POD_REQUESTED, message.node, request, is_open=False)


def final_verdict(job: Job) -> Verdict | None:
    """Why the last attempt ended as it did; None while its outcome is open."""
    if job.phase is JobPhase.STOPPED:
        return stop_verdict(StopCause.USER, job.stop_requested_by)
    if job.outcome is None:
        return None
    if job.outcome.verdict is None:
        return SUCCEEDED
    return job.outcome.verdict


def _job_status(job_with_tasks: JobWithTasks) -> JobStatus:
    job = job_with_tasks.job
    return JobStatus(
        job=job.id,
        name=job.name,
        user=job.user,
        virtual_cluster=job.spec.virtual_cluster,
        state=JOB_SHOWN[job.phase],
        attempt=job.attempt,
        retries=job.retries,
        retry_at=job.retry_at,
        reason=job.reason or _backoff(job) or _held_up(job_with_tasks),
        gang_class=job.gang_class,
        lender=job.lender,
        submitted_at=job.submitted_at,
        created_at=job.created_at,
        launched_at=job.launched_at,
        completed_at=job.completed_at,
        attempt_created_at=job.attempt_created_at,
        attempt_launched_at=job.attempt_launched_at,
        attempt_completed_at=job.attempt_completed_at,
        task_roles=_role_statuses(job_with_tasks),
        gpu_time=job.gpu_time,
        verdict=final_verdict(job),
        trigger=job.outcome.trigger if job.outcome else None,
        ended=job.ended,
        dead_letter=job.dead_letter,
        notify=job.spec.notify,
    )


def _backoff(job: Job) -> Reason | None:
    """The wait reason of a job that waits for its next attempt."""
    if job.phase is not JobPhase.BACKOFF or job.retry_at is None:
        return None
    verdict = final_verdict(job)
    why = f": {verdict.cause}" if verdict else "."
    text = f"The next attempt begins at {job.retry_at:%Y-%m-%d %H:%M:%S} UTC{why}"
    return Reason(
        code="retry", text=text, numbers={"attempts": 1 + sum(job.retries.model_dump().values())}
    )


def _held_up(job_with_tasks: JobWithTasks) -> Reason | None:
    """Of the first task whose pod does not run yet."""
    found = (_reason(task) for task in job_with_tasks.tasks.values())
    return next((reason for reason in found if reason is not None), None)


def _reason(task: Task) -> Reason | None:
    if task.phase is not TaskPhase.PLACED or task.reason is None:
        return None
    return task.reason.model_copy(update={"text": _cut(task.reason.text)})


def _role_statuses(job_with_tasks: JobWithTasks) -> tuple[TaskRoleStatus, ...]:
    return tuple(
        TaskRoleStatus(
            name=role.name,
            min_instances=role.min_instances if job_with_tasks.job.spec.gang else None,
            tasks=tuple(
                _task_status(job_with_tasks, job_with_tasks.tasks[role.name, index])
                for index in range(role.instances)
            ),
        )
        for role in job_with_tasks.job.spec.task_roles
        if (role.name, 0) in job_with_tasks.tasks
    )


def _task_status(job_with_tasks: JobWithTasks, task: Task) -> TaskStatus:
    place = task.placement
    return TaskStatus(
        index=task.index,
        state=TASK_SHOWN[task.phase],
        reason=_reason(task),
        attempt=task.attempt,
        pod=job_with_tasks.pod(task),
        node=place.node if place else None,
        address=task.address or (place.address if place else None),
        log_url=place.log_url if place else None,
        gpus=place.gpus if place else (),
        ports=dict(place.ports) if place else {},
        retries=task.retries,
        accountable_retries=task.accountable,
        created_at=task.created_at,
        placed_at=task.placed_at,
        launched_at=task.launched_at,
        completed_at=task.completed_at,
        exit_code=task.exit_code,
        verdict=_bounded(task.verdict),
    )


def _bounded(verdict: Verdict | None) -> Verdict | None:
    """With evidence so short that a large job whose tasks all fail still fits a record."""
    if verdict is None or verdict.evidence is None:
        return verdict
    cut = _cut(verdict.evidence)
    return verdict if cut == verdict.evidence else verdict.model_copy(update={"evidence": cut})


def _cut(text: str) -> str:
    return text.encode()[:EVIDENCE_BYTES].decode(errors="ignore")
