"""From what was decided to who holds what: GPUs for pods, cells for gangs, and their end."""

from collections.abc import Iterator
from dataclasses import replace

from scheduler.domain.core.model import GangClass, PodPlace, Restored, Role

from oracle.choices import Found
from oracle.hardware import Hardware, Path
from oracle.state import Record, State


def release_pod(state: State, gang_id: str, pod: str) -> None:
    """A pod has ended: its place is free at once; with the last pod the gang is gone."""
    record = state.records.get(gang_id)
    if record is None or pod not in record.places:
        return
    roles = tuple(
        Role(role.kind, tuple(name for name in role.pods if name != pod))
        for role in record.gang.roles
    )
    places = {name: place for name, place in record.places.items() if name != pod}
    if not places:
        del state.records[gang_id]
        return
    left = replace(record, gang=replace(record.gang, roles=roles), places=places)
    held = {at for leaf in state.charged_by(left) for at in state.hardware.path_up(leaf)}
    cells = frozenset(use for use in left.cells if use[0] in held)
    state.records[gang_id] = replace(left, cells=cells)


def without_cells(record: Record, gang_class: GangClass) -> Record:
    """A gang that runs on in nobody's cells, charged nothing."""
    places = {name: place._replace(charged=()) for name, place in record.places.items()}
    return replace(record, gang_class=gang_class, cells=frozenset(), places=places)


def held_cells(
    hardware: Hardware, mine: dict[int, Path], leaves: list[int]
) -> frozenset[tuple[int, Path]]:
    """The cells of a virtual cluster that these leaves are in."""
    cells = set()
    pinned = set(hardware.pins.values())
    for leaf in leaves:
        for at in hardware.path_up(leaf):
            if at in mine:
                cells.add((at, mine[at]))
            elif at in pinned:
                cells.add((at, str(hardware.cells[at].pin)))
    return frozenset(cells)


def settle(
    found: Found, hardware: Hardware
) -> tuple[dict[str, PodPlace], frozenset[tuple[int, Path]]]:
    """GPUs for each pod of a fit, and the cells they are in."""
    view, fit = found.view, found.fit
    pools = view.pools(list(fit.bindings))
    idle = set(view.idle)
    places: dict[str, PodPlace] = {}
    taken: list[int] = []
    for want in found.wants:
        spot = fit.spots[want.pod]
        if isinstance(spot, str):
            places[want.pod] = PodPlace(want.pod, spot)
            continue
        node, pin = str(hardware.cells[spot].node), want.kind.pin or ""
        inside = sorted(hardware.below(spot), key=lambda at: (hardware.level(at), at))
        rooms = (
            [
                leaf
                for leaf in hardware.leaves(cell)
                if leaf in idle
                and (not view.is_guaranteed or (pools.get(leaf) == pin and leaf in view.chargeable))
            ]
            for cell in inside
        )
        leaves = next((room for room in rooms if len(room) >= want.kind.gpus), [])
        leaves = leaves[: want.kind.gpus]
        idle -= set(leaves)
        taken += leaves
        gpus = tuple(sorted(hardware.cells[leaf].gpu or 0 for leaf in leaves))
        places[want.pod] = PodPlace(want.pod, node, gpus)
    for want in found.wants:
        spot = fit.spots[want.pod]
        if not view.is_guaranteed or isinstance(spot, str):
            continue
        place, pin = places[want.pod], want.kind.pin or ""
        more = (view.needed(want.kind, place.node) or 0) - want.kind.gpus
        rest = [
            leaf
            for leaf in hardware.leaves(spot)
            if leaf in view.chargeable and pools.get(leaf) == pin and leaf not in taken
        ][: max(more, 0)]
        taken += rest
        charged = tuple(hardware.cells[leaf].gpu or 0 for leaf in rest)
        places[want.pod] = place._replace(charged=charged)
    vc = view.gang.virtual_cluster
    mine = {c: p for c, (owner, p) in view.with_bound(list(fit.bindings)).items() if owner == vc}
    return places, held_cells(hardware, mine, taken)


def held_places(theirs: Record, ours: Record) -> dict[str, PodPlace]:
    """A gang's places; of one that leaves, which is charged nothing, its GPUs alone."""
    if not ours.is_leaving:
        return dict(theirs.places)
    return {pod: place._replace(charged=()) for pod, place in theirs.places.items()}


def differences(mine: Record, record: Record, kept: Restored) -> Iterator[str]:
    """What a core says of a gang and is not as it was decided; ``mine``: as the core has it."""
    pairs = {
        "places": (held_places(mine, record), held_places(record, record)),
        "class": (mine.gang_class, record.gang_class),
        "start": (kept.started_at, record.started_at),
        "end": (kept.preempted_until, record.preempted_until),
        "for": (kept.preempted_for, record.preempted_for),
    }
    for what, (theirs, ours) in pairs.items():
        if theirs != ours:
            name = record.gang.id
            yield f"{what} of {name} is exported as {theirs}; decided was {ours}"
