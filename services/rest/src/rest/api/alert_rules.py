"""Rules and actions: what administrators set, in versions; what was done, and its undo."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from muster.codes import Code, as_code
from muster.contracts.alerts import ActionName
from muster.errors import Transient
from muster.service_keys import bearer_token
from pydantic import BaseModel, ConfigDict, Field

from rest.api.config import MAX_COMMENT, MOST, ShownVersion, WholeVersion, shown_version
from rest.api.context import Address, Admin, Here, user_of
from rest.api.examples import ALERT_RULES_FILE
from rest.api.paging import Paging
from rest.api.router import new_router
from rest.api.tokens import Done
from rest.domain.callers import Caller, check_admin
from rest.domain.repairs import answered
from rest.handlers.alert_rules import Who

router = new_router("/alerts", tag="alerts")

_TEXT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "text/yaml": {"schema": {"type": "string"}, "example": ALERT_RULES_FILE},
            "application/json": {"schema": {"type": "object"}},
        },
    }
}

Comment = Annotated[
    str, Query(max_length=MAX_COMMENT, description="The reason, for the list of versions.")
]
After = Annotated[
    int | None,
    Header(
        alias="X-Follows",
        ge=0,
        le=MOST,
        description="Refuse where another version than this holds; 0: none.",
    ),
]


async def _who(caller: Admin, address: Address, comment: Comment = "", after: After = None) -> Who:
    return Who(caller, address, comment, after)


class RulesNow(BaseModel):
    """The rules that hold; null: none were set."""

    newest: WholeVersion | None


class RulesVersions(BaseModel):
    """A page of versions, newest first, and how many there are in all."""

    versions: list[ShownVersion]
    total: int


class RulesRollback(BaseModel):
    """Which version is set again."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=MOST)]
    comment: Annotated[str, Field(max_length=MAX_COMMENT)] = ""


class ShownTrial(BaseModel):
    """What a rule would have done on the last day: the alerts that it would have made, the events
    that it counted, and those that it could not evaluate.
    """

    rule: str
    fired: int
    events: int
    failed: int


class CheckedRules(BaseModel):
    """The rules can be set. ``notes``: alerts that actions wait for, and nobody knows: they may
    still come from Alertmanager.
    """

    trial: list[ShownTrial]
    notes: list[str]


class AcceptedRules(WholeVersion):
    """A version that was made, and what its rules would have done on the last day. ``notes``: as
    of a check of rules.
    """

    trial: list[ShownTrial]
    notes: list[str]


class ShownAction(BaseModel):
    """An action on an alert. ``state``: `held` (``reason`` has what it waits for), `requested`,
    `running`, `failed`, `dry-run`, `done`, `refused`, `undo-requested` or `undone`.
    """

    action: str
    rule: str
    do: ActionName
    target: str
    alert: str
    name: str
    state: Literal[
        "held",
        "requested",
        "running",
        "failed",
        "dry-run",
        "done",
        "refused",
        "undo-requested",
        "undone",
    ]
    reason: str
    at: str


ActionId = Annotated[str, Path(max_length=64, description="The action.", examples=["9c41d07a"])]


async def _answerer(request: Request) -> Caller | Code:
    code = as_code(bearer_token(request.headers.get("authorization", "")))
    if code is not None:
        return code
    caller = await user_of(request)
    check_admin(caller)
    return caller


class ScriptAnswer(BaseModel):
    """How a script has ended; ``text``: its output."""

    model_config = ConfigDict(extra="forbid")

    succeeded: bool
    text: Annotated[str, Field(max_length=65_536, examples=["GPU 3 was reset"])] = ""


class ActionPage(BaseModel):
    """A page of actions, newest first, and how many there are in all."""

    actions: list[ShownAction]
    total: int


@router.get("/rules", response_model=RulesNow)
async def get_alert_rules(here: Here, _caller: Admin) -> Response:
    """The rules that hold now."""
    newest = await here.alert_rules.newest()
    return JSONResponse({"newest": None if newest is None else shown_version(newest)})


@router.get("/rules/versions", response_model=RulesVersions)
async def list_alert_rules_versions(here: Here, _caller: Admin, page: Paging) -> Response:
    """The versions, newest first."""
    found, total = await here.alert_rules.read(page.offset, page.limit)
    versions = [shown_version(each) for each in found]
    for each in versions:
        del each["content"]
    return JSONResponse({"versions": versions, "total": total})


@router.post("/rules/check", response_model=CheckedRules, openapi_extra=_TEXT)
async def check_alert_rules(request: Request, here: Here, _caller: Admin) -> Response:
    """Check rules, and try them on the last day's events; nothing is set."""
    checked = await here.alert_rules.check(await request.body())
    return JSONResponse(checked.findings())


@router.put("/rules", status_code=202, response_model=AcceptedRules, openapi_extra=_TEXT)
async def set_alert_rules(
    request: Request, here: Here, who: Annotated[Who, Depends(_who)]
) -> Response:
    """Set all rules, as YAML or JSON. Alerting checks them and tries them on the last day's events.
    It adopts them a moment later.
    """
    made, checked = await here.alert_rules.set(await request.body(), who)
    return JSONResponse(shown_version(made) | checked.findings(), 202)


@router.post("/rules/rollback", status_code=202, response_model=AcceptedRules)
async def roll_back_alert_rules(
    wanted: RulesRollback, here: Here, caller: Admin, address: Address
) -> Response:
    """Set again what a version has, as a new version. Its trial refuses nothing."""
    who = Who(caller, address, wanted.comment)
    made, checked = await here.alert_rules.roll_back(wanted.version, who)
    return JSONResponse(shown_version(made) | checked.findings(), 202)


@router.get("/actions", response_model=ActionPage)
async def list_actions(here: Here, _caller: Admin, page: Paging) -> Response:
    """What rules did because of alerts, or would have done, newest first."""
    answer = await here.peers.ask_alerting("/actions", asdict(page))
    if answer is None:
        raise Transient("Alerting's answer can't be read. Check its version and log.")
    return JSONResponse(answer)


@router.post("/actions/{action}/answer", response_model=Done)
async def answer_action(
    action: ActionId,
    told: ScriptAnswer,
    here: Here,
    who: Annotated[Caller | Code, Depends(_answerer)],
    address: Address,
) -> Done:
    """How the script has ended that an action `remediate` waits for. The last line of its text is
    kept. The token is the `code` of the script's message, which opens nothing else, or an admin's.
    """
    ended = answered(is_success=told.succeeded, text=told.text)
    return Done(message=await here.actions.answer(action, ended, who, address))


@router.post("/actions/{action}/undo", response_model=Done)
async def undo_action(action: ActionId, here: Here, caller: Admin, address: Address) -> Done:
    """Take back what an action did to a node. An order that somebody gave since then stands. The
    rule does not repeat the action for this alert. A script or preflight job that goes on counts as
    failed; the failure of a script is set aside.
    """
    answer = await here.actions.undo(action, caller, address)
    return Done(message=answer.reason)
