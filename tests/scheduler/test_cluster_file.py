"""The cluster's file as the service reads it: what is wrong and what has no effect, by line."""

from pathlib import Path

import pytest
from scheduler.cluster_file import Refused, content_of, load, load_or_exit

TYPES = "cellTypes: {node: {child: gpu, count: 2, node: true}, rack: {child: node, count: 2}}\n"
PATH = Path("cluster.yaml")


def test_what_is_wrong_is_told_with_file_and_line() -> None:
    with pytest.raises(Refused) as refused:
        load(PATH, f"{TYPES}physicalCells:\n  - {{type: shelf}}\n".encode())
    assert refused.value.problems == [
        "cluster.yaml:3: physicalCells[0].type: shelf is no cell type; there are node, rack"
    ]


def test_a_policy_of_the_order_that_there_is_not_is_told_with_its_place_and_those_there_are() -> (
    None
):
    with pytest.raises(Refused) as refused:
        load(PATH, f"{TYPES}policy:\n  orderBy: [priority, luck]\n".encode())
    assert refused.value.problems == [
        "cluster.yaml:3: policy.orderBy[1]: is 'luck'; there are age, fair-share, priority"
    ]


def test_what_is_no_cluster_is_told_without_a_field() -> None:
    with pytest.raises(Refused) as refused:
        load(PATH, b"[]")
    assert refused.value.problems == ["cluster.yaml:1: must be a mapping, not a list"]


def test_of_many_warnings_and_problems_the_first_are_told() -> None:
    racks = "".join(f"  - {{type: rack, nodes: [n{n}]}}\n" for n in range(150))
    loaded = load(PATH, f"{TYPES}physicalCells:\n{racks}".encode())
    assert len(loaded.warnings) == 101
    assert loaded.warnings[-1] == "and 50 more"
    with pytest.raises(Refused) as refused:
        load(PATH, f"{TYPES}physicalCells:\n{racks.replace('rack', 'shelf')}".encode())
    assert refused.value.problems[100:] == ["and 50 more"]


def test_a_process_ends_at_its_start_with_all_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        f"{TYPES}physicalCells:\n"
        "  - {type: rack, nodes: [n0, n1, n2], bogus: 1}\n"
        "  - {type: node, name: n3}\n"
        "virtualClusters:\n"
        "  x:\n"
        "    cells:\n"
        "      - {type: lorry, count: 1}\n"
        "      - {type: node, count: 9}\n"
        "    pins: [lab]\n"
    )
    with pytest.raises(SystemExit) as ended:
        load_or_exit(path)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert [": ".join(line.split(": ")[1:3]) for line in said] == [
        f"{path}:3: physicalCells[0].bogus",
        f"{path}:3: physicalCells[0].nodes",
        f"{path}:8: virtualClusters.x.cells[0].type",
        f"{path}:9: virtualClusters.x.cells[1].count",
        f"{path}:10: virtualClusters.x.pins[0]",
    ]


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        content_of(tmp_path)
    assert "Is a directory" in refused.value.problems[0]


def test_a_misspelt_child_is_told_once_where_it_stands() -> None:
    """Not for each tree, nor for each virtual cluster."""
    content = b"""\
cellTypes:
  a100-node: {child: a100, count: 8, node: true}
  a100-rack: {child: a100-nod, count: 2}
physicalCells:
  - {type: a100-rack, name: r0, nodes: [n0, n1]}
  - {type: a100-rack, name: r1, nodes: [n2, n3]}
virtualClusters:
  vision: {cells: [{type: a100-rack, count: 1}, {type: a100-rack/a100-node, count: 1}]}
"""
    with pytest.raises(Refused) as refused:
        load(PATH, content)
    assert refused.value.problems == [
        "cluster.yaml:3: cellTypes.a100-rack.child: a100-nod is no cell type; is it `a100-node`?"
    ]
    with pytest.raises(Refused) as refused:  # a GPU type, and the machine is not marked
        load(PATH, content.replace(b", node: true", b"").replace(b"a100-nod,", b"a100-node,"))
    assert [each.partition(" has ")[2] for each in refused.value.problems] == [
        "no type with `node: true`; one of them must be a machine"
    ] * 2
