"""Jobs: submit, list, look, stop."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request
from fastapi.responses import JSONResponse, Response
from muster.contracts.jobs import Execution, JobStatus
from muster.contracts.node_access import needs_host
from muster.contracts.storages import StorageMount
from muster.errors import Problem, Rejected, Transient
from muster.protocol import IMAGE_WITHOUT_EFFECT, ParsedJob, ProtocolError, parse_job
from muster.settings import names_in
from muster.telemetry import current_traceparent
from pydantic import BaseModel, ConfigDict, Field

from rest.api.context import (
    Address,
    Context,
    Here,
    User,
    address_of,
    context_of,
    user_of,
)
from rest.api.examples import JOB_FILE
from rest.api.models import JobDetail, JobList, JobListItem, Submitted
from rest.api.paging import Paging
from rest.api.router import new_router
from rest.api.scheduling import Why
from rest.api.tokens import Done
from rest.domain.callers import Caller, check_admin
from rest.domain.listing import (
    ORDER_FIELDS,
    PRIORITIES,
    STATES,
    Listing,
    check_known,
    read_order,
    split,
)
from rest.domain.preflights import on_node
from rest.domain.storages import check_claims, mounts_of, without_claim
from rest.domain.tags import MAX_CHARACTERS, TAG
from rest.domain.views import ListedJob, WholeJob, attempt_state, detail, list_item, verdict_reason
from rest.domain.virtual_clusters import (
    check_node_access,
    check_priority,
    check_requests,
    check_virtual_cluster,
)
from rest.handlers.order import no_node
from rest.handlers.stop import no_job, set_execution
from rest.handlers.submit import Submission, check_secrets, key_of, repeated_answer
from rest.handlers.tag import TagChange, set_tag
from rest.store import answers, storages, subscriptions
from rest.store import jobs as stored
from rest.store.jobs import find_attempt, find_config, find_job, list_attempts

router = new_router("/jobs", tag="jobs")

_REACHES_NOBODY = Problem(
    "extras.jobStatusChangeNotification",
    "reaches nobody yet: your account has no confirmed mail address and you have no subscription;"
    " set an address with `muster users set`",
)
PARSE_IN_THREAD_BYTES = 32 * 1024
"""A larger file is parsed beside the loop, so that others need not wait for it."""

RENDER_IN_THREAD_JOBS = 1000
"""A longer page is made beside the loop: 50,000 jobs take a second."""

JobName = Annotated[str, Path(max_length=400, description="`user~name`", examples=["admin~my_job"])]
Attempt = Annotated[int, Path(ge=0, le=2**31 - 1, description="The job's attempt, from 0.")]

MAX_KEY_CHARACTERS = 255

_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"text/yaml": {"schema": {"type": "string"}, "example": JOB_FILE}},
    },
    "parameters": [
        {
            "name": "idempotency-key",
            "in": "header",
            "required": False,
            "description": "Names the submission: a repetition gets the first one's answer.",
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARACTERS},
        },
        {
            "name": "node",
            "in": "query",
            "required": False,
            "description": "Admins: test this node. The job runs only there, even if the node is"
            " cordoned or drained, and it is opportunistic.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        },
    ],
}


class ExecutionType(BaseModel):
    """What is wanted of a job."""

    model_config = ConfigDict(extra="forbid")

    value: Literal["START", "STOP"]


class Tag(BaseModel):
    """A tag of a job. Lists of tags are separated by commas, so it has none."""

    model_config = ConfigDict(extra="forbid")

    value: Annotated[
        str, Field(min_length=1, max_length=MAX_CHARACTERS, pattern=TAG, examples=["baseline"])
    ]


def split_name(job: str) -> tuple[str, str]:
    """User and name of a job. Raises Rejected."""
    username, separator, name = job.partition("~")
    if not separator:
        raise Rejected("NoJobError", f"A job is named user~name; {job[:80]} is not.")
    return username, name


async def get_whole(here: Context, job: str) -> WholeJob:
    """A job. Raises Rejected."""
    username, name = split_name(job)
    found = await find_job(here.pool, username, name)
    if found is None:
        raise no_job(username[:80], name[:80])
    return found


def status_of(job: WholeJob) -> JobStatus | None:
    """The Launcher's latest message about a job."""
    return None if job.status is None else JobStatus.model_validate(job.status)


