"""The usage report: GPU-hours held, used, idle and refunded, by virtual cluster, user and job."""

import time
from datetime import UTC, date, datetime
from typing import Annotated, Literal

from fastapi import Query
from fastapi.responses import HTMLResponse, JSONResponse, Response
from muster.errors import Rejected

from rest.api.context import Here, User
from rest.api.models import UsageReport
from rest.api.router import new_router
from rest.domain.reports import WEEK, shortened, to_csv, to_html, to_json, week_of

AT_A_TIME = 2
"""This week's reads all open jobs and all agents."""

router = new_router("/reports", tag="reports")


@router.get("/usage", response_model=UsageReport)
async def get_usage_report(
    here: Here,
    caller: User,
    week: Annotated[
        date | None,
        Query(description="A day of the week, which begins on Monday (UTC); default: the last."),
    ] = None,
    form: Annotated[
        Literal["json", "csv", "html"], Query(alias="format", description="Of the answer.")
    ] = "json",
    limit: Annotated[
        int, Query(ge=1, le=50_000, description="The most users and jobs; CSV has all.")
    ] = 1000,
) -> Response:
    """GPU-hours of a week; of the week that has not ended, so far. `used` and `idle` are what
    agents measured, `unknown` is the rest of `held` without figures. `refunded` was lost by the
    platform's fault or to a drain.
    """
    now = datetime.fromtimestamp(time.time(), UTC)
    chosen = week_of(now - WEEK) if week is None else week_of(_noon(week))
    with (
        here.limits.place("usage reports of this user", caller.username, 1),
        here.limits.place("usage reports of all users", "", AT_A_TIME),
    ):
        made = await here.reports.of(chosen)
    if made is None:
        message = (
            f"There is no report of the week of {chosen}: Muster makes one soon after a week's end."
            f" Name a day of another week; the present one began on {week_of(now)}."
        )
        raise Rejected("NoReportError", message)
    if form == "csv":
        headers = {"Content-Disposition": f'attachment; filename="usage-{chosen}.csv"'}
        return Response(to_csv(made), media_type="text/csv", headers=headers)
    if form == "html":
        return HTMLResponse(to_html(shortened(made, limit)))
    return JSONResponse(to_json(shortened(made, limit)))


def _noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
