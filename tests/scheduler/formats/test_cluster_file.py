"""CLUSTER: what is read, what is refused and where; what is written is read as the same."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster.protocol.document import MAX_BYTES, MAX_NODES
from scheduler.domain.core.building import build, flaws
from scheduler.domain.core.config import (
    ALL_TYPES,
    CellType,
    ClusterConfig,
    Finding,
    NodeLimits,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.formats.cluster_file import cluster_data, cluster_of, read_cluster
from scheduler.domain.formats.fields import Findings, FormatError, Place

FILE = b"""\
cellTypes:
  v100-switch: {child: v100, count: 2}
  v100-node: {child: v100-switch, count: 4, node: true}
physicalCells:
  - {type: v100-node, name: n0, nodes: [n0, n1]}
  - type: v100-node
    children: [{type: v100-switch, children: [{type: v100, index: 3, pin: lab}]}]
nodes:
  n0: {cpu: 64, memoryMB: 512000, ports: [20000, 29999], resources: {rdma: 4}}
  n1:
virtualClusters:
  vision:
    cells:
      - {type: v100-node, count: 1}
      - {type: v100-node/v100-switch, count: 2}
    pins: [lab]
  idle:
policy: {lazyPreemption: true, graceSeconds: 12.5, requeue: false, backfill: false, orderBy: [age]}
"""


def told(data: bytes) -> list[tuple[int, str, str]]:
    """What is wrong with a file: lines, fields, messages."""
    with pytest.raises(FormatError) as refused:
        read_cluster(data)
    return [(each.line, each.path, each.message) for each in refused.value.findings]


def test_a_file_is_read_as_it_stands() -> None:
    assert read_cluster(FILE).config == ClusterConfig(
        cell_types={
            "v100-switch": CellType("v100", 2),
            "v100-node": CellType("v100-switch", 4, is_node=True),
        },
        physical_cells=(
            PhysicalCell("v100-node", "n0", ("n0", "n1"), line=5),
            PhysicalCell(
                "v100-node",
                children=(
                    PhysicalCell(
                        "v100-switch",
                        children=(PhysicalCell("v100", index=3, pin="lab", line=7),),
                        line=7,
                    ),
                ),
                line=6,
            ),
        ),
        nodes={"n0": NodeLimits(64, 512_000, (20_000, 29_999), {"rdma": 4}), "n1": NodeLimits()},
        virtual_clusters={
            "vision": VirtualCluster(
                (QuotaCells("v100-node", 1, 14), QuotaCells("v100-node/v100-switch", 2, 15)),
                ("lab",),
                12,
            ),
            "idle": VirtualCluster(line=17),
        },
        policy=Policy(
            is_lazy=True,
            grace_s=12.5,
            is_requeued=False,
            order_by=("age",),
            is_backfilling=False,
        ),
    )


def test_json_is_read_as_well() -> None:
    data = cluster_data(read_cluster(FILE).config)
    assert cluster_data(read_cluster(json.dumps(data, indent=1).encode()).config) == data


def test_all_that_is_wrong_is_told_at_once_by_line() -> None:
    wrong = b"""\
celTypes: 1
cellTypes:
  a: {child: 3, count: -1, nod: x}
  b:
physicalCells:
  - [3]
  - {type: a, nodes: [n, n], index: 1.5}
nodes:
  n: {ports: [3], cpu: .nan, resources: {x: y}}
virtualClusters: [x]
policy:
  graceSeconds: .inf
  assumedSeconds: 0
