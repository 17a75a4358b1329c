"""MAPPING: what is read, and what is refused by line, field and mend, all at once."""

from fractions import Fraction
from typing import Any

import pytest
from scheduler.domain.formats.fields import FormatError
from scheduler.domain.trace.cells import Clock
from scheduler.domain.trace.mapping import (
    Amount,
    Duration,
    Keep,
    Mapping,
    PodsMapping,
    Run,
    Source,
)
from scheduler.domain.trace.mapping_file import MAPPING_FILE, read_mapping
from trace_lists import GANG, mapping

WHOLE = b"""
columns: [job, task, who, q, submit, begin, end, n, g, share, type, c, m, exp, lim]
empty: ["None", nan]
keep:
  - {column: q, is: [LS, 7]}
  - {column: n, isNot: [""]}
joinRows: true
time: {form: number, scale: 0.001, from: 5000, until: "9e3"}
gang:
  id: job
  job: {column: task}
  user: who
  virtualCluster: {column: q, table: {LS: online}, default: batch}
  priority: {column: q, table: {LS: 10, "7": -1}}
  submittedAt: {column: submit}
  runSeconds: {start: begin, end: end, missing: drop}
  expectedSeconds: {column: exp, scale: 60}
  limitSeconds: {factor: 1.5}
  pods:
    name: task
    count: {column: n, default: 1}
    gpus: {column: g, times: share, scale: 0.01, per: gang, fractions: up}
    gpuTypes: {column: type, separator: "|"}
    cpu: {column: c, scale: 0.01}
    memoryMB: {value: 1024}
"""


def test_a_mapping_may_say_all_there_is() -> None:
    assert read_mapping(WHOLE) == Mapping(
        id="job",
        job=Source("task"),
        user=Source("who"),
        virtual_cluster=Source("q", {"LS": "online"}, "batch"),
        priority=Source("q", {"LS": 10, "7": -1}),
        submitted="submit",
        run=Run(start="begin", end="end", is_dropped=True),
        expected=Duration("exp", Fraction(60)),
        limit=Duration(factor=Fraction(3, 2)),
        pods=PodsMapping(
            name=Source("task"),
            count=Amount("n", default=1),
            gpus=Amount("g", "share", Fraction(1, 100), is_of_gang=True, fractions="up"),
            gpu_types=Source("type"),
            separator="|",
            cpu=Amount("c", scale=Fraction(1, 100)),
            memory_mb=Amount(default=1024),
        ),
        clock=Clock(is_date=False, scale=Fraction(1, 1000)),
        first_ms=5000,
        end_ms=9000,
        is_joined=True,
        keep=(
            Keep("q", frozenset(("LS", "7")), is_in=True),
            Keep("n", frozenset(("",)), is_in=False),
        ),
        empty=frozenset(("None", "nan")),
        columns=(
            *("job", "task", "who", "q", "submit", "begin", "end", "n"),
            *("g", "share", "type", "c", "m", "exp", "lim"),
        ),
    )


def test_a_mapping_needs_little() -> None:
    assert read_mapping(mapping()) == Mapping(
        id="id",
        job=Source(),
        user=Source(default="u"),
        virtual_cluster=Source(default="vc"),
        priority=Source(default=0),
        submitted="at",
        run=Run("run"),
        expected=Duration(),
        limit=Duration(),
        pods=PodsMapping(
            name=Source(default="pod"),
            count=Amount(default=1),
            gpus=Amount("gpus", fractions="refuse"),
            gpu_types=Source(),
            separator=None,
            cpu=Amount(default=0),
            memory_mb=Amount(default=0),
        ),
        clock=Clock(),
    )


def test_null_is_as_if_left_out() -> None:
    nulls = dict.fromkeys(("job", "expectedSeconds", "limitSeconds"))
    pods = GANG["pods"] | dict.fromkeys(("name", "count", "gpuTypes", "cpu", "memoryMB"))
    file = dict.fromkeys(("columns", "empty", "keep", "joinRows", "time"))
    assert read_mapping(mapping(file=file, pods=pods, **nulls)) == read_mapping(mapping())


def told(data: bytes) -> list[tuple[int, str, str]]:
    """What is wrong with a mapping."""
    with pytest.raises(FormatError) as refused:
        read_mapping(data)
    return [(each.line, each.path, each.message) for each in refused.value.findings]


