"""Gangs in the formats: as requested, and as placed before."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler.domain.core.model import (
    HIGHEST_PRIORITY,
    OPPORTUNISTIC,
    CellUse,
    ExtraPod,
    Gang,
    GangClass,
    KeptOf,
    Kind,
    PodPlace,
    Restored,
    RestoredReservation,
)
from scheduler.domain.formats.fields import MAX_NUMBER, MAX_PORT, Table
from scheduler.domain.formats.model import GangFile, Pods

MAX_PODS = 100_000
"""The most pods of a gang."""

GANG = frozenset(
    (
        "id",
        "job",
        "name",
        "user",
        "virtualCluster",
        "priority",
        "group",
        "submittedAt",
        "pods",
        "expectedSeconds",
        "limitSeconds",
        "runSeconds",
        "minRunSeconds",
        "checkpointSeconds",
        "lazyPreemption",
        "borrow",
        "allowedNodes",
        "preflight",
        "follows",
    )
)
PODS = frozenset(
    (
        "name",
        "names",
        "count",
        "min",
        "gpus",
        "gpuType",
        "gpuTypes",
        "pin",
        "cpu",
        "memoryMB",
        "ports",
        "resources",
    )
)
PLACE = frozenset(("pod", "node", "gpus", "ports", "charged"))
CELL = frozenset(("cell", "quota"))
KEPT = frozenset(("node", "gpus"))
KEPT_OF = frozenset(("virtualCluster", "priority", "user", "job", "pins"))
EXTRA_POD = frozenset(("pod", "startedAt", "class", "preemptedUntil", "preemptedFor", "lender"))


def read_gang(table: Table, at: float) -> GangFile:
    """A gang; ``at``: its submission, if it gives none."""
    table.needs("id", "user", "virtualCluster", "priority", "pods")
    pods = read_pods(table)
    submitted_at = table.seconds("submittedAt", -MAX_NUMBER)
    gang_id = table.name("id") or ""
    allowed = table.names("allowedNodes")
    if allowed == () and table.items("allowedNodes") == []:
        table.wrong("allowedNodes", "must not be empty; null allows all")
    gang = Gang(
        id=gang_id,
        virtual_cluster=table.name("virtualCluster") or "",
        user=table.name("user") or "",
        priority=table.count("priority", OPPORTUNISTIC, HIGHEST_PRIORITY) or 0,
        roles=tuple(each.role() for each in pods),
        job=table.name("job") or gang_id,
        submitted_at=at if submitted_at is None else submitted_at,
        group=table.name("group"),
        is_lazy=table.flag("lazyPreemption"),
        allowed_nodes=None if allowed is None else frozenset(allowed),
        expected_s=table.duration("expectedSeconds"),
        limit_s=table.duration("limitSeconds"),
        min_run_s=table.seconds("minRunSeconds"),
        checkpoint_s=table.duration("checkpointSeconds"),
        is_borrowing=bool(table.flag("borrow")),
        follows=table.name("follows"),
        is_preflight=bool(table.flag("preflight")),
    )
    if gang.is_preflight and (gang.priority != OPPORTUNISTIC or gang.allowed_nodes is None):
        table.wrong("preflight", f"needs allowedNodes, and the priority {OPPORTUNISTIC}")
    table.name("name")  # for people
    return GangFile(gang, pods, table.duration("runSeconds"))


def read_pods(table: Table, *, are_more: bool = False) -> tuple[Pods, ...]:
    """The field ``pods``: at least one entry, no name twice. ``are_more``: they join others, whose
    counts they continue.
    """
    entries = table.tables("pods", PODS)
    if entries == []:
        table.wrong("pods", "must not be empty")
    pods: list[Pods] = []
    named: dict[str, tuple[Table, Pods]] = {}
    for entry in entries or ():
        each = _pods_of(entry)
        if each.name and each.name in named:
            entry.wrong("name", f"is {each.name!a} once more; add to the count of the first")
        named.setdefault(each.name, (entry, each))
        pods.append(each)
    if pods and not are_more and all(each.least == 0 for each in pods):
        table.wrong("pods", "need at least one pod to start; raise a min")
    if sum(each.count for each in pods) > MAX_PODS:
        table.wrong("pods", f"are more than {MAX_PODS}, the most in a gang")
        return ()
    taken: set[str] = set()
    for entry, each in named.values():
        some = each.names or (() if are_more else each.role().pods)
        if twice := taken.intersection(some):
            entry.wrong("names", f"have {min(twice)!a} once more; keep one")
        taken.update(some)
    return tuple(pods)


def _pods_of(table: Table) -> Pods:
    table.needs("name", "count", "gpus")
    count = table.count("count", least=1) or 1
    names = table.names("names")
    if names is not None and len(names) != count:
        table.wrong("names", f"must be {count}, the count, not {len(names)}")
    kind = Kind(
        gpus=table.count("gpus") or 0,
        gpu_types=_gpu_types(table),
        pin=table.name("pin"),
        cpu=table.count("cpu") or 0,
        memory_mb=table.count("memoryMB", most=MAX_NUMBER) or 0,
        ports=table.count("ports") or 0,
        resources=tuple(sorted((k, v) for k, v in table.counts("resources").items() if v)),
    )
    return Pods(table.name("name") or "", count, kind, table.count("min", 0, count), names)


def _gpu_types(table: Table) -> tuple[str, ...]:
    one, several = table.name("gpuType"), table.names("gpuTypes")
    if one is None:
        if several == () and table.items("gpuTypes") == []:
            table.wrong("gpuTypes", "must not be empty; null takes any type")
        return several or ()
    if several is not None:
        table.wrong("gpuType", "can't be there beside gpuTypes; keep one of them")
    return (one,)


def read_restored(table: Table, file: GangFile, at: float) -> Restored:
    """A placed gang; a pod of it without a place is over. ``table`` is the event."""
    table.needs("placement")
    kinds = {pod: role.kind for role in file.gang.roles for pod in role.pods}
    places: dict[str, PodPlace] = {}
    taken: set[tuple[str, str, int]] = set()
    for entry in table.tables("placement", PLACE) or ():
        place = _place(entry, kinds)
        if place.pod in places:
            entry.wrong("pod", f"is {place.pod!a} once more; keep one")
        else:
            _take(entry, place, taken)
        places[place.pod] = place
    if table.items("placement") == []:
        table.wrong("placement", "must not be empty")
    started_at = table.seconds("startedAt", -MAX_NUMBER)
    if started_at is None and not table.has("startedAt"):
        started_at = at
    if started_at is not None and started_at > at:
        table.wrong("startedAt", "must not be after at")
    return Restored(
        gang=_with_pods(file.gang, places),
        places=tuple(places.values()),
        gang_class=_class(table, file.gang.priority),
        cells=_cells(table),
        started_at=started_at,
        preempted_until=_preempted_until(table, started_at),
        preempted_for=table.name("preemptedFor"),
        reserved=_reserved(table, places, started_at),
        passed=table.name("backfilledOn"),
        checkpointed_at=_checkpointed_at(table, started_at, at),
        extra=_extra(table, places),
        lender=read_lender(table),
    )


def _extra(table: Table, places: Mapping[str, PodPlace]) -> tuple[ExtraPod, ...]:
    found: list[ExtraPod] = []
    for entry in table.tables("extra", EXTRA_POD) or ():
        entry.needs("pod", "startedAt")
        pod = entry.name("pod") or ""
        if pod and pod not in places:
            entry.wrong("pod", f"is {pod!a}, which has no placement")
        found.append(
            ExtraPod(
                pod,
                entry.seconds("startedAt", -MAX_NUMBER) or 0.0,
                read_class(entry, *GangClass),
                entry.seconds("preemptedUntil", -MAX_NUMBER),
                entry.name("preemptedFor"),
                read_lender(entry),
            )
        )
    return tuple(found)


def read_reservation(table: Table, gang: str) -> RestoredReservation:
    """Cells that were reserved for a gang. ``table`` is the event."""
    cells = _kept(table, "cells")
    held = _kept(table, "held") if table.has_value("held") else None
    if table.items("cells") == []:
        table.wrong("cells", "must not be empty")
    return RestoredReservation(
        gang=gang,
        cells=tuple(cells.items()),
        starts_at=table.seconds("startsAt", -MAX_NUMBER) or 0.0,
        since=table.seconds("since", -MAX_NUMBER) or 0.0,
        bound=_cell_uses(table, "bound"),
        held=None if held is None else tuple(held.items()),
        patient_until=table.seconds("patientUntil", -MAX_NUMBER),
        kept_of=_kept_of(table.table("keptOf", KEPT_OF)),
    )


def _kept_of(table: Table | None) -> KeptOf | None:
    if table is None:
        return None
    table.needs("virtualCluster", "priority", "user", "job")
    return KeptOf(
        table.name("virtualCluster") or "",
        table.count("priority", 0, HIGHEST_PRIORITY) or 0,
        table.name("user") or "",
        table.name("job") or "",
        table.names("pins") or (),
    )


def _kept(table: Table, field: str) -> dict[str, tuple[int, ...]]:
    """Indices of GPUs, by node."""
    found: dict[str, tuple[int, ...]] = {}
    for entry in table.tables(field, KEPT) or ():
        entry.needs("node", "gpus")
        node = entry.name("node") or ""
        if node in found:
            entry.wrong("node", f"is {node!a} once more; add its GPUs to the first")
        found[node] = entry.numbers("gpus") or ()
    return found


def _place(table: Table, kinds: dict[str, Kind]) -> PodPlace:
    table.needs("pod", "node", "gpus")
    pod, node = table.name("pod") or "", table.name("node") or ""
    gpus, ports = table.numbers("gpus") or (), table.numbers("ports", 1, MAX_PORT) or ()
    kind = kinds.get(pod)
    if kind is None:
        if pod:
            table.wrong("pod", f"is {pod!a}, which is no pod of the gang")
    elif table.has("gpus") and len(gpus) != kind.gpus:
        table.wrong("gpus", f"must be {kind.gpus}, the gang's number, not {len(gpus)}")
    elif len(ports) > kind.ports:
        table.wrong("ports", f"must be {kind.ports} at most, the gang's number, not {len(ports)}")
    charged = table.numbers("charged") or ()
    if not set(charged).isdisjoint(gpus):
        table.wrong("charged", "has one of gpus; it is for others on the node")
    return PodPlace(pod, node, gpus, ports, charged)


def _take(table: Table, place: PodPlace, taken: set[tuple[str, str, int]]) -> None:
    """No two pods of a gang have the same GPU or port. ``taken``: by earlier pods, by the field."""
    for field, numbers in (("gpus", place.gpus), ("ports", place.ports)):
        for number in numbers:
            if (place.node, field, number) in taken:
                what = f"{number}, which another pod of the gang has on {place.node!a}"
                table.wrong(field, f"has {what}")
            taken.add((place.node, field, number))


def _with_pods(gang: Gang, kept: Iterable[str]) -> Gang:
    """The gang with only these pods."""
    names = frozenset(kept)
    roles = (replace(role, pods=tuple(p for p in role.pods if p in names)) for role in gang.roles)
    return replace(gang, roles=tuple(role for role in roles if role.pods))


def _class(table: Table, priority: int) -> GangClass | None:
    found = read_class(table, *GangClass)
    if priority == OPPORTUNISTIC and found not in (None, GangClass.OPPORTUNISTIC):
        table.wrong("class", f"must be opportunistic where the priority is {OPPORTUNISTIC}")
    return found


def read_class(table: Table, *classes: GangClass) -> GangClass | None:
    """The field ``class``, one of these."""
    name = table.choice("class", *classes)
    return None if name is None else GangClass(name)


def read_lender(table: Table) -> str | None:
    """The field ``lender``."""
    lender = table.name("lender")
    if lender is not None and table.name("class") not in (None, GangClass.GUARANTEED):
        table.wrong("lender", "can't be there beside such a class; only guaranteed gangs borrow")
    return lender


def _cells(table: Table) -> tuple[CellUse, ...]:
    found = _cell_uses(table, "cells")
    extras = table.tables("extra", EXTRA_POD) or ()
    classes = {table.name("class"), *(entry.name("class") for entry in extras)}
    if found and GangClass.GUARANTEED not in classes:
        table.wrong("cells", "are held by guaranteed gangs alone; remove them, or correct class")
    return found


def _cell_uses(table: Table, field: str) -> tuple[CellUse, ...]:
    entries = table.tables(field, CELL) or ()
    for entry in entries:
        entry.needs("cell", "quota")
    return tuple(CellUse(each.name("cell") or "", _quota(each)) for each in entries)


def _quota(table: Table) -> str:
    """Empty: the cell is pinned."""
    return "" if table.text("quota") == "" else table.name("quota") or ""


def _reserved(
    table: Table, places: Mapping[str, PodPlace], started_at: float | None
) -> tuple[str, ...]:
    reserved = table.names("reserved") or ()
    if reserved and started_at is None:
        table.wrong("reserved", "can't be there where startedAt is null: all are reserved")
    for number, pod in enumerate(reserved):
        if pod not in places:
            table.wrong("reserved", f"has {pod!a} in place {number}, which has no placement")
    return reserved


def _checkpointed_at(table: Table, started_at: float | None, at: float) -> float | None:
    saved_at = table.seconds("checkpointedAt", -MAX_NUMBER)
    if saved_at is not None and started_at is None:
        table.wrong("checkpointedAt", "can't be there where startedAt is null")
    if saved_at is not None and saved_at > at:
        table.wrong("checkpointedAt", "must not be after at")
    return saved_at


def _preempted_until(table: Table, started_at: float | None) -> float | None:
    until = table.seconds("preemptedUntil", -MAX_NUMBER)
    if until is None and table.name("preemptedFor") is not None:
        table.wrong("preemptedUntil", "is missing beside preemptedFor; add it")
    if until is not None and started_at is None:
        table.wrong("preemptedUntil", "can't be there where startedAt is null")
    return until
