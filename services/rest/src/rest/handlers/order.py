"""Orders about nodes, by an administrator or by an action on an alert."""

from dataclasses import dataclass
from typing import Any

from muster.contracts.node_orders import Order
from muster.db import Connection
from muster.errors import Rejected

from rest.store import audit, node_orders

ACTIONS = {Order.CORDON: "cordon", Order.DRAIN: "drain", Order.NONE: "uncordon"}


@dataclass(frozen=True, slots=True)
class By:
    """Who orders it, from where; ``detail``: more for the audit log."""

    username: str
    address: str
    detail: dict[str, Any] | None = None


async def give_order(
    conn: Connection, name: str, order: Order, by: By, *, is_known: bool
) -> Order | None:
    """Give an order, and return the one before. ``is_known``: the node has reported. Raises
    Rejected where there is no such node.
    """
    before = await node_orders.order_of(conn, name)
    if not is_known and before is None:
        raise no_node(name)
    if await node_orders.give_order(conn, name, order, by.username):
        entry = audit.Entry(by.username, f"node.{ACTIONS[order]}", name, by.address, by.detail)
        await audit.record(conn, [entry])
    return before


def no_node(name: str) -> Rejected:
    """There is no such node."""
    return Rejected("NoNodeError", f"There is no node {name[:80]}; `muster nodes` lists them.")
