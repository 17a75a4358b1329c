"""The effect of each message and each timer on a job: the one entry to the Launcher's decisions."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from muster.contracts.gangs import GangDecision, PodDecision, PodDecisionState, PodRelease
from muster.contracts.jobs import Execution, JobRequest, JobSpec, Trigger
from muster.contracts.model import Reason
from muster.contracts.pods import PodState, PodStatus
from muster.contracts.topics import Kind
from muster.contracts.verdicts import Verdict
from muster.decisions import Decision, Due, Input, MessageRejected
from muster.errors import Broken

from launcher.domain.attempts import (
    End,
    answer_over,
    begin,
    begin_next,
    begin_task,
    decide_attempt,
    hurry,
    pod_ended,
    ran,
    saved,
    stop_job,
    stop_task,
)
from launcher.domain.messages import ended_message, lost_message, no_gang_message, run_messages
from launcher.domain.model import (
    ACTIVE,
    HOLDING,
    LIVE,
    Job,
    JobWithTasks,
    Outcome,
    Placement,
    Policy,
    Receiver,
    StopCause,
    Task,
)
from launcher.domain.states import JobPhase, TaskEvent, TaskPhase
from launcher.domain.turn import Turn
from launcher.domain.verdicts import (
    DEADLINE,
    FORGOTTEN,
    NO_AGENT_KEY,
    NODE_LOST,
    SECRETS_SEALED,
    refused,
    stop_of,
    storable,
)


def decide(  # noqa: PLR0913 - what a decision stands on
    ident: str,
    job_with_tasks: JobWithTasks | None,
    given: Input,
    *,
    now: datetime,
    policy: Policy,
    unused_number: int = 0,
) -> Decision[JobWithTasks]:
    """Apply one input to the job ``ident``; ``life`` is None where it is unknown.

    ``unused_number``: attempts begin under it or a higher number. A restored database may have
    forgotten attempts under lower ones.

    Raises Broken or ValueError where a message is not valid; nothing has changed then.
    """
    if job_with_tasks is None:
        return _unknown(ident, given, now, policy, unused_number)
    turn = Turn(job_with_tasks, now, policy, unused_number=unused_number)
    match given:
        case JobRequest():
            _on_request(turn, given)
        case GangDecision():
            _clear_rejected(turn, Kind.GANG, given.gang)
            _on_decision(turn, given)
        case PodStatus():
            _clear_rejected(turn, Kind.POD, given.pod)
            _on_status(turn, given)
        case Due():
            _on_due(turn)
        case MessageRejected():
            _on_rejected(turn, given)
        case _:
            raise Broken(f"a {type(given).__name__} is no input of the Launcher")
    return turn.decision()


def _unknown(
    ident: str, given: Input, now: datetime, policy: Policy, unused_number: int
) -> Decision[JobWithTasks]:
    """The job is unknown: it is new, or it ended and was deleted."""
    match given:
        case JobRequest(execution=Execution.START):
            if given.spec is None or not any(r.instances > 0 for r in given.spec.task_roles):
                raise Broken(f"job {ident} has no task to start")
            if now - given.submitted_at > policy.start_longest:
                raise Broken(
                    f"job {ident} was submitted at {given.submitted_at:%Y-%m-%d}, longer ago than"
                    " ended jobs are remembered: it may have run already; submit it again"
                )
            turn = Turn(_new(given, now, unused_number), now, policy, is_new=True)
            begin(turn)
            return turn.decision()
        case JobRequest(execution=Execution.STOP):
            turn = Turn(_new(given, now), now, policy, is_new=True)
            stop_job(turn, given.stop_requested_by)
            return turn.decision()
        case JobRequest():
            raise Broken(f"job {ident}: execution must be START or STOP")
        case GangDecision(pods=()):
            return Decision(None)  # both sides know its end; a message would be answered
        case GangDecision():
            return Decision(None, (no_gang_message(given.gang, given.job),))
        case PodStatus():
            grace_s = policy.lost_grace.total_seconds() if _is_alive(given) else None
            return Decision(None, (ended_message(given, grace_s),))
        case _:
            return Decision(None)


def _new(message: JobRequest, now: datetime, attempt: int = 0) -> JobWithTasks:
    job = Job(
        id=message.job,
        name=message.name,
        user=message.user,
        submitted_at=message.submitted_at,
        spec=message.spec or JobSpec(task_roles=()),
        attempt=attempt,
        newest_attempt=attempt,
        created_at=now,
    )
    return JobWithTasks(job, {})


def _on_request(turn: Turn, message: JobRequest) -> None:
    if message.execution is Execution.STOP and not turn.job.is_final:
        stop_job(turn, message.stop_requested_by)


def _on_decision(turn: Turn, message: GangDecision) -> None:
    """The Scheduler on a gang: first lost pods, then pods to release, then pods to run."""
    attempt = int(message.gang.split("-")[1])
    if attempt > turn.job.newest_attempt:
        turn.note_attempt(attempt)
        turn.publish(no_gang_message(message.gang, message.job))
        return
    if message.pods and not any(
        task.phase in HOLDING and turn.job_with_tasks.gang(task) == message.gang
        for task in turn.tasks()
    ):
        turn.publish(no_gang_message(message.gang, message.job))
        return
    if turn.job.spec.gang and attempt == turn.job.attempt:
        turn.set_job(gang_class=message.gang_class, lender=message.lender)
    found: dict[PodDecisionState, list[Task]] = {}
    for pod in message.pods:
        task = turn.task_of(pod.pod)
        if task is not None and task.phase in HOLDING:
            found.setdefault(pod.state, []).append(_placed(turn, task, pod))
    why = (
        message.reason.text if message.reason and found.keys() == {PodDecisionState.LOST} else None
    )
    for task in found.get(PodDecisionState.LOST, ()):
        _on_lost(turn, task, why)
    _on_refused(turn, message, found.get(PodDecisionState.REFUSED, ()))
    _on_preempted(turn, message, found.get(PodDecisionState.PREEMPTED, ()))
    if PodDecisionState.WAITING in found and turn.job.phase is JobPhase.WAITING:
        turn.set_job(reason=message.reason)
    _run_placed(turn)


def _placed(turn: Turn, task: Task, pod: PodDecision) -> Task:
    """The task with its place, which is given once for each pod name."""
    if pod.node is None or (task.placement is not None and task.placement.address):
        return task
    place = Placement(
        node=pod.node,
        address=pod.address or pod.node,
        log_url=pod.log_url,
        journal=pod.journal or "",
        gpus=pod.gpus,
        ports=pod.ports,
        secrets_key=pod.secrets_key,
    )
    placed = replace(task, placement=place, placed_at=task.placed_at or turn.now)
    turn.put(placed)
    return placed


def _still(turn: Turn, task: Task) -> Task | None:
    """The task as it is by now, where its pod is still held."""
    now = turn.task(task.key)
    return now if now.phase in HOLDING and now.attempt == task.attempt else None


def _on_lost(turn: Turn, marked: Task, why: str | None) -> None:
    """Its place is lost, and the pod with it, for good: also if its agent reports it later."""
    task = _still(turn, marked)
    if task is None:
        return
    if task.phase in LIVE:
        turn.publish(
            lost_message(turn.job_with_tasks, task, turn.policy.lost_grace.total_seconds())
        )
    node = task.placement.node if task.placement else "the node"
    silent = f"{node} was silent for a lease, or its agent has lost its journal."
    verdict = NODE_LOST.model_copy(update={"symptom": why or silent})
    pod_ended(turn, task, End(succeeded=False, verdict=verdict))


def _on_refused(turn: Turn, message: GangDecision, marked: Iterable[Task]) -> None:
    """It can never run."""
    for mark in marked:
        task = _still(turn, mark)
        if task is not None and task.phase is TaskPhase.WAITING:
            pod_ended(turn, task, End(succeeded=False, verdict=refused(message.reason)))


def _on_preempted(turn: Turn, message: GangDecision, marked: Iterable[Task]) -> None:
    """Preempted, for another gang or a drain: stop by the deadline. A gang releases all its pods,
    or those that it does not need. A pod that has not run yet ends at once.
    """
    tasks = list(marked)
    if not tasks:
        return
    grace = turn.policy.stop_grace
    if message.preemption is not None:
        left = message.preemption.until - turn.now
        grace = max(timedelta(0), min(turn.policy.preempt_grace_longest, left))
    if turn.job.phase not in ACTIVE:
        _hurry(turn, tasks, grace)
        return
    if message.preemption is not None:
        turn.set_job(reason=message.preemption.reason)
    is_whole = turn.job.spec.gang and not all(map(turn.job.is_surplus, tasks))
    is_drained = message.preemption is not None and message.preemption.gang is None
    for mark in turn.tasks() if is_whole else tasks:
        task = _still(turn, mark)
        if task is None:
            continue
        stopped = replace(task, is_drained=is_drained)
        if task.phase in LIVE:
            stop_task(turn, stopped, StopCause.PREEMPTION, grace)
        else:
            stopped = replace(stopped, stop=StopCause.PREEMPTION)
            pod_ended(turn, stopped, End(succeeded=False, verdict=None))


def _hurry(turn: Turn, marked: Iterable[Task], grace: timedelta) -> None:
    """The attempt is ending anyway; its pods must stop by the Scheduler's deadline."""
    for mark in marked:
        task = _still(turn, mark)
        if task is not None and task.phase is TaskPhase.STOPPING:
            hurry(turn, task, grace)
    turn.set_job(kill_at=_sooner(turn.job.kill_at, turn.now + grace))


