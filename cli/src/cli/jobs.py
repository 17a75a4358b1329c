"""What commands do with jobs over REST, at OpenPAI's paths and with its field names."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from cli.client import API, Client, CommandError, Exit, job_path, problem_text

AWAY_S, AWAY_POLL_S = 60.0, 0.5  # how long a server may be away while one of its jobs is followed
FINAL = ("SUCCEEDED", "STOPPED", "FAILED")
EXIT_BY_STATE: Mapping[str, Exit] = {
    "SUCCEEDED": Exit.OK,
    "FAILED": Exit.JOB_FAILED,
    "STOPPED": Exit.JOB_STOPPED,
}

Json = dict[str, Any]


def submit(client: Client, text: str, name: str | None = None, node: str | None = None) -> Json:
    """Submit a job file, under another name if one is given; to test a node, if one is given.

    The answer has the job's full name, `user~name`, and warnings on what is not acted on.
    """
    if name is not None:
        text = _renamed(text, name)
    headers = {"Content-Type": "text/yaml", "Idempotency-Key": str(uuid.uuid4())}
    query = "" if node is None else f"?node={quote(node, safe='')}"
    answer: Json = client.call("POST", f"{API}/jobs{query}", text.encode(), headers).json()
    return answer


def _renamed(text: str, name: str) -> str:
    from muster.protocol import ProtocolError, renamed  # costs what few commands need to spend

    try:
        return renamed(text, name)
    except ProtocolError as error:
        details = tuple(problem_text(asdict(problem)) for problem in error.problems)
        raise CommandError(Exit.REFUSED, str(error), details[1:]) from None


def detail(client: Client, job: str, attempt: int | None = None) -> Json:
    """The whole detail of a job; of its latest attempt, or of an earlier one."""
    earlier = "" if attempt is None else f"/attempts/{attempt}"
    answer: Json = client.get(job_path(job, earlier)).json()
    return answer


def earlier_attempts(client: Client, job: str, status: Json, most: int) -> list[Json]:
    """The statuses of a job's earlier attempts, newest first; those that REST no longer has are
    left out.
    """
    latest = status.get("attemptId") or 0
    found: list[Json] = []
    for attempt in range(latest - 1, max(latest - most, 0) - 1, -1):
        try:
            found.append(detail(client, job, attempt)["jobStatus"])
        except CommandError as error:
            if error.code is not Exit.REFUSED:
                raise
    return found


def detail_when_back(
    client: Client, job: str, patience_s: float = AWAY_S, attempt: int | None = None
) -> Json:
    """The whole detail of a job; a server that is away, as when it starts again, is waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return detail(client, job, attempt)
        except CommandError as error:
            if error.code is not Exit.UNREACHABLE or time.monotonic() > deadline:
                raise
        time.sleep(AWAY_POLL_S)


def is_over(state: str) -> bool:
    """Whether a job in this state changes no more."""
    return state in FINAL


def is_to_grow(content: Json, role: Json, task: Json) -> bool:
    """Whether a job runs without this task of a role until there is room for it."""
    least = (role.get("taskRoleStatus") or {}).get("minInstances")
    if least is None or content["jobStatus"]["state"] != "RUNNING":
        return False
    return bool(task["taskIndex"] >= least and task["taskState"] == "WAITING")


def size(content: Json) -> str | None:
    """How much of a job runs that starts with less than it wants; None where it is whole."""
    tasks = [
        (role, task) for role in content["taskRoles"].values() for task in role["taskStatuses"]
    ]
    count = sum(is_to_grow(content, role, task) for role, task in tasks)
    return grown(len(tasks), count, "task") if count else None


def grown(wanted: int, waiting: int, noun: str) -> str:
    """``runs with 6 of 8 tasks; 2 wait for room to grow into``."""
    wait = f"{waiting} wait{'s' if waiting == 1 else ''}"
    return f"runs with {wanted - waiting} of {wanted} {noun}s; {wait} for room to grow into"


def task_attempt(content: Json, role: str | None, index: int) -> tuple[str, Json]:
    """The role's name and one task's status in a job's detail; CommandError where there is none."""
    roles = content["taskRoles"]
    chosen = role or next(iter(roles), "")
    tasks = roles.get(chosen, {}).get("taskStatuses", [])
    for task in tasks:
        if task["taskIndex"] == index:
            return chosen, task
    known = ", ".join(f"{name} 0…{len(each['taskStatuses']) - 1}" for name, each in roles.items())
    raise CommandError(
        Exit.REFUSED, f"There is no task {chosen or '?'} {index}; there are: {known}."
    )


@dataclass(frozen=True)
class TaskLogs:
    """Where the logs of one attempt of a task are: which attempt of the job, which of the task."""

    job: str
    attempt: int
    role: str
    index: int
    task_attempt: int


def task_logs(content: Json, job: str, role: str | None, index: int) -> TaskLogs:
    """Those of the attempt in a job's detail; CommandError where there is no task."""
    chosen, task = task_attempt(content, role, index)
    attempt = content["jobStatus"].get("attemptId") or 0
    return TaskLogs(job, attempt, chosen, index, task.get("attemptId") or 0)


def log_target(client: Client, logs: TaskLogs, stream: str) -> str:
    """The path at the server from which a task's log is read."""
    path = job_path(
        logs.job,
        f"/attempts/{logs.attempt}/taskRoles/{logs.role}/taskIndex/{logs.index}"
        f"/attempts/{logs.task_attempt}/logs",
    )
    locations = client.get(path).json()["locations"]
    for location in locations:
        if location["name"] == stream:
            return urlsplit(str(location["uri"])).path
    names = ", ".join(each["name"] for each in locations)
    message = f"{logs.job} has no log {stream}; it has: {names or 'none yet'}."
    raise CommandError(Exit.REFUSED, message)


def task_log(client: Client, job: str, role: str | None, index: int, stream: str) -> str:
    """A task's log as it is now."""
    logs = task_logs(detail(client, job), job, role, index)
    return client.call("GET", log_target(client, logs, stream)).text()
