"""From rows to gangs: what each field of a mapping makes of cells, and what is refused."""

from typing import Any

import pytest
from scheduler.domain.formats.fields import MAX_FINDINGS, FormatError
from scheduler.domain.trace import gangs
from trace_lists import GANG, events, gang, imported, mapping, told


def of_pods(**more: Any) -> bytes:
    """A mapping whose pods say more."""
    return mapping(pods=GANG["pods"] | more)


def test_a_row_is_a_gang_of_one_pod() -> None:
    assert events(mapping(), "a,70,30,2") == [
        {
            "at": 0,
            "event": "gang-requested",
            "gang": {
                "id": "a",
                "user": "u",
                "virtualCluster": "vc",
                "priority": 0,
                "submittedAt": 0,
                "pods": [{"name": "pod", "count": 1, "gpus": 2}],
                "runSeconds": 30,
            },
        }
    ]


def test_the_first_gang_is_submitted_at_0_and_gangs_of_one_time_are_in_the_order_of_lines() -> None:
    found = events(mapping(), "c,12.5,1,0", "a,10,1,0", "b,12.5,1,0", "d,11,1,0")
    assert [(each["at"], each["gang"]["id"]) for each in found] == [
        (0, "a"),
        (1, "d"),
        (2.5, "c"),
        (2.5, "b"),
    ]


# Words.


@pytest.mark.parametrize(
    ("said", "cell", "user"),
    [
        ("who", "ann", "ann"),
        ({"column": "who"}, " ann ", "ann"),
        ({"value": "all"}, "ann", "all"),
        ({"column": "who", "default": "nobody"}, "", "nobody"),
        ({"column": "who", "table": {"a": "ann"}}, "a", "ann"),
        ({"column": "who", "table": {"a": "ann"}, "default": "other"}, "b", "other"),
        ({"column": "who", "table": {"a": "ann"}, "default": "other"}, "", "other"),
    ],
)
def test_a_word_is_a_cell_a_value_a_translation_or_a_default(
    said: Any, cell: str, user: str
) -> None:
    assert gang(mapping(user=said), f"a,0,1,0,{cell}", header="id,at,run,gpus,who")["user"] == user


@pytest.mark.parametrize(
    ("said", "cell", "message"),
    [
        ("who", "", "is empty; fill it, or give a default"),
        ("who", "x" * 257, "has 257 characters; 256 are the most"),
        ("who", "a\x01", "has a character that can't be printed; remove it"),
        (
            {"column": "who", "table": {"a": "ann"}},
            "b",
            "is 'b', which the table does not have; add it, or a default",
        ),
        ({"column": "who", "table": {"a": "ann"}}, "", "is empty; fill it, or give a default"),
    ],
)
def test_a_word_that_is_none_is_refused(said: Any, cell: str, message: str) -> None:
    found = told(mapping(user=said), f"a,0,1,0,{cell}", header="id,at,run,gpus,who")
    assert found == [(2, "who", message)]


@pytest.mark.parametrize(("cell", "priority"), [("7", 7), ("-1", -1), ("12.0", 12), ("1e2", 100)])
def test_a_priority_is_a_whole_number(cell: str, priority: int) -> None:
    made = mapping(priority="class")
    assert gang(made, f"a,0,1,0,{cell}", header="id,at,run,gpus,class")["priority"] == priority


@pytest.mark.parametrize("cell", ["-2", "1001", "1.5", "LS", ""])
def test_a_priority_that_is_none_is_refused(cell: str) -> None:
    found = told(mapping(priority="class"), f"a,0,1,0,{cell}", header="id,at,run,gpus,class")
    assert [(line, path) for line, path, _ in found] == [(2, "class")]


def test_a_priority_comes_from_a_class() -> None:
    made = mapping(priority={"column": "class", "table": {"LS": 10, "BE": -1}, "default": 0})
    rows = [f"{name},0,1,0,{name}" for name in ("LS", "BE", "x")]
    found = events(made, *rows, header="id,at,run,gpus,class")
    assert [each["gang"]["priority"] for each in found] == [10, -1, 0]


