"""Tags of jobs: the owner and administrators give and remove them, rules give them."""

from dataclasses import dataclass

from muster.db import Connection, Pool, transaction

from rest.domain.callers import Caller, check_owner
from rest.domain.tags import with_tag, without_tag
from rest.handlers.order import By
from rest.handlers.stop import no_job
from rest.store import accounts, audit
from rest.store.jobs import TaggedJob, lock_tags, save_tags


@dataclass(frozen=True, slots=True)
class TagChange:
    """A tag that a job is to have, or not to have any more."""

    username: str
    job_name: str
    tag: str
    is_on: bool = True


async def set_tag(pool: Pool, caller: Caller, address: str, wanted: TagChange) -> None:
    """Tag a job, or remove the tag. Raises Rejected: no such job, not the caller's, too many tags,
    or no such tag.
    """
    async with transaction(pool) as conn:
        await accounts.check_rights(conn, caller)
        found = await _lock(conn, wanted)
        check_owner(caller, wanted.username, f"The job {wanted.username}~{wanted.job_name}")
        await _change(conn, found, wanted, By(caller.username, address))


async def tag_for_alert(conn: Connection, wanted: TagChange, by: By) -> None:
    """Tag a job because of an alert. Raises Rejected: no such job, or too many tags."""
    await _change(conn, await _lock(conn, wanted), wanted, by)


async def _lock(conn: Connection, wanted: TagChange) -> TaggedJob:
    found = await lock_tags(conn, wanted.username, wanted.job_name)
    if found is None:
        raise no_job(wanted.username, wanted.job_name)
    return found


async def _change(conn: Connection, job: TaggedJob, wanted: TagChange, by: By) -> None:
    after = (with_tag if wanted.is_on else without_tag)(job.tags, wanted.tag)
    if after == job.tags:
        return
    await save_tags(conn, job.id, after)
    action = "job.tag" if wanted.is_on else "job.untag"
    detail = {"job": job.id, "tag": wanted.tag} | (by.detail or {})
    target = f"{wanted.username}~{wanted.job_name}"
    await audit.record(conn, [audit.Entry(by.username, action, target, by.address, detail)])
