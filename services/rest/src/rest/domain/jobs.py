"""A job's row in the read model, and what may become of it. Final states never move."""

from dataclasses import dataclass

from muster.contracts.jobs import Execution, JobState, JobStatus
from muster.contracts.model import Reason

FINAL = frozenset((JobState.SUCCEEDED, JobState.STOPPED, JobState.FAILED))


@dataclass(frozen=True, slots=True)
class JobRow:
    """What a change must know of a job. ``status`` is the Launcher's message where it has just come
    in; ``reason`` says why the job waits.
    """

    id: str
    execution: Execution
    state: JobState
    attempt: int
    status: JobStatus | None = None
    reason: Reason | None = None


def shown_state(state: JobState, execution: Execution) -> JobState:
    """What users see: a job that shall stop is stopping at once, wherever the Launcher is."""
    if execution is Execution.STOP and state not in FINAL:
        return JobState.STOPPING
    return state


def check_stoppable(name: str, state: JobState) -> str | None:
    """Why a job can't be stopped; None where it can."""
    if state in FINAL:
        return f"{name} is already {state.value}: nothing to stop."
    return None


def check_startable(name: str, state: JobState, execution: Execution) -> str | None:
    """Why START is refused; None where the job is started already."""
    if execution is Execution.STOP or state in FINAL:
        return f"{name} can't be started again; submit it anew under another name."
    return None
