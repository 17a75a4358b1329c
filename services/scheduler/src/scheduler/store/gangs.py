"""The SQL of gangs, their placements and the resources that these hold."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from muster.contracts.gangs import GangRequest, Preemption
from muster.contracts.model import Reason
from muster.contracts.topics import Kind as SubjectKind
from muster.db import Connection

from scheduler.domain.core.model import CellUse, ExtraPod, GangClass, Kind, PodPlace
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold, Placement
from scheduler.domain.requests import Downgrade

KINDS_KEPT = 10_000

_HOLDS = (
    "SELECT pod, gang, node, journal, address, log_url, gpus, ports::text, cpu, memory_mb, charged,"
    " wants::text, secrets_key, is_wanted, is_occupying, free_from, lost_lease FROM placement"
)
_GANGS = (
    "SELECT request::text AS request, reason, is_refused, class, cells::text, started_at,"
    " preempted_until, preempted_for, preemption, nominated::text, downgraded_at, downgraded_for,"
    " shape, expected_s, backfill_of, elastic_pods::text, lender FROM gang"
)

_EMPTY: Mapping[str, Any] = {"{}": MappingProxyType({}), "[]": ()}


async def ended(conn: Connection, gangs: Sequence[str]) -> list[tuple[str, int]]:
    """Those of these gangs that have ended, each with the present epoch. It locks all of their
    subjects in the order of their names. None of them ends before the caller's transaction does.

    The subject of a gang that no cycle has seen is not open either, but has no topic yet.
    """
    rows = await conn.fetch(
        "WITH known AS (SELECT subject, is_open, topic FROM subject"
        " WHERE kind = $1 AND subject = ANY($2) ORDER BY subject FOR UPDATE)"
        " SELECT subject, (SELECT epoch FROM leader) AS epoch FROM known"
        " WHERE NOT is_open AND topic IS NOT NULL",
        SubjectKind.GANG.value,
        list(gangs),
    )
    return [(row["subject"], row["epoch"]) for row in rows]


async def save_requests(conn: Connection, requests: Sequence[GangRequest]) -> None:
    """Record the Launcher's messages for the next cycle."""
    await conn.execute(
        "INSERT INTO gang (gang, request)"
        " SELECT gang, request::jsonb FROM unnest($1::text[], $2::text[]) AS n (gang, request)"
        " ON CONFLICT (gang) DO UPDATE SET request = excluded.request, is_dirty = true,"
        " is_refused = gang.is_refused"
        " AND gang.request->'pods' IS NOT DISTINCT FROM excluded.request->'pods'",
        [request.gang for request in requests],
        [request.model_dump_json(exclude_defaults=True) for request in requests],
    )


async def take_dirty(conn: Connection, limit: int) -> list[GangRequest]:
    """The messages that no cycle has seen; the caller's cycle sees them now."""
    rows = await conn.fetch(
        "UPDATE gang SET is_dirty = false WHERE gang IN"
        " (SELECT gang FROM gang WHERE is_dirty ORDER BY gang LIMIT $1 FOR UPDATE)"
        " RETURNING request::text AS request",
        limit,
    )
    requests = [GangRequest.model_validate_json(row["request"]) for row in rows]
    return sorted(requests, key=lambda request: request.gang)


async def keep_gangs(conn: Connection, gangs: Sequence[KnownGang]) -> None:
    """Write the Scheduler's own facts about gangs; a restart continues from them."""
    if gangs:
        await conn.execute(
            "UPDATE gang SET reason = n.reason::jsonb, is_refused = n.is_refused, class = n.class,"
            " cells = n.cells::jsonb, started_at = n.started_at,"
            " preempted_until = n.preempted_until, preempted_for = n.preempted_for,"
            " preemption = n.preemption::jsonb, nominated = n.nominated::jsonb,"
            " downgraded_at = n.downgraded_at, downgraded_for = n.downgraded_for,"
            " shape = n.shape, expected_s = n.expected_s, backfill_of = n.backfill_of,"
            " elastic_pods = n.elastic_pods::jsonb, lender = n.lender"
            " FROM unnest($1::text[], $2::text[], $3::boolean[], $4::text[], $5::text[],"
            " $6::double precision[], $7::double precision[], $8::text[], $9::text[], $10::text[],"
            " $11::double precision[], $12::text[], $13::text[], $14::double precision[],"
            " $15::text[], $16::text[], $17::text[])"
            " AS n (gang, reason, is_refused, class, cells, started_at, preempted_until,"
            " preempted_for, preemption, nominated, downgraded_at, downgraded_for, shape,"
            " expected_s, backfill_of, elastic_pods, lender)"
            " WHERE gang.gang = n.gang",
            [g.request.gang for g in gangs],
            [None if g.reason is None else g.reason.model_dump_json() for g in gangs],
            [g.is_refused for g in gangs],
            [None if g.gang_class is None else g.gang_class.value for g in gangs],
            [json.dumps([[use.cell, use.quota] for use in g.cells]) for g in gangs],
            [g.started_at for g in gangs],
            [g.preempted_until for g in gangs],
            [g.preempted_for for g in gangs],
            [None if g.preemption is None else g.preemption.model_dump_json() for g in gangs],
            [json.dumps([_place_row(place) for place in g.reserved]) for g in gangs],
            [None if g.downgrade is None else g.downgrade.at for g in gangs],
            [None if g.downgrade is None else g.downgrade.for_gang for g in gangs],
            [g.shape for g in gangs],
            [g.expected_s for g in gangs],
            [g.passed for g in gangs],
            [json.dumps([_extra_row(each) for each in g.extra]) for g in gangs],
            [g.lender for g in gangs],
        )


