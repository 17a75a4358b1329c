"""Actions on alerts that were carried out: each once, however often it is requested."""

from dataclasses import dataclass

from muster.contracts.alerts import ActionRequested, Do, Outcome
from muster.db import Connection


@dataclass(frozen=True, slots=True)
class Action:
    """What was done."""

    action: str
    do: Do
    target: str
    outcome: Outcome
    reason: str


async def lock_action(conn: Connection, action: str) -> Action | None:
    """One that was answered, locked."""
    row = await conn.fetchrow(
        'SELECT action, "do", target, outcome, reason FROM alert_action'
        " WHERE action = $1 FOR UPDATE",
        action,
    )
    if row is None:
        return None
    outcome = Outcome(row["outcome"])
    return Action(row["action"], Do(row["do"]), row["target"], outcome, row["reason"])


async def done_to(conn: Connection, target: str, but: str) -> list[Do]:
    """What other actions have done to a target and nobody has taken back."""
    sql = """
        SELECT "do" FROM alert_action WHERE target = $1 AND action <> $2 AND outcome = $3
    """
    return [Do(row["do"]) for row in await conn.fetch(sql, target, but, Outcome.DONE.value)]


async def take(conn: Connection, request: ActionRequested) -> bool:
    """Write that an action is being carried out; False where it was before."""
    done: str = await conn.execute(
        'INSERT INTO alert_action (action, "do", target, outcome, reason)'
        " VALUES ($1, $2, $3, $4, '') ON CONFLICT (action) DO NOTHING",
        request.action,
        request.do.value,
        request.target,
        Outcome.REFUSED.value,
    )
    return done == "INSERT 0 1"


async def finish(conn: Connection, action: str, outcome: Outcome, reason: str) -> None:
    """Write what became of it."""
    await conn.execute(
        "UPDATE alert_action SET outcome = $2, reason = $3 WHERE action = $1",
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
        " AND NOT (outcome = 'done' AND \"do\" IN ('cordon', 'drain'))",
        float(days),
    )