@router.post("", status_code=202, response_model=Submitted, openapi_extra=_FILE)
async def submit_job(request: Request) -> Response:
    """Submit a job file. The same Idempotency-Key with the same file gives the same answer again
    and makes no second job.
    """
    # Asked for by hand: FastAPI's resolving of these few would cost a tenth of a submission.
    here, caller = await context_of(request), await user_of(request)
    idempotency_key, node = _idempotency_key(request), request.query_params.get("node")
    if node is not None:
        check_admin(caller)
    data = await request.body()
    try:
        job = await _parsed(here, data)
    except ProtocolError:
        here.metrics.submissions.labels("invalid").inc()
        raise
    # A slow body may have outlasted the caller's rights.
    caller = await user_of(request)
    if node is not None:
        check_admin(caller)
        if here.cluster.node(node) is None:
            raise no_node(node)
        job = on_node(job, node)
    try:
        warnings = await _check_cluster(here, caller, job)
        mounts = await _mounts(here, caller, job)
    except Rejected:
        key = key_of(caller.username, idempotency_key, job)
        known = None if key is None else await answers.find(here.pool, key)
        if key is None or known is None:
            here.metrics.submissions.labels("invalid").inc()
            raise
        return Response(repeated_answer(key, known), 202, media_type="application/json")
    if here.settings.kube_api_url is not None:
        warnings = (*warnings, *without_claim(job, mounts))
    if job.spec.notify and not await subscriptions.can_notify(here.pool, caller.username):
        warnings = (*warnings, _REACHES_NOBODY)
    spec = job.spec.model_copy(update={"user_number": caller.number, "mounts": mounts})
    submission = Submission(
        username=caller.username,
        address=await address_of(request),
        job=replace(job, spec=spec),
        key=idempotency_key,
        traceparent=current_traceparent(),
        warnings=warnings,
    )
    answer = await here.submissions.submit(submission)
    return Response(answer, 202, media_type="application/json")


async def _parsed(here: Context, data: bytes) -> ParsedJob:
    """The job in a file, without a warning that is none on this cluster. Raises ProtocolError."""
    if len(data) > PARSE_IN_THREAD_BYTES:
        job = await asyncio.to_thread(parse_job, data)
    else:
        job = parse_job(data)
    if here.settings.kube_api_url is None:
        return job
    meant = tuple(each for each in job.warnings if each.message != IMAGE_WITHOUT_EFFECT)
    return replace(job, warnings=meant)


async def _check_cluster(here: Context, caller: Caller, job: ParsedJob) -> tuple[Problem, ...]:
    """What the job requests without effect. Raises Rejected where it names what does not exist, or
    what its user may not use.
    """
    check_secrets(job, here.settings.secrets_public_key)
    known = await here.virtual_clusters.having(job.spec.virtual_cluster)
    check_virtual_cluster(job, caller, known)
    permitted = here.settings.kube_host_network
    check_node_access(job, None if permitted is None else frozenset(names_in(permitted)))
    check_priority(job, caller, here.settings.priority_cap)
    return check_requests(job, known)


