"""The cluster's file as the service reads it: what is wrong and what has no effect, by line."""

from pathlib import Path

import pytest
from scheduler.cluster_file import Refused, content_of, load

TYPES = "cellTypes: {node: {child: gpu, count: 2, node: true}, rack: {child: node, count: 2}}\n"
PATH = Path("cluster.yaml")


def test_what_is_wrong_is_told_with_file_and_line() -> None:
    with pytest.raises(Refused) as refused:
        load(PATH, f"{TYPES}physicalCells:\n  - {{type: shelf}}\n".encode())
    assert refused.value.problems == [
        "cluster.yaml:3: physicalCells[0].type: shelf is no cell type; there are node, rack"
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


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        content_of(tmp_path)
    assert "Is a directory" in refused.value.problems[0]