def test_all_that_is_wrong_is_told_at_once_by_line() -> None:
    wrong = b"""\
kep: []
time: {form: dates}
gang:
  id: {value: x}
  user: {colum: who}
  virtualCluster: [q]
  priority: {column: q, table: {LS: high, BE: -2, X: null}}
  submittedAt: at
  runSeconds: {start: begin}
  pods:
    gpus: {column: g, fractions: down}
    cpu: {scale: 0}
"""
    assert [(line, path) for line, path, _ in told(wrong)] == [
        (1, "kep"),
        (2, "time.form"),
        (4, "gang.id.value"),
        (4, "gang.id.column"),
        (5, "gang.user.colum"),
        (5, "gang.user.column"),
        (6, "gang.virtualCluster"),
        (7, "gang.priority.table.X"),
        (7, "gang.priority.table.LS"),
        (7, "gang.priority.table.BE"),
        (9, "gang.runSeconds.end"),
        (11, "gang.pods.gpus.fractions"),
        (12, "gang.pods.cpu.column"),
        (12, "gang.pods.cpu.scale"),
    ]


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"id": None}, "gang.id", "is missing; add it"),
        ({"user": None}, "gang.user", "is missing; add it"),
        ({"runSeconds": None}, "gang.runSeconds", "is missing; add it"),
        ({"user": 5}, "gang.user", "must be a column or a mapping, not 5"),
        ({"user": ""}, "gang.user.column", "must not be empty"),
        ({"user": {}}, "gang.user.column", "must be there, or value, and not both"),
        (
            {"user": {"column": "a", "value": "b"}},
            "gang.user.column",
            "must be there, or value, and not both",
        ),
        ({"user": {"value": "b", "table": {}}}, "gang.user.table", "can't be there beside value"),
        ({"priority": {"value": 1001}}, "gang.priority.value", "must be from -1 to 1000, not 1001"),
        (
            {"runSeconds": {"column": "a", "end": "b"}},
            "gang.runSeconds.column",
            "must be there, or start and end, and not both",
        ),
        (
            {"runSeconds": {"start": "a", "end": "b", "scale": 2}},
            "gang.runSeconds.scale",
            "can't be there beside start and end; time has theirs",
        ),
        (
            {"runSeconds": {"column": "a", "missing": "keep"}},
            "gang.runSeconds.missing",
            "must be refuse or drop, not 'keep'",
        ),
        (
            {"limitSeconds": {"column": "a", "factor": 2}},
            "gang.limitSeconds.column",
            "must be there, or factor, and not both",
        ),
        (
            {"limitSeconds": {"scale": 3, "factor": 2}},
            "gang.limitSeconds.scale",
            "can't be there beside factor",
        ),
        (
            {"limitSeconds": {"factor": 101}},
            "gang.limitSeconds.factor",
            "must be above 0, up to 100, not 101",
        ),
        ({"pods": {}}, "gang.pods.gpus", "is missing; add it"),
        (
            {"pods": {"gpus": "g", "count": {"value": 0}}},
            "gang.pods.count.value",
            "must be from 1 to 100000, not 0",
        ),
        (
            {"pods": {"gpus": "g", "cpu": {"value": 1, "scale": 2}}},
            "gang.pods.cpu.scale",
            "can't be there beside value",
        ),
        (
            {"pods": {"gpus": "g", "cpu": {"column": "c", "scale": "x"}}},
            "gang.pods.cpu.scale",
            "must be a number, not 'x'",
        ),
    ],
)
def test_a_field_of_a_gang_is_refused(fields: dict[str, Any], path: str, message: str) -> None:
    assert [(where, what) for _, where, what in told(mapping(**fields))] == [(path, message)]


@pytest.mark.parametrize(
    ("file", "path", "message"),
    [
        (
            {"columns": []},
            "columns",
            "must not be empty; null takes them from the first line",
        ),
        ({"columns": ["a", "a"]}, "columns[1]", "is 'a' once more; keep one"),
        ({"keep": [{"column": "a", "is": []}]}, "keep[0].is", "must not be empty"),
        ({"keep": [{"is": ["a"]}]}, "keep[0].column", "is missing; add it"),
        ({"keep": [{"column": "a"}]}, "keep[0].is", "must be there, or isNot, and not both"),
        (
            {"keep": [{"column": "a", "is": ["b"], "isNot": ["c"]}]},
            "keep[0].is",
            "must be there, or isNot, and not both",
        ),
        (
            {"empty": [None]},
            "empty[0]",
            "must be text, not null; write it in quotes",
        ),
        (
            {"time": {"form": "date", "scale": 2}},
            "time.scale",
            "can't be there where form is date",
        ),
        ({"time": {"from": "noon"}}, "time.from", "must be a number, not 'noon'"),
        ({"time": {"from": True}}, "time.from", "must be text or a number, not true"),
        ({"time": {"from": 5, "until": 5}}, "time.until", "must be after from"),
        ({"time": {"scale": -1}}, "time.scale", "must be above 0, up to 1000000000000, not -1"),
        ({"joinRows": "yes"}, "joinRows", "must be true or false, not 'yes'"),
    ],
)
def test_a_field_beside_the_gang_is_refused(file: dict[str, Any], path: str, message: str) -> None:
    assert [(where, what) for _, where, what in told(mapping(file=file))] == [(path, message)]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"gang: [", 1),
        (b"gang: {}\ngang: {}", 2),
        (b"[]", 1),
        (b"", 1),
        (b" " * (MAPPING_FILE.max_bytes + 1), 1),
    ],
)
def test_what_is_no_mapping_is_refused(data: bytes, line: int) -> None:
    assert told(data)[0][0] == line


def test_columns_that_a_list_does_not_have_are_told_where_they_are_named() -> None:
    absent = read_mapping(WHOLE).absent(("job", "task", "whom", "q", "submit", "end", "n", "g"))
    found = [(each.line, each.path, each.message) for each in absent]
    assert found[0] == (
        12,
        "gang.user",
        "names 'who', which is no column of the list; is it 'whom'?",
    )
    assert [path for _, path, _ in found[1:]] == [
        "gang.runSeconds.start",
        "gang.expectedSeconds",
        "gang.pods.gpus.times",
        "gang.pods.gpuTypes",
        "gang.pods.cpu",
    ]
    assert found[1][2].endswith("; there are 'job, task, whom, q, submit, end, n, g'")
