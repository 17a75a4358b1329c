"""A running system as events: what stands in its memory, written as the simulator reads it.

Pods must be named ``<something>-<number>``. Pods of one name are one entry of ``pods``, which
counts from 0; numbers that are missing are told as released, or have no place.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from scheduler.domain.core.model import Gang, Kind, PodPlace, Restored, Role
from scheduler.domain.formats.decisions import place_fields
from scheduler.domain.formats.model import GangFile, Pods
from scheduler.domain.formats.writing import whole

_POD = re.compile(r"(.+)-(0|[1-9][0-9]*)")


def requested_events(at: float, gang: Gang) -> list[dict[str, object]]:
    """A gang that waits: its request, and the pods of it that are over already.

    Raises ValueError where pods can't be written: see `file_of`.
    """
    file = file_of(gang)
    wanted = {pod for role in gang.roles for pod in role.pods}
    over = [pod for pods in file.pods for pod in pods.role().pods if pod not in wanted]
    requested: dict[str, object] = {
        "at": whole(at),
        "event": "gang-requested",
        "gang": gang_fields(file),
    }
    return [requested, *_released(at, gang.id, over)]


def _released(at: float, gang: str, pods: Iterable[str]) -> Iterator[dict[str, object]]:
    for pod in pods:
        yield {"at": whole(at), "event": "pod-released", "gang": gang, "pod": pod}


def grown_events(at: float, gang: Gang, roles: Sequence[Role]) -> list[dict[str, object]]:
    """A gang waits for these pods beside those that it has: its growth, and the pods of that which
    are over already.

    Raises ValueError where pods can't be written: see `file_of`, and where one of them is numbered
    before one that the gang has.
    """
    had = {pods.name: pods.count for pods in file_of(gang).pods}
    wanted = file_of(replace(gang, roles=tuple(roles))).pods
    if not wanted:
        return []
    waiting = {pod for role in roles for pod in role.pods}
    grown: list[dict[str, object]] = []
    over: list[str] = []
    for pods in wanted:
        first = had.get(pods.name, 0)
        more = replace(pods, count=pods.count - first)
        numbered = more.role(first).pods if more.count > 0 else ()
        if any(pod.rpartition("-")[0] == pods.name for pod in waiting - set(numbered)):
            raise ValueError(f"a pod of {pods.name!a} of {gang.id!a} waits before one that runs")
        grown.append(_pods_fields(more))
        over += [pod for pod in numbered if pod not in waiting]
    event: dict[str, object] = {"at": whole(at), "event": "gang-grown", "gang": gang.id}
    return [event | {"pods": grown}, *_released(at, gang.id, over)]


def restored_event(at: float, restored: Restored) -> dict[str, object]:
    """A gang that is placed. Raises ValueError where pods can't be written: see `file_of`."""
    gang_class, until = restored.gang_class, restored.preempted_until
    started_at = restored.started_at
    return {
        "at": whole(at),
        "event": "gang-restored",
        "gang": gang_fields(file_of(restored.gang)),
        "placement": [_placement(place) for place in restored.places],
        "class": None if gang_class is None else gang_class.value,
        "cells": [{"cell": use.cell, "quota": use.quota} for use in restored.cells],
        "startedAt": None if started_at is None else whole(started_at),
        "preemptedUntil": None if until is None else whole(until),
        "preemptedFor": restored.preempted_for,
        **_set(reserved=list(restored.reserved) or None),
    }


def _placement(place: PodPlace) -> dict[str, object]:
    return place_fields(place) | _set(charged=list(place.charged) or None)


def file_of(gang: Gang) -> GangFile:
    """A gang of the core as a file would ask for it.

    Raises ValueError where a pod's name does not end in a number, or pods whose names differ only
    in that number do not want the same.
    """
    counts: dict[str, int] = {}
    kinds: dict[str, Kind] = {}
    for role in gang.roles:
        for pod in role.pods:
            matched = _POD.fullmatch(pod)
            if matched is None:
                raise ValueError(f"the pod {pod!a} of {gang.id!a} does not end in a number")
            name, number = matched[1], int(matched[2])
            if kinds.setdefault(name, role.kind) != role.kind:
                raise ValueError(f"the pods {name!a} of {gang.id!a} do not want the same")
            counts[name] = max(counts.get(name, 0), number + 1)
    pods = tuple(Pods(name, count, kinds[name]) for name, count in counts.items())
    return GangFile(gang, pods)


def gang_fields(file: GangFile) -> dict[str, object]:
    """A gang as plain data; optional fields only where they say something."""
    gang, course, kept = file.gang, file.course, file.kept
    return {
        "id": gang.id,
        **_set(job=gang.job if gang.job not in ("", gang.id) else None, name=kept.name),
        "user": gang.user,
        "virtualCluster": gang.virtual_cluster,
        "priority": gang.priority,
        **_set(group=gang.group),
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


def _pods_fields(pods: Pods) -> dict[str, object]:
    kind = pods.kind
    resources: Mapping[str, int] = dict(kind.resources)
    types = kind.gpu_types
    return {
        "name": pods.name,
        "count": pods.count,
        **_set(min=pods.least),
        "gpus": kind.gpus,
        **_set(
            gpuType=types[0] if len(types) == 1 else None,
            gpuTypes=list(types) if len(types) > 1 else None,
            pin=kind.pin,
            cpu=kind.cpu or None,
            memoryMB=kind.memory_mb or None,
            ports=kind.ports or None,
            resources=resources or None,
        ),
    }


def _set(**values: object) -> dict[str, object]:
    """Those that are there; whole seconds as integers."""
    return {
        name: whole(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }
