"""The states of jobs and tasks as tables: their transitions, and the effect of late events.

``advance`` is total: each pair of a state and an event moves, is stale (the event came late and
changes nothing) or is illegal (only a bug can make it). The diagrams in docs/job-states.md are
printed from these tables: ``python -m launcher.domain.states``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from muster.contracts.jobs import JobState, TaskState

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Moved(Generic[S]):
    """The event leads to this state."""

    to: S


@dataclass(frozen=True, slots=True)
class Stale:
    """The event comes too late to change anything."""


@dataclass(frozen=True, slots=True)
class Illegal:
    """This event can't happen in this state."""


@dataclass(frozen=True, slots=True)
class Machine(Generic[S, E]):
    """A state machine: its moves, the events that may come late, and where it starts."""

    start: S
    moves: Mapping[tuple[S, E], S]
    stale: frozenset[tuple[S, E]]

    def advance(self, state: S, event: E) -> Moved[S] | Stale | Illegal:
        """What ``event`` does in ``state``."""
        to = self.moves.get((state, event))
        if to is not None:
            return Moved(to)
        return Stale() if (state, event) in self.stale else Illegal()

    @property
    def final(self) -> frozenset[S]:
        """The states that nothing leaves."""
        return frozenset(type(self.start)) - {state for state, _ in self.moves}


class JobPhase(StrEnum):
    """The Launcher's state of a job; ``JOB_SHOWN`` has the state that users see.

    WAITING: a gang is asked for. RUNNING: a task of the attempt has run. COMPLETING: the attempt's
    outcome is known, its last pods are ending. BACKOFF: the next attempt waits for its time.
    STOPPING: the user has stopped it, its last pods are ending.
    """

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETING = "completing"
    BACKOFF = "backoff"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class JobEvent(StrEnum):
    """What moves a job."""

    RAN = "a task runs"
    DECIDED = "outcome known"
    STOP_ASKED = "stop asked"
    RETRY_DUE = "over, to be retried"
    BEGUN = "next attempt"
    SUCCEEDED = "over, succeeded"
    FAILED = "over, failed"
    STOPPED = "over, stopped"


class TaskPhase(StrEnum):
    """The Launcher's state of a task of the present job attempt.

    WAITING: its pod is to be placed. PLACED: its agent is asked to run the pod. BACKOFF: its next
    attempt waits for its time.
    """

    WAITING = "waiting"
    PLACED = "placed"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class TaskEvent(StrEnum):
    """What moves a task."""

    ASKED = "run asked"
    RAN = "pod runs"
    STOP_ASKED = "stop asked"
    RETRY_DUE = "pod ended, to be retried"
    BEGUN = "next attempt"
    SUCCEEDED = "pod succeeded"
    FAILED = "pod failed"
    STOPPED = "ended by stop"


def _all(states: tuple[S, ...], event: E, to: S | None = None) -> dict[tuple[S, E], S]:
    return {(state, event): state if to is None else to for state in states}


_JOB_FINAL = (JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.STOPPED)
_ENDING = (JobPhase.COMPLETING, JobPhase.STOPPING)

JOB: Machine[JobPhase, JobEvent] = Machine(
    start=JobPhase.WAITING,
    moves={
        **_all((JobPhase.WAITING,), JobEvent.RAN, JobPhase.RUNNING),
        **_all((JobPhase.WAITING, JobPhase.RUNNING), JobEvent.DECIDED, JobPhase.COMPLETING),
        **_all(
            (JobPhase.WAITING, JobPhase.RUNNING, JobPhase.COMPLETING, JobPhase.BACKOFF),
            JobEvent.STOP_ASKED,
            JobPhase.STOPPING,
        ),
        **_all((JobPhase.COMPLETING,), JobEvent.RETRY_DUE, JobPhase.BACKOFF),
        **_all((JobPhase.BACKOFF,), JobEvent.BEGUN, JobPhase.WAITING),
        **_all(_ENDING, JobEvent.SUCCEEDED, JobPhase.SUCCEEDED),
        **_all(_ENDING, JobEvent.FAILED, JobPhase.FAILED),
        **_all((JobPhase.STOPPING,), JobEvent.STOPPED, JobPhase.STOPPED),
    },
    stale=frozenset(
        {
            **_all((JobPhase.RUNNING, *_ENDING, *_JOB_FINAL), JobEvent.RAN),
            **_all((*_ENDING, *_JOB_FINAL), JobEvent.DECIDED),
            **_all((JobPhase.STOPPING, *_JOB_FINAL), JobEvent.STOP_ASKED),
        }
    ),
)
"""The life of a job."""

