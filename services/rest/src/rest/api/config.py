"""What administrators set of virtual clusters and policy, in versions."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from muster.errors import Problem, Rejected, Transient
from pydantic import BaseModel, ConfigDict, Field

from rest.api.context import Address, Admin, Context, Here
from rest.api.examples import CONFIG_FILE
from rest.api.models import ShownProblem
from rest.api.paging import Paging
from rest.api.router import new_router
from rest.domain.times import iso
from rest.handlers.configure import Compared, Made, RejectedFile, Who
from rest.handlers.submit import problem_json
from rest.handlers.what_if import Report
from rest.store.versions import Version

router = new_router("/cluster/config", tag="cluster")

MAX_COMMENT = 1000
MOST = 2**53
"""Above any version."""

_ETAG = re.compile(r'(?:W/)?"?([0-9]{1,15})"?')

_TEXT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "text/yaml": {"schema": {"type": "string"}, "example": CONFIG_FILE},
            "application/json": {"schema": {"type": "object"}},
        },
    }
}

Number = Annotated[int, Path(ge=1, le=MOST, description="The version.", examples=[3])]
IfMatch = Annotated[
    str | None,
    Header(
        max_length=64, description="The version that the change follows, as in `ETag`; 0: none."
    ),
]
Comment = Annotated[
    str, Query(max_length=MAX_COMMENT, description="The reason, for the list of versions.")
]


class ShownVersion(BaseModel):
    """A version. ``action``: `set`, `rollback` (to ``rolledBackTo``), or `remove`: nothing is set
    by it any more.
    """

    version: int
    action: Literal["set", "rollback", "remove"]
    by: str
    at: str
    comment: str
    rolledBackTo: int | None


class WholeVersion(ShownVersion):
    """A version with what it sets; null: nothing."""

    content: dict[str, Any] | None


class ShownWhatIf(BaseModel):
    """What a change would have made of the last days. ``state``: ``done``, with a ``report``;
    ``none`` (nothing was recorded, or it is what holds) or ``failed``, with a ``reason``;
    ``running``: ask again; ``skipped``: it was set without. ``needsAcceptance``: it delays more
    than is set without `acceptDelays`.
    """

    state: Literal["done", "none", "failed", "running", "skipped"]
    reason: str | None
    needsAcceptance: bool
    report: Report | None


class ShownComparison(ShownWhatIf):
    """The same for a change that is not made, with the ``warnings`` that it would have."""

    warnings: list[ShownProblem]


class AcceptedVersion(WholeVersion):
    """A version that was made. ``warnings``: what in it has no effect, or may not be meant.
    ``whatIf``: what it would have made of the last days.
    """

    warnings: list[ShownProblem]
    whatIf: ShownWhatIf


class ShownRunning(BaseModel):
    """What the Scheduler's cluster is made of, as of its cycle ``asOf``: this ``version`` (null:
    the cluster's file or the nodes alone). ``isTaken``: it is the newest one; else ``problems`` say
    why not, or it is on its way. ``inForce``: virtual clusters and policy as they are, wherever
    they come from. ``rejectedFile``: the cluster's file was changed and is wrong; null: it is not.
    """

    asOf: int
    isTaken: bool
    version: int | None
    problems: list[ShownProblem]
    inForce: dict[str, Any]
    rejectedFile: RejectedFile | None = None


class ShownConfig(BaseModel):
    """What holds now; without a ``version`` (0) nothing was set ever. ``scheduler``: what it runs;
    null where it can't be asked, and then ``schedulerProblem`` says why.
    """

    version: int
    newest: WholeVersion | None
    scheduler: ShownRunning | None
    schedulerProblem: str | None


class VersionList(BaseModel):
    """A page of the versions, newest first, and how many are kept."""

    versions: list[ShownVersion]
    total: int


class Rollback(BaseModel):
    """Which version's content is to be set again."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=MOST)]
    comment: Annotated[str, Field(max_length=MAX_COMMENT)] = ""
    whatIf: bool = True
    acceptDelays: bool = False


def _after(if_match: str | None) -> int:
    """The version that a change is to follow. Raises Rejected."""
    if if_match is None:
        message = "The header If-Match is missing: send the current version, or 0 without one."
        raise Rejected("NoVersionError", message)
    found = _ETAG.fullmatch(if_match.strip())
    if found is None:
        message = "If-Match must be a version number, as in `ETag`."
        raise Rejected("InvalidParametersError", message)
    return int(found[1])


async def _asked(
    caller: Admin, address: Address, comment: Comment = "", if_match: IfMatch = None
) -> Who:
    return Who(caller, address, _after(if_match), comment)


Asked = Annotated[Who, Depends(_asked)]


async def _accepting(
    asked: Asked,
    what_if: Annotated[
        bool, Query(alias="whatIf", description="Compute the effect on the last days first.")
    ] = True,
    accept_delays: Annotated[
        bool, Query(alias="acceptDelays", description="Change it even if gangs are delayed much.")
    ] = False,
) -> Who:
    return replace(asked, asks_what_if=what_if, accepts_delays=accept_delays)


Accepting = Annotated[Who, Depends(_accepting)]


