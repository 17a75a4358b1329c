"""Commands about jobs: submit, jobs, job, why, tag, stop."""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cli import jobs as rest
from cli.client import Client, CommandError, Exit, job_path, problem_text
from cli.commands.session import JobName, Output, client, full_name, read_given
from cli.output import (
    Format,
    length,
    print_as_of,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_table,
    when,
)
from cli.reasons import coded, gang_class, more_wait, scheduler_details

POLL_S = 0.5
ATTEMPTS_SHOWN = 10
PREEMPTED_CODE = -1003
AT_FAULT = {
    "USER_FAILURE": "the job",
    "PLATFORM_FAILURE": "the platform",
    "UNKNOWN_FAILURE": "unknown",
}
RETRIED = {
    "PERMANENT": "never retried",
    "TRANSIENT": "retried at no cost",
    "TRANSIENT_CONFLICT": "retried at no cost",
    "UNKNOWN": "retried as jobRetryCount allows",
}


def submit(  # noqa: PLR0913 - each wish is an option
    file: Annotated[
        Path,
        Parameter(allow_leading_hyphen=True, help="A job file; - reads the standard input."),
    ],
    *,
    name: Annotated[str | None, Parameter(help="Another name than the file's.")] = None,
    node: Annotated[
        str | None,
        Parameter(help="For admins: run only on this node, even if it is cordoned or drained."),
    ] = None,
    wait: Annotated[bool, Parameter(help="Wait for its end; the exit status shows it.")] = False,
    timeout: Annotated[float | None, Parameter(help="Wait at most this many seconds.")] = None,
    output: Output = Format.TABLE,
) -> Exit:
    """Submit a job file."""
    server = client()
    answer = rest.submit(server, read_given(file, "a job file"), name, node)
    job = str(answer["name"])
    if output is Format.JSON and not wait:
        print_json(answer)
    elif output is Format.TABLE:
        print_line(job)
        sys.stdout.flush()
        for warning in answer.get("warnings") or ():
            print_note(f"note: {problem_text(warning)}")
    return _wait(server, job, timeout, output) if wait else Exit.OK


