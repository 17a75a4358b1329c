"""Inputs of the core, written as the simulator reads them: events without their time, the cycle's.

Roles are written as the core has them. Pods have their names if those are not counted from 0. A
name that no file may have is replaced by a valid one made from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256

from scheduler.domain.core.model import (
    ExtraPod,
    Gang,
    GangClass,
    KeptOf,
    PodPlace,
    Restored,
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    Role,
)
from scheduler.domain.formats.decisions import cell_fields, place_fields
from scheduler.domain.formats.fields import name_problem
from scheduler.domain.formats.model import GangFile, Pods
from scheduler.domain.formats.writing import whole

Fields = dict[str, object]

NAMES_REMEMBERED = 100_000
"""Names in files: most are written again when their gang ends."""


def requested_event(gang: Gang, reason: str | None = None) -> Fields:
    """A gang waits. ``reason``: the code of its last published wait reason."""
    fields: Fields = {"event": "gang-requested", "gang": gang_fields(file_of(gang))}
    if reason is not None:
        fields["published"] = reason
    return fields


def elastic_event(gang: str, roles: Sequence[Role]) -> Fields:
    """A gang grows by as many of these pods as possible without cost."""
    return grown_event(gang, roles) | {"elastic": True}


def grown_event(gang: str, roles: Sequence[Role], reason: str | None = None) -> Fields:
    """A gang waits for these pods beside those that it has."""
    pods = [_pods_fields(pods) for pods in _entries(roles)]
    return {"event": "gang-grown", "gang": name_of(gang), "pods": pods, **_set(published=reason)}


def checkpointed_event(gang: str, saved_at: float) -> Fields:
    """A gang's work up to then is saved."""
    return {"event": "gang-checkpointed", "gang": name_of(gang), "savedAt": whole(saved_at)}


def released_event(gang: str, kept_until: float | None = None) -> Fields:
    """A gang is over. ``kept_until``: by the platform's fault; its healthy cells are kept."""
    return {"event": "gang-released", "gang": name_of(gang), **_set(keptUntil=kept_until)}


def pod_released_event(gang: str, pod: str, *, is_lost: bool = False) -> Fields:
    """A pod is over. ``is_lost``: by the platform's fault."""
    lost = {"lost": True} if is_lost else {}
    return {"event": "pod-released", "gang": name_of(gang), "pod": name_of(pod), **lost}


def restored_event(restored: Restored, reason: str | None = None) -> Fields:
    """A gang that is placed."""
    gang_class, until = restored.gang_class, restored.preempted_until
    started_at, for_gang = restored.started_at, restored.preempted_for
    return {
        "event": "gang-restored",
        "gang": gang_fields(file_of(restored.gang)),
        "placement": [_placement(place) for place in restored.places],
        "class": None if gang_class is None else gang_class.value,
        "cells": [{"cell": use.cell, "quota": use.quota} for use in restored.cells],
        "startedAt": None if started_at is None else whole(started_at),
        "preemptedUntil": None if until is None else whole(until),
        "preemptedFor": None if for_gang is None else name_of(for_gang),
        **_set(
            reserved=[name_of(pod) for pod in restored.reserved] or None,
            extra=[_extra_fields(each) for each in restored.extra] or None,
            backfilledOn=None if restored.passed is None else name_of(restored.passed),
            checkpointedAt=restored.checkpointed_at,
            lender=None if restored.lender is None else name_of(restored.lender),
            published=reason,
        ),
    }


def _extra_fields(extra: ExtraPod) -> Fields:
    until, preemptor = extra.preempted_until, extra.preempted_for
    return {
        "pod": name_of(extra.pod),
        "startedAt": whole(extra.started_at),
        "class": None if extra.gang_class is None else extra.gang_class.value,
        **_set(
            preemptedUntil=until,
            preemptedFor=None if preemptor is None else name_of(preemptor),
            lender=None if extra.lender is None else name_of(extra.lender),
        ),
    }


def reservation_event(restored: RestoredReservation) -> Fields:
    """Reserved cells of a gang."""
    return {
        "event": "reservation-restored",
        "gang": name_of(restored.gang),
        "cells": cell_fields(restored.cells),
        "startsAt": whole(restored.starts_at),
        "since": whole(restored.since),
        "bound": [{"cell": use.cell, "quota": use.quota} for use in restored.bound],
        **_set(
            held=None if restored.held is None else cell_fields(restored.held),
            patientUntil=restored.patient_until,
            keptOf=None if restored.kept_of is None else _kept_of_fields(restored.kept_of),
        ),
    }


def _kept_of_fields(of: KeptOf) -> Fields:
    return {
        "virtualCluster": name_of(of.virtual_cluster),
        "priority": of.priority,
        "user": name_of(of.user),
        "job": name_of(of.job),
        **_set(pins=[name_of(pin) for pin in of.pins] or None),
    }


