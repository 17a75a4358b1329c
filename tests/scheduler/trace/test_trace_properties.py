"""Any list of rows becomes events that the simulator reads, in order, with every pod; and nothing
that is wrong is more than told.
"""

import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.fields import FormatError
from scheduler.domain.formats.model import GangRequested
from scheduler.domain.trace.csv_rows import Rows
from scheduler.domain.trace.gangs import Imported, import_rows
from scheduler.domain.trace.mapping import Mapping
from scheduler.domain.trace.mapping_file import read_mapping
from trace_lists import GANG, HEADER, imported, mapping

HEADER_OF_ALL = "id,at,run,gpus,share,type,role,n,cpu,user,class,limit"
OF_ALL: dict[str, Any] = {
    "user": {"column": "user", "default": "nobody"},
    "priority": {"column": "class", "table": {"LS": 10, "BE": -1}, "default": 0},
    "runSeconds": {"column": "run", "missing": "drop"},
    "expectedSeconds": {"factor": 1.3},
    "limitSeconds": {"column": "limit", "scale": 0.001},
    "pods": {
        "name": "role",
        "count": "n",
        "gpus": {"column": "gpus", "times": "share", "scale": 0.01, "fractions": "up"},
        "gpuTypes": {"column": "type", "separator": "|"},
        "cpu": {"column": "cpu", "scale": 0.001, "default": 1},
        "memoryMB": {"column": "cpu", "per": "gang", "default": 0},
    },
}

times = st.integers(-100, 100) | st.decimals(-100, 100, places=4, allow_nan=False)


@st.composite
def rows(draw: st.DrawFn) -> tuple[str, ...]:
    """Cells of a row."""
    cells = (
        draw(st.sampled_from("abcdé ")) + draw(st.sampled_from("-xy")),
        draw(times),
        draw(st.just("") | times),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 300)),
        draw(st.sampled_from(("", "T4", "A|B", "|", "B|A|B"))),
        draw(st.sampled_from(("w", "w-2", "w-3", "ps"))),
        draw(st.integers(1, 4)),
        draw(st.just("") | st.integers(0, 10**6)),
        draw(st.sampled_from(("", "ann"))),
        draw(st.sampled_from(("", "LS", "BE", "?"))),
        draw(st.just("") | st.integers(1, 10**6)),
    )
    return tuple(str(cell) for cell in cells)


def read_again(came: Imported) -> list[GangRequested]:
    """The events of a list, as the simulator reads them."""
    found = list(read_events(line.encode() for line in came.lines()))
    assert all(isinstance(event, GangRequested) for event in found)
    return [event for event in found if isinstance(event, GangRequested)]


def assert_is_read(came: Imported) -> None:
    """The events of a list are right, however wrong the list may be."""
    try:
        read_again(came)
    except FormatError as error:
        raise AssertionError(str(error)) from error


@given(st.lists(rows(), max_size=30))
def test_any_rows_become_events_that_are_read_with_every_pod(found: list[tuple[str, ...]]) -> None:
    made = mapping(file={"joinRows": True}, **OF_ALL)
    # Rows of a gang agree whose it is.
    whose = {cells[0].strip(): cells[9:11] for cells in found}
    agreed = [(*cells[:9], *whose[cells[0].strip()], cells[11]) for cells in found]
    lines = [",".join(f'"{cell}"' for cell in cells) for cells in agreed]
    came = imported(made, *lines, header=HEADER_OF_ALL)
    events = read_again(came)
    kept = {event.file.gang.id for event in events}
    pods = dict.fromkeys(kept, 0)
    for cells in agreed:
        if cells[0].strip() in kept:
            pods[cells[0].strip()] += int(cells[7])
    assert {e.file.gang.id: sum(p.count for p in e.file.pods) for e in events} == pods
    assert came.pods == sum(pods.values())
    assert all(first.at <= second.at for first, second in pairwise(events))
    assert not events or events[0].at == 0
    assert len(found) == sum(came.left_out.values()) + sum(
        cells[0].strip() in kept for cells in agreed
    )
    for event in events:
        assert event.file.run_s is not None
        assert event.file.run_s > 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 8)), max_size=30))
def test_the_order_of_rows_tells_only_gangs_of_one_time_apart(
    found: list[tuple[int, int, int]],
) -> None:
    lines = [f"g{number},{at},{run},{gpus}" for number, (at, run, gpus) in enumerate(found)]
    forth = list(imported(mapping(), *lines).lines())
    back = list(imported(mapping(), *reversed(lines)).lines())
    assert sorted(forth) == sorted(back)
    assert [json.loads(line)["at"] for line in forth] == [json.loads(line)["at"] for line in back]
    assert forth == list(imported(mapping(), *lines).lines())


@given(st.binary(max_size=200) | st.text('ab1,"\n\r| -.', max_size=200).map(str.encode))
def test_any_bytes_are_a_list_or_are_refused(data: bytes) -> None:
    read = read_mapping(mapping())
    lines = [f"{HEADER}\n".encode(), *data.splitlines(keepends=True)]
    with suppress(FormatError):
        came = import_rows(Rows(lines, read.columns), read)
        assert_is_read(came)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(("", "a", "date", "gang", "drop", "up")),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ("column", "value", "table", "default", "scale", "factor", "start", "end", "is")
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from((*GANG, "job", "limitSeconds")), _values, max_size=4),
    st.dictionaries(
        st.sampled_from(("columns", "empty", "keep", "joinRows", "time")), _values, max_size=2
    ),
    st.dictionaries(
        st.sampled_from(("name", "count", "gpus", "gpuTypes", "cpu", "memoryMB")), _values
    ),
)
def test_any_mapping_is_one_or_is_refused(
    gang: dict[str, Any], file: dict[str, Any], pods: dict[str, Any]
) -> None:
    with suppress(FormatError):
        read = read_mapping(mapping(file=file, **({"pods": GANG["pods"] | pods} | gang)))
        assert_ones_are_read(read)


def assert_ones_are_read(read: Mapping) -> None:
    """A list all of whose cells are 1."""
    columns = sorted({use.column for use in read.uses})
    lines = [",".join(["1"] * len(columns)).encode() for _ in range(2)]
    assert_is_read(import_rows(Rows(lines, tuple(columns)), read))
