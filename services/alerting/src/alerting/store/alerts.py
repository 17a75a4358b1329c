"""Alerts, with the records that publish them; and subscriptions as last published."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime

import asyncpg
from muster.channels import Outgoing
from muster.contracts.alerts import ReceivedAlert
from muster.contracts.notices import SettingChanged
from muster.db import Connection, Transaction

from alerting.domain.events import RANKS, Alert, Severity, Source
from alerting.domain.notices import incident_of
from alerting.store.rows import plain, text

Traced = tuple[Alert, str | None]
"""An alert, and the trace in which it changed."""

_SAVE = """
    INSERT INTO alert
        (fingerprint, starts_at, name, severity, summary, labels, ends_at, source, runbook, cause,
         incident, received_at)
    SELECT fingerprint, starts_at, name, severity, summary, labels, ends_at, source, runbook, cause,
        incident, now()
    FROM jsonb_populate_recordset(NULL::alert, $1::jsonb)
    ON CONFLICT (fingerprint, starts_at) DO UPDATE SET ends_at = excluded.ends_at
    WHERE alert.ends_at IS NULL
"""


async def save_alerts(opened: Transaction, alerts: Sequence[Traced]) -> None:
    """Write alerts that fire or are resolved, and publish them. What fires comes first: the same
    alert may be resolved in one batch with it, or fire in it more than once.
    """
    firing: dict[tuple[str, datetime], Alert] = {}
    resolved: dict[tuple[str, datetime], Alert] = {}
    for alert, _ in alerts:
        known = firing if alert.ends_at is None else resolved
        known.setdefault((alert.fingerprint, alert.starts_at), alert)
    for some in (firing, resolved):
        if some:
            rows = [plain(_row(some[key])) for key in sorted(some)]
            await opened.conn.execute(_SAVE, rows)
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
        "source": alert.source.value,
        "runbook": alert.runbook and text(alert.runbook),
        "cause": alert.cause,
        "incident": alert.cause and incident_of(alert),
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


ENDS_KEY = "alerting: ends of alerts"
"""One transaction at a time asks what else fires: so the last end is known as the last."""


async def most_severe(conn: Connection, incident: str) -> Severity | None:
    """The severity of the most severe alert that fires, of an incident or with this fingerprint."""
    sql = """
        SELECT DISTINCT severity FROM alert
        WHERE ends_at IS NULL AND (incident = $1 OR fingerprint = $1)
    """
    found = [Severity(row["severity"]) for row in await conn.fetch(sql, incident)]
    return max(found, key=RANKS.__getitem__, default=None)


async def still_firing(conn: Connection, incidents: Collection[str]) -> dict[str, Severity]:
    """The severity of the most severe alert that fires, of each incident that has one."""
    if not incidents:
        return {}
    await conn.execute("SELECT pg_advisory_xact_lock(hashtext($1))", ENDS_KEY)
    sql = """
        SELECT DISTINCT incident, severity FROM alert
        WHERE ends_at IS NULL AND incident = ANY($1)
    """
    found: dict[str, Severity] = {}
    for row in await conn.fetch(sql, list(incidents)):
        severity = Severity(row["severity"])
        found[row["incident"]] = max(
            severity, found.get(row["incident"], severity), key=RANKS.__getitem__
        )
    return found


HEALTH_KEY = "alerting: alerts about nodes"
"""One replica at a time compares reports with the alerts about them."""

_OF_NODES = """
    SELECT * FROM alert WHERE source = 'node' AND node = ANY($1)
    AND (ends_at IS NULL OR ends_at > now() - interval '1 day')
"""


async def alerts_of_nodes(conn: Connection, nodes: Collection[str]) -> list[Alert] | None:
    """Those that reports of these nodes made, firing or ended lately; None while another replica
    looks at alerts of nodes.
    """
    sql = "SELECT pg_try_advisory_xact_lock(hashtext($1))"
    if not await conn.fetchval(sql, HEALTH_KEY):
        return None
    return [alert_of(row) for row in await conn.fetch(_OF_NODES, list(nodes))] if nodes else []


async def firing_on(conn: Connection, nodes: Collection[str]) -> frozenset[tuple[str, str]]:
    """The node and the name of each alert that fires of those that reports of these nodes made."""
    sql = """
        SELECT DISTINCT node, name FROM alert
        WHERE source = 'node' AND ends_at IS NULL AND node = ANY($1)
    """
    return frozenset((row["node"], row["name"]) for row in await conn.fetch(sql, list(nodes)))


_KNOWN = """
    SELECT * FROM alert WHERE source = 'alertmanager' AND fingerprint = ANY($1)
    AND (ends_at IS NULL OR starts_at = ANY($2)) ORDER BY fingerprint, starts_at FOR UPDATE
"""
_REPEATED = "UPDATE alert SET received_at = now() WHERE fingerprint = ANY($1) AND ends_at IS NULL"
_SILENT = """
    SELECT * FROM alert WHERE source = 'alertmanager' AND ends_at IS NULL
    AND received_at < now() - $1 * interval '1 s' ORDER BY fingerprint, starts_at
    LIMIT $2 FOR UPDATE SKIP LOCKED