_TASK_FINAL = (TaskPhase.SUCCEEDED, TaskPhase.FAILED, TaskPhase.STOPPED)
_PODDED = (TaskPhase.WAITING, TaskPhase.PLACED, TaskPhase.RUNNING, TaskPhase.STOPPING)
"""The phases in which an agent may report the task's pod; WAITING where a restored backup has lost
the request to run it."""

TASK: Machine[TaskPhase, TaskEvent] = Machine(
    start=TaskPhase.WAITING,
    moves={
        **_all((TaskPhase.WAITING,), TaskEvent.ASKED, TaskPhase.PLACED),
        **_all((TaskPhase.WAITING, TaskPhase.PLACED), TaskEvent.RAN, TaskPhase.RUNNING),
        **_all((TaskPhase.PLACED, TaskPhase.RUNNING), TaskEvent.STOP_ASKED, TaskPhase.STOPPING),
        **_all(_PODDED, TaskEvent.RETRY_DUE, TaskPhase.BACKOFF),
        **_all((TaskPhase.BACKOFF,), TaskEvent.BEGUN, TaskPhase.WAITING),
        **_all(_PODDED, TaskEvent.SUCCEEDED, TaskPhase.SUCCEEDED),
        **_all(_PODDED, TaskEvent.FAILED, TaskPhase.FAILED),
        **_all(
            (TaskPhase.WAITING, TaskPhase.BACKOFF, TaskPhase.STOPPING),
            TaskEvent.STOPPED,
            TaskPhase.STOPPED,
        ),
    },
    stale=frozenset(
        {
            **_all((TaskPhase.RUNNING, TaskPhase.STOPPING, *_TASK_FINAL), TaskEvent.RAN),
            **_all((TaskPhase.STOPPING, *_TASK_FINAL), TaskEvent.STOP_ASKED),
            **_all(_TASK_FINAL, TaskEvent.SUCCEEDED),
            **_all(_TASK_FINAL, TaskEvent.FAILED),
            **_all(_TASK_FINAL, TaskEvent.STOPPED),
        }
    ),
)
"""The life of a task within one job attempt."""

JOB_SHOWN: Mapping[JobPhase, JobState] = {
    JobPhase.WAITING: JobState.WAITING,
    JobPhase.RUNNING: JobState.RUNNING,
    JobPhase.COMPLETING: JobState.RUNNING,
    JobPhase.BACKOFF: JobState.WAITING,
    JobPhase.STOPPING: JobState.STOPPING,
    JobPhase.SUCCEEDED: JobState.SUCCEEDED,
    JobPhase.FAILED: JobState.FAILED,
    JobPhase.STOPPED: JobState.STOPPED,
}
"""What users see of a job."""

TASK_SHOWN: Mapping[TaskPhase, TaskState] = {
    TaskPhase.WAITING: TaskState.WAITING,
    TaskPhase.PLACED: TaskState.WAITING,
    TaskPhase.RUNNING: TaskState.RUNNING,
    TaskPhase.STOPPING: TaskState.STOPPING,
    TaskPhase.BACKOFF: TaskState.WAITING,
    TaskPhase.SUCCEEDED: TaskState.SUCCEEDED,
    TaskPhase.FAILED: TaskState.FAILED,
    TaskPhase.STOPPED: TaskState.STOPPED,
}
"""What users see of a task."""


def diagram(machine: Machine[S, E], shown: Mapping[S, StrEnum]) -> str:
    """The machine as a Mermaid state diagram; each state names what users see of it."""
    arrows: dict[tuple[S, S], list[str]] = {}
    for (state, event), to in machine.moves.items():
        arrows.setdefault((state, to), []).append(event.value)
    lines = ["stateDiagram-v2", f"    [*] --> {machine.start.value}"]
    lines += [
        f"    {state.value}: {state.value} (shown as {shown[state].value})" for state in shown
    ]
    lines += [
        f"    {state.value} --> {to.value}: {' / '.join(events)}"
        for (state, to), events in arrows.items()
    ]
    lines += [f"    {state.value} --> [*]" for state in shown if state in machine.final]
    return "\n".join(lines)


def document() -> str:
    """The text of docs/job-states.md."""
    return "\n".join(
        (
            "# The states of jobs and tasks",
            "",
            "Printed from the tables in `services/launcher/src/launcher/domain/states.py` by"
            " `python -m launcher.domain.states`; a test compares them.",
            "",
            "## A job",
            "",
            "```mermaid",
            diagram(JOB, JOB_SHOWN),
            "```",
            "",
            "## A task within one job attempt",
            "",
            "```mermaid",
            diagram(TASK, TASK_SHOWN),
            "```",
            "",
        )
    )


if __name__ == "__main__":
    print(document(), end="")
