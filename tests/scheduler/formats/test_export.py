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
    RestoredReservation,
    Role,
)
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.export import (
    grown_event,
    requested_event,
    reservation_event,
    restored_event,
)
from scheduler.domain.formats.model import (
    Event,
    GangGrown,
    GangRequested,
    GangRestored,
    ReservationRestored,
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


def read(event: dict[str, object], at: float = 0.0) -> Event:
    """The event of a file with this line."""
    [found] = read_events([json.dumps({"at": at} | event).encode()])
    return found


@given(gangs(), seconds, st.none() | names)
def test_a_waiting_gang(gang: Gang, at: float, told: str | None) -> None:
    event = read(requested_event(gang, told), at)
    assert isinstance(event, GangRequested)
    assert event.file.gang == gang
    assert (event.at, event.published) == (at, told)


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
        lender=data.draw(st.none() | names) if gang_class is GangClass.GUARANTEED else None,
    )
    event = read(restored_event(restored), 20.0)
    assert isinstance(event, GangRestored)
    assert event.restored == restored


def test_a_reservation_that_is_charged_cells_elsewhere() -> None:
    """Its quota is bound there, until the gang there has ended."""
    cells, elsewhere = ("n0", (0, 1)), ("n3", (2,))
    bound = (CellUse("r0/n0", "rack/node"), CellUse("r1/n3", "rack/node"))
    restored = RestoredReservation("g", (cells,), 9.0, 1.0, bound, held=(cells, elsewhere))
    event = read(reservation_event(restored))
    assert isinstance(event, ReservationRestored)
    assert event.restored == restored


def test_roles_stay_apart_under_names_of_their_own() -> None:
    w = Kind(gpus=1)
    roles = (Role(w, ("w-0", "w-1"), "w"), Role(w, ("w-3", "x"), "w"), Role(w, ("v-0-0", "v-1-0")))
    event = read(requested_event(Gang("a", "v", "u", 0, roles)))
    assert isinstance(event, GangRequested)
    assert [(pods.name, pods.count, pods.names) for pods in event.file.pods] == [
        ("w", 2, None),
        ("w-3", 2, ("w-3", "x")),
        ("v-0-0", 2, ("v-0-0", "v-1-0")),
    ]


def test_pods_count_on_from_the_highest_of_their_name() -> None:
    event = read(requested_event(Gang("a", "v", "u", 0, (Role(Kind(), ("w-0", "w-4"), "w"),))))
    assert isinstance(event, GangRequested)
    assert event.file.pods[0].next() == 5


def test_growth() -> None:
    w, v = Kind(gpus=1), Kind(cpu=1)
    roles = (Role(w, ("w-3", "w-5")), Role(v, ("v-1",)))
    event = read(grown_event("a", roles, "quota"))
    assert isinstance(event, GangGrown)
    assert (event.gang, event.published) == ("a", "quota")
    assert tuple(pods.role() for pods in event.pods) == roles


@pytest.mark.parametrize("text", ["", "a" * 257, "a\nb", "\ud800"])
def test_what_no_file_may_have_for_a_name_is_written_under_another(text: str) -> None:
    gang = Gang(text, text, text, 0, (Role(Kind(), (text,)),), text, 0.0, text)
    event = read(requested_event(gang))
    assert isinstance(event, GangRequested)
    grown = read(grown_event(text, gang.roles))
    assert isinstance(grown, GangGrown)
    assert grown.gang == event.file.gang.id != text