"""


async def known_alerts(conn: Connection, messages: Sequence[ReceivedAlert]) -> list[Alert]:
    """Alertmanager's alerts of these fingerprints, that fire or have one of these starts, locked
    and noted as repeated.
    """
    idents = sorted({each.fingerprint for each in messages})
    starts = sorted({each.starts_at for each in messages})
    found = [alert_of(row) for row in await conn.fetch(_KNOWN, idents, starts)]
    await conn.execute(_REPEATED, idents)
    return found


async def silent_alerts(conn: Connection, over_s: float, limit: int) -> list[Alert]:
    """Those of Alertmanager's that it has not repeated for so long, locked."""
    return [alert_of(row) for row in await conn.fetch(_SILENT, over_s, limit)]


MOST_FIRING = 20_000
"""The most alerts that actions are decided for, newest first."""


async def firing_alerts(conn: Connection) -> list[Alert]:
    """All that fire."""
    sql = "SELECT * FROM alert WHERE ends_at IS NULL ORDER BY starts_at DESC LIMIT $1"
    return [alert_of(row) for row in await conn.fetch(sql, MOST_FIRING)]


_OWN = """
    SELECT * FROM (
        SELECT DISTINCT ON (fingerprint) * FROM alert WHERE source <> 'alertmanager'
        AND (ends_at IS NULL OR ends_at > now() - $1 * interval '1 s')
        ORDER BY fingerprint, starts_at DESC
    ) AS newest ORDER BY starts_at DESC LIMIT $2
"""
ENDS_TOLD_WAITS = 15
"""How many waits long the end of an alert is told, as Prometheus tells it for 15 minutes."""


async def own_alerts(conn: Connection, wait_s: float) -> list[Alert]:
    """Muster's own that fire or have ended lately, newest first; one that fires again, as it is
    now: Alertmanager knows no earlier time of it.
    """
    rows = await conn.fetch(_OWN, ENDS_TOLD_WAITS * wait_s, MOST_FIRING)
    return [alert_of(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which alerts: firing or resolved ones (None: both), with this name, severity, source and user
    (None: any). ``user``: of the job that an alert is about; ``job``: its id or ``user~name``.
    ``seen_by``: a user who sees only what is about their jobs or about these ``virtual_clusters``;
    None: everything.
    """

    is_firing: bool | None = None
    name: str | None = None
    severity: str | None = None
    source: str | None = None
    user: str | None = None
    job: str | None = None
    node: str | None = None
    seen_by: str | None = None
    virtual_clusters: tuple[str, ...] = ()


_WANTED = """
    FROM alert WHERE ($1::boolean IS NULL OR (ends_at IS NULL) = $1)
    AND ($2::text IS NULL OR name = $2) AND ($3::text IS NULL OR severity = $3)
    AND ($4::text IS NULL OR source = $4)
    AND ($5::text IS NULL OR "user" = $5)
    AND ($6::text IS NULL OR labels->>'job' = $6
        OR ($6 LIKE '%~%' AND "user" = split_part($6, '~', 1)
            AND coalesce(nullif(labels->>'jobName', ''), labels->>'job_name')
                IN ($6, substr($6, strpos($6, '~') + 1))))
    AND ($7::text IS NULL OR node = $7)
    AND ($8::text IS NULL OR "user" = $8 OR virtual_cluster = ANY($9::text[]))
"""
_LIST = f"""
    SELECT * {_WANTED} ORDER BY (ends_at IS NOT NULL), starts_at DESC, fingerprint
    OFFSET $10 LIMIT $11
"""


async def list_alerts(
    conn: Connection, wanted: Wanted, offset: int, limit: int
) -> tuple[list[Alert], int]:
    """Firing alerts, then resolved ones, each newest first; and how many there are in all."""
    terms = astuple(wanted)
    total: int = await conn.fetchval(f"SELECT count(*) {_WANTED}", *terms)
    return [alert_of(row) for row in await conn.fetch(_LIST, *terms, offset, limit)], total


def alert_of(row: asyncpg.Record) -> Alert:
    """An alert, from its row."""
    return Alert(
        name=row["name"],
        severity=Severity(row["severity"]),
        summary=row["summary"],
        labels=row["labels"],
        starts_at=row["starts_at"],
        ends_at=row["ends_at"],
        source=Source(row["source"]),
        runbook=row["runbook"],
        ident=row["fingerprint"],
        cause=row["cause"],
    )


async def firing(conn: Connection) -> dict[str, int]:
    """How many alerts of each name fire; Alertmanager's, with any number of names, have one."""
    sql = """
        SELECT CASE source WHEN 'alertmanager' THEN source ELSE name END AS name, count(*) AS n
        FROM alert WHERE ends_at IS NULL GROUP BY 1
    """
    return {row["name"]: row["n"] for row in await conn.fetch(sql)}


async def names(conn: Connection) -> list[str]:
    """Of all that are kept."""
    return [row["name"] for row in await conn.fetch("SELECT DISTINCT name FROM alert")]


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
