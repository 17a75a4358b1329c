"""What the tasks of a job use: agents keep it for a week, and REST asks those of its nodes."""

import asyncio
from datetime import UTC, datetime
from time import time
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, field_validator

from rest.api.context import Context, Here, User
from rest.api.jobs import Attempt, JobName, attempt_status, get_whole
from rest.api.models import JobUsage
from rest.api.router import new_router
from rest.domain.times import iso
from rest.domain.usage import agents_of, span_of, tasks_of
from rest.domain.views import WholeJob

router = new_router("/jobs", tag="jobs")

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


def _pods_in(answer: Any) -> dict[str, Columns]:
    return AgentAnswer.model_validate(answer).pods


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
        agents = {
            node: here.cluster.log_url(node) or log_url
            for node, log_url in agents_of(status).items()
        }
        path, query = f"/usage/{status.job}", span.query()
        answers, missing = await here.peers.ask_agents(agents, path, query, _pods_in)
    content |= {
        "since": iso(span.since),
        "until": iso(span.until),
        "stepS": span.step_s,
        "tasks": await asyncio.to_thread(tasks_of, status, answers),
        "missing": [{"node": node, "reason": why} for node, why in sorted(missing.items())],
    }
    return JSONResponse(content)
