"""Mutes: no messages about an alert or a job until a time. The list of alerts shows them still."""

import secrets
import time
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Self

from fastapi import Path
from muster.contracts.alerts import Mute
from muster.db import Connection, transaction
from muster.errors import Problem, Rejected, Transient
from muster.ids import new_id
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from rest.api.context import Address, Context, Here, User
from rest.api.paging import Paging
from rest.api.router import new_router
from rest.api.tokens import Done
from rest.domain.callers import Caller, check_admin, check_owner
from rest.domain.times import iso
from rest.handlers.alert_rules import no_such
from rest.store import accounts, audit, jobs, mutes

router = new_router("/alerts/mutes", tag="alerts")

MAX_MUTES = 100
"""Of one user, and of all administrators for everybody."""
MAX_PUBLISHED = 1000
"""The same, with those that are over and still published."""
NEWEST_JOBS = 1000
"""The jobs among which a name that no job has is looked for."""
NEAR = 3
"""The most names that are suggested."""
LONGEST = timedelta(days=90)
CLOCKS = timedelta(minutes=5)
"""By so much a client's clock may be ahead of ours."""

Text = Annotated[str, Field(min_length=1, max_length=255)]


class MuteRequest(BaseModel):
    """What is muted: ``alert``, its name or identity or an event's name, or ``job``, as
    ``user~name``. ``own``: an admin's mute is for their own subscriptions only; a user's always is.
    """

    model_config = ConfigDict(extra="forbid")

    alert: Text | None = None
    job: Text | None = None
    until: AwareDatetime
    comment: Annotated[str, Field(max_length=1000)] = ""
    own: bool = False

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.alert is None) == (self.job is None):
            raise ValueError("name one thing: either alert or job")
        return self


class ShownMute(BaseModel):
    """A mute. ``owner``: whose messages it holds back; null: everybody's."""

    id: str
    owner: str | None
    alert: str | None
    job: str | None
    until: str
    by: str
    comment: str


class MadeMute(ShownMute):
    """A mute. ``note``: no alert, event or job of its name is known, and which are like it."""

    note: str | None = None


class MutePage(BaseModel):
    """A page of mutes, oldest first, and how many there are in all."""

    mutes: list[ShownMute]
    total: int


@router.get("", response_model=MutePage)
async def list_mutes(here: Here, caller: User, page: Paging) -> MutePage:
    """One's own mutes; an admin sees all."""
    owner = None if caller.is_admin else caller.username
    async with here.pool.acquire() as conn:
        found = await mutes.list_mutes(conn, owner, page.offset, page.limit)
        total = await mutes.count_mutes(conn, owner)
    return MutePage(mutes=[_shown(each) for each in found], total=total)


@router.post("", status_code=201, response_model=MadeMute)
async def create_mute(wanted: MuteRequest, here: Here, caller: User, address: Address) -> MadeMute:
    """Hold messages back until a time. A user's mute is for their own subscriptions. An admin's is
    for everybody, or with `own` for their own subscriptions. `note` warns of a name that nobody
    knows: such an alert may still come from Alertmanager, and such a job may be submitted.
    """
    note = await _note_on(here, wanted)
    owner = None if caller.is_admin and not wanted.own else caller.username
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        _check_time(wanted.until, await conn.fetchval("SELECT now()"))
        await _check_count(here, conn, owner)
        mute = Mute(
            id=new_id(time.time_ns() // 1_000_000, secrets.randbits(80)),
            owner=owner,
            alert=wanted.alert,
            job=wanted.job,
            until=wanted.until.astimezone(UTC),
            by=caller.username,
            comment=wanted.comment,
        )
        await mutes.insert_mute(conn, mute)
        await _note(conn, caller, "mute.create", mute, address)
    here.publisher.wake()
    return MadeMute(**_shown(mute).model_dump(), note=note)


@router.delete("/{ident}", response_model=Done)
async def delete_mute(
    ident: Annotated[str, Path(max_length=64, description="The mute's id.")],
    here: Here,
    caller: User,
    address: Address,
) -> Done:
    """End a mute before its time."""
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        mute = await mutes.lock_mute(conn, ident)
        if mute is None:
            raise Rejected("NoMuteError", f"There is no mute {ident}.")
        _check_may(caller, mute)
        await mutes.remove_mute(conn, ident)
        await _note(conn, caller, "mute.remove", mute, address)
    here.publisher.wake()
    return Done(message="The mute has ended.")


async def _note_on(here: Context, wanted: MuteRequest) -> str | None:
    """What to know about a name that nobody knows."""
    if wanted.job is not None:
        what, name, near = "job", wanted.job, await _nearest_jobs(here, wanted.job)
    else:
        what, name = "alert or event", wanted.alert or ""
        near = await _nearest_alerts(here, name)
    if near is None:
        return None
    fault = no_such(what, name, near)
    return f"{fault[:1].upper()}{fault[1:]} The mute holds all the same."


async def _nearest_alerts(here: Context, alert: str) -> list[str] | None:
    """None: there is such an alert or event, or Alerting does not answer."""
    try:
        found = await here.peers.ask_alerting("/alerts/names", {"like": alert})
    except (Rejected, Transient):
        return None
    return list(found["nearest"]) if found and not found.get("isKnown", True) else None


async def _nearest_jobs(here: Context, job: str) -> list[str] | None:
    """Those of the same name first, which are of other users. None: there is such a job."""
    user, _, name = job.rpartition("~")
    async with here.pool.acquire() as conn:
        if await jobs.is_there(conn, user, name):
            return None
        newest = await jobs.newest_names(conn, NEWEST_JOBS)
    same = [it for it in newest if it.endswith(f"~{name}")]
    return list(dict.fromkeys((*same, *get_close_matches(job, newest, NEAR))))[:NEAR]


def _check_time(until: datetime, now: datetime) -> None:
    if not now < until <= now + LONGEST + CLOCKS:
        problem = Problem("until", f"must be within the next {LONGEST.days} days")
        raise Rejected("InvalidParametersError", f"`until` {problem.message}.", (problem,))


async def _check_count(here: Context, conn: Connection, owner: str | None) -> None:
    """Raises Rejected where there may be no more. Others who count meanwhile wait."""
    standing, published = await mutes.count_of_owner(conn, owner)
    message = None
    if standing >= MAX_MUTES:
        message = f"There are {MAX_MUTES} mutes, the limit; remove one."
    elif published >= MAX_PUBLISHED:
        message = (
            f"{MAX_PUBLISHED} mutes were made, the limit; each counts for"
            f" {here.settings.removed_days} days after its end (MUSTER_REMOVED_DAYS)."
        )
    if message is not None:
        raise Rejected("InvalidParametersError", message)


def _check_may(caller: Caller, mute: Mute) -> None:
    if mute.owner is None:
        check_admin(caller)
    else:
        check_owner(caller, mute.owner, "The mute")


async def _note(conn: Connection, caller: Caller, action: str, mute: Mute, address: str) -> None:
    what = mute.alert or mute.job or ""
    detail = {"owner": mute.owner}
    await audit.record(conn, [audit.Entry(caller.username, action, what, address, detail)])


def _shown(mute: Mute) -> ShownMute:
    return ShownMute(**mute.model_dump(exclude={"until"}), until=iso(mute.until) or "")
