"""All SQL of the Scheduler: gangs, placements and what they hold, nodes."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from muster.contracts.gangs import GangRequest
from muster.contracts.model import Reason
from muster.db import Connection

from scheduler.domain.model import Hold, Placement


@dataclass(frozen=True, slots=True)
class KnownGang:
    """A gang as it is stored."""

    request: GangRequest
    reason: Reason | None
    is_refused: bool


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node as it is stored."""

    node: str
    lease: int
    is_lost: bool
    lost_since: datetime | None
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What a gang's row keeps of the last word about it."""

    gang: str
    reason: Reason | None
    is_refused: bool


async def save_requests(conn: Connection, requests: Sequence[GangRequest]) -> None:
    """Record the Launcher's words for the next cycle."""
    await conn.execute(
        "INSERT INTO gang (gang, request)"
        " SELECT gang, request::jsonb FROM unnest($1::text[], $2::text[]) AS n (gang, request)"
        " ON CONFLICT (gang) DO UPDATE SET request = excluded.request, is_dirty = true",
        [request.gang for request in requests],
        [request.model_dump_json(exclude_defaults=True) for request in requests],
    )


async def take_dirty(conn: Connection, limit: int) -> list[GangRequest]:
    """The words that no cycle has seen, which the caller's cycle sees now."""
    rows = await conn.fetch(
        "UPDATE gang SET is_dirty = false WHERE gang IN"
        " (SELECT gang FROM gang WHERE is_dirty ORDER BY gang LIMIT $1 FOR UPDATE)"
        " RETURNING request::text AS request",
        limit,
    )
    requests = [GangRequest.model_validate_json(row["request"]) for row in rows]
    return sorted(requests, key=lambda request: request.gang)


async def note_told(conn: Connection, told: Sequence[Told]) -> None:
    """Keep what was said about gangs, so that a restart does not say it again."""
    if told:
        await conn.execute(
            "UPDATE gang SET reason = n.reason::jsonb, is_refused = n.is_refused"
            " FROM unnest($1::text[], $2::text[], $3::boolean[]) AS n (gang, reason, is_refused)"
            " WHERE gang.gang = n.gang AND (gang.reason IS DISTINCT FROM n.reason::jsonb"
            " OR gang.is_refused <> n.is_refused)",
            [t.gang for t in told],
            [None if t.reason is None else t.reason.model_dump_json() for t in told],
            [t.is_refused for t in told],
        )


async def delete_gangs(conn: Connection, gangs: Collection[str]) -> None:
    """These gangs are over."""
    if gangs:
        await conn.execute("DELETE FROM gang WHERE gang = ANY($1)", list(gangs))


async def insert_placements(conn: Connection, placements: Sequence[Placement], epoch: int) -> None:
    """Write decisions. Raises asyncpg.UniqueViolationError where a GPU or port is held already."""
    if not placements:
        return
    await conn.execute(
        "INSERT INTO placement"
        " (pod, gang, node, journal, address, log_url, gpus, ports, cpu, memory_mb, epoch)"
        " SELECT pod, gang, node, journal, address, log_url, gpus::integer[], ports::jsonb,"
        " cpu, memory_mb, $11 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],"
        " $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::bigint[])"
        " AS n (pod, gang, node, journal, address, log_url, gpus, ports, cpu, memory_mb)",
        [p.pod for p in placements],
        [p.gang for p in placements],
        [p.node for p in placements],
        [p.journal for p in placements],
        [p.address for p in placements],
        [p.log_url for p in placements],
        ["{" + ",".join(map(str, p.gpus)) + "}" for p in placements],
        [
            json.dumps({label: list(numbers) for label, numbers in p.ports.items()})
            for p in placements
        ],
        [p.cpu for p in placements],
        [p.memory_mb for p in placements],
        epoch,
    )
    await _hold(conn, "gpu", [(p.node, gpu, p.pod) for p in placements for gpu in p.gpus])
    await _hold(
        conn, "port", [(p.node, port, p.pod) for p in placements for port in p.port_numbers]
    )


