"""What operators ordered of nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from muster.contracts.node_orders import Order
from muster.db import Connection

ALERTING = "(alerting)"
"""By this name actions on alerts are in the audit log and in orders. No user can have it."""


async def give_order(conn: Connection, node: str, order: Order, by: str) -> bool:
    """Set the order that stands for a node; returns whether it is another than before, or a
    person's now.
    """
    changed = await conn.fetchval(_GIVE, node, order.value, by, ALERTING)
    return changed is not None


@dataclass(frozen=True, slots=True)
class StandingOrder:
    """An order that is not over; ``reason``: the rule that gave it and its alert, None: a person
    gave it.
    """

    order: Order
    by: str
    at: datetime
    reason: str | None = None


async def standing_orders(conn: Connection) -> Mapping[str, StandingOrder]:
    """The orders that are not over, by node."""
    rows = await conn.fetch(_STANDING, Order.NONE.value, ALERTING)
    return {
        row["node"]: StandingOrder(
            Order(row["order"]), row["ordered_by"], row["ordered_at"], row["reason"]
        )
        for row in rows
    }


async def order_of(conn: Connection, node: str) -> Order | None:
    """The order that stands for the node; None: it had none for some time."""
    found = await conn.fetchval('SELECT "order" FROM node_order WHERE node = $1', node)
    return None if found is None else Order(found)


async def lock_order(conn: Connection, node: str) -> tuple[Order, str] | None:
    """The order that stands for the node and who has given it, locked; None: as above."""
    sql = 'SELECT "order", ordered_by FROM node_order WHERE node = $1 FOR UPDATE'
    row = await conn.fetchrow(sql, node)
    return None if row is None else (Order(row["order"]), row["ordered_by"])


async def forget_over(conn: Connection, days: int) -> None:
    """Forget orders that have been over for long enough."""
    await conn.execute(
        'DELETE FROM node_order WHERE "order" = $1'
        " AND ordered_at < now() - $2 * interval '1 day'",
        Order.NONE,
        float(days),
    )


# Of the actions that hold a node, the first one with the order that stands is its reason.
_STANDING = """
    SELECT o.node, o."order", o.ordered_by, o.ordered_at, (
        SELECT concat_ws(': ', 'rule ' || a.rule, nullif(a.summary, ''))
        FROM alert_action AS a
        WHERE a.target = o.node AND a.outcome = 'done' AND a."do" IN ('cordon', 'drain')
          AND o.ordered_by = $2
        ORDER BY a."do" = o."order" DESC, a.answered_at, a.action LIMIT 1
    ) AS reason
    FROM node_order AS o WHERE o."order" <> $1
"""

# A first revision is above all of a row that was forgotten: who has read those takes no lower one.
_GIVE = """
    INSERT INTO node_order AS o (node, "order", ordered_by, revision)
    VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    ON CONFLICT (node) DO UPDATE
    SET "order" = excluded."order", ordered_by = excluded.ordered_by, ordered_at = now(),
        revision = o.revision + 1
    WHERE o."order" <> excluded."order"
       OR (o.ordered_by <> excluded.ordered_by AND excluded.ordered_by <> $4)
    RETURNING o.revision
"""