async def _mounts(here: Context, caller: Caller, job: ParsedJob) -> tuple[StorageMount, ...]:
    """The storages that the job's tasks mount. Raises Rejected."""
    if job.storages is None and not job.data:
        return ()
    mounts = mounts_of(job, caller, await storages.read(here.pool))
    known = here.settings
    roles = job.spec.task_roles
    is_of_host = needs_host((role.instances for role in roles), (role.resources for role in roles))
    namespace = known.kube_host_namespace if is_of_host else known.kube_namespace
    claims = [mount.claim for mount in mounts if mount.claim]
    with contextlib.suppress(Transient):  # agents ask again before they create pods
        check_claims(job, mounts, await here.claims.unbound(claims, namespace))
    return mounts


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is None or 1 <= len(key) <= MAX_KEY_CHARACTERS:
        return key
    problem = Problem("idempotency-key", f"must have 1 to {MAX_KEY_CHARACTERS} characters")
    message = f"The header `{problem.path}` {problem.message}."
    raise Rejected("InvalidParametersError", message, (problem,))


def _comma_list(of: str, most: int, alias: str | None = None) -> Any:
    return Query(max_length=most, alias=alias, description=f"{of}: a comma list.")


@router.get("", response_model=list[JobListItem] | JobList)
async def list_jobs(  # noqa: PLR0913 - OpenPAI's query has these parameters
    here: Here,
    _caller: User,
    page: Paging,
    username: Annotated[str | None, _comma_list("Owners", 2000)] = None,
    vc: Annotated[str | None, _comma_list("Virtual clusters", 2000)] = None,
    state: Annotated[str | None, _comma_list(f"Of {', '.join(STATES)}", 2000)] = None,
    keyword: Annotated[
        str | None,
        Query(max_length=255, description="A part of the name of job, owner or virtual cluster."),
    ] = None,
    tags_contain: Annotated[str | None, _comma_list("Tags", 2000, "tagsContain")] = None,
    tags_not_contain: Annotated[
        str | None, _comma_list("Tags that jobs lack", 2000, "tagsNotContain")
    ] = None,
    job_priority: Annotated[
        str | None, _comma_list(f"Of {', '.join(PRIORITIES)}", 255, "jobPriority")
    ] = None,
    order: Annotated[
        str | None,
        Query(
            max_length=80,
            description=f"A field and ASC or DESC, by comma. Fields: {', '.join(ORDER_FIELDS)}.",
            examples=["submissionTime,DESC"],
        ),
    ] = None,
    with_total_count: Annotated[
        bool, Query(alias="withTotalCount", description="Answer an object with `totalCount`.")
    ] = False,
) -> Response:
    """Jobs, newest first by default. Within a list any entry counts; all filters must hold."""
    field, is_descending = read_order(order)
    listing = Listing(
        usernames=split(username),
        virtual_clusters=split(vc),
        states=split(state),
        priorities=split(job_priority),
        keyword=keyword or None,
        tags=split(tags_contain),
        no_tags=split(tags_not_contain),
        order=field,
        is_descending=is_descending,
        offset=page.offset,
        limit=page.limit,
        with_total_count=with_total_count,
    )
    check_known("state", listing.states, STATES)
    check_known("jobPriority", listing.priorities, PRIORITIES)
    jobs, total = await stored.list_jobs(here.pool, listing)
    if len(jobs) > RENDER_IN_THREAD_JOBS:
        return await asyncio.to_thread(_page, jobs, total)
    return _page(jobs, total)


def _page(jobs: Sequence[ListedJob], total: int | None) -> Response:
    items = [list_item(job) for job in jobs]
    return JSONResponse(items if total is None else {"totalCount": total, "data": items})


@router.get("/{job}", response_model=JobDetail)
async def get_job(job: JobName, here: Here, _caller: User) -> Response:
    """A job and the tasks of its latest attempt."""
    found = await get_whole(here, job)
    return JSONResponse(detail(found, status_of(found)))


@router.get("/{job}/attempts/{attempt}", response_model=JobDetail)
async def get_job_attempt(job: JobName, attempt: Attempt, here: Here, _caller: User) -> Response:
    """One attempt of a job."""
    found = await get_whole(here, job)
    status = await attempt_status(here, found, attempt)
    if attempt == found.listed.attempt or status is None:
        return JSONResponse(detail(found, status))
    return JSONResponse(detail(found, status, attempt_state(status)))


