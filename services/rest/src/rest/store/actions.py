"""Actions on alerts that were carried out: each once, however often it is requested."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.contracts.alerts import ActionRequested, Do, Outcome
from muster.db import Connection


@dataclass(frozen=True, slots=True)
class Action:
    """What was done. ``ends_by``: it fails if nothing comes until then. ``job``: the preflight job,
    as ``user~name``. ``takes_back``: the actions whose orders a release ends. ``asked_by``: the
    person who asked for it; None: a rule.
    """

    action: str
    do: Do
    target: str
    outcome: Outcome
    reason: str
    rule: str = ""
    ends_by: datetime | None = None
    job: str | None = None
    takes_back: tuple[str, ...] = ()
    asked_by: str | None = None


_ACTION = """
    SELECT action, "do", target, outcome, reason, rule, ends_by, job, takes_back, asked_by
    FROM alert_action
"""


def _action(row: Any) -> Action:
    values = dict(row) | {"do": Do(row["do"]), "outcome": Outcome(row["outcome"])}
    return Action(**values | {"takes_back": tuple(row["takes_back"])})


async def lock_action(conn: Connection, action: str) -> Action | None:
    """One that was answered, locked."""
    row = await conn.fetchrow(f"{_ACTION} WHERE action = $1 FOR UPDATE", action)
    return None if row is None else _action(row)


async def lock_running(conn: Connection, limit: int) -> list[Action]:
    """Those whose script or preflight job goes on, locked against other replicas."""
    sql = f"{_ACTION} WHERE outcome = $1 ORDER BY action LIMIT $2 FOR UPDATE SKIP LOCKED"
    return [_action(row) for row in await conn.fetch(sql, Outcome.RUNNING.value, limit)]


async def lock_actions_on(conn: Connection, node: str) -> list[Action]:
    """Actions on a node that hold it, go on or have failed, locked."""
    sql = f"""
        {_ACTION} WHERE target = $1 AND (outcome IN ('running', 'failed')
                                         OR outcome = 'done' AND "do" IN ('cordon', 'drain'))
        ORDER BY action FOR UPDATE
    """
    return [_action(row) for row in await conn.fetch(sql, node)]


async def done_to(conn: Connection, target: str, but: str) -> list[Do]:
    """What other actions have done to a target and nobody has taken back."""
    sql = """
        SELECT "do" FROM alert_action WHERE target = $1 AND action <> $2 AND outcome = $3
    """
    return [Do(row["do"]) for row in await conn.fetch(sql, target, but, Outcome.DONE.value)]


async def take(conn: Connection, request: ActionRequested) -> bool:
    """Write that an action is being carried out; False where it was before."""
    done: str = await conn.execute(
        "INSERT INTO alert_action"
        ' (action, "do", target, outcome, reason, rule, takes_back, summary)'
        " VALUES ($1, $2, $3, $4, '', $5, $6, $7) ON CONFLICT (action) DO NOTHING",
        request.action,
        request.do.value,
        request.target,
        Outcome.REFUSED.value,
        request.rule,
        list(request.takes_back),
        request.summary,
    )
    return done == "INSERT 0 1"


async def start(conn: Connection, asked: Action, timeout_s: float) -> datetime:
    """Write that its script or preflight job goes on; returns when it fails if nothing comes."""
    until: datetime = await conn.fetchval(
        "UPDATE alert_action SET outcome = $2, reason = $3, answered_at = now(),"
        " ends_by = now() + $4 * interval '1 s', job = $5, asked_by = $6"
        " WHERE action = $1 RETURNING ends_by",
        asked.action,
        Outcome.RUNNING.value,
        asked.reason,
        timeout_s,
        asked.job,
        asked.asked_by,
    )
    return until


async def finish(conn: Connection, action: str, outcome: Outcome, reason: str) -> None:
    """Write what became of it."""
    await conn.execute(
        "UPDATE alert_action SET outcome = $2, reason = $3, answered_at = now() WHERE action = $1",
        action,
        outcome.value,
        reason,
    )


async def note_undone(conn: Connection, action: str, by: str, reason: str) -> None:
    """Write that it was taken back."""
    await conn.execute(
        "UPDATE alert_action SET outcome = $2, undone_by = $3, reason = $4, answered_at = now()"
        " WHERE action = $1",
        action,
        Outcome.UNDONE.value,
        by,
        reason,
    )


async def forget_old(conn: Connection, days: int) -> None:
    """Forget actions whose newest change is old enough; those that still hold a node are kept."""
    await conn.execute(
        "DELETE FROM alert_action WHERE answered_at < now() - $1 * interval '1 day'"
        " AND outcome NOT IN ('running', 'failed')"
        " AND NOT (outcome = 'done' AND \"do\" IN ('cordon', 'drain'))",
        float(days),
    )
