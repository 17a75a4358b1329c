"""A whole cluster as events: a running system's memory, to be continued in a simulation.

The order is: nodes, gangs with places, waiting gangs, each by name. Last comes the event that they
were tried, if no gang waits for the next cycle. A snapshot is taken in one moment and can be
written later and elsewhere: later changes don't alter it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from scheduler.domain.core.interface import Core, NodeState
from scheduler.domain.core.model import (
    Gang,
    Kind,
    Restored,
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    Role,
)
from scheduler.domain.formats.export import (
    Fields,
    blocked_event,
    elastic_event,
    grown_event,
    preemption_event,
    requested_event,
    reservation_event,
    restored_event,
    usage_event,
)
from scheduler.domain.formats.writing import whole

STEP = 500
"""Nodes or gangs in one step: 10 to 20 ms."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A cluster at one moment. ``placed``: gangs with the pods that they wait for, and the code of
    their last published wait reason. ``growing``: the elastic pods that gangs wait for. ``kept``:
    reservations. ``used``: users' usage. ``preempted``: in the last hour. ``tried``: the event that
    all gangs were tried, if they were.
    """

    nodes: list[Fields] = field(default_factory=list)
    placed: list[tuple[Restored, tuple[Role, ...], str | None]] = field(default_factory=list)
    growing: dict[str, tuple[Role, ...]] = field(default_factory=dict)
    waiting: list[tuple[Gang, str | None]] = field(default_factory=list)
    kept: list[RestoredReservation] = field(default_factory=list)
    used: list[RestoredUsage] = field(default_factory=list)
    preempted: list[RestoredPreemption] = field(default_factory=list)
    tried: list[Fields] = field(default_factory=list)

    def events(self) -> Iterator[Fields]:
        """All of it as plain data, without the time."""
        yield from self.nodes
        yield from map(preemption_event, self.preempted)
        for exported, waiting, reason in self.placed:
            restored = exported
            placed = frozenset(place.pod for place in restored.places)
            roles = _with(restored.gang.roles, placed.__contains__)
            if roles != restored.gang.roles:
                restored = replace(restored, gang=replace(restored.gang, roles=roles))
            more = _with(waiting, lambda pod, placed=placed: pod not in placed)  # type: ignore[misc]
            yield restored_event(restored, None if more else reason)
            if more:
                yield grown_event(restored.gang.id, more, reason)
            if extras := self.growing.get(restored.gang.id):
                yield elastic_event(restored.gang.id, extras)
        for gang, reason in self.waiting:
            yield requested_event(gang, reason)
        yield from map(reservation_event, self.kept)
        yield from map(usage_event, self.used)
        yield from self.tried


def taking(core: Core, taken: Taken) -> Iterator[None]:
    """Take a snapshot of a core in steps. The core must not change until the last one."""
    nodes, gangs = sorted(core.forest.machines), sorted(core.gang_ids())
    if core.was_tried():
        how: Fields = {} if core.is_settled else {"settled": False}
        taken.tried.append({"event": "gangs-tried"} | how)
    taken.kept.extend(core.rows.reservations())
    taken.used.extend(core.rows.usages())
    taken.preempted.extend(core.rows.preemptions())
    for first in range(0, len(nodes), STEP):
        for name in nodes[first : first + STEP]:
            if (node := core.nodes.of(name)) is not None:
                taken.nodes.extend(_of_node(name, node))
        yield
    for first in range(0, len(gangs), STEP):
        for name in gangs[first : first + STEP]:
            gang, restored = core.gang(name), core.exported(name)
            if gang is not None and restored.places:
                taken.growing[name] = _by_kind(gang.elastic)
                taken.placed.append((restored, gang.waiting, gang.published))
            elif gang is not None:
                taken.waiting.append((replace(gang.gang, roles=gang.waiting), gang.published))
        yield


def timed(taken: Taken, at: float) -> Iterator[Fields]:
    """The events of the snapshot of ``at`` seconds, as plain data."""
    for event in taken.events():
        yield {"at": whole(at)} | event


def _of_node(name: str, node: NodeState) -> Iterator[Fields]:
    of_node: Fields = {"node": name}
    if not node.is_healthy:
        yield {"event": "node-bad"} | of_node
    if node.is_cordoned:
        yield {"event": "node-cordoned"} | of_node
    if node.is_drained:
        yield {"event": "node-drained"} | of_node
    for gpu in sorted(node.bad):
        yield {"event": "gpu-bad"} | of_node | {"gpu": gpu}
    if node.blocked or any(node.amounts.values()) or node.ports or node.avoided:
        yield blocked_event(name, node.blocked, node.amounts, node.ports, node.avoided)


def _by_kind(roles: Iterable[Role]) -> tuple[Role, ...]:
    """Elastic pods that a gang waits for, one by one: equal ones together."""
    found: dict[Kind, Role] = {}
    for role in roles:
        same = found.get(role.kind)
        found[role.kind] = role if same is None else replace(same, pods=(*same.pods, *role.pods))
    return tuple(found.values())


def _with(roles: Iterable[Role], is_kept: Callable[[str], bool]) -> tuple[Role, ...]:
    """Roles with some of their pods."""
    kept: list[Role] = []
    for role in roles:
        pods = tuple(filter(is_kept, role.pods))
        if pods:
            least = role.least if role.least is None else min(role.least, len(pods))
            is_whole = len(pods) == len(role.pods)
            kept.append(role if is_whole else replace(role, pods=pods, least=least))
    return tuple(kept)