def jobs(  # noqa: PLR0913 - each filter is an option
    *,
    state: Annotated[str | None, Parameter(help="Only these states, by commas.")] = None,
    user: Annotated[str | None, Parameter(help="Only these users, by commas.")] = None,
    keyword: Annotated[str | None, Parameter(help="A part of a name, user or cluster.")] = None,
    tag: Annotated[str | None, Parameter(help="Only with one of these tags, by commas.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    states = state.upper() if state else None
    asked = {"username": user, "keyword": keyword, "tagsContain": tag, "limit": limit}
    query = {"state": states, **asked}
    found = client().get("/jobs", query).json()
    if output is Format.JSON:
        print_json(found)
        return
    print_table(
        ("JOB", "STATE", "VC", "GPUS", "TASKS", "RETRIES", "SENT (UTC)", "TOOK"),
        [
            (
                f"{each['username']}~{each['name']}",
                each["state"],
                each["virtualCluster"],
                each["totalGpuNumber"],
                each["totalTaskNumber"],
                each["retries"],
                when(each["submissionTime"])[5:-3],
                length(each.get("launchedTime"), each.get("completedTime")),
            )
            for each in found
        ],
    )


def job(name: JobName, *, output: Output = Format.TABLE) -> None:
    """Everything about one job."""
    server, job = client(), full_name(name)
    content = rest.detail(server, job)
    if output is Format.JSON:
        print_json(content)
        return
    status = content["jobStatus"]
    print_facts(
        {
            "job": job,
            "state": status["state"],
            "why": _reason(status) or _why_tasks_wait(content),
            "virtual cluster": status["virtualCluster"],
            "class": gang_class(status.get("gangClass"), status.get("lender")),
            "size": rest.size(content),
            "attempt": status.get("attemptId") or None,
            "retries": _retries(status),
            "tags": ", ".join(content["tags"]) or None,
            "submitted": when(status.get("submissionTime")),
            "started": when(status.get("launchedTime")),
            "ended": when(status.get("completedTime")),
            "took": length(status.get("launchedTime"), status.get("completedTime")),
            "exit code": status.get("appExitCode"),
            "diagnosis": status.get("appExitDiagnostics"),
            **dict(_how_it_failed(status)),
        }
    )
    print_line("")
    print_table(
        ("TASK", "STATE", "NODE", "ADDRESS", "PORTS", "RETRIES", "EXIT", "TOOK"),
        [
            (
                f"{role} {task['taskIndex']}",
                "to grow" if rest.is_to_grow(content, tasks, task) else task["taskState"],
                task.get("containerNodeName"),
                task.get("containerIp"),
                " ".join(f"{k}:{v}" for k, v in (task.get("containerPorts") or {}).items()),
                task.get("retries") or "",
                task.get("containerExitCode"),
                length(task.get("launchedTime"), task.get("completedTime")),
            )
            for role, tasks in content["taskRoles"].items()
            for task in tasks["taskStatuses"]
        ],
    )
    _print_attempts(rest.earlier_attempts(server, job, status, ATTEMPTS_SHOWN))


def _why_tasks_wait(content: dict[str, Any]) -> str | None:
    """Why the first task waits that waits on its own, and how many do."""
    waiting = [
        (f"{role} {task['taskIndex']}", reason)
        for role, tasks in content["taskRoles"].items()
        for task in tasks["taskStatuses"]
        if task["taskState"] == "WAITING" and (reason := _reason(task))
    ]
    if not waiting:
        return None
    task, text = waiting[0]
    if left := len(waiting) - 1:
        text += f" ({more_wait(left)})"
    return f"task {task}: {text}"


def _print_attempts(attempts: Sequence[dict[str, Any]]) -> None:
    if not attempts:
        return
    print_line("")
    print_table(
        ("ATTEMPT", "STATE", "ENDED (UTC)", "TOOK", "EXIT", "WHY"),
        [
            (
                each["attemptId"],
                each["state"],
                when(each.get("appCompletedTime"))[5:-3],
                length(each.get("appLaunchedTime"), each.get("appCompletedTime")),
                each.get("appExitCode"),
                _why_ended(each),
            )
            for each in attempts
        ],
    )


def _why_ended(attempt: dict[str, Any]) -> str | None:
    """Of a preemption, for whom it was; else the cause."""
    cause: str | None = attempt.get("appExitDiagnostics")
    is_preempted = attempt.get("appExitCode") == PREEMPTED_CODE
    return attempt.get("appExitTriggerMessage") or cause if is_preempted else cause


def tag(
    name: JobName,
    tag: Annotated[str, Parameter(help="At most 64 characters, without commas.")],
    *,
    remove: Annotated[bool, Parameter(help="Remove the tag.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Give a job a tag, by which lists can be filtered; or remove it."""
    method = "DELETE" if remove else "PUT"
    answer = client().send(method, job_path(full_name(name), "/tag"), {"value": tag}).json()
    print_json(answer) if output is Format.JSON else print_line(answer["message"])


def stop(name: JobName, *, wait: bool = False, output: Output = Format.TABLE) -> Exit:
    """Stop a job; its tasks get their grace."""
    server = client()
    job = full_name(name)
    answer = server.send("PUT", job_path(job, "/executionType"), {"value": "STOP"}).json()
    if output is Format.TABLE:
        print_line(answer["message"])
        sys.stdout.flush()
    elif not wait:
        print_json(answer)
    if not wait:
        return Exit.OK
    ended = _wait(server, job, None, output)
    return Exit.OK if ended is Exit.JOB_STOPPED else ended


def why(name: JobName, *, output: Output = Format.TABLE) -> None:
    """Why a job waits, and what must happen for it to start; or why it failed."""
    server, job = client(), full_name(name)
    content = server.get(job_path(job, "/why")).json()
    if output is Format.JSON:
        print_json(content)
        return
    reason = _reason(content)
    details = list(scheduler_details(content.get("scheduler"), reason))
    if reason is None or content["state"] == "FAILED":
        status = rest.detail(server, job)["jobStatus"]
        reason = reason or status.get("appExitDiagnostics")
        details += _how_it_failed(status)
    if not rest.is_over(content["state"]) and "code" not in dict(details):
        details = [*coded(content.get("reason")), *details]
    print_line(f"{job} is {content['state']}" + (f": {reason}" if reason else "."))
    for name_, value in details:
        print_line(f"  {name_}: {value}")
    if content.get("schedulerProblem"):
        print_line(f"  {content['schedulerProblem']}")
    print_as_of(content.get("scheduler") or {})


def _how_it_failed(status: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """The verdict, the task whose end failed the job, how it ended, and what it wrote last."""
    if status["state"] != "FAILED":
        return
    spec = status.get("appExitSpec") or {}
    retried = RETRIED.get(str(spec.get("behavior")))
    retries = _retries(status) or "none"
    problem_text = {
        "rule": spec.get("rule"),
        "at fault": AT_FAULT.get(str(spec.get("type"))),
        "retries": f"{retries}; such a failure is {retried}" if retried else retries,
        "ended by": status.get("appExitTriggerMessage"),
        "symptom": spec.get("symptom"),
        "it wrote": spec.get("evidence"),
    }
    for name, value in problem_text.items():
        if value:
            yield name, " ".join(str(value).split())


def _retries(status: dict[str, Any]) -> str | None:
    """How many retries there were, by their cause: ``2 of its own, 1 of the platform's``."""
    details = status.get("retryDetails") or {}
    causes = {
        "user": "of its own",
        "platform": "of the platform's",
        "resource": "for conflicts over resources",
    }
    return ", ".join(f"{details[k]} {text}" for k, text in causes.items() if details.get(k)) or None


def _reason(status: dict[str, Any]) -> str | None:
    reason = status.get("reason")
    return reason.get("text") if isinstance(reason, dict) else reason


def _wait(server: Client, job: str, timeout_s: float | None, output: Format) -> Exit:
    """Follow a job to its end."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    problem_text = None
    while True:
        patience_s = rest.AWAY_S if deadline is None else deadline - time.monotonic()
        content = rest.detail_when_back(server, job, min(rest.AWAY_S, patience_s))
        state = content["jobStatus"]["state"]
        if state != problem_text and output is Format.TABLE:
            print_line(f"{job}: {state}")
            sys.stdout.flush()
        problem_text = state
        if rest.is_over(state):
            if output is Format.JSON:
                print_json(content)
            return rest.EXIT_BY_STATE[state]
        if deadline is not None and time.monotonic() > deadline:
            raise CommandError(Exit.TIMED_OUT, f"{job} is still {state} after {timeout_s:g} s.")
        time.sleep(POLL_S)
