"""From rows to gangs: when they were submitted, how long they ran, and which stretch is taken."""

from typing import Any

import pytest
from trace_lists import events, gang, imported, mapping, told

JOINED = {"joinRows": True}
BETWEEN: dict[str, Any] = {"start": "s", "end": "e"}


@pytest.mark.parametrize(
    ("file", "row", "found"),
    [
        ({}, "100,160", 60),
        ({}, "-20.5,1", 21.5),
        ({"time": {"scale": 0.001}}, "1500,2250", 0.75),
        ({"time": {"scale": 60}}, "1,3", 120),
        ({"time": {"form": "date"}}, "2020-04-01 00:00:05,2020-04-02 00:00:00", 86_395),
        ({"time": {"form": "date"}}, "2020-04-01T00:00:00Z,2020-04-01T08:00:01+08:00", 1),
        ({"time": {"form": "date"}}, "2020-04-01 00:00:00.25,2020-04-01 00:00:01", 0.75),
    ],
)
def test_a_run_is_from_its_start_to_its_end(file: Any, row: str, found: float) -> None:
    made = mapping(file=file, submittedAt="s", runSeconds=BETWEEN)
    assert gang(made, f"a,1,{row}", header="id,gpus,s,e")["runSeconds"] == found


@pytest.mark.parametrize(
    ("said", "cell", "found"),
    [
        ("run", "7", 7),
        ({"column": "run", "scale": 3600}, "1.5", 5400),
        ({"column": "run", "scale": 0.001}, "1500", 1.5),
    ],
)
def test_a_run_is_a_column(said: Any, cell: str, found: float) -> None:
    assert gang(mapping(runSeconds=said), f"a,0,{cell},1")["runSeconds"] == found


@pytest.mark.parametrize("row", [",5", "5,", ",", "5,5", "6,5", "None,5"])
def test_rows_without_a_run_are_dropped_or_refused(row: str) -> None:
    header, file = "id,gpus,at,s,e", {"empty": ["None"]}
    dropping = mapping(file=file, runSeconds=BETWEEN | {"missing": "drop"})
    came = imported(dropping, f"a,1,0,{row}", "b,1,0,1,2", header=header)
    assert ([each.id for each in came.gangs], came.left_out) == (["b"], {"missing run": 1})
    assert came.summary() == "2 rows: 1 gang with 1 pod; left out: 1 by missing run"
    [(line, path, message)] = told(
        mapping(file=file, runSeconds=BETWEEN), f"a,1,0,{row}", "b,1,0,1,2", header=header
    )
    assert (line, path in ("s", "e")) == (2, True)
    assert message.endswith("`missing: drop` leaves such rows out")


def test_of_rows_that_are_dropped_nobody_need_know_when_they_were_submitted() -> None:
    dropping = {"column": "run", "missing": "drop"}
    for is_joined in (False, True):
        made = mapping(file={"joinRows": is_joined, "time": {"from": 5}}, runSeconds=dropping)
        came = imported(made, "a,,,1", "b,9,1,1")
        assert ([each.id for each in came.gangs], came.left_out) == (["b"], {"missing run": 1})
        assert [path for _, path, _ in told(made, "a,soon,,1", "b,,1,1")] == ["at", "at"]


@pytest.mark.parametrize("cell", ["", "soon", "1000000000001", "2020-04-01"])
def test_a_time_that_is_none_is_refused(cell: str) -> None:
    assert [path for _, path, _ in told(mapping(), f"a,{cell},1,1")] == ["at"]


@pytest.mark.parametrize("cell", ["", "5", "2020-13-01", "yesterday"])
def test_a_date_that_is_none_is_refused(cell: str) -> None:
    made = mapping(file={"time": {"form": "date"}})
    assert [path for _, path, _ in told(made, f"a,{cell},1,1")] == ["at"]


def test_dates_at_the_ends_of_the_calendar_are_dates() -> None:
    made = mapping(file={"time": {"form": "date"}})
    rows = "a,0001-01-01T00:00:00+14:00,1,1", "b,9999-12-31T23:59:59-14:00,1,1"
    assert [each["gang"]["id"] for each in events(made, *rows)] == ["a", "b"]


@pytest.mark.parametrize(
    ("time", "ids", "left"),
    [
        ({}, ["a", "b", "c"], 0),
        ({"from": 20}, ["b", "c"], 1),
        ({"until": 30}, ["a", "b"], 1),
        ({"from": 15, "until": 30}, ["b"], 2),
        ({"from": 40}, [], 3),
    ],
)
def test_a_stretch_of_time_is_taken(time: Any, ids: list[str], left: int) -> None:
    for is_joined in (False, True):
        made = mapping(file={"time": time, "joinRows": is_joined})
        came = imported(made, "a,10,1,1", "b,20,1,1", "c,30,1,1")
        assert [each.id for each in came.gangs] == ids
        assert came.left_out == ({"time": left} if left else {})


@pytest.mark.parametrize(
    ("time", "ids", "left"),
    [({"from": 15}, ["b"], 2), ({"until": 15}, ["a"], 1), ({"until": 25}, ["a", "b"], 0)],
)
def test_a_gang_is_in_the_stretch_by_the_first_of_its_rows(
    time: Any, ids: list[str], left: int
) -> None:
    came = imported(mapping(file=JOINED | {"time": time}), "a,20,1,1", "a,10,1,1", "b,20,1,1")
    assert [each.id for each in came.gangs] == ids
    assert came.left_out == ({"time": left} if left else {})
    assert all(each.rows == (2 if each.id == "a" else 1) for each in came.gangs)


def test_where_the_stretch_begins_is_second_0() -> None:
    assert [each["at"] for each in events(mapping(file={"time": {"from": 15}}), "a,20,1,1")] == [5]
    dated = {"time": {"form": "date", "from": "2020-04-01"}}
    [event] = events(mapping(file=dated), "a,2020-04-01 00:01:00,1,1")
    assert event["at"] == 60


@pytest.mark.parametrize(
    ("said", "cell", "found"),
    [
        ({"factor": 1.2}, "", 12),
        ({"factor": 0.00001}, "", 0.001),
        ("limit", "60", 60),
        ({"column": "limit", "scale": 60}, "2", 120),
        ("limit", "", None),
        (None, "5", None),
    ],
)
def test_how_long_it_was_said_to_last(said: Any, cell: str, found: float | None) -> None:
    for name in ("expectedSeconds", "limitSeconds"):
        made = mapping(**{name: said})
        assert gang(made, f"a,0,10,1,{cell}", header="id,at,run,gpus,limit").get(name) == found


@pytest.mark.parametrize("cell", ["0", "-5", "none"])
def test_a_limit_that_is_none_is_refused(cell: str) -> None:
    made = mapping(limitSeconds="limit")
    found = told(made, f"a,0,10,1,{cell}", header="id,at,run,gpus,limit")
    assert [path for _, path, _ in found] == ["limit"]