@pytest.mark.parametrize(("cell", "job"), [("j", "j"), ("", None), ("a", None)])
def test_a_job_is_the_gang_where_no_other_is_said(cell: str, job: str | None) -> None:
    found = gang(mapping(job="job"), f"a,0,1,0,{cell}", header="id,at,run,gpus,job")
    assert found.get("job") == job


# Figures.


@pytest.mark.parametrize(
    ("said", "cells", "cpu"),
    [
        ("a", "4,", 4),
        ("a", "4.0,", 4),
        ("a", "3.2,", 4),
        ({"column": "a", "scale": 0.001}, "12000,", 12),
        ({"column": "a", "scale": 0.001}, "12001,", 13),
        ({"column": "a", "scale": 1.1}, "10,", 11),  # in floats 11.000000000000002
        ({"column": "a", "scale": 1024}, "0.5,", 512),
        ({"column": "a", "times": "b"}, "3,4", 12),
        ({"column": "a", "times": "b", "scale": 0.01}, "3,50", 2),
        ({"column": "a", "times": "b", "default": 7}, "3,", 7),
        ({"column": "a", "default": 7, "scale": 100}, ",1", 7),
        ({"value": 9}, "1,1", 9),
        ({"column": "a", "per": "gang"}, "10,", 4),
        ("a", "0,", None),
    ],
)
def test_a_figure_is_scaled_exactly_and_rounded_up(said: Any, cells: str, cpu: int | None) -> None:
    made = of_pods(cpu=said, count={"value": 3})
    [pods] = gang(made, f"x,0,1,0,{cells}", header="id,at,run,gpus,a,b")["pods"]
    assert pods.get("cpu") == cpu


@pytest.mark.parametrize(
    "cell", ["", "-1", "-0.5", "many", "nan", "1_000", "1e99", "2147483648", "٣", "1" * 41, "0x1"]
)
def test_a_figure_that_is_none_is_refused(cell: str) -> None:
    found = told(of_pods(cpu="a"), f"x,0,1,0,{cell}", header="id,at,run,gpus,a")
    assert [(line, path) for line, path, _ in found] == [(2, "a")]


@pytest.mark.parametrize(
    ("fractions", "gpus"), [("up", [1, 1, 8]), ("drop", [1, 8]), (None, None), ("refuse", None)]
)
def test_what_becomes_of_parts_of_gpus_is_said(
    fractions: str | None, gpus: list[int] | None
) -> None:
    said = {"column": "n", "times": "milli", "scale": 0.001, "fractions": fractions}
    made, header = of_pods(gpus=said), "id,at,run,n,milli"
    rows = "a,0,1,1,460", "b,0,1,1,1000", "c,0,1,8,1000"
    if gpus is not None:
        came = imported(made, *rows, header=header)
        assert sorted(kind.gpus for each in came.gangs for _, kind in each.pods) == gpus
        assert came.left_out == ({} if len(gpus) == 3 else {"fractions of GPUs": 1})
    else:
        [(line, path, message)] = told(made, *rows, header=header)
        assert (line, path) == (2, "n")
        assert message.startswith("is 0.46 for each pod; set `fractions` to count")


def test_figures_of_a_whole_gang_are_dealt_out_to_its_pods() -> None:
    said = {"column": "gpus", "per": "gang", "fractions": "up"}
    made = of_pods(gpus=said, count="nodes")
    rows = "a,0,1,64,8", "b,0,1,12,5"
    found = events(made, *rows, header="id,at,run,gpus,nodes")
    assert [each["gang"]["pods"][0] for each in found] == [
        {"name": "pod", "count": 8, "gpus": 8},
        {"name": "pod", "count": 5, "gpus": 3},
    ]


@pytest.mark.parametrize("cell", ["0", "100001"])
def test_a_gang_has_some_pods_and_not_too_many(cell: str) -> None:
    found = told(of_pods(count="n"), f"a,0,1,1,{cell}", header="id,at,run,gpus,n")
    assert found == [(2, "n", f"must be from 1 to 100000, not {int(cell)}")]


# GPU types.