async def attempt_status(here: Context, job: WholeJob, attempt: int) -> JobStatus | None:
    """The latest status of an attempt; None before the first one is published.

    Raises Rejected where there is no such attempt.
    """
    if attempt == job.listed.attempt:
        return status_of(job)
    stored = await find_attempt(here.pool, job.listed.id, attempt)
    if stored is None:
        known = sorted({*await list_attempts(here.pool, job.listed.id), job.listed.attempt})
        message = (
            f"{job.listed.username}~{job.listed.name} has no attempt {attempt};"
            f" the newest are {', '.join(map(str, known))}."
        )
        raise Rejected("NoJobError", message)
    return JobStatus.model_validate(stored)


@router.get(
    "/{job}/config",
    response_class=Response,
    responses={
        200: {"content": {"text/yaml": {"schema": {"type": "string"}, "example": JOB_FILE}}}
    },
)
async def get_job_config(job: JobName, here: Here, _caller: User) -> Response:
    """The job file as it was sent, with `******` in place of each secret."""
    username, name = split_name(job)
    config = await find_config(here.pool, username, name)
    if config is None:
        raise no_job(username[:80], name[:80])
    return Response(config, media_type="text/yaml")


@router.put("/{job}/executionType", status_code=202, response_model=Done)
async def set_job_execution_type(
    job: JobName, wanted: ExecutionType, here: Here, caller: User, address: Address
) -> Done:
    """Stop a job. What was stopped can't be started again."""
    username, name = split_name(job)
    target = (username, name, Execution(wanted.value))
    found = await set_execution(here.relay, caller, address, target)
    if target[2] is Execution.START:
        message = f"started before; it is {found.state.value}"
    elif found.execution is Execution.STOP:
        message = f"stop requested before; it is {found.state.value}"
    else:
        message = f"stop requested (was {found.state.value})"
    return Done(message=f"{username}~{name}: {message}.")


@router.put("/{job}/tag", response_model=Done)
async def tag_job(job: JobName, tag: Tag, here: Here, caller: User, address: Address) -> Done:
    """Give a job a tag, by which lists can be filtered; a tag that it has changes nothing."""
    await set_tag(here.pool, caller, address, TagChange(*split_name(job), tag.value))
    return Done(message=f"{job} has the tag {tag.value}.")


@router.delete("/{job}/tag", response_model=Done)
async def untag_job(job: JobName, tag: Tag, here: Here, caller: User, address: Address) -> Done:
    """Remove a tag of a job."""
    await set_tag(here.pool, caller, address, TagChange(*split_name(job), tag.value, is_on=False))
    return Done(message=f"{job} has the tag {tag.value} no more.")


def _why_it_waits(scheduler: Any) -> Any:
    """The Scheduler's answer about the first waiting gang, newer than the job's; None: it
    has none.
    """
    gangs = scheduler.get("gangs") if isinstance(scheduler, dict) else None
    waiting = (gang for gang in gangs or () if gang.get("state") != "placed")
    return next((gang["reason"] for gang in waiting if gang.get("reason")), None)


@router.get("/{job}/why", response_model=Why)
async def explain_job(job: JobName, here: Here, _caller: User) -> Response:
    """Why a job waits, or ended as it did; of one that waits or runs, also what the Scheduler says
    of it. Where it does not answer, `schedulerProblem` says that this part is missing.
    """
    listed = (found := await get_whole(here, job)).listed
    scheduler, problem = None, None
    if listed.state in ("WAITING", "RUNNING"):
        try:
            scheduler = await here.peers.ask_scheduler(f"/jobs/{listed.id}/why")
        except Transient as error:
            problem = f"The Scheduler's part of the answer is missing. {error}"
    latest = _why_it_waits(scheduler) if listed.state == "WAITING" else None
    content = {
        "name": f"{listed.username}~{listed.name}",
        "state": listed.state,
        "reason": latest or found.reason or verdict_reason(status_of(found)),
        "scheduler": scheduler,
        "schedulerProblem": problem,
    }
    return JSONResponse(content)
