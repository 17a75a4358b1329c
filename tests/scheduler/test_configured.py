"""What administrators set of virtual clusters and policy: what of it is checked, and what is made
of it.
"""

from dataclasses import replace
from typing import Any

import pytest
from scheduler.domain.configured import Setting, checked, in_force
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.fields import FormatError
from scheduler.domain.plans import made

Kit = Any

FILE = b"""\
cellTypes: {node: {child: gpu, count: 2, node: true}}
physicalCells:
  - {type: node, name: n0}
  - {type: node, name: n1, pin: desk}
virtualClusters: {vision: {cells: [{type: node, count: 1}], pins: [desk]}}
policy: {graceSeconds: 7}
"""


@pytest.fixture
def base() -> ClusterConfig:
    return read_cluster(FILE).config


def told(error: FormatError) -> list[tuple[int, str]]:
    return [(each.line, each.path) for each in error.findings]


def test_each_part_replaces_that_of_the_file_whole_and_leaves_the_other(
    base: ClusterConfig,
) -> None:
    policy = Setting(1, 1, {"policy": {"lazyPreemption": True}}).of(base)
    assert (policy.policy.is_lazy, policy.policy.grace_s) == (True, 30.0)
    assert policy.virtual_clusters == base.virtual_clusters
    speech = Setting(2, 2, {"virtualClusters": {"speech": {"pins": ["desk"]}}}).of(base)
    assert set(speech.virtual_clusters) == {"speech"}
    assert speech.policy == base.policy
    assert Setting(3).of(base) is base


def test_what_cannot_be_read_is_refused_when_it_is_taken(base: ClusterConfig) -> None:
    with pytest.raises(ConfigError) as refused:
        Setting(1, 1, {"policy": {"graceSeconds": "soon"}}).of(base)
    assert [each.path for each in refused.value.findings] == ["policy.graceSeconds"]


def test_what_is_set_now_can_be_set_again(base: ClusterConfig) -> None:
    assert Setting(1, 1, in_force(base)).of(base).policy == base.policy
    assert in_force(Setting(1, 1, in_force(base)).of(base)) == in_force(base)


def test_a_text_is_told_all_that_is_wrong_with_it_by_line(base: ClusterConfig) -> None:
    text = b"""\
virtualClusters:
  vision:
    cells: [{type: node, count: 5}]
  speech:
    pins: [sofa]
policy:
  graceSeconds: soon
  orderBy: [tallest]
nodes: {n0: {cpu: 3}}
"""
    with pytest.raises(FormatError) as refused:
        checked(text, base)
    assert told(refused.value) == [
        (3, "virtualClusters.vision.cells[0].count"),
        (5, "virtualClusters.speech.pins[0]"),
        (7, "policy.graceSeconds"),
        (8, "policy.orderBy[0]"),
        (9, "nodes"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"{}", 1, "sets nothing"),
        (b"policy: null", 1, "sets nothing"),
        (b"", 1, "is empty"),
        (b"[1]", 1, "must be a mapping"),
        (b"policy: {\n", 1, "not YAML"),
        (b"policy: {}\nbogus: 1\n", 2, "bogus"),
    ],
)
def test_a_text_that_sets_nothing_or_something_else_is_refused(
    base: ClusterConfig, text: bytes, line: int, message: str
) -> None:
    with pytest.raises(FormatError) as refused:
        checked(text, base)
    (finding, *_) = refused.value.findings
    assert finding.line == line
    assert message in f"{finding.path} {finding.message}"


def test_what_is_set_as_it_was_said_and_what_has_no_effect(base: ClusterConfig) -> None:
    found = checked(b'{"virtualClusters": {"b": {},\n "a": {"cells": []}}, "policy": null}', base)
    assert found.content == {"virtualClusters": {"b": {}, "a": {"cells": []}}}
    assert list(found.content["virtualClusters"]) == ["b", "a"]  # type: ignore[call-overload]
    assert sorted((each.path, each.line) for each in found.warnings) == [
        ("physicalCells[1].pin", 0),
        ("virtualClusters.a", 2),
        ("virtualClusters.b", 1),
    ]


def test_an_order_that_does_not_begin_with_priority_is_warned_of(base: ClusterConfig) -> None:
    by_age = checked(b"policy:\n  orderBy: [age, priority]", base)
    (warning,) = (each for each in by_age.warnings if each.path == "policy.orderBy")
    assert warning.line == 2
    assert "preempted at once" in warning.message
    usual = checked(b"policy: {orderBy: [priority, age]}", base)
    assert not any(each.path == "policy.orderBy" for each in usual.warnings)


def test_nothing_is_refused_while_what_is_set_is_left_out(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=2))
    setting = Setting(1, 1, {"virtualClusters": {"vision": {"cells": []}}})
    plan = replace(state.plan(None, setting), is_honoured=False)
    state.adopt(plan, made(state.core, plan, 0.0))
    assert not state.is_settled(1e9)
    assert set(state.core.forest.quotas) == {"default"}
    plan = state.plan(None, setting)
    state.adopt(plan, made(state.core, plan, 0.0))
    assert set(state.core.forest.quotas) == {"vision"}
    assert state.is_settled(1e9)
