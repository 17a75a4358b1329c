"""What the tasks of a job use: agents keep it for a week, and REST asks those of its nodes."""

import asyncio
from datetime import UTC, datetime
from time import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response
from muster.contracts.jobs import JobStatus
from muster.errors import Rejected, Transient
from pydantic import BaseModel, ValidationError, field_validator

from rest.api.context import Context, Here, User
from rest.api.jobs import Attempt, JobName, attempt_status, get_whole
from rest.api.models import JobUsage
from rest.domain.times import iso
from rest.domain.usage import Span, agents_of, span_of, tasks_of
from rest.domain.views import WholeJob
from rest.peers import AgentAt

router = APIRouter(prefix="/jobs", tags=["jobs"])

NO_ADDRESS = "Where its agent is read is not known (yet)."
OLDER = "Its agent keeps no figures: it is of an older version."
UNREADABLE = "The answer of its agent can't be read."
LATE = "Its agent has not answered in time."

Columns = dict[str, list[float | None]]


class AgentAnswer(BaseModel):
    """What an agent tells of its pods, by name: one list for each figure, all as long."""

    pods: dict[str, Columns]

    @field_validator("pods")
    @classmethod
    def _are_tables(cls, pods: dict[str, Columns]) -> dict[str, Columns]:
        for columns in pods.values():
            if len({len(column) for column in columns.values()}) > 1:
                raise ValueError("the lists differ in length")
        return pods


Points = Annotated[int, Query(ge=1, le=1000, description="The most points of a series.")]


@router.get("/{job}/usage", response_model=JobUsage)
async def get_job_usage(job: JobName, here: Here, caller: User, points: Points = 60) -> Response:
    """What the tasks of the latest attempt use, and have used. ``missing`` names the nodes whose
    figures are not in the answer, and why.
    """
    found = await get_whole(here, job)
    return await _usage(here, caller.username, found, found.listed.attempt, points)


@router.get("/{job}/attempts/{attempt}/usage", response_model=JobUsage)
async def get_job_attempt_usage(
    job: JobName, attempt: Attempt, here: Here, caller: User, points: Points = 60
) -> Response:
    """The same of one attempt. Agents keep figures for a week."""
    return await _usage(here, caller.username, await get_whole(here, job), attempt, points)


async def _usage(
    here: Context, username: str, job: WholeJob, attempt: int, points: int
) -> Response:
    status = await attempt_status(here, job, attempt)
    listed = job.listed
    content: dict[str, Any] = {
        "name": f"{listed.username}~{listed.name}",
        "attempt": attempt,
        "since": None,
        "until": None,
        "stepS": None,
        "tasks": [],
        "missing": [],
    }
    if status is None:  # nothing has run yet
        return JSONResponse(content)
    span = span_of(status, points, datetime.fromtimestamp(time(), UTC))
    most = here.settings.usage_answers_per_user
    with here.limits.place("reads of usage by this user", username, most):
        answers, missing = await _ask(here, status, span)
    content |= {
        "since": iso(span.since),
        "until": iso(span.until),
        "stepS": span.step_s,
        "tasks": await asyncio.to_thread(tasks_of, status, answers),
        "missing": [{"node": node, "reason": why} for node, why in sorted(missing.items())],
    }
    return JSONResponse(content)


async def _ask(
    here: Context, status: JobStatus, span: Span
) -> tuple[dict[str, Any], dict[str, str]]:
    """The pods of each node that answers, and why the others' are missing."""
    answers: dict[str, Any] = {}
    missing = dict.fromkeys(agents_of(status), LATE)
    places = asyncio.Semaphore(here.settings.usage_agents)

    async def ask(node: str, log_url: str | None) -> None:
        if log_url is None:
            missing[node] = NO_ADDRESS
            return
        try:
            async with places:
                at = AgentAt(node, log_url)
                found = await here.peers.ask_agent(at, f"/usage/{status.job}", span.query())
        except (Rejected, Transient) as error:
            missing[node] = str(error)
            return
        if found is None:
            missing[node] = OLDER
            return
        try:
            answers[node] = AgentAnswer.model_validate(found).pods
        except ValidationError:
            missing[node] = UNREADABLE
        else:
            del missing[node]

    try:
        async with asyncio.timeout(here.settings.usage_timeout_s), asyncio.TaskGroup() as group:
            for node, log_url in agents_of(status).items():
                group.create_task(ask(node, here.cluster.log_url(node) or log_url))
    except TimeoutError:
        pass  # the answer names who is missing
    return answers, missing