def _sooner(one: datetime | None, other: datetime) -> datetime | None:
    return None if one is None else min(one, other)


def _run_placed(turn: Turn) -> None:
    """Run placed tasks: a gang once all that it needs are placed, other tasks singly. A pod that
    may have run already is not requested: its agent reports it, or it ends as forgotten.
    """
    job = turn.job

    def is_ready(task: Task) -> bool:
        return task.placement is not None and not turn.may_have_run(task)

    waiting = [task for task in turn.tasks() if task.phase is TaskPhase.WAITING]
    ready = [task for task in waiting if is_ready(task)]
    if not ready:
        return
    if job.spec.gang and any(not is_ready(t) and not job.is_surplus(t) for t in waiting):
        return
    asked = [
        (turn.move_task(task, TaskEvent.ASKED), secrets)
        for task, secrets in _with_secrets(turn, ready)
    ]
    for publish in run_messages(turn.job_with_tasks, asked):
        turn.publish(publish)
    if len(ready) == len(waiting) or (job.spec.gang and job.phase is JobPhase.WAITING):
        turn.set_job(reason=None)


def _with_secrets(turn: Turn, tasks: Sequence[Task]) -> list[tuple[Task, str | None]]:
    """Each task with its pod's sealed secrets. Tasks that can't have them have ended, and are left
    out.
    """
    sealed = turn.job.spec.secrets
    if sealed is None:
        return [(task, None) for task in tasks]
    for mark in tasks:
        if mark.placement is None or mark.placement.secrets_key is None:
            _end_without_secrets(turn, mark, NO_AGENT_KEY)
    left = [task for mark in tasks if (task := _waiting_yet(turn, mark))]
    if not left:
        return []
    found = turn.policy.reseal(turn.job.id, sealed, [_receiver(turn, task) for task in left])
    if found is None:
        for task in left:
            _end_without_secrets(turn, task, SECRETS_SEALED)
        return []
    return list(zip(left, found, strict=True))