def _place_row(place: PodPlace) -> list[Any]:
    return [place.pod, place.node, place.gpus, place.ports, place.charged]


def _place_of(row: Sequence[Any]) -> PodPlace:
    pod, node, gpus, ports, charged = row
    return PodPlace(pod, node, tuple(gpus), tuple(ports), tuple(charged))


def _extra_row(extra: ExtraPod) -> list[Any]:
    held = None if extra.gang_class is None else extra.gang_class.value
    until, preemptor = extra.preempted_until, extra.preempted_for
    return [extra.pod, extra.started_at, held, until, preemptor, extra.lender]


def _extra_of(row: Sequence[Any]) -> ExtraPod:
    pod, started_at, held, until, preemptor, *lender = row  # older rows have no lender
    gang_class = None if held is None else GangClass(held)
    return ExtraPod(pod, started_at, gang_class, until, preemptor, *lender)


async def delete_gangs(conn: Connection, gangs: Collection[str]) -> None:
    """Delete gangs that have ended."""
    if gangs:
        await conn.execute("DELETE FROM gang WHERE gang = ANY($1)", list(gangs))


async def insert_placements(conn: Connection, placements: Sequence[Placement], epoch: int) -> None:
    """Write decisions. Raises asyncpg.UniqueViolationError where a GPU or port is held already."""
    if not placements:
        return
    await conn.execute(
        "INSERT INTO placement"
        " (pod, gang, node, journal, address, log_url, gpus, ports, cpu, memory_mb, charged, wants,"
        " secrets_key, epoch)"
        " SELECT pod, gang, node, journal, address, log_url, gpus::integer[], ports::jsonb,"
        " cpu, memory_mb, charged::integer[], wants::jsonb, secrets_key, $14"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],"
        " $7::text[], $8::text[], $9::bigint[], $10::bigint[], $11::text[], $12::text[],"
        " $13::text[])"
        " AS n (pod, gang, node, journal, address, log_url, gpus, ports, cpu, memory_mb, charged,"
        " wants, secrets_key)",
        [p.pod for p in placements],
        [p.gang for p in placements],
        [p.node for p in placements],
        [p.journal for p in placements],
        [p.address for p in placements],
        [p.log_url for p in placements],
        [_integers(p.gpus) for p in placements],
        [
            json.dumps({label: list(numbers) for label, numbers in p.ports.items()})
            for p in placements
        ],
        [p.kind.cpu for p in placements],
        [p.kind.memory_mb for p in placements],
        [_integers(p.charged) for p in placements],
        [json.dumps(_wants(p.kind)) for p in placements],
        [p.secrets_key for p in placements],
        epoch,
    )
    await _hold(conn, "gpu", [(p.node, gpu, p.pod) for p in placements for gpu in p.gpus])
    await _hold(
        conn, "port", [(p.node, port, p.pod) for p in placements for port in p.port_numbers]
    )


