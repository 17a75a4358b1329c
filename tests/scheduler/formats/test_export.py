"""What a running system writes is read as the same gangs in the same places."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler.domain.core.model import (
    CellUse,
    Gang,
    GangClass,
    Kind,
    PodPlace,
    Restored,
    Role,
)
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.export import grown_events, requested_events, restored_event
from scheduler.domain.formats.model import (
    Event,
    GangGrown,
    GangRequested,
    GangRestored,
    PodReleased,
)

names = st.text("abyz09-. é", min_size=1, max_size=5)
seconds = st.integers(0, 10_000).map(float) | st.floats(0, 1e6)
kinds = st.builds(
    Kind,
    gpus=st.integers(0, 4),
    gpu_types=st.lists(names, unique=True, max_size=3).map(tuple),
    pin=st.none() | names,
    cpu=st.integers(0, 64),
    memory_mb=st.integers(0, 10**6),
    ports=st.integers(0, 3),
    resources=st.dictionaries(names, st.integers(1, 9)).map(lambda it: tuple(sorted(it.items()))),
)


@st.composite
def gangs(draw: st.DrawFn) -> Gang:
    """A gang some of whose pods may be over."""
    roles = []
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        numbers = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True))
        roles.append(Role(draw(kinds), tuple(f"{name}-{number}" for number in sorted(numbers))))
    return Gang(
        draw(names),
        draw(names),
        draw(names),
        draw(st.integers(0, 1000)),
        tuple(roles),
        draw(names),
        draw(seconds),
        draw(st.none() | names),
        draw(st.none() | st.booleans()),
        draw(st.none() | st.frozensets(names, min_size=1)),
    )


def read(*events: dict[str, object]) -> list[Event]:
    """The events of a file with these lines."""
    return list(read_events(json.dumps(event).encode() for event in events))


@given(gangs(), seconds)
def test_a_waiting_gang(gang: Gang, at: float) -> None:
    first, *released = read(*requested_events(at, gang))
    assert isinstance(first, GangRequested)
    over = {event.pod for event in released if isinstance(event, PodReleased)}
    assert len(over) == len(released)
    left = tuple(
        Role(role.kind, tuple(pod for pod in role.pods if pod not in over))
        for role in first.file.gang.roles
    )
    assert left == gang.roles
    assert first.at == at


@given(gangs(), st.data())
def test_a_placed_gang(gang: Gang, data: st.DataObject) -> None:
    places = tuple(
        PodPlace(
            pod,
            f"n-{pod}",
            tuple(range(role.kind.gpus)),
            tuple(range(9, 9 + role.kind.ports)),
            data.draw(st.sampled_from([(), (8, 9)])),
        )
        for role in gang.roles
        for pod in role.pods
    )
    gang_class = data.draw(st.sampled_from([None, *GangClass]))
    started_at = data.draw(st.none() | st.floats(-10, 20))
    until: Any = None if started_at is None else data.draw(st.none() | seconds)
    restored = Restored(
        gang,
        places,
        gang_class,
        (CellUse("rack0/n0", "rack/node"),) if gang_class is GangClass.GUARANTEED else (),
        started_at,
        until,
        None if until is None else data.draw(st.none() | names),
        () if started_at is None else data.draw(st.sampled_from([(), (places[0].pod,)])),
    )
    [event] = read(restored_event(20.0, restored))
    assert isinstance(event, GangRestored)
    assert event.restored == restored


def test_pods_that_came_later_under_the_same_name_are_one_entry() -> None:
    w = Kind(gpus=1)
    gang = Gang("a", "v", "u", 0, (Role(w, ("w-0",)), Role(w, ("w-1", "v-0"))))
    [event] = read(*requested_events(0.0, gang))
    assert isinstance(event, GangRequested)
    assert [(pods.name, pods.count) for pods in event.file.pods] == [("w", 2), ("v", 1)]


def test_growth_counts_on_from_what_the_gang_has() -> None:
    w, v = Kind(gpus=1), Kind(cpu=1)
    gang = Gang("a", "v", "u", 0, (Role(w, ("w-0", "w-2")),))
    grown, *released = read(
        *grown_events(0.0, gang, [Role(w, ("w-3", "w-5")), Role(v, ("v-1",)), Role(w, ("w-6",))])
    )
    assert isinstance(grown, GangGrown)
    assert [(pods.name, pods.count, pods.kind) for pods in grown.pods] == [("w", 4, w), ("v", 2, v)]
    assert [each.pod for each in released if isinstance(each, PodReleased)] == ["w-4", "v-0"]


def test_no_growth_is_no_event() -> None:
    assert grown_events(0.0, Gang("a", "v", "u", 0, (Role(Kind(), ("w-0",)),)), []) == []


def test_growth_is_numbered_after_what_the_gang_has() -> None:
    gang = Gang("a", "v", "u", 0, (Role(Kind(), ("w-4",)),))
    with pytest.raises(ValueError, match="waits before one that runs"):
        grown_events(0.0, gang, [Role(Kind(), ("w-3",))])


@pytest.mark.parametrize("pod", ["w", "w-01", "-1", "w-x"])
def test_a_pod_must_end_in_a_number(pod: str) -> None:
    with pytest.raises(ValueError, match="does not end in a number"):
        requested_events(0.0, Gang("a", "v", "u", 0, (Role(Kind(), (pod,)),)))


def test_pods_of_one_name_must_want_the_same() -> None:
    roles = (Role(Kind(1), ("w-0",)), Role(Kind(2), ("w-1",)))
    with pytest.raises(ValueError, match="do not want the same"):
        requested_events(0.0, Gang("a", "v", "u", 0, roles))