def _waiting_yet(turn: Turn, mark: Task) -> Task | None:
    task = _still(turn, mark)
    return task if task is not None and task.phase is TaskPhase.WAITING else None


def _end_without_secrets(turn: Turn, mark: Task, verdict: Verdict) -> None:
    task = _waiting_yet(turn, mark)
    if task is not None:
        symptom = f"Its place was on {task.placement.node}." if task.placement else ""
        verdict = verdict.model_copy(update={"symptom": symptom})
        pod_ended(turn, task, End(succeeded=False, verdict=verdict))


def _receiver(turn: Turn, task: Task) -> Receiver:
    key = task.placement.secrets_key if task.placement else None
    return Receiver(turn.job_with_tasks.pod(task), task.role, key or "")


def _is_alive(message: PodStatus) -> bool:
    return message.state not in (PodState.SUCCEEDED, PodState.FAILED)


def _on_status(turn: Turn, message: PodStatus) -> None:
    task = turn.task_of(message.pod)
    if task is None or task.phase not in HOLDING:
        answer_over(turn, message, _is_alive(message))
        return
    if task.placement is None:
        place = Placement(node=message.node, journal=message.journal)
        task = replace(task, placement=place, placed_at=turn.now)
    elif turn.may_have_run(task) and not _is_of(message, task.placement):
        answer_over(
            turn, message, _is_alive(message)
        )  # it has run before the restore, and elsewhere
        pod_ended(turn, task, End(succeeded=False, verdict=FORGOTTEN))
        return
    match message.state:
        case PodState.ACCEPTED:
            _on_accepted(turn, task, message.reason)
        case PodState.RUNNING:
            running = ran(turn, task, message)
            if message.checkpointed_at is not None:
                saved(turn, running, message.checkpointed_at)
        case PodState.SUCCEEDED | PodState.FAILED:
            if message.started_at is not None or message.state is PodState.SUCCEEDED:
                task = ran(turn, task, message)
            succeeded = message.state is PodState.SUCCEEDED
            task = replace(task, release=_release(message))
            verdict = storable(message.verdict)
            stopped = _remember_stop(turn, task, verdict)
            if stopped is not None:
                pod_ended(
                    turn, stopped, End(succeeded, verdict, message.exit_code, message.ended_at)
                )
            answer_over(turn, message, is_alive=False)
        case PodState.UNKNOWN:
            pass


