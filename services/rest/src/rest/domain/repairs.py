"""When the repair of a node ends: by a script's answer, a preflight job's end, or too late."""

import re
from dataclasses import dataclass

from muster.contracts.alerts import Outcome
from muster.contracts.jobs import JobState, JobStatus

from rest.domain.jobs import FINAL

MOST_CHARACTERS = 400

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a repair ended, and why so."""

    outcome: Outcome
    reason: str


def last_line(text: str) -> str:
    """The last line of a script's output that says something."""
    lines = [_UNSEEN.sub(" ", line).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "")[:MOST_CHARACTERS]


def answered(*, is_success: bool, text: str) -> Ended:
    """A script has ended."""
    outcome = Outcome.DONE if is_success else Outcome.FAILED
    word = "succeeded" if is_success else "failed"
    return Ended(outcome, last_line(text) or f"The script {word} and said nothing.")


def script_is_late() -> Ended:
    """No answer of a script came in time."""
    reason = "No answer of a script came in time. Is a webhook subscribed to remediation-requested?"
    return Ended(Outcome.FAILED, reason)


def job_ended(
    name: str, state: JobState | None, status: JobStatus | None, waits: str, *, is_late: bool
) -> Ended | None:
    """What a preflight job proves; None: nothing yet. ``state`` None: the job is gone; ``waits``:
    why it waits, empty: it does not.
    """
    if state is JobState.SUCCEEDED:
        return Ended(Outcome.DONE, f"The preflight job {name} succeeded.")
    if state is None:
        return Ended(Outcome.FAILED, f"The preflight job {name} is gone.")
    if state in FINAL:
        verdict = None if status is None else status.verdict
        words = () if verdict is None else (verdict.phrase, verdict.cause, verdict.evidence)
        why = last_line(": ".join(it.rstrip(".") for it in words if it)) or "nobody knows why"
        return Ended(Outcome.FAILED, f"The preflight job {name} {state.value.lower()}: {why}")
    if is_late:
        why = f" It waits: {waits}" if waits else ""
        return Ended(Outcome.FAILED, f"The preflight job {name} did not end in time.{why}")
    return None