"""
    assert told(wrong) == [
        (1, "celTypes", "is unknown; is it `cellTypes`?"),
        (3, "cellTypes.a.nod", "is unknown; is it `node`?"),
        (3, "cellTypes.a.child", "must be text, not 3; write it in quotes"),
        (3, "cellTypes.a.count", "must be from 1 to 2147483647, not -1"),
        (4, "cellTypes.b.child", "is missing; add it"),
        (4, "cellTypes.b.count", "is missing; add it"),
        (6, "physicalCells[0]", "must be a mapping, not a list"),
        (7, "physicalCells[1].nodes[1]", "is 'n' once more; keep one"),
        (7, "physicalCells[1].index", "must be a whole number, not 1.5"),
        (9, "nodes.n.cpu", "must be a whole number, not a number that is infinite or none"),
        (9, "nodes.n.ports", "must be the first and the last port, from 1 to 65535"),
        (9, "nodes.n.resources.x", "must be a whole number, not 'y'"),
        (10, "virtualClusters", "must be a mapping, not a list"),
        (12, "policy.graceSeconds", "must be a number of seconds up to 315360000"),
        (13, "policy.assumedSeconds", "must be at least 0.001, not 0"),
    ]


def test_what_can_not_be_is_told_beside_what_can_not_be_read() -> None:
    wrong = b"""\
cellTypes:
  node: {child: gpu, count: 4, node: true}
  rack: {child: node, count: 2}
physicalCells:
  - {type: rack, nodes: [n0, n1], bogus: 1}
virtualClusters:
  x:
    cells: [{type: lorry, count: 1}]
    pins:
      - lab
  y:
    cells:
      - {type: rack, count: 0}
      - {type: rack/node, count: 9}
policy: {graceSeconds: soon}
"""
    assert [(line, path) for line, path, _ in told(wrong)] == [
        (5, "physicalCells[0].bogus"),
        (8, "virtualClusters.x.cells[0].type"),
        (10, "virtualClusters.x.pins[0]"),
        (14, "virtualClusters.y.cells[1].count"),
        (15, "policy.graceSeconds"),
    ]


def test_a_cell_that_can_not_be_read_hides_nothing_of_the_cells_beside_it() -> None:
    wrong = b"""\
cellTypes:
  node: {child: gpu, count: 4, node: true}
  rack: {child: node, count: 2}
physicalCells:
  - {type: rack, children: [{type: node, name: 3}, {type: node, name: n1, index: 1}]}
  - {type: rack, nodes: [n2, n3, n4]}