async def _hold(conn: Connection, what: str, rows: Sequence[tuple[str, int, str]]) -> None:
    if rows:
        await conn.execute(
            f"INSERT INTO held_{what} (node, {what}, pod)"  # noqa: S608 - one of two names
            " SELECT * FROM unnest($1::text[], $2::integer[], $3::text[])",
            *map(list, zip(*rows, strict=True)),
        )


async def update_holds(conn: Connection, holds: Sequence[Hold]) -> None:
    """Write what became of placements; those that hold nothing any more give it back."""
    if not holds:
        return
    await conn.execute(
        "UPDATE placement SET is_wanted = n.is_wanted, is_occupying = n.is_occupying,"
        " free_from = n.free_from, lost_lease = n.lost_lease"
        " FROM unnest($1::text[], $2::boolean[], $3::boolean[], $4::bigint[], $5::bigint[])"
        " AS n (pod, is_wanted, is_occupying, free_from, lost_lease)"
        " WHERE placement.pod = n.pod",
        [hold.placement.pod for hold in holds],
        [hold.is_wanted for hold in holds],
        [hold.is_occupying for hold in holds],
        [hold.free_from for hold in holds],
        [hold.lost_lease for hold in holds],
    )
    await _give_back(conn, [h.placement.pod for h in holds if not h.is_occupying])


async def delete_placements(conn: Connection, pods: Collection[str]) -> None:
    """These placements are over."""
    if pods:
        await conn.execute("DELETE FROM placement WHERE pod = ANY($1)", list(pods))
        await _give_back(conn, list(pods))


async def _give_back(conn: Connection, pods: list[str]) -> None:
    if pods:
        await conn.execute("DELETE FROM held_gpu WHERE pod = ANY($1)", pods)
        await conn.execute("DELETE FROM held_port WHERE pod = ANY($1)", pods)


async def save_nodes(conn: Connection, nodes: Sequence[KnownNode]) -> None:
    """Write nodes that are new, lost, back or removed."""
    if nodes:
        await conn.execute(
            "INSERT INTO node (node, lease, is_lost, lost_since, is_removed)"
            " SELECT * FROM unnest($1::text[], $2::bigint[], $3::boolean[], $4::timestamptz[],"
            " $5::boolean[])"
            " ON CONFLICT (node) DO UPDATE SET lease = excluded.lease,"
            " is_lost = excluded.is_lost, lost_since = excluded.lost_since,"
            " is_removed = excluded.is_removed",
            [n.node for n in nodes],
            [n.lease for n in nodes],
            [n.is_lost for n in nodes],
            [n.lost_since for n in nodes],
            [n.is_removed for n in nodes],
        )


async def load_nodes(conn: Connection) -> list[KnownNode]:
    """Every node that was ever heard, removed ones too."""
    rows = await conn.fetch(
        "SELECT node, lease, is_lost, lost_since, is_removed FROM node ORDER BY node"
    )
    return [KnownNode(**dict(row)) for row in rows]


async def load_holds(conn: Connection) -> list[Hold]:
    """Every placement that is not over."""
    rows = await conn.fetch(
        "SELECT pod, gang, node, journal, address, log_url, gpus, ports, cpu, memory_mb,"
        " is_wanted, is_occupying, free_from, lost_lease FROM placement ORDER BY pod"
    )
    return [
        Hold(
            Placement(
                row["pod"],
                row["gang"],
                row["node"],
                row["journal"],
                row["address"],
                row["log_url"],
                tuple(row["gpus"]),
                {label: tuple(numbers) for label, numbers in row["ports"].items()},
                row["cpu"],
                row["memory_mb"],
            ),
            row["is_wanted"],
            row["is_occupying"],
            row["free_from"],
            row["lost_lease"],
        )
        for row in rows
    ]


async def load_gangs(conn: Connection, after: str, limit: int) -> list[KnownGang]:
    """The next gangs by name; words that no cycle has seen yet are left to it."""
    rows = await conn.fetch(
        "SELECT request::text AS request, reason, is_refused FROM gang WHERE gang > $1"
        " ORDER BY gang LIMIT $2",
        after,
        limit,
    )
    return [
        KnownGang(
            GangRequest.model_validate_json(row["request"]),
            None if row["reason"] is None else Reason.model_validate(row["reason"]),
            row["is_refused"],
        )
        for row in rows
    ]
