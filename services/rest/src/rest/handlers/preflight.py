"""Preflight jobs of nodes, as administrators have set them in rules. Each belongs to the author of
the rules.
"""

import re
from dataclasses import replace
from typing import Any

from muster.contracts.alerts import REPAIR_TIMEOUT_S, ActionRequested, Do
from muster.contracts.jobs import JobState, JobStatus
from muster.db import Connection, Transaction
from muster.errors import Rejected
from muster.protocol.preflights import preflight_job
from muster.settings import names_in

from rest.cluster import KnownNode
from rest.domain.preflights import on_node
from rest.domain.repairs import Ended, job_ended
from rest.domain.virtual_clusters import check_node_access
from rest.handlers.order import no_node
from rest.handlers.submit import Submission, new_job_id, write_jobs
from rest.settings import RestSettings
from rest.store import accounts
from rest.store.actions import Action
from rest.store.jobs import find_job
from rest.store.versions import ALERT_RULES

NAME_CHARACTERS = 100


async def release_rule(conn: Connection, name: str) -> tuple[dict[str, Any], str]:
    """A rule that releases nodes, and its author. Raises Rejected where there is none."""
    newest = await ALERT_RULES.newest(conn)
    content = (newest and newest.change.content) or {}
    for each in content.get("actions", ()):
        if newest and each["name"] == name and each["do"] == Do.RELEASE and each.get("job"):
            return each, newest.change.by
    message = f"There is no rule {name[:80]} that releases nodes; `muster alerts rules` has all."
    raise Rejected("NoConfigError", message)


async def submit_preflight(
    opened: Transaction, known: KnownNode | None, settings: RestSettings, request: ActionRequested
) -> str:
    """Submit the job that tests a node; returns its name as `user~name`. Raises Rejected."""
    conn, node = opened.conn, request.target
    content, author = await release_rule(conn, request.rule)
    if known is None:
        raise no_node(node)
    account = await accounts.find_account(conn, author)
    if account is None or not account.is_admin:
        message = f"{author}, who set the rules, is no administrator any more: set them again."
        raise Rejected("ForbiddenUserError", message)
    name = (
        re.sub(r"[^A-Za-z0-9_-]", "-", f"preflight-{node}")[:NAME_CHARACTERS]
        + f"-{request.action[:8]}"
    )
    job = on_node(preflight_job(content["job"], name, len(known.report.gpus)), node)
    permitted = settings.kube_host_network
    check_node_access(job, None if permitted is None else frozenset(names_in(permitted)))
    job = replace(job, spec=job.spec.model_copy(update={"user_number": account.number}))
    submission = Submission(author, "", job, None, None)
    if not await write_jobs(opened, [(new_job_id(), submission)]):
        raise Rejected("ConflictJobError", f"There is a job {author}~{name} already.")
    return f"{author}~{name}"


async def look_at(conn: Connection, action: Action, *, is_late: bool) -> Ended | None:
    """What the preflight job of a release proves; None: nothing yet."""
    username, _, name = (action.job or "").partition("~")
    found = await find_job(conn, username, name)
    if found is None:
        return job_ended(action.job or "", None, None, "", is_late=is_late)
    status = None if found.status is None else JobStatus.model_validate(found.status)
    waits = str((found.reason or {}).get("text", ""))
    state = JobState(found.listed.state)
    return job_ended(action.job or "", state, status, waits, is_late=is_late)


def timeout_of(rule: dict[str, Any]) -> float:
    """How long a preflight job may take, in seconds."""
    return float(rule.get("timeoutSeconds", REPAIR_TIMEOUT_S))
