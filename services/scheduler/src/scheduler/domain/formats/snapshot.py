"""A whole cluster as events: what a running system has in memory, to be gone on with in a
simulation.

Nodes first, then gangs that have places, then those that wait, each by its name. Said again in
what follows is only why gangs wait.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.machines import Machine
from scheduler.domain.core.model import Role
from scheduler.domain.formats.export import grown_events, requested_events, restored_event
from scheduler.domain.formats.writing import whole

Events = Iterator[dict[str, object]]


def cluster_events(cluster: Cluster, at: float) -> Events:
    """All that is in a cluster at ``at`` seconds, as plain data.

    Raises ValueError where pods can't be written: see `export.file_of`.
    """
    for name, machine in sorted(cluster.hardware.machines.items()):
        for event, gpu in _of_node(machine):
            fields: dict[str, object] = {"at": whole(at), "event": event, "node": name}
            yield fields if gpu is None else fields | {"gpu": gpu}
    gangs = [cluster.gangs[gang] for gang in sorted(cluster.gangs)]
    for live in gangs:
        if _has_places(live):
            yield from _placed(cluster, live, at)
    for live in gangs:
        if not _has_places(live):
            yield from requested_events(at, replace(live.gang, roles=live.waiting))


def _of_node(machine: Machine) -> Iterator[tuple[str, int | None]]:
    if not machine.is_healthy:
        yield "node-bad", None
    if machine.is_cordoned:
        yield "node-cordoned", None
    if machine.is_drained:
        yield "node-drained", None
    for state in machine.slots:
        for gpu in state.slot.indices(state.sick):
            yield "gpu-bad", gpu


def _has_places(live: Live) -> bool:
    return bool(live.pods or live.strangers)


def _placed(cluster: Cluster, live: Live, at: float) -> Events:
    restored = cluster.exported(live.id)
    placed = frozenset(place.pod for place in restored.places)
    gang = replace(restored.gang, roles=_with(restored.gang.roles, placed.__contains__))
    yield restored_event(at, replace(restored, gang=gang))
    waiting = _with(live.waiting, lambda pod: pod not in placed)  # reserved ones have places
    yield from grown_events(at, gang, waiting)


def _with(roles: Iterable[Role], is_kept: Callable[[str], bool]) -> tuple[Role, ...]:
    """Roles with some of their pods."""
    kept = (replace(role, pods=tuple(filter(is_kept, role.pods))) for role in roles)
    return tuple(role for role in kept if role.pods)
