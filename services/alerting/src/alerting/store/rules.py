"""The last day's events, and the events that count for alerts of rules."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from muster.db import Connection

from alerting.domain.event_rules import Match
from alerting.domain.events import Alert
from alerting.store.alerts import alert_of
from alerting.store.rows import plain

KEY = "alerting: rules"
"""One transaction at a time counts events."""

MOST_TRIED = 20_000
"""The most events that a rule is tried on, the newest."""

_NOTE = """
    INSERT INTO recent_event (key, name, content)
    SELECT * FROM unnest($1::text[], $2::text[], $3::jsonb[])
    ON CONFLICT (key) DO NOTHING RETURNING key
"""
_MATCH = """
    INSERT INTO rule_match (fingerprint, event_key, window_s)
    SELECT * FROM unnest($1::text[], $2::text[], $3::float8[]) ON CONFLICT DO NOTHING
"""
_COUNT = """
    SELECT fingerprint, count(*) AS n FROM rule_match
    WHERE fingerprint = ANY($1) AND at > now() - window_s * interval '1 s' GROUP BY fingerprint
"""
_OVER = """
    SELECT * FROM alert AS a WHERE source = 'rule' AND ends_at IS NULL AND (NOT EXISTS (
        SELECT 1 FROM rule_match AS m WHERE m.fingerprint = a.fingerprint
        AND m.at > now() - m.window_s * interval '1 s'
    ) OR labels->>'rule' <> ALL($2::text[]))
    ORDER BY fingerprint, starts_at LIMIT $1 FOR UPDATE SKIP LOCKED
"""


async def note_events(conn: Connection, events: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Keep events by their keys; the keys of those that are new."""
    keys = sorted(events)
    if not keys:
        return []
    contents = [plain(events[key]) for key in keys]
    rows = await conn.fetch(_NOTE, keys, [events[key]["name"] for key in keys], contents)
    return [row["key"] for row in rows]


async def recent_events(conn: Connection, name: str) -> list[tuple[datetime, Mapping[str, Any]]]:
    """The last day's events of a kind, oldest first."""
    sql = """
        SELECT at, content FROM recent_event
        WHERE name = $1 AND at > now() - interval '1 day' ORDER BY at DESC LIMIT $2
    """
    rows = await conn.fetch(sql, name, MOST_TRIED)
    return [(row["at"], row["content"]) for row in reversed(rows)]


async def count_matches(conn: Connection, matches: Sequence[Match]) -> dict[str, int]:
    """Write matches; how many count now, by the alert's fingerprint."""
    await conn.execute("SELECT pg_advisory_xact_lock(hashtext($1))", KEY)
    idents = [each.alert.fingerprint for each in matches]
    windows = [each.window_s for each in matches]
    await conn.execute(_MATCH, idents, [each.event_key for each in matches], windows)
    rows = await conn.fetch(_COUNT, sorted(set(idents)))
    return {row["fingerprint"]: row["n"] for row in rows}


async def firing(conn: Connection, fingerprints: Sequence[str]) -> set[str]:
    """Which of these fire."""
    sql = "SELECT fingerprint FROM alert WHERE ends_at IS NULL AND fingerprint = ANY($1)"
    return {row["fingerprint"] for row in await conn.fetch(sql, list(fingerprints))}


async def made_lately(conn: Connection, names: Sequence[str]) -> dict[str, int]:
    """How many alerts rules of these names made within the last hour."""
    sql = """
        SELECT name, count(*) AS n FROM alert WHERE source = 'rule' AND name = ANY($1)
        AND starts_at > now() - interval '1 hour' GROUP BY name
    """
    return {row["name"]: row["n"] for row in await conn.fetch(sql, list(names))}


async def over(conn: Connection, limit: int, rules: Sequence[str] | None) -> list[Alert]:
    """Alerts for which no event counts any more, and those of other rules than these, locked.
    ``rules``: None where they are not known.
    """
    return [alert_of(row) for row in await conn.fetch(_OVER, limit, rules)]
