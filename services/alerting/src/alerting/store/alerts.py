"""Alerts, with the records that publish them; and subscriptions as last published."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from muster.channels import Outgoing
from muster.contracts.notices import SettingChanged
from muster.db import Connection, Transaction

from alerting.domain.events import Alert
from alerting.store.rows import plain, text

Traced = tuple[Alert, str | None]
"""An alert, and the trace in which it changed."""

_SAVE = """
    INSERT INTO alert (fingerprint, starts_at, name, severity, summary, labels, ends_at)
    SELECT fingerprint, starts_at, name, severity, summary, labels, ends_at
    FROM jsonb_populate_recordset(NULL::alert, $1::jsonb)
    ON CONFLICT (fingerprint, starts_at) DO UPDATE SET ends_at = excluded.ends_at
    WHERE alert.ends_at IS NULL
"""


async def save_alerts(opened: Transaction, alerts: Sequence[Traced]) -> None:
    """Write alerts that fire or are resolved, and publish them."""
    for alert, _ in alerts:  # one by one: the same alert may fire and be resolved in one batch
        await opened.conn.execute(_SAVE, [plain(_row(alert))])
    opened.notices.extend(_record(traced, opened.now) for traced in alerts)


def _row(alert: Alert) -> dict[str, object]:
    return {
        "fingerprint": alert.fingerprint,
        "starts_at": alert.starts_at,
        "name": alert.name,
        "severity": alert.severity.value,
        "summary": alert.summary,
        "labels": {name: text(value) for name, value in alert.labels.items()},
        "ends_at": alert.ends_at,
    }


def _record(traced: Traced, now: datetime) -> Outgoing:
    alert, traceparent = traced
    is_firing = alert.ends_at is None
    how = "raised" if is_firing else "resolved"
    return Outgoing(
        f"alert-{how}",
        alert.fingerprint,
        alert.notice().model_dump_json(exclude_none=True).encode(),
        f"alerting/alert/{alert.fingerprint}/{alert.starts_at.isoformat()}/{how}",
        now.timestamp(),
        traceparent,
    )


async def firing(conn: Connection) -> dict[str, int]:
    """How many alerts of each name fire."""
    sql = "SELECT name, count(*) AS n FROM alert WHERE ends_at IS NULL GROUP BY name"
    return {row["name"]: row["n"] for row in await conn.fetch(sql)}


async def load_subscriptions(conn: Connection) -> list[SettingChanged]:
    """The settings that were kept."""
    rows = await conn.fetch("SELECT setting, revision, value FROM subscription ORDER BY setting")
    return [SettingChanged(**dict(row)) for row in rows]


_KEEP = """
    INSERT INTO subscription (setting, revision, value)
    SELECT setting, revision, value FROM jsonb_populate_recordset(NULL::subscription, $1::jsonb)
    ORDER BY setting
    ON CONFLICT (setting) DO UPDATE SET revision = excluded.revision, value = excluded.value
    WHERE subscription.revision < excluded.revision
"""


async def keep_subscriptions(
    conn: Connection, changes: Mapping[str, SettingChanged | None]
) -> None:
    """Write changed settings; None removes one."""
    kept = [it.model_dump(mode="json", by_alias=False) for it in changes.values() if it]
    removed = [setting for setting, it in changes.items() if it is None]
    if kept:
        await conn.execute(_KEEP, kept)
    if removed:
        await conn.execute("DELETE FROM subscription WHERE setting = ANY($1)", removed)