@pytest.mark.parametrize(
    ("said", "cell", "types"),
    [
        ("type", "T4", {"gpuType": "T4"}),
        ("type", "V100M16|V100M32", {"gpuType": "V100M16|V100M32"}),
        ("type", "", {}),
        ({"column": "type", "separator": "|"}, "B| A|B|", {"gpuTypes": ["B", "A"]}),
        ({"column": "type", "separator": "|", "default": "A|B"}, "", {"gpuTypes": ["A", "B"]}),
        (
            {"column": "type", "separator": "|", "table": {"a": "A", "b": "B"}},
            "b|a",
            {"gpuTypes": ["B", "A"]},
        ),
        ({"value": "A|B", "separator": "|"}, "C", {"gpuTypes": ["A", "B"]}),
    ],
)
def test_gpu_types_are_one_or_several(said: Any, cell: str, types: dict[str, Any]) -> None:
    [pods] = gang(of_pods(gpuTypes=said), f"a,0,1,1,{cell}", header="id,at,run,gpus,type")["pods"]
    assert pods == {"name": "pod", "count": 1, "gpus": 1} | types


def test_pods_without_gpus_want_no_type() -> None:
    [pods] = gang(of_pods(gpuTypes="type"), "a,0,1,0,T4", header="id,at,run,gpus,type")["pods"]
    assert pods == {"name": "pod", "count": 1, "gpus": 0}


def test_a_type_that_a_table_does_not_have_is_refused() -> None:
    said = {"column": "type", "separator": "|", "table": {"a": "A"}}
    found = told(of_pods(gpuTypes=said), "x,0,1,1,a|b|c", header="id,at,run,gpus,type")
    assert [message[:6] for _, _, message in found] == ["is 'b'", "is 'c'"]


# Rows.

JOINED = {"joinRows": True}


def test_rows_are_kept_by_their_cells_and_the_rest_is_not_read() -> None:
    keep = [{"column": "state", "is": ["done", ""]}, {"column": "gpus", "isNot": [0]}]
    rows = "a,0,1,1,done", "b,0,1,0,done", "c,x,x,x,failed", "d,0,1,1,"
    came = imported(mapping(file={"keep": keep}), *rows, header="id,at,run,gpus,state")
    assert ([each.id for each in came.gangs], came.left_out) == (["a", "d"], {"keep": 2})


def test_an_id_that_comes_again_is_refused_where_rows_are_gangs() -> None:
    [(line, path, message)] = told(mapping(), "a,0,1,1", "b,0,1,1", "a,0,1,1")
    assert (line, path) == (4, "id")
    assert message == "is 'a', as in line 2; if rows of one id are one gang, set `joinRows: true`"


def test_rows_of_one_id_are_one_gang() -> None:
    made = mapping(
        file=JOINED,
        limitSeconds="limit",
        expectedSeconds={"factor": 2},
        pods=GANG["pods"] | {"name": "role", "count": "n", "cpu": "cpu"},
    )
    header = "id,at,run,gpus,role,n,cpu,limit"
    rows = (
        "a,12,5,0,ps,1,4,",
        "b,11,5,1,worker,1,4,9",
        "a,10,9,2,worker,3,8,70",
        "a,13,8,2,worker,2,8,60",
        "a,13,8,4,worker,1,8,60",
    )
    found = events(made, *rows, header=header)
    assert [(each["at"], each["gang"]["id"]) for each in found] == [(0, "a"), (1, "b")]
    assert found[0]["gang"] == GANG | {
        "id": "a",
        "user": "u",
        "virtualCluster": "vc",
        "priority": 0,
        "submittedAt": 0,
        "pods": [
            {"name": "ps", "count": 1, "gpus": 0, "cpu": 4},
            {"name": "worker", "count": 5, "gpus": 2, "cpu": 8},
            {"name": "worker-2", "count": 1, "gpus": 4, "cpu": 8},
        ],
        "expectedSeconds": 18,
        "limitSeconds": 70,
        "runSeconds": 9,
    }


