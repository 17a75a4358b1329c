"""The sentences and numbers that people read."""

import re
from datetime import datetime

from muster.contracts.jobs import JobState, JobStatus
from pydantic import JsonValue

EVIDENCE = "Evidence: "
"""How the line of a text begins that has a verdict's telling line."""
RUNBOOK = re.compile(r"(?<=Runbook: )https?://[^\s<>]+$")
"""The address at the end of an alert's line."""


def job_title(user: str, name: str, job: str) -> str:
    """How a job is called in a subject line: OpenPAI's ``user~name``, or its id alone."""
    return f"Job {user}~{name}" if name else f"Job {job}"


def job_end_text(status: JobStatus) -> str:
    """One line for each thing that is known about how a job, or its attempt, went."""
    lines = [f"Job {status.job} in virtual cluster {status.virtual_cluster}: {status.state}."]
    if status.attempt:
        retries = status.retries
        lines.append(
            f"Attempt {status.attempt}; retries: {retries.user} by the user's account,"
            f" {retries.platform} by the platform's, {retries.resource} for resources."
        )
    if status.ended is not None and status.verdict is None:
        lines.append(f"The attempt before: {status.ended}")
    if status.launched_at and status.completed_at:
        lines.append(f"It ran for {duration(status.launched_at, status.completed_at)}.")
    if status.verdict is not None:
        verdict = status.verdict
        lines.append(f"{verdict.phrase} (code {verdict.code}): {verdict.cause}")
        lines.extend(text for text in (verdict.symptom, verdict.outcome) if text)
        if verdict.evidence:
            lines.append(f"{EVIDENCE}{verdict.evidence}")
    if status.trigger is not None:
        lines.append(status.trigger.message)
    return "\n".join(lines)


def stuck_text(state: JobState, dead_letter: str | None, quiet_since: datetime) -> str:
    """Why a job counts as stuck, and what to look at."""
    since = f"It has not changed since {quiet_since.isoformat(timespec='seconds')}."
    if dead_letter is not None:
        return (
            f"{since}\nA record about it was rejected: {dead_letter}.\n"
            "Fix the cause, then run `muster events redrive`."
        )
    match state:
        case JobState.STOPPING:
            return f"{since}\nIt is stopping: check the agents of its pods' nodes."
        case _:
            return f"{since}\nIt waits without a reason: check the Launcher and the Scheduler."


def job_data(status: JobStatus) -> dict[str, JsonValue]:
    """A job in a webhook: its status without its tasks, in the JSON names of ``job-updated``."""
    return status.model_dump(
        mode="json",
        by_alias=True,
        exclude_none=True,
        exclude={"task_roles", "revision", "seen", "notify"},
    )


def duration(start: datetime, end: datetime) -> str:
    """``2 h 5 min``, ``5 min 3 s`` or ``3 s``."""
    total_s = max(0, round((end - start).total_seconds()))
    hours, rest_s = divmod(total_s, 3600)
    minutes, seconds = divmod(rest_s, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def cut(text: str, most: int) -> str:
    """At most so many characters, the last of them an ellipsis where some are missing."""
    return text if len(text) <= most else text[: most - 1] + "…"