@router.get("", response_model=ShownConfig)
async def get_cluster_config(here: Here, _caller: Admin) -> Response:
    """The configuration of virtual clusters and policy, its author, and whether the Scheduler
    uses it. Pass the `ETag` as `If-Match` of a change.
    """
    newest = await here.configuration.newest()
    running, problem = await _running(here, newest)
    number = 0 if newest is None else newest.number
    content = {
        "version": number,
        "newest": None if newest is None else shown_version(newest),
        "scheduler": running,
        "schedulerProblem": problem,
    }
    return JSONResponse(content, headers=_etag(number))


@router.get("/versions", response_model=VersionList)
async def list_config_versions(here: Here, _caller: Admin, page: Paging) -> Response:
    """The versions that are kept, without what they set."""
    found, total = await here.configuration.read(page.offset, page.limit)
    return JSONResponse({"versions": [_shown(each) for each in found], "total": total})


@router.get("/versions/{number}", response_model=WholeVersion)
async def get_config_version(number: Number, here: Here, _caller: Admin) -> Response:
    """One version."""
    return JSONResponse(shown_version(await here.configuration.find(number)))


@router.put("", status_code=202, response_model=AcceptedVersion, openapi_extra=_TEXT)
async def set_cluster_config(request: Request, here: Here, asked: Accepting) -> Response:
    """Set `virtualClusters`, `policy`, or both, each whole, as in a cluster's file (YAML or JSON).
    A part that is not set comes from the file, or from the nodes. The change is checked against
    the present hardware, and the Scheduler adopts it a moment later. Running gangs continue.
    `If-Match`: the version that it follows, 0 if there is none. First its effect on the last days
    is computed. The change is refused while that takes longer (ask again). It is refused if gangs
    would have been delayed much, unless with `acceptDelays=true`. `whatIf=false` skips this.
    """
    return _accepted(await here.configuration.set(await request.body(), asked))


@router.post("/what-if", response_model=ShownComparison, openapi_extra=_TEXT)
async def compare_cluster_config(request: Request, here: Here, _caller: Admin) -> Response:
    """What such a text would have made of the last days, by virtual cluster and user. Nothing is
    set. While it is looked at the answer is `running`: ask the same again in some seconds.
    """
    return _compared(await here.configuration.what_if(await request.body()))


@router.post("/removal/what-if", response_model=ShownComparison)
async def compare_config_removal(here: Here, _caller: Admin) -> Response:
    """The same of nothing being set any more."""
    return _compared(await here.configuration.what_if_removed())


@router.post("/versions/{number}/what-if", response_model=ShownComparison)
async def compare_config_version(number: Number, here: Here, _caller: Admin) -> Response:
    """The same of what a version has."""
    return _compared(await here.configuration.what_if_again(number))


@router.post("/rollback", status_code=202, response_model=AcceptedVersion)
async def roll_back_cluster_config(
    wanted: Rollback, here: Here, caller: Admin, address: Address, if_match: IfMatch = None
) -> Response:
    """Set again what a version has set, as a new version, checked and compared like any other."""
    after, asks, accepts = _after(if_match), wanted.whatIf, wanted.acceptDelays
    who = Who(caller, address, after, wanted.comment, asks, accepts)
    return _accepted(await here.configuration.roll_back(wanted.version, who))


@router.delete("", status_code=202, response_model=AcceptedVersion)
async def remove_cluster_config(here: Here, asked: Accepting) -> Response:
    """Set nothing any more: what the cluster's file, or the nodes, say holds again. It is a version
    too, and compared before like any other.
    """
    return _accepted(await here.configuration.remove(asked))


async def _running(
    here: Context, newest: Version | None
) -> tuple[dict[str, Any] | None, str | None]:
    try:
        running = await here.configuration.running()
    except (Rejected, Transient) as error:
        return None, str(error)
    revision = None if newest is None else newest.revision
    content = {
        "asOf": running.asOf,
        "isTaken": running.revision == revision and running.isHonoured,
        "version": running.version if running.isHonoured else None,
        "problems": [each.model_dump() for each in running.problems],
        "inForce": running.inForce,
        "rejectedFile": running.rejectedFile and running.rejectedFile.model_dump(),
    }
    return content, None


def _etag(number: int) -> dict[str, str]:
    return {"ETag": f'"{number}"'}


def _compared(found: Compared) -> Response:
    return JSONResponse(found.what_if.content | {"warnings": _shown_problems(found.warnings)})


def _shown_problems(warnings: Iterable[Problem]) -> list[dict[str, Any]]:
    return [problem_json(each) for each in warnings]


def _accepted(made: Made) -> Response:
    content = shown_version(made.version) | {
        "warnings": _shown_problems(made.warnings),
        "whatIf": made.what_if.content,
    }
    return JSONResponse(content, 202, _etag(made.version.number))


def shown_version(version: Version) -> dict[str, Any]:
    """A version with its content, as answers have it."""
    return _shown(version) | {"content": version.change.content}


def _shown(version: Version) -> dict[str, Any]:
    change = version.change
    action = "set" if change.content is not None else "remove"
    return {
        "version": version.number,
        "action": action if change.rolled_back_to is None else "rollback",
        "by": change.by,
        "at": iso(version.at),
        "comment": change.comment,
        "rolledBackTo": change.rolled_back_to,
    }
