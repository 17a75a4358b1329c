"""Alerts: what fires now, and what was resolved in the last days."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from fastapi.responses import JSONResponse, Response
from muster.errors import Transient
from pydantic import BaseModel

from rest.api.context import Here, User
from rest.api.paging import Paging
from rest.api.router import new_router
from rest.domain.callers import Caller

router = new_router("/alerts", tag="alerts")


class ShownAlert(BaseModel):
    """A condition that holds since ``startsAt``, or held until ``endsAt``. ``alert`` is the same
    each time that it holds for the same labels. ``source``: who found it: `alerting` in what
    services publish, a `node`'s agent, a `rule` or `alertmanager`. ``runbook``: where it says what
    to do.
    """

    alert: str
    name: str
    state: Literal["firing", "resolved"]
    severity: Literal["info", "warning", "critical"]
    summary: str
    labels: dict[str, str]
    source: Literal["alerting", "node", "rule", "alertmanager"]
    runbook: str | None
    startsAt: str
    endsAt: str | None


class AlertPage(BaseModel):
    """A page of alerts, firing ones first, each newest first, and how many there are in all.
    ``note``: which of them a user does not see who asked for others' alerts.
    """

    alerts: list[ShownAlert]
    total: int
    note: str | None


def _exact(what: str) -> Any:
    return Query(max_length=255, description=f"Only alerts with this {what}.")


ABOUT_JOB = "Only alerts about this job: its id or `user~name`."


@dataclass(frozen=True, slots=True)
class Filter:
    """Which alerts; what is not given takes all."""

    state: Annotated[
        Literal["firing", "resolved"] | None, Query(description="Only such alerts.")
    ] = None
    severity: Annotated[
        Literal["info", "warning", "critical"] | None, Query(description="Only such alerts.")
    ] = None
    name: Annotated[str | None, _exact("name")] = None
    source: Annotated[str | None, _exact("source")] = None
    user: Annotated[str | None, _exact("user of the job")] = None
    job: Annotated[str | None, Query(max_length=512, description=ABOUT_JOB)] = None
    node: Annotated[str | None, _exact("node")] = None


@router.get("", response_model=AlertPage)
async def list_alerts(
    here: Here, caller: User, page: Paging, asked: Annotated[Filter, Depends()]
) -> Response:
    """Firing alerts, and those that were resolved in the last days. Users see the alerts about
    their own jobs and about virtual clusters that they own, admins all.
    """
    given = {key: value for key, value in asdict(asked).items() if value is not None}
    query = asdict(page) | given
    if not caller.is_admin:
        owned = ",".join(sorted(caller.owned_virtual_clusters))
        query |= {"seenBy": caller.username, "virtualClusters": owned}
    answer = await here.peers.ask_alerting("/alerts", query)
    if answer is None:
        raise Transient("Alerting's answer can't be read. Check its version and log.")
    return JSONResponse(answer | {"note": _left_out(caller, asked)})


def _left_out(caller: Caller, asked: Filter) -> str | None:
    """What a user has to know who asks for alerts beyond their rights."""
    user, tilde, _ = (asked.job or "").partition("~")
    is_others = asked.user not in (None, caller.username)
    is_others = is_others or bool(tilde and user != caller.username)
    if caller.is_admin or not (is_others or asked.node or asked.source == "node"):
        return None
    owned = ", ".join(sorted(caller.owned_virtual_clusters))
    more = f" and of the virtual clusters that you own ({owned})" if owned else ""
    return f"You see the alerts of your own jobs{more}. Administrators see all."
