"""Reservations: when they can be used, and who took them."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import combinations

from scheduler.domain.core.model import Gang, PodPlace

from oracle import choices
from oracle.checker import findings
from oracle.state import Record, State


def is_place_free(state: State, record: Record) -> bool:
    """Whether the GPUs of a reservation are free, all its victims gone, and CPU and so on free."""
    running = {name: other for name, other in state.records.items() if not other.is_reserved}
    held = {leaf for other in running.values() for leaf in state.leaves_of(other)}
    if held & set(state.leaves_of(record)):
        return False
    name = record.gang.id.rstrip("+")
    if any(other.preempted_for == name for other in running.values()):
        return False
    before = set(findings(state.trial(running)))
    after = findings(state.trial({**running, record.gang.id: replace(record, started_at=0.0)}))
    return not [text for text in after if " is used of " in text and text not in before]


def is_same_place(record: Record, places: Mapping[str, PodPlace]) -> bool:
    """Whether these are the reserved places; the ports may be others by the time it starts."""
    return {pod: place._replace(ports=()) for pod, place in places.items()} == {
        pod: place._replace(ports=()) for pod, place in record.places.items()
    }


def is_short_of_the_rest(state: State, record: Record) -> bool:
    """Whether CPU and so on would run short if all reservations were used at this moment."""
    everybody = {name: replace(other, started_at=0.0) for name, other in state.records.items()}
    texts = findings(state.trial(everybody))
    machines = machines_of(record)
    return any(" is used of " in text and text.split(":")[0] in machines for text in texts)


def taken_reservations(
    state: State, gang: Gang, record: Record, cancelled: Collection[str], lower: Collection[str]
) -> list[str]:
    """Whose reservations a gang took: those in its place, and of the others the fewest without
    which there is room, on its machines if that does; where their quota is taken too, all.
    ``lower``: who leaves, or loses its cells.
    """
    machines, mine = machines_of(record), set(state.charged_by(record))
    below = [
        other
        for other in choices.below(state, gang)
        if other.is_reserved and other.gang.id in cancelled
    ]
    sure = [other.gang.id for other in below if mine & set(state.charged_by(other))]
    near = [other.gang.id for other in below if machines & machines_of(other)]
    more = [name for name in near if name not in sure]
    for size in range(len(more) + 1):
        for some in combinations(more, size):
            names = [*sure, *some]
            stay = {
                name: replace(other, started_at=0.0)
                for name, other in state.records.items()
                if name not in names and name not in lower and not other.is_leaving
            }
            before = len(findings(state.trial(stay)))
            stay[gang.id] = replace(record, started_at=0.0)
            if len(findings(state.trial(stay))) == before:
                return names
    return [other.gang.id for other in below]


def machines_of(record: Record) -> set[str]:
    """Where its pods are, or are to be."""
    return {place.node for place in record.places.values()}