def test_names_of_pods_are_told_apart() -> None:
    made = mapping(file=JOINED, pods=GANG["pods"] | {"name": "role"})
    long = "w" * 256
    rows = [f"a,0,1,{gpus},{role}" for role in ("p", "p-2", long) for gpus in (1, 2)]
    pods = gang(made, *rows, header="id,at,run,gpus,role")["pods"]
    names = ["p", "p-3", "p-2", "p-2-2", long, "w" * 248 + "-2"]
    assert [each["name"] for each in pods] == names


def test_a_gang_of_which_a_row_is_dropped_is_dropped_whole() -> None:
    made = mapping(file=JOINED, runSeconds={"column": "run", "missing": "drop"})
    came = imported(made, "a,0,1,1", "b,0,1,1", "a,0,,1", "a,0,1,1")
    assert ([each.id for each in came.gangs], came.left_out) == (["b"], {"missing run": 3})


def test_rows_of_a_gang_agree_whose_it_is() -> None:
    made = mapping(file=JOINED, user="user", virtualCluster="vc", priority="p", job="job")
    header = "id,at,run,gpus,user,vc,p,job"
    found = told(made, "a,0,1,1,ann,x,1,j", "a,0,1,1,ben,y,2,k", header=header)
    assert [(line, path) for line, path, _ in found] == [
        (3, "job"),
        (3, "user"),
        (3, "vc"),
        (3, "p"),
    ]
    assert found[3][2] == "means 2, and 1 in line 2 of the same gang; rows of a gang must agree"


def test_rows_of_a_gang_have_not_too_many_pods_together() -> None:
    made = mapping(file=JOINED, pods=GANG["pods"] | {"count": "n"})
    rows = "a,0,1,1,60000", "a,0,1,1,40000", "a,0,1,1,1", "a,0,1,1,1"
    found = told(made, *rows, header="id,at,run,gpus,n")
    assert found == [(4, "id", "gives 'a' more than 100000 pods, the most in a gang")]


# Everything at once, within bounds.


def test_all_that_is_wrong_with_a_row_is_told_at_once() -> None:
    made = mapping(user="who", priority="class", pods=GANG["pods"] | {"cpu": "cpu"})
    header = "id,at,run,gpus,who,class,cpu"
    found = told(made, ",soon,long,many,,high,lots", "a,0,1,1,u,1,x", "b,0", header=header)
    assert [(line, path) for line, path, _ in found] == [
        (2, "run"),
        (2, "id"),
        (2, "who"),
        (2, "class"),
        (2, "at"),
        (2, "gpus"),
        (2, "cpu"),
        (3, "cpu"),
        (4, ""),
    ]
    assert found[-1][2] == "has 2 cells, and there are 7 columns"


def test_what_is_wrong_is_not_told_of_other_rows() -> None:
    made = mapping(user="user")
    rows = ",0,1,1,u", ",0,1,1,u", "a,0,1,1,", "a,0,1,1,u"
    found = told(made, *rows, header="id,at,run,gpus,user")
    assert [(line, path) for line, path, _ in found] == [(2, "id"), (3, "id"), (4, "user")]


def test_what_is_wrong_is_told_up_to_a_bound_and_counted() -> None:
    with pytest.raises(FormatError) as refused:
        imported(mapping(), *[f"{number},0,1,x" for number in range(MAX_FINDINGS + 20)])
    assert (len(refused.value.findings), refused.value.more) == (MAX_FINDINGS, 20)


def test_no_more_rows_are_taken_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gangs, "MAX_ROWS", 2)
    made = mapping(file={"keep": [{"column": "gpus", "isNot": ["0"]}]})
    rows = "a,0,1,1", "b,0,1,0", "c,0,1,1"
    assert len(imported(made, *rows).gangs) == 2
    [(line, _, message)] = told(made, *rows, "d,0,1,1", "e,0,1,x")
    assert line == 5
    assert message.startswith("is one more than the 2 rows that are taken")


def test_a_list_without_rows_is_no_event() -> None:
    came = imported(mapping())
    assert (list(came.lines()), came.summary()) == ([], "0 rows: 0 gangs with 0 pods")
