"""Names of jobs and users as values that Kubernetes takes for labels."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_world import a_run
from runtime_agent.domain.kubernetes.labels import label_value, labels, names_of, unlabelled

VALID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""Kubernetes' own rule."""
NAMES = st.one_of(st.text(), st.text("a-_.~@", min_size=55, max_size=70))


@pytest.mark.parametrize("name", ["ada", "a.b_c-D", "7", "n" * 63, "train-3fa85f64abcd"])
def test_a_name_that_a_label_can_hold_is_its_value(name: str) -> None:
    assert label_value(name) == name


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("ada@example.org", "ada-example.org--"),
        ("sweep~7", "sweep-7--"),
        ("_own_", "own_--"),
        ("n" * 64, "n" * 49 + "--"),
        ("~", "x--"),
        ("", "x--"),
    ],
)
def test_of_another_name_a_label_has_what_it_can_hold(name: str, begin: str) -> None:
    value = label_value(name)
    assert value.startswith(begin)
    assert VALID.fullmatch(value)


@given(NAMES, NAMES)
def test_each_name_has_a_valid_value_of_its_own(one: str, other: str) -> None:
    values = {label_value(name) for name in (one, other)}
    assert all(VALID.fullmatch(value) for value in values)
    assert len(values) == len({one, other})


@given(NAMES)
def test_nobody_takes_anothers_value_as_a_name(name: str) -> None:
    value = label_value(name)
    assert value == name or label_value(value) != value


def test_annotations_have_exactly_what_labels_can_not_hold() -> None:
    run = a_run().model_copy(
        update={"user": "a@b", "job_name": "a@b~j~2", "role": "W_1", "index": 3}
    )
    names = names_of(run)
    assert unlabelled(names) == {"muster/user": "a@b", "muster/job-name": "j~2"}
    found = labels(names)
    assert (found["muster/task-role"], found["muster/task-index"]) == ("W_1", "3")