def _on_accepted(turn: Turn, task: Task, reason: Reason | None) -> None:
    if task.phase is TaskPhase.WAITING:
        task = turn.move_task(task, TaskEvent.ASKED)
    if task.reason != reason:
        turn.put(replace(task, reason=reason))


def _is_of(message: PodStatus, place: Placement) -> bool:
    return (message.node, message.journal) == (place.node, place.journal)


def _remember_stop(turn: Turn, task: Task, verdict: Verdict | None) -> Task | None:
    """The task, where its pod's end is still to be applied. After a restored backup the Launcher
    may have forgotten why it stopped the pod. The end has the reason: the user stopped the job, or
    the end of another pod or the time limit decided the attempt.
    """
    cause = stop_of(verdict) if task.stop is None else None
    if cause is StopCause.USER:
        turn.put(task)
        stop_job(turn, None)
        return _still(turn, task)
    if cause is None or task.phase not in LIVE:
        return task
    return turn.move_task(task, TaskEvent.STOP_ASKED, stop=cause)


def _release(message: PodStatus) -> PodRelease:
    return PodRelease(
        pod=message.pod, journal=message.journal, report_revision=message.report_revision
    )


def _on_due(turn: Turn) -> None:
    if turn.job.forget_at is not None and turn.job.forget_at <= turn.now:
        _end_forgotten(turn)
    job, now = turn.job, turn.now
    if job.phase is JobPhase.BACKOFF and job.retry_at is not None and job.retry_at <= now:
        begin_next(turn)
    if job.phase is JobPhase.RUNNING and job.deadline_at is not None and job.deadline_at <= now:
        message = f"the time limit of {job.spec.time_limit_s} s is over"
        decide_attempt(turn, Outcome(DEADLINE, Trigger(message=message)))
    if job.phase in ACTIVE:
        for task in turn.tasks():
            if task.phase is TaskPhase.BACKOFF and (task.retry_at or now) <= now:
                begin_task(turn, task)
    _run_placed(turn)  # where a replica held it back that took it for older than a restore
    if turn.job.quiet_at is not None and turn.job.quiet_at <= now:
        turn.flush()


def _end_forgotten(turn: Turn) -> None:
    """Their agents had time to report pods that may have run. These pods end for the Launcher, and
    it requests pods with other names.
    """
    for mark in turn.doubtful():
        task = _still(turn, mark)
        if task is not None:
            pod_ended(turn, task, End(succeeded=False, verdict=FORGOTTEN))


def _rejected_text(kind: Kind, subject: str) -> str:
    return f"{kind.value} {subject}: the other side rejected the Launcher's latest message."


def _on_rejected(turn: Turn, given: MessageRejected) -> None:
    """An operator must look: `muster events redrive` republishes the message. Where REST rejected a
    job's state, the Launcher can't send it this notice.
    """
    if given.kind is not Kind.JOB and not turn.job.is_final:
        turn.set_job(dead_letter=_rejected_text(given.kind, given.subject))


def _clear_rejected(turn: Turn, kind: Kind, subject: str) -> None:
    if turn.job.dead_letter == _rejected_text(kind, subject) and not turn.job.is_final:
        turn.set_job(dead_letter=None)