virtualClusters: {x: {cells: [{type: rack, count: 3}]}}
"""
    assert [(line, path) for line, path, _ in told(wrong)] == [
        (5, "physicalCells[0].children[0].name"),
        (5, "physicalCells[0].children[1].index"),
        (6, "physicalCells[1].nodes"),
        (7, "virtualClusters.x.cells[0].count"),
    ]


SOUND: dict[str, Any] = {
    "cellTypes": {
        "switch": {"child": "gpu", "count": 2},
        "node": {"child": "switch", "count": 2, "node": True},
        "rack": {"child": "node", "count": 2},
        "box": {"child": "old", "count": 2, "node": True},
    },
    "physicalCells": [
        {"type": "rack", "name": "r0", "nodes": ["n0", "n1"]},
        {
            "type": "rack",
            "children": [
                {"type": "node", "name": "n2"},
                {
                    "type": "node",
                    "name": "n3",
                    "children": [
                        {"type": "switch", "children": [{"type": "gpu", "index": 3, "pin": "den"}]},
                        {"type": "switch", "name": "s1"},
                    ],
                },
            ],
        },
        {"type": "box", "name": "b0", "pin": "lab"},
        {"type": "box", "name": "b1"},
    ],
    "nodes": {"n0": {"cpu": 4, "memoryMB": 100, "ports": [1, 9], "resources": {"rdma": 1}}},
    "virtualClusters": {
        "x": {"cells": [{"type": "rack", "count": 1}, {"type": "box", "count": 1}]},
        "y": {"cells": [{"type": "rack/node", "count": 1}], "pins": ["lab", "den"]},
    },
    "policy": {"graceSeconds": 5},
}


def with_one_fault(value: Any) -> Iterator[Any]:
    """The same with something else in one place: of another form, misspelt, or too much."""
    if isinstance(value, dict):
        yield {**value, "surplus": 1}
        for key, inner in value.items():
            rest = {other: each for other, each in value.items() if other != key}
            yield {**rest, f"{key}x": inner}
            yield rest
            yield from ({**value, key: each} for each in with_one_fault(inner))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            for each in with_one_fault(inner):
                yield [*value[:number], each, *value[number + 1 :]]
    yield 1.5
    yield [["?"]]


def test_nothing_is_told_that_comes_of_what_can_not_be_read_alone() -> None:
    build(read_cluster(json.dumps(SOUND).encode()).config)
    count = 0
    for data in with_one_fault(SOUND):
        findings = Findings()
        config = cluster_of(data, Place(), findings)
        if findings.found:
            assert flaws(config) == (), (data, findings.found)
            count += 1
    assert count > 250


@given(st.randoms(use_true_random=False))
def test_whatever_can_not_be_read_the_rest_is_checked(random: Random) -> None:
    data: Any = SOUND
    for _ in range(random.randrange(1, 6)):
        data = random.choice(list(with_one_fault(data)))
    findings = Findings()
    flaws(cluster_of(data, Place(), findings))


@pytest.mark.parametrize(
    ("policy", "order_by"),
    [
        ("fairShare: false", ("priority", "age")),
        ("fairShare: true", ("priority", "fair-share", "age")),
        ("fairShare: {halfLifeSeconds: 3600}", ("priority", "fair-share", "age")),
        ("orderBy: [age]", ("age",)),
        ("{orderBy: [fair-share], fairShare: {weights: {ann: 2}}}", ("fair-share",)),
    ],
)
def test_what_the_order_goes_by(policy: str, order_by: tuple[str, ...]) -> None:
    text = policy if policy.startswith("{") else f"{{{policy}}}"
    assert read_cluster(f"policy: {text}".encode()).config.policy.order_by == order_by


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ("{orderBy: [age], fairShare: true}", "policy.fairShare"),
        ("{orderBy: [fair-share], fairShare: false}", "policy.fairShare"),
        ("{orderBy: []}", "policy.orderBy"),
        ("{order: lax}", "policy.order"),
        ("{fairShare: {halfLifeSeconds: 0}}", "policy.fairShare.halfLifeSeconds"),
        ("{graceSeconds: 315360001}", "policy.graceSeconds"),
        ("{assumedSeconds: 1.0e+12}", "policy.assumedSeconds"),
        ("{maxPassSeconds: 1.0e+12}", "policy.maxPassSeconds"),
        ("{minRunSeconds: 1.0e+12}", "policy.minRunSeconds"),
        ("{fairShare: {weights: {ann: 0}}}", "policy.fairShare.weights.ann"),
        ("{fairShare: {weight: 1}}", "policy.fairShare.weight"),
    ],
)
def test_a_policy_that_can_not_be_is_told(policy: str, path: str) -> None:
    [(line, found, _)] = told(f"policy: {policy}".encode())
    assert (line, found) == (1, path)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"nodes: {a: {}}\nnodes: {}", 2),
        (b"a: [", 1),
        (b"- 1", 1),
        (b"", 1),
        (b"\xff", 1),
        (b"policy: {graceSeconds: -1}", 1),
        (b"nodes:\n  n: {ports: [30, 20]}", 2),
        (b"policy:\n  graceSeconds: yes", 2),
        (b'nodes: {"a\\u0007": {}}', 1),
        (b"nodes:\n  ? [x]\n  : 1", 2),
    ],
)
def test_what_is_no_cluster_is_refused_by_line(data: bytes, line: int) -> None:
    assert [each for each, _, _ in told(data)] == [line]


def test_an_empty_file_is_refused_with_the_fields_that_it_may_have() -> None:
    [(line, path, message)] = told(b"# nothing yet\n")
    assert (line, path) == (1, "")
    assert message.startswith("is empty; its fields are cellTypes, nodes, ")


def test_a_cluster_may_be_larger_than_a_job() -> None:
    many = MAX_NODES // 2
    nodes = "\n".join(f"  node-{number:060}: {{cpu: 64}}" for number in range(many))
    data = f"nodes:\n{nodes}\n".encode()
    assert len(data) > MAX_BYTES // 2
    assert len(read_cluster(data).config.nodes) == many


def test_cells_within_cells_have_a_bound() -> None:
    cell: dict[str, Any] = {"type": "t"}
    for _ in range(30):
        cell = {"type": "t", "children": [cell]}
    findings = Findings()
    cluster_of({"physicalCells": [cell]}, Place(7), findings)
    [finding] = findings.found
    assert finding.path.endswith(".children")
    assert finding.message == "are nested too deeply: 20 levels are the most"


def test_a_limit_is_of_gpu_types_that_there_are() -> None:
    """A slip of the pen would lend all."""
    limit = b"  idle: {lendingLimit: {v10: 0}, borrowingLimit: -1}\n"
    found = [each for each in told(FILE.replace(b"  idle:\n", limit)) if "Limit" in each[1]]
    assert found == [
        (17, "virtualClusters.idle.borrowingLimit", "must be from 0 to 2147483647, not -1"),
        (17, "virtualClusters.idle.lendingLimit.v10", "v10 is no GPU type; there are v100"),
    ]


def test_findings_of_the_core_get_the_line_of_their_field() -> None:
    file = read_cluster(FILE)
    paths = [
        "virtualClusters.vision.cells[1].type",
        "cellTypes.v100-node.count",
        'cellTypes["v100-node"].no-such-field',
        "physicalCells[1].children[0].children[0].pin",
        "nowhere",
    ]
    placed = file.placed([*(Finding(path, "x") for path in paths), Finding("policy", "x", 99)])
    assert [each.line for each in placed] == [15, 3, 3, 7, 1, 99]


names = st.text("abcxyz0189-._/ é", min_size=1, max_size=6)
counts = st.integers(1, 64)


def cells(children: st.SearchStrategy[PhysicalCell] | None = None) -> Any:
    return st.builds(
        PhysicalCell,
        type=names,
        name=st.none() | names,
        nodes=st.none() | st.lists(names, unique=True, max_size=3).map(tuple),
        children=st.none() if children is None else st.lists(children, max_size=3).map(tuple),
        index=st.none() | st.integers(0, 15),
        pin=st.none() | names,
    )


limits = st.dictionaries(names, counts, max_size=2) | st.builds(lambda n: {ALL_TYPES: n}, counts)

configs = st.builds(
    ClusterConfig,
    cell_types=st.dictionaries(names, st.builds(CellType, names, counts, st.booleans())),
    physical_cells=st.lists(cells(cells(cells())), max_size=3).map(tuple),
    nodes=st.dictionaries(
        names,
        st.builds(
            NodeLimits,
            st.none() | counts,
            st.none() | counts,
            st.none() | st.tuples(st.integers(1, 100), st.integers(100, 65_535)),
            st.none() | st.dictionaries(names, st.integers(0, 9), min_size=1),
        ),
    ),
    virtual_clusters=st.dictionaries(
        names,
        st.builds(
            VirtualCluster,
            st.lists(st.builds(QuotaCells, names, counts), max_size=3).map(tuple),
            st.lists(names, unique=True, max_size=2).map(tuple),
            lending_limit=limits,
            borrowing_limit=limits,
        ),
    ),
    policy=st.builds(Policy, st.booleans(), st.floats(0, 1e6), st.booleans()),
)


@given(configs)
def test_what_is_written_is_read_as_the_same(config: ClusterConfig) -> None:
    findings = Findings()
    data = json.loads(json.dumps(cluster_data(config)))
    assert (cluster_of(data, Place(), findings), findings.found) == (config, [])


def test_fair_share_that_is_off_is_shown_so() -> None:
    shown = cluster_data(read_cluster(b"policy: {fairShare: false}").config)
    assert shown["policy"]["fairShare"] is False  # type: ignore[index]
