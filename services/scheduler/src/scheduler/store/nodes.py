"""The SQL of nodes."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.db import Connection

from scheduler.domain.nodes import Size

_NODES = "SELECT node, lease, is_lost, lost_since, is_removed, size FROM node"


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node as it is stored."""

    node: str
    lease: int
    is_lost: bool
    lost_since: datetime | None
    is_removed: bool = False
    size: Size | None = None


async def save_nodes(conn: Connection, nodes: Sequence[KnownNode]) -> None:
    """Write nodes that are new, lost, back or removed."""
    if nodes:
        await conn.execute(
            "INSERT INTO node (node, lease, is_lost, lost_since, is_removed, size)"
            " SELECT node, lease, is_lost, lost_since, is_removed, size::jsonb"
            " FROM unnest($1::text[], $2::bigint[], $3::boolean[], $4::timestamptz[],"
            " $5::boolean[], $6::text[])"
            " AS n (node, lease, is_lost, lost_since, is_removed, size)"
            " ON CONFLICT (node) DO UPDATE SET lease = excluded.lease,"
            " is_lost = excluded.is_lost, lost_since = excluded.lost_since,"
            " is_removed = excluded.is_removed, size = excluded.size",
            [n.node for n in nodes],
            [n.lease for n in nodes],
            [n.is_lost for n in nodes],
            [n.lost_since for n in nodes],
            [n.is_removed for n in nodes],
            [_size_row(n.size) for n in nodes],
        )


def _size_row(size: Size | None) -> str | None:
    if size is None:
        return None
    row = {"gpus": size.gpus, "cpu": size.cpu, "memoryMB": size.memory_mb, "ports": size.ports}
    if size.resources is not None:
        row["resources"] = size.resources
    return json.dumps(row)


def _size_of(row: Any) -> Size | None:
    if row is None:
        return None
    gpus = tuple((int(index), str(model)) for index, model in row["gpus"])
    first, last = row["ports"]
    counted = row.get("resources")
    resources = None if counted is None else tuple((str(name), int(n)) for name, n in counted)
    return Size(gpus, row["cpu"], row["memoryMB"], (first, last), resources)


async def load_nodes(conn: Connection) -> list[KnownNode]:
    """Every node that ever reported or sent a heartbeat, removed ones too."""
    return [_node_of(row) for row in await conn.fetch(f"{_NODES} ORDER BY node")]


async def load_nodes_of(conn: Connection, nodes: Collection[str]) -> list[KnownNode]:
    """These nodes."""
    rows = await conn.fetch(f"{_NODES} WHERE node = ANY($1) ORDER BY node", list(nodes))
    return [_node_of(row) for row in rows]


def _node_of(row: Any) -> KnownNode:
    return KnownNode(
        row["node"],
        row["lease"],
        row["is_lost"],
        row["lost_since"],
        row["is_removed"],
        _size_of(row["size"]),
    )
