"""Actions on alerts, with the records that request them."""

from collections.abc import Iterable, Sequence

import asyncpg
from muster.channels import Outgoing
from muster.contracts.alerts import ActionRequested, Do
from muster.db import Connection, Transaction

from alerting.domain.actions import ASKED, Action, State
from alerting.store.rows import plain

KEY = "alerting: actions"
"""One replica at a time decides on actions."""

IS_KNOWN = """
    (at > now() - interval '2 days'
     OR state IN ('held', 'requested', 'running', 'failed', 'undo-requested')
     OR state = 'done' AND "do" IN ('cordon', 'drain')
     OR (fingerprint, starts_at) IN (SELECT fingerprint, starts_at FROM alert
                                     WHERE ends_at IS NULL))
"""
"""Of the last days or of an alert that fires, or not over: decisions need it, or a rule would ask
for the same action again.
"""
_SAVE = """
    INSERT INTO action (action, rule, "do", target, fingerprint, starts_at, name, summary, state,
                        reason, at, asked_at, is_dry_run, timeout_s, takes_back)
    SELECT action, rule, "do", target, fingerprint, starts_at, name, summary, state, reason, at,
           asked_at, is_dry_run, timeout_s, takes_back
    FROM jsonb_populate_recordset(NULL::action, $1::jsonb)
    ON CONFLICT (action) DO UPDATE SET state = excluded.state, reason = excluded.reason,
        at = excluded.at, asked_at = excluded.asked_at, takes_back = excluded.takes_back
"""


async def known_actions(conn: Connection) -> list[Action] | None:
    """Those that decisions need; None while another replica decides."""
    if not await conn.fetchval("SELECT pg_try_advisory_xact_lock(hashtext($1))", KEY):
        return None
    sql = f"SELECT * FROM action WHERE {IS_KNOWN}"  # noqa: S608 - a condition of ours
    return [_action(row) for row in await conn.fetch(sql)]


async def load_actions(conn: Connection, actions: Iterable[str]) -> list[Action]:
    """These, locked."""
    sql = "SELECT * FROM action WHERE action = ANY($1) ORDER BY action FOR UPDATE"
    return [_action(row) for row in await conn.fetch(sql, sorted(actions))]


async def list_actions(conn: Connection, offset: int, limit: int) -> tuple[list[Action], int]:
    """Newest first, and how many there are."""
    total: int = await conn.fetchval("SELECT count(*) FROM action")
    sql = "SELECT * FROM action ORDER BY at DESC, action OFFSET $1 LIMIT $2"
    return [_action(row) for row in await conn.fetch(sql, offset, limit)], total


async def save_actions(opened: Transaction, actions: Sequence[Action]) -> None:
    """Write actions, and request those that are to be."""
    await write_actions(opened.conn, actions)
    for each in actions:
        if each.state in ASKED:
            opened.notices.append(_request(each, opened))


async def write_actions(conn: Connection, actions: Sequence[Action]) -> None:
    """Write actions."""
    if actions:
        await conn.execute(_SAVE, [plain(_row(each)) for each in actions])


def _request(action: Action, opened: Transaction) -> Outgoing:
    is_undo = action.state is State.UNDO_REQUESTED
    request = ActionRequested(
        action=action.action,
        do=Do.UNDO if is_undo else action.do,
        target=action.target,
        rule=action.rule,
        alert=action.fingerprint,
        summary=action.summary,
        is_dry_run=action.is_dry_run,
        timeout_s=action.timeout_s,
        takes_back=action.takes_back,
        at=opened.now,
    )
    value = request.model_dump_json().encode()
    event_id = f"alerting/action/{action.action}/{action.state}"
    return Outgoing("action-requested", action.action, value, event_id, opened.now.timestamp())


def _row(action: Action) -> dict[str, object]:
    return {name: getattr(action, name) for name in Action.__dataclass_fields__}


def _action(row: asyncpg.Record) -> Action:
    values = dict(row) | {"do": Do(row["do"]), "state": State(row["state"])}
    return Action(**values | {"takes_back": tuple(row["takes_back"])})