def usage_event(restored: RestoredUsage) -> Fields:
    """A user's usage."""
    kind = GangClass.OPPORTUNISTIC if restored.is_opportunistic else GangClass.GUARANTEED
    return {
        "event": "usage-restored",
        "virtualCluster": name_of(restored.virtual_cluster),
        "user": name_of(restored.user),
        "class": kind.value,
        "used": {name_of(name): whole(amount_s) for name, amount_s in restored.used.items()},
        "usedAt": whole(restored.at),
    }


def preemption_event(restored: RestoredPreemption) -> Fields:
    """A gang of one job was preempted for one of another."""
    inside = restored.virtual_cluster
    return {
        "event": "preemption-restored",
        "preemptedAt": whole(restored.at),
        "job": name_of(restored.job),
        "forJob": name_of(restored.for_job),
        "virtualCluster": None if inside is None else name_of(inside),
    }


def blocked_event(
    node: str,
    gpus: Iterable[int],
    amounts: Mapping[str, int],
    ports: Iterable[int],
    avoided: Iterable[int],
) -> Fields:
    """Resources of a node that foreign pods hold; ``amounts``: by the names of `NodeLimits`."""
    return {
        "event": "node-blocked",
        "node": node,
        **_set(
            gpus=sorted(gpus) or None,
            cpu=amounts.get("cpu") or None,
            memoryMB=amounts.get("memoryMB") or None,
            ports=sorted(ports) or None,
            avoided=sorted(avoided) or None,
        ),
    }


@lru_cache(NAMES_REMEMBERED)
def name_of(text: str) -> str:
    """As a file has it."""
    if name_problem(text) is None:
        return text
    return f"?{sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]}"


def _placement(place: PodPlace) -> Fields:
    fields = place_fields(place) | _set(charged=list(place.charged) or None)
    return fields | {"pod": name_of(place.pod)}


def file_of(gang: Gang) -> GangFile:
    """A gang of the core as a file would request it."""
    return GangFile(gang, tuple(_entries(gang.roles)))


def _entries(roles: Iterable[Role]) -> list[Pods]:
    """One for each role, under a unique name: the role's, else its first pod's."""
    entries: list[Pods] = []
    names: set[str] = set()
    for role in roles:
        pods = tuple([name_of(pod) for pod in role.pods])
        name = role.name if role.name and role.name not in names else pods[0]
        names.add(name)
        is_counted = name == role.name and Pods(name, len(pods), role.kind).role().pods == pods
        least = role.least
        entries.append(Pods(name, len(pods), role.kind, least, None if is_counted else pods))
    return entries


def gang_fields(file: GangFile) -> Fields:
    """A gang as plain data; optional fields only if they differ from the default."""
    gang = file.gang
    fields: Fields = {"id": name_of(gang.id)}
    if gang.job not in ("", gang.id):
        fields["job"] = name_of(gang.job)
    fields["user"] = name_of(gang.user)
    fields["virtualCluster"] = name_of(gang.virtual_cluster)
    fields["priority"] = gang.priority
    if gang.group is not None:
        fields["group"] = name_of(gang.group)
    fields["submittedAt"] = whole(gang.submitted_at)
    fields["pods"] = [_pods_fields(pods) for pods in file.pods]
    fields |= _set(
        expectedSeconds=gang.expected_s,
        limitSeconds=gang.limit_s,
        runSeconds=file.run_s,
        minRunSeconds=gang.min_run_s,
        checkpointSeconds=gang.checkpoint_s,
        borrow=gang.is_borrowing or None,
        follows=None if gang.follows is None else name_of(gang.follows),
    )
    if gang.is_lazy is not None:
        fields["lazyPreemption"] = gang.is_lazy
    if gang.allowed_nodes is not None:
        fields["allowedNodes"] = sorted(gang.allowed_nodes)
    if gang.is_preflight:
        fields["preflight"] = True
    return fields


def _pods_fields(pods: Pods) -> Fields:
    kind, types = pods.kind, pods.kind.gpu_types
    fields: Fields = {"name": pods.name}
    if pods.names is not None:
        fields["names"] = pods.names
    fields["count"] = pods.count
    if pods.least is not None:
        fields["min"] = pods.least
    fields["gpus"] = kind.gpus
    if len(types) == 1:
        fields["gpuType"] = name_of(types[0])
    elif types:
        fields["gpuTypes"] = [name_of(gpu_type) for gpu_type in types]
    if kind.pin is not None:
        fields["pin"] = name_of(kind.pin)
    for name, amount in (("cpu", kind.cpu), ("memoryMB", kind.memory_mb), ("ports", kind.ports)):
        if amount:
            fields[name] = amount
    if kind.resources:
        fields["resources"] = {name_of(name): count for name, count in kind.resources}
    return fields


def _set(**values: object) -> Fields:
    """The fields that are not None; whole seconds as integers."""
    return {
        name: whole(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }
