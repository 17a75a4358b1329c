"""The settings that REST publishes: subscriptions to alerts, addresses of accounts, addresses to
confirm, orders about nodes, virtual clusters and policy, rules for alerts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg
from muster.contracts.alerts import ALERT_RULES_SETTING, MUTE_SETTING, AlertRulesConfig
from muster.contracts.confirmations import CONFIRMATION_SETTING
from muster.contracts.node_orders import NODE_SETTING, NodeOrder
from muster.contracts.scheduling import SCHEDULING_SETTING, SchedulingConfig
from muster.contracts.subscriptions import ACCOUNT, SUBSCRIPTION_SETTING, Subscription
from muster.db import Connection, fetch

from rest.store import confirmations
from rest.store.versions import ALERT_RULES, SCHEDULING, Version, Versions

VERSIONED: Mapping[str, tuple[type[SchedulingConfig | AlertRulesConfig], Versions]] = {
    SCHEDULING_SETTING: (SchedulingConfig, SCHEDULING),
    ALERT_RULES_SETTING: (AlertRulesConfig, ALERT_RULES),
}
"""Settings that are the newest of several versions."""
RECEIVER_PREFIXES = (SUBSCRIPTION_SETTING, CONFIRMATION_SETTING)
"""What the settings begin with that name receivers of alerts."""
PREFIXES = (*RECEIVER_PREFIXES, NODE_SETTING, MUTE_SETTING)
"""What most settings of REST's begin with."""


@dataclass(frozen=True, slots=True)
class Published:
    """A setting as it is published; ``content`` None: it was removed."""

    setting: str
    revision: int
    content: dict[str, Any] | None


def is_own(setting: str) -> bool:
    """Whether REST publishes it."""
    return setting in VERSIONED or setting.startswith(PREFIXES)


async def load_published(conn: Connection) -> list[Published]:
    """All that is to be published, removed settings included. Those of operators come first."""
    orders = [
        Published(f"{NODE_SETTING}{row['node']}", row["revision"], _order(row))
        for row in await conn.fetch(_ORDERS)
    ]
    subscriptions = await fetch(Published, conn, _SUBSCRIPTIONS, SUBSCRIPTION_SETTING)
    to_confirm = [
        Published(f"{CONFIRMATION_SETTING}{row['id']}", row["revision"], _confirmation(row))
        for row in await conn.fetch(_CONFIRMATIONS)
    ]
    versioned = [
        _versioned(setting, model, newest)
        for setting, (model, versions) in VERSIONED.items()
        if (newest := await versions.newest(conn)) is not None
    ]
    mutes = await fetch(Published, conn, _MUTES, MUTE_SETTING)
    addresses = [_address(row) for row in await conn.fetch(_ADDRESSES)]
    return [*versioned, *orders, *mutes, *to_confirm, *addresses, *subscriptions]


def _address(row: asyncpg.Record) -> Published:
    """The confirmed address of an account, or that it has none any more."""
    ident, content = f"{ACCOUNT}{row['username']}", None
    if row["email_confirmed"] and row["email"]:
        of_account = Subscription(id=ident, owner=row["username"], events=(), email=row["email"])
        content = of_account.model_dump(mode="json", by_alias=True)
    return Published(f"{SUBSCRIPTION_SETTING}{ident}", row["address_revision"], content)


def _versioned(
    setting: str, model: type[SchedulingConfig | AlertRulesConfig], version: Version
) -> Published:
    if version.change.content is None:
        return Published(setting, version.revision, None)
    config = model(
        version=version.number,
        content=version.change.content,
        by=version.change.by,
        at=version.at,
    )
    content = config.model_dump(mode="json", by_alias=True)
    return Published(setting, version.revision, content)


def _order(row: asyncpg.Record) -> dict[str, Any]:
    order = NodeOrder(
        node=row["node"], order=row["order"], by=row["ordered_by"], at=row["ordered_at"]
    )
    return order.model_dump(mode="json", by_alias=True)


def _confirmation(row: asyncpg.Record) -> dict[str, Any] | None:
    if row["ended_at"] is not None:
        return None
    return confirmations.of_row(row).model_dump(mode="json", by_alias=True)


async def lift_revisions(conn: Connection, revisions: Mapping[str, int]) -> None:
    """Raise revisions, by their settings; none falls."""
    for prefix, sql in (
        (SUBSCRIPTION_SETTING, _LIFT_SUBSCRIPTIONS),
        (SUBSCRIPTION_SETTING + ACCOUNT, _LIFT_ADDRESSES),
        (CONFIRMATION_SETTING, _LIFT_CONFIRMATIONS),
        (NODE_SETTING, _LIFT_ORDERS),
        (MUTE_SETTING, _LIFT_MUTES),
    ):
        found = {
            setting.removeprefix(prefix): revision
            for setting, revision in revisions.items()
            if setting.startswith(prefix)
        }
        await conn.execute(sql, list(found), list(found.values()))
    for setting, (_, versions) in VERSIONED.items():
        if setting in revisions:
            await versions.lift_revision(conn, revisions[setting])


_SUBSCRIPTIONS = """
    SELECT $1 || id AS setting, revision, CASE WHEN removed_at IS NULL THEN content END AS content
    FROM subscription ORDER BY id
"""
_ADDRESSES = """
    SELECT username, email, email_confirmed, address_revision FROM account
    WHERE (email_confirmed AND email <> '') OR (
        address_revision > 1 AND (removed_at IS NULL OR removed_at > now() - interval '8 days')
    ) ORDER BY username
"""
_LIFT_ADDRESSES = """
    UPDATE account AS a SET address_revision = n.revision
    FROM unnest($1::text[], $2::bigint[]) AS n (username, revision)
    WHERE a.username = n.username AND a.address_revision < n.revision
"""
_ORDERS = 'SELECT node, "order", ordered_by, ordered_at, revision FROM node_order ORDER BY node'
_LIFT_SUBSCRIPTIONS = """
    UPDATE subscription AS s SET revision = n.revision
    FROM unnest($1::text[], $2::bigint[]) AS n (id, revision)
    WHERE s.id = n.id AND s.revision < n.revision
"""
_CONFIRMATIONS = "SELECT * FROM confirmation ORDER BY id"
_LIFT_CONFIRMATIONS = """
    UPDATE confirmation AS c SET revision = n.revision
    FROM unnest($1::text[], $2::bigint[]) AS n (id, revision)
    WHERE c.id = n.id AND c.revision < n.revision
"""
_MUTES = """
    SELECT $1 || id AS setting, revision, CASE WHEN removed_at IS NULL THEN content END AS content
    FROM mute ORDER BY id
"""
_LIFT_MUTES = """
    UPDATE mute AS m SET revision = n.revision
    FROM unnest($1::text[], $2::bigint[]) AS n (id, revision)
    WHERE m.id = n.id AND m.revision < n.revision
"""
_LIFT_ORDERS = """
    UPDATE node_order AS o SET revision = n.revision
    FROM unnest($1::text[], $2::bigint[]) AS n (node, revision)
    WHERE o.node = n.node AND o.revision < n.revision
"""
