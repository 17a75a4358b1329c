"""What the core is given, written as the simulator reads it: events without their time, which is
the cycle's.

Roles are written as the core has them, with the names of their pods where those are not counted
from 0. What no file may have for a name is written as a name made from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from scheduler.domain.core.model import Gang, PodPlace, Restored, Role
from scheduler.domain.formats.decisions import place_fields
from scheduler.domain.formats.fields import name_problem
from scheduler.domain.formats.model import GangFile, Pods
from scheduler.domain.formats.writing import whole

Fields = dict[str, object]


def requested_event(gang: Gang, told: str | None = None) -> Fields:
    """A gang waits. ``told``: the code that it was told, why."""
    return {"event": "gang-requested", "gang": gang_fields(file_of(gang)), **_set(told=told)}


def grown_event(gang: str, roles: Sequence[Role], told: str | None = None) -> Fields:
    """A gang waits for these pods beside those that it has."""
    pods = [_pods_fields(pods) for pods in _entries(roles)]
    return {"event": "gang-grown", "gang": name_of(gang), "pods": pods, **_set(told=told)}


def released_event(gang: str) -> Fields:
    """A gang is over."""
    return {"event": "gang-released", "gang": name_of(gang)}


def pod_released_event(gang: str, pod: str) -> Fields:
    """A pod is over."""
    return {"event": "pod-released", "gang": name_of(gang), "pod": name_of(pod)}


def restored_event(restored: Restored, told: str | None = None) -> Fields:
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
        **_set(reserved=[name_of(pod) for pod in restored.reserved] or None, told=told),
    }


def blocked_event(
    node: str,
    gpus: Iterable[int],
    amounts: Mapping[str, int],
    ports: Iterable[int],
    avoided: Iterable[int],
) -> Fields:
    """So much of a node nobody's pods hold; ``amounts``: by the names of `NodeLimits`."""
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


def name_of(text: str) -> str:
    """As a file has it."""
    if name_problem(text) is None:
        return text
    return f"?{sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]}"


def _placement(place: PodPlace) -> Fields:
    fields = place_fields(place) | _set(charged=list(place.charged) or None)
    return fields | {"pod": name_of(place.pod)}


def file_of(gang: Gang) -> GangFile:
    """A gang of the core as a file would ask for it."""
    return GangFile(gang, tuple(_entries(gang.roles)))


def _entries(roles: Iterable[Role]) -> list[Pods]:
    """One for each role, under a name that no other one has: the role's, else its first pod's."""
    entries: list[Pods] = []
    names: set[str] = set()
    for role in roles:
        pods = tuple(map(name_of, role.pods))
        name = role.name if role.name and role.name not in names else pods[0]
        names.add(name)
        entry = Pods(name, len(pods), role.kind)
        is_counted = entry.role().pods == pods
        entries.append(entry if is_counted else Pods(name, len(pods), role.kind, names=pods))
    return entries


def gang_fields(file: GangFile) -> Fields:
    """A gang as plain data; optional fields only where they say something."""
    gang, course, kept = file.gang, file.course, file.kept
    return {
        "id": name_of(gang.id),
        **_set(job=name_of(gang.job) if gang.job not in ("", gang.id) else None, name=kept.name),
        "user": name_of(gang.user),
        "virtualCluster": name_of(gang.virtual_cluster),
        "priority": gang.priority,
        **_set(group=None if gang.group is None else name_of(gang.group)),
        "submittedAt": whole(gang.submitted_at),
        "pods": [_pods_fields(pods) for pods in file.pods],
        **_set(
            expectedSeconds=kept.expected_s,
            limitSeconds=kept.limit_s,
            runSeconds=course.run_s,
            minRunSeconds=kept.min_run_s,
            checkpointSeconds=course.checkpoint_s,
            lazyPreemption=gang.is_lazy,
            borrow=kept.is_borrowing or None,
            allowedNodes=None if gang.allowed_nodes is None else sorted(gang.allowed_nodes),
        ),
    }


def _pods_fields(pods: Pods) -> Fields:
    kind = pods.kind
    resources = {name_of(name): count for name, count in kind.resources}
    types = tuple(map(name_of, kind.gpu_types))
    return {
        "name": pods.name,
        **_set(names=None if pods.names is None else list(pods.names)),
        "count": pods.count,
        **_set(min=pods.least),
        "gpus": kind.gpus,
        **_set(
            gpuType=types[0] if len(types) == 1 else None,
            gpuTypes=list(types) if len(types) > 1 else None,
            pin=None if kind.pin is None else name_of(kind.pin),
            cpu=kind.cpu or None,
            memoryMB=kind.memory_mb or None,
            ports=kind.ports or None,
            resources=resources or None,
        ),
    }


def _set(**values: object) -> Fields:
    """Those that are there; whole seconds as integers."""
    return {
        name: whole(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }
