"""The cluster file that `muster deploy cluster-file` makes is one that the Scheduler accepts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from checked_cluster import GOOD, IMAGES, named
from cli.deploy.cluster_file import LEVELS, cluster_file, written
from cli.deploy.findings import Finding, Level, Plan, cells, findings
from manifests import Json
from scheduler.cluster_file import load

CLIQUE, RACK = LEVELS
A100, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"


def a_node(name: str, gpus: int = 8, product: str = A100, **labels: str) -> Json:
    """A node; `rack` and `clique` are its labels."""
    known = {"rack": RACK, "clique": CLIQUE}
    return {
        "metadata": {
            "name": name,
            "labels": {"nvidia.com/gpu.product": product}
            | {known[each]: value for each, value in labels.items()},
        },
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
    }


def warnings(nodes: Sequence[Json], virtual_clusters: Json | None = None) -> tuple[str, ...]:
    """The Scheduler loads the file, and warns of this."""
    content = cluster_file(nodes) | {"virtualClusters": virtual_clusters or {}}
    text = yaml.safe_dump(content, sort_keys=False).encode()
    return load(Path("cluster.yaml"), text).warnings


def test_racks_hold_nodes_in_the_order_of_their_numbers() -> None:
    nodes = [a_node(f"n{number}", rack=f"r{number % 2}") for number in range(12)]
    found = cluster_file(nodes)
    assert found["cellTypes"] == {
        "a100-sxm4-80gb-node": {"child": "a100-sxm4-80gb", "count": 8, "node": True},
        "a100-sxm4-80gb-rack": {"child": "a100-sxm4-80gb-node", "count": 6},
    }
    [first, _] = found["physicalCells"]
    assert first["name"] == "r0"
    assert [each["name"] for each in first["children"]] == ["n0", "n2", "n4", "n6", "n8", "n10"]
    both = {"all": {"cells": [{"type": "a100-sxm4-80gb-rack", "count": 2}]}}
    assert warnings(nodes, both) == ()


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([a_node("a"), a_node("b")], id="no labels"),
        pytest.param([a_node("a", rack="r0"), a_node("b")], id="one node without a rack"),
        pytest.param(
            [a_node("a", rack="r0"), a_node("b", product=H100, rack="r0")],
            id="two GPU types in one rack",
        ),
        pytest.param(
            [a_node("a", gpus=8, rack="r0"), a_node("b", gpus=4, rack="r0")],
            id="nodes of two sizes in one rack",
        ),
        pytest.param(
            [a_node("a", rack="r0", clique="c0"), a_node("b", rack="r0", clique="c1")],
            id="domains in racks",
        ),
        pytest.param(
            [a_node("a", rack="r0", clique="c0"), a_node("b", rack="r0")],
            id="a domain and a node in one rack",
        ),
        pytest.param([a_node("a"), a_node("cpu-1", gpus=0)], id="a node without GPUs"),
        pytest.param([a_node("a", rack="a")], id="a rack named like its node"),
    ],
)
def test_the_scheduler_accepts_it(nodes: list[Json]) -> None:
    assert warnings(nodes) == ()


def test_a_smaller_rack_is_never_given_whole() -> None:
    [warning] = warnings([a_node("a", rack="r0"), a_node("b", rack="r0"), a_node("c", rack="r1")])
    assert "r1 has 1 of 2 a100-sxm4-80gb-node" in warning


def objects_with(text: str) -> list[Json]:
    """As the overlay of docs/install.md has it."""
    mount = {"name": "cluster", "mountPath": "/etc/cluster"}
    setting = {"name": "MUSTER_CLUSTER_FILE", "value": "/etc/cluster/cluster.yaml"}
    pod = {
        "containers": [{"name": "scheduler", "env": [setting], "volumeMounts": [mount]}],
        "volumes": [{"name": "cluster", "configMap": {"name": "cluster-abc"}}],
    }
    return [
        named("Deployment", "scheduler", spec={"template": {"spec": pod}}),
        named("ConfigMap", "cluster-abc", data={"cluster.yaml": text}),
    ]


def judged(text: str, nodes: Sequence[Json]) -> list[Finding]:
    return list(cells(objects_with(text), nodes))


def test_changed_labels_are_named_with_the_fix() -> None:
    before = [a_node("a", rack="r0"), a_node("b", rack="r0"), a_node("c", rack="r1")]
    text = written(cluster_file(before), LEVELS) + "virtualClusters: {}\n"
    assert load(Path("cluster.yaml"), text.encode()).warnings
    assert [each.level for each in judged(text, before)] == [Level.OK]
    now = [a_node("a", rack="r0"), a_node("b", rack="r1"), a_node("d", gpus=0)]
    [found] = judged(text, now)
    assert found.level is Level.WARNING
    assert found.text == (
        "by labels, b is 8 a100-sxm4-80gb in r1, not 8 a100-sxm4-80gb in r0,"
        " c is no node, not 8 a100-sxm4-80gb in r1, d is without GPUs, not no node"
    )
    assert "`muster deploy cluster-file > cluster.yaml`" in found.fix


def test_a_new_kind_of_node_changes_no_other_node() -> None:
    before = [a_node("a", gpus=8)]
    text = written(cluster_file(before), LEVELS)
    [found] = judged(text, [*before, a_node("b", gpus=4)])
    assert found.text == "by labels, b is 4 a100-sxm4-80gb, not no node"


def test_the_labels_of_a_file_are_those_it_was_made_from() -> None:
    node = a_node("a", rack="r0")
    node["metadata"]["labels"]["example.org/row"] = "7"
    text = written(cluster_file([node], ["example.org/row"]), ["example.org/row"])
    node["metadata"]["labels"][RACK] = "r1"
    assert [each.level for each in judged(text, [node])] == [Level.OK]
    node["metadata"]["labels"]["example.org/row"] = "8"
    [found] = judged(text, [node])
    assert "`muster deploy cluster-file --level example.org/row >" in found.fix


@pytest.mark.parametrize(
    ("permitted", "file", "unknown"),
    [
        ("visoin, nlp", "virtualClusters: {vision: {}, nlp: {}}", ["visoin"]),
        ("*,vision", "virtualClusters: {vision: {}, nlp: {}}", []),
        ("visoin", "virtualClusters: {}", []),
        ("visoin", "virtualClusters:\n\tvision: {}", []),
        ("visoin", "[]", []),
    ],
)
def test_a_virtual_cluster_of_the_setting_that_the_file_lacks_is_named(
    permitted: str, file: str, unknown: list[str]
) -> None:
    setting = named("ConfigMap", "settings", data={"MUSTER_KUBE_HOST_NETWORK": permitted})
    found = findings(GOOD, Plan([*objects_with(file), setting], IMAGES))
    expected = [
        Finding(
            "settings",
            Level.WARNING,
            f"MUSTER_KUBE_HOST_NETWORK names {each}, and the cluster file does not",
            "Its virtual clusters are nlp, vision. `muster config` may have set others.",
        )
        for each in unknown
    ]
    assert [each for each in found if each.subject == "settings"] == expected


def test_nothing_is_said_of_a_file_that_a_person_wrote() -> None:
    text = written(cluster_file([a_node("a")]), LEVELS).partition("\n")[2]
    assert judged(text, [a_node("b")]) == []
    assert list(cells([], [a_node("b")])) == []


def test_a_file_that_was_edited_into_no_yaml_is_refused() -> None:
    text = written(cluster_file([a_node("a")]), LEVELS) + "virtualClusters:\n\tresearch: {}\n"
    [found] = judged(text, [a_node("a")])
    assert found.level is Level.REFUSAL
    assert "line 7, column 1" in found.text
    assert found.fix


def test_nothing_is_said_of_a_file_that_was_edited_into_another_form() -> None:
    head = written({}, LEVELS).partition("\n")[0]
    for body in ("", "nodes: {a: {}}", "[]", "{cellTypes: {}, physicalCells: [{type: other}]}"):
        assert judged(f"{head}\n{body}\n", [a_node("a")]) == []


def test_other_labels_may_group_nodes() -> None:
    node = a_node("a")
    node["metadata"]["labels"]["example.org/row"] = "7"
    found = cluster_file([node], ["example.org/row"])
    assert found["physicalCells"][0]["type"] == "a100-sxm4-80gb-row"
