"""What replaces a cluster or parts of it: what is read, what is refused and where."""

from collections.abc import Iterator

import pytest
from scheduler.domain.core.config import ClusterConfig, Finding, QuotaCells, VirtualCluster
from scheduler.domain.formats.cluster_change import ClusterChange, read_change
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.fields import FormatError

CLUSTER = b"""\
cellTypes:
  v100-node: {child: v100, count: 4, node: true}
physicalCells:
  - {type: v100-node, name: n0}
  - {type: v100-node, name: n1, pin: lab}
virtualClusters:
  vision: {cells: [{type: v100-node, count: 1}], pins: [lab]}
policy: {graceSeconds: 7, requeue: false}
"""


@pytest.fixture
def cluster() -> ClusterConfig:
    return read_cluster(CLUSTER).config


def changed(cluster: ClusterConfig, text: str) -> ClusterConfig:
    return read_change(text.encode(), cluster).changed.config


def wrong(cluster: ClusterConfig, text: str) -> Iterator[tuple[int, str]]:
    """Where something is wrong, and what the message begins with."""
    with pytest.raises(FormatError) as refused:
        read_change(text.encode(), cluster)
    for finding in refused.value.findings:
        yield finding.line, f"{finding.path} {finding.message}".strip()


def test_a_whole_cluster_replaces_everything(cluster: ClusterConfig) -> None:
    found = changed(cluster, "cellTypes: {box: {child: t, count: 1, node: true}}\n")
    assert found.virtual_clusters == {}
    assert found.policy.grace_s == 30
    assert list(found.cell_types) == ["box"]
    assert changed(cluster, CLUSTER.decode()) == cluster


def test_policy_is_replaced_key_by_key(cluster: ClusterConfig) -> None:
    found = changed(cluster, "policy: {lazyPreemption: true, graceSeconds: null}\n")
    assert (found.policy.grace_s, found.policy.is_requeued, found.policy.is_lazy) == (
        7,
        False,
        True,
    )
    assert found.virtual_clusters == cluster.virtual_clusters
    assert found.physical_cells == cluster.physical_cells


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ("", "fairShare: false", ("priority", "age")),
        ("", "fairShare: {halfLifeSeconds: 9}", ("priority", "fair-share", "age")),
        ("orderBy: [age, fair-share]", "fairShare: false", ("age",)),
        ("orderBy: [age, fair-share]", "fairShare: true", ("age", "fair-share")),
        ("orderBy: [fair-share]", "fairShare: false", ("priority", "age")),
        ("fairShare: false", "fairShare: true", ("priority", "fair-share", "age")),
        ("fairShare: false", "fairShare: {weights: {ann: 2}}", ("priority", "fair-share", "age")),
        ("orderBy: [age]", "backfill: false", ("age",)),
        ("orderBy: [age, priority]", "fairShare: true", ("fair-share", "age", "priority")),
        ("orderBy: [priority]", "fairShare: true", ("priority", "fair-share")),
        ("orderBy: [age]", "orderBy: [fair-share], fairShare: true", ("fair-share",)),
    ],
)
def test_fair_share_is_in_the_order_as_the_change_says(
    before: str, change: str, after: tuple[str, ...]
) -> None:
    known = read_cluster(f"policy: {{{before}}}".encode()).config
    assert changed(known, f"policy: {{{change}}}").policy.order_by == after


def test_fair_share_counts_as_before_where_the_change_does_not_say_how() -> None:
    known = read_cluster(b"policy: {fairShare: {halfLifeSeconds: 9, weights: {ann: 2}}}").config
    found = changed(known, "policy: {fairShare: true, backfill: false}").policy
    assert (found.half_life_s, found.weights) == (9, {"ann": 2})


def test_virtual_clusters_are_replaced_as_a_whole(cluster: ClusterConfig) -> None:
    text = "virtualClusters:\n  speech:\n    cells:\n      - {type: v100-node, count: 1}\n"
    found = changed(cluster, text)
    owned = VirtualCluster((QuotaCells("v100-node", 1, 4),), (), 2)
    assert found.virtual_clusters == {"speech": owned}
    assert found.policy == cluster.policy
    assert changed(cluster, "virtualClusters: {}\n").virtual_clusters == {}


def test_parts_that_are_null_are_left_out(cluster: ClusterConfig) -> None:
    found = changed(cluster, "cellTypes:\nvirtualClusters:\npolicy: {requeue: true}\n")
    assert found.virtual_clusters == cluster.virtual_clusters
    assert found.policy.is_requeued


def test_the_same_change_is_made_to_any_cluster(cluster: ClusterConfig) -> None:
    change = read_change(b"policy: {graceSeconds: 1}", cluster).change
    assert change.of(ClusterConfig()).policy.grace_s == 1
    assert change.of(ClusterConfig()).policy.is_requeued
    assert ClusterChange().of(cluster) is cluster


@pytest.mark.parametrize("text", ["{}", "policy:\n", "# nothing\n{virtualClusters: null}\n"])
def test_a_file_without_anything_is_refused(cluster: ClusterConfig, text: str) -> None:
    [(line, message)] = wrong(cluster, text)
    assert line >= 1
    assert message == "changes nothing: it needs policy, virtualClusters or a cluster"


def test_all_that_is_wrong_is_told_by_line(cluster: ClusterConfig) -> None:
    """Of parts only what they say themselves, as part of the other cluster."""
    text = """\
policy:
  graceSeconds: never
  patience: 3
virtualClusters:
  vision:
    cells:
      - {type: v100-node, count: 9}
      - {type: lorry, count: 1}
"""
    assert [(line, message.split()[0]) for line, message in wrong(cluster, text)] == [
        (2, "policy.graceSeconds"),
        (3, "policy.patience"),
        (7, "virtualClusters.vision.cells[0].count"),
        (8, "virtualClusters.vision.cells[1].type"),
    ]


def test_what_could_not_be_read_is_not_wrong_in_another_way_too(cluster: ClusterConfig) -> None:
    text = "virtualClusters:\n  x: {cells: [{type: 3, count: 1}], pins: 7}\n  y: {cells: 3}\n"
    assert [message.split()[0] for _, message in wrong(cluster, text)] == [
        "virtualClusters.x.cells[0].type",
        "virtualClusters.x.pins",
        "virtualClusters.y.cells",
    ]


def test_what_is_no_cluster_is_refused_once(cluster: ClusterConfig) -> None:
    assert list(wrong(cluster, "[]")) == [(1, "must be a mapping, not a list")]
    assert len(list(wrong(cluster, "a: [\n"))) == 1
    [(line, message)] = wrong(cluster, "\npolcy: {}\n")
    assert (line, message) == (2, "polcy is unknown; is it `policy`?")
    assert list(wrong(cluster, "policy: 3\n")) == [(1, "policy must be a mapping, not 3")]


def test_what_a_change_is_about_is_known(cluster: ClusterConfig) -> None:
    part = read_change(b"virtualClusters: {}", cluster)
    assert part.change.is_about('virtualClusters["a b"].cells')
    assert not part.change.is_about("physicalCells[0].pin")
    assert read_change(CLUSTER, cluster).change.is_about("physicalCells[0].pin")
    [placed] = part.changed.placed([Finding("virtualClusters", "")])
    assert placed.line == 1