def _integers(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _wants(kind: Kind) -> dict[str, Any]:
    wants = {
        "gpuTypes": kind.gpu_types,
        "pin": kind.pin,
        "resources": dict(kind.resources),
    }
    return {name: value for name, value in wants.items() if value}


async def _hold(conn: Connection, what: str, rows: Sequence[tuple[str, int, str]]) -> None:
    if rows:
        await conn.execute(
            f"INSERT INTO held_{what} (node, {what}, pod)"  # noqa: S608 - one of two names
            " SELECT * FROM unnest($1::text[], $2::integer[], $3::text[])",
            *map(list, zip(*rows, strict=True)),
        )


async def update_holds(conn: Connection, holds: Sequence[Hold]) -> None:
    """Write the new state of placements; those without resources release theirs."""
    if not holds:
        return
    await conn.execute(
        "UPDATE placement SET is_wanted = n.is_wanted, is_occupying = n.is_occupying,"
        " free_from = n.free_from, lost_lease = n.lost_lease, charged = n.charged::integer[]"
        " FROM unnest($1::text[], $2::boolean[], $3::boolean[], $4::bigint[], $5::bigint[],"
        " $6::text[]) AS n (pod, is_wanted, is_occupying, free_from, lost_lease, charged)"
        " WHERE placement.pod = n.pod",
        [hold.placement.pod for hold in holds],
        [hold.is_wanted for hold in holds],
        [hold.is_occupying for hold in holds],
        [hold.free_from for hold in holds],
        [hold.lost_lease for hold in holds],
        [_integers(hold.placement.charged) for hold in holds],
    )
    await _give_back(conn, [h.placement.pod for h in holds if not h.is_occupying])


async def delete_placements(conn: Connection, pods: Collection[str]) -> None:
    """Delete placements that are over."""
    if pods:
        await conn.execute("DELETE FROM placement WHERE pod = ANY($1)", list(pods))
        await _give_back(conn, list(pods))


async def _give_back(conn: Connection, pods: list[str]) -> None:
    if pods:
        await conn.execute("DELETE FROM held_gpu WHERE pod = ANY($1)", pods)
        await conn.execute("DELETE FROM held_port WHERE pod = ANY($1)", pods)


async def load_holds(conn: Connection, after: str, limit: int) -> list[Hold]:
    """The next placements that are not over, by pod."""
    rows = await conn.fetch(f"{_HOLDS} WHERE pod > $1 ORDER BY pod LIMIT $2", after, limit)
    return [_hold_of(row) for row in rows]


async def load_holds_of(conn: Connection, gangs: Collection[str]) -> list[Hold]:
    """The placements of these gangs that are not over, by pod."""
    rows = await conn.fetch(f"{_HOLDS} WHERE gang = ANY($1) ORDER BY pod", list(gangs))
    return [_hold_of(row) for row in rows]


def _hold_of(row: Any) -> Hold:
    return Hold(
        _placement_of(row),
        row["is_wanted"],
        row["is_occupying"],
        row["free_from"],
        row["lost_lease"],
    )


def _placement_of(row: Any) -> Placement:
    gpus, found = tuple(row["gpus"]), _read(row["ports"])
    ports = {label: tuple(numbers) for label, numbers in found.items()}
    count = sum(map(len, ports.values())) if ports else 0
    kind = _kind_of(len(gpus), row["wants"], row["cpu"], row["memory_mb"], count)
    return Placement(
        row["pod"],
        row["gang"],
        row["node"],
        row["journal"],
        row["address"],
        row["log_url"],
        gpus,
        ports,
        kind,
        tuple(row["charged"]),
        row["secrets_key"],
    )


@lru_cache(KINDS_KEPT)
def _kind_of(gpus: int, wants: str, cpu: int, memory_mb: int, ports: int) -> Kind:
    """Most pods want the same as many others."""
    more = _read(wants)
    return Kind(
        gpus,
        tuple(more.get("gpuTypes", ())),
        more.get("pin"),
        cpu,
        memory_mb,
        ports,
        tuple(sorted(more.get("resources", {}).items())),
    )


def _read(text: str) -> Any:
    """The database's JSON; most of it is null."""
    empty = _EMPTY.get(text)
    return json.loads(text) if empty is None else empty


async def clock(conn: Connection) -> float:
    """The database's clock in seconds since 1970; never before an earlier decision."""
    now: float = await conn.fetchval(
        "SELECT greatest(extract(epoch FROM clock_timestamp())::double precision,"
        " (SELECT max(started_at) FROM gang))"
    )
    return now


async def load_gangs(conn: Connection, after: str, limit: int) -> list[KnownGang]:
    """The next gangs by name; without the messages that no cycle has seen."""
    rows = await conn.fetch(f"{_GANGS} WHERE gang > $1 ORDER BY gang LIMIT $2", after, limit)
    return [_gang_of(row) for row in rows]


async def load_gangs_of(conn: Connection, gangs: Collection[str]) -> list[KnownGang]:
    """Those of these gangs that are not over, by name."""
    rows = await conn.fetch(f"{_GANGS} WHERE gang = ANY($1) ORDER BY gang", list(gangs))
    return [_gang_of(row) for row in rows]


def _gang_of(row: Any) -> KnownGang:
    reason, preemption, gang_class = row["reason"], row["preemption"], row["class"]
    since = row["downgraded_at"]
    return KnownGang(
        GangRequest.model_validate_json(row["request"]),
        None if reason is None else Reason.model_validate(reason),
        row["is_refused"],
        None if gang_class is None else GangClass(gang_class),
        tuple(CellUse(cell, quota) for cell, quota in _read(row["cells"])),
        row["started_at"],
        row["preempted_for"],
        None if preemption is None else Preemption.model_validate(preemption),
        row["preempted_until"],
        tuple(_place_of(place) for place in _read(row["nominated"])),
        None if since is None else Downgrade(row["downgraded_for"], since),
        row["shape"],
        row["expected_s"],
        row["backfill_of"],
        tuple(_extra_of(each) for each in _read(row["elastic_pods"])),
        row["lender"],
    )
