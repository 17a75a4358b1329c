"""What can't be honoured is refused with every reason; what has no effect is warned of."""

import pytest
from scheduler.domain.core.building import build
from scheduler.domain.core.config import Finding
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.formats.cluster_file import read_cluster

TYPES = """\
cellTypes:
  switch: {child: gpu, count: 2}
  node: {child: switch, count: 2, node: true}
  rack: {child: node, count: 2}
  row: {child: rack, count: 1000000000}
"""
USED = TYPES.replace("  row: {child: rack, count: 1000000000}\n", "")


def refused(text: str) -> list[tuple[int, str, str]]:
    """Why a configuration is refused: line, field and message of each reason."""
    file = read_cluster(text.encode())
    with pytest.raises(ConfigError) as error:
        build(file.config)
    return told(file.placed(error.value.findings))


def warned(text: str) -> list[tuple[int, str, str]]:
    """What has no effect in a configuration that is honoured."""
    file = read_cluster(text.encode())
    return told(file.placed(build(file.config).warnings))


def told(findings: tuple[Finding, ...]) -> list[tuple[int, str, str]]:
    return [(each.line, each.path, each.message) for each in findings]


def test_an_incomplete_cell_costs_what_is_in_it_however_many_it_could_hold() -> None:
    forest = build(
        read_cluster(f"{TYPES}physicalCells: [{{type: row, nodes: [a, b, c]}}]".encode()).config
    )
    assert [slot.machine for slot in forest.slots] == ["a", "b", "c"]
    assert [len(cells) for cells in forest.chains["row"].cells] == [0, 0, 3, 2, 1]
    assert [cell.is_complete for cell in forest.chains["row"].cells[3]] == [True, False]


def test_a_cell_without_nodes_is_refused_however_many_it_could_hold() -> None:
    assert [path for _, path, _ in refused(f"{TYPES}physicalCells: [{{type: row}}]")] == [
        "physicalCells[0].name"
    ]
    assert [
        path for _, path, _ in refused(f"{TYPES}physicalCells: [{{type: row, nodes: []}}]")
    ] == ["physicalCells[0]"]


def test_every_level_that_is_owned_twice_is_told() -> None:
    found = refused(
        f"{USED}physicalCells: [{{type: rack, nodes: [n0, n1]}}]\n"
        "virtualClusters:\n"
        "  x: {cells: [{type: rack, count: 2}, {type: rack/node/switch, count: 3}]}\n"
    )
    beside = "there beside pinned cells and what is owned above them"
    assert found == [
        (
            7,
            "virtualClusters.x.cells[0].count",
            f"2 rack of the chain rack are owned (x 2), but 1 is {beside}",
        ),
        (
            7,
            "virtualClusters.x.cells[1].count",
            f"3 switch of the chain rack are owned (x 3), but 0 are {beside}",
        ),
    ]


def test_too_much_is_told_at_the_entry_with_which_it_is_too_much() -> None:
    found = refused(
        f"{USED}physicalCells: [{{type: rack, nodes: [n0, n1]}}]\n"
        "virtualClusters:\n"
        "  x:\n"
        "    cells:\n"
        "      - {type: rack/node, count: 1}\n"
        "  y:\n"
        "    cells:\n"
        "      - {type: rack/node, count: 1}\n"
        "      - {type: rack/node, count: 1}\n"
        "      - {type: rack/node, count: 1}\n"
    )
    assert [(line, path) for line, path, _ in found] == [(13, "virtualClusters.y.cells[1].count")]
    assert found[0][2].startswith("4 node of the chain rack are owned (x 1, y 3), but 2 are there")


def test_an_incomplete_cell_that_a_quota_lacks_is_named() -> None:
    switches = "[{type: switch}, {type: switch, children: [{type: gpu}]}]"
    hole = f"{{type: node, name: n3, children: {switches}}}"
    found = refused(
        f"{USED}physicalCells:\n"
        "  - {type: rack, name: r0, nodes: [n0, n1]}\n"
        "  - {type: rack, name: r1, nodes: [n2]}\n"
        f"  - {{type: rack, name: r2, children: [{hole}, {{type: node, name: n4}}]}}\n"
        "  - {type: rack, name: r3, nodes: [n5], pin: p}\n"
        "virtualClusters:\n"
        "  x: {pins: [p], cells: [{type: rack, count: 2}, {type: rack/node/switch, count: 8}]}\n"
    )
    beside = "there beside pinned cells and what is owned above them; incomplete cells don't count:"
    assert [message for _, _, message in found] == [
        f"2 rack of the chain rack are owned (x 2), but 1 is {beside} r1 has 1 of 2 node,"
        " r2/n3 has 3 of 4 gpu",
        f"8 switch of the chain rack are owned (x 8), but 5 are {beside} r2/n3 has 3 of 4 gpu",
    ]


def test_what_is_wrong_with_one_tree_hides_nothing_of_other_chains() -> None:
    found = refused(
        f"{USED}  box: {{child: gpu, count: 4, node: true}}\n"
        "physicalCells:\n"
        "  - {type: rack, nodes: [n0, n1, n2]}\n"
        "  - {type: box, name: b0}\n"
        "virtualClusters:\n"
        "  x:\n"
        "    cells:\n"
        "      - {type: box, count: 2}\n"
        "      - {type: rack/node, count: 3}\n"
    )
    beside = "there beside pinned cells and what is owned above them"
    assert found == [
        (7, "physicalCells[0].nodes", "no room for the node n2 in a rack"),
        (
            13,
            "virtualClusters.x.cells[1].count",
            f"3 node of the chain rack are owned (x 3), but at most 2 are {beside}",
        ),
        (
            12,
            "virtualClusters.x.cells[0].count",
            f"2 box of the chain box are owned (x 2), but 1 is {beside}",
        ),
    ]


def test_of_what_a_wrong_tree_could_be_nothing_is_too_much() -> None:
    found = refused(
        f"{USED}physicalCells: [{{type: rack, nodes: [n0, n1]}}, {{type: reck, nodes: [n2, n3]}}]\n"
        "virtualClusters: {x: {cells: [{type: rack/node, count: 4}]}}\n"
    )
    assert [path for _, path, _ in found] == ["physicalCells[1].type"]


def test_what_is_wrong_with_one_cell_type_hides_nothing_of_the_others() -> None:
    found = refused(
        f"{USED}  a: {{child: b, count: 2}}\n"
        "  b: {child: a, count: 2, node: true}\n"
        "physicalCells:\n"
        "  - {type: a, nodes: [n0]}\n"
        "  - {type: rack, nodes: [n1, n2]}\n"
        "virtualClusters:\n"
        "  x: {cells: [{type: a/b, count: 2}, {type: rack, count: 2}]}\n"
    )
    assert [(line, path) for line, path, _ in found] == [
        (5, "cellTypes.a"),
        (6, "cellTypes.b"),
        (11, "virtualClusters.x.cells[1].count"),
    ]


def test_what_is_wrong_with_cells_hides_nothing_that_is_wrong_with_quotas() -> None:
    found = refused(
        f"{USED}physicalCells:\n"
        "  - {type: rack, nodes: [n0, n1, n2], pin: here}\n"
        "  - {type: shelf, nodes: [n3], pin: there}\n"
        "virtualClusters:\n"
        "  x: {cells: [{type: rack/lorry, count: 1}], pins: [here, there, nowhere]}\n"
    )
    assert [(line, path) for line, path, _ in found] == [
        (6, "physicalCells[0].nodes"),
        (7, "physicalCells[1].type"),
        (9, "virtualClusters.x.cells[0].type"),
        (9, "virtualClusters.x.pins[2]"),
    ]


def test_each_list_of_nodes_that_is_too_long_is_told_once() -> None:
    found = refused(
        f"{USED}physicalCells:\n"
        "  - {type: node, name: n0, nodes: [n0]}\n"
        "  - {type: rack, nodes: [n1, n2, n3]}\n"
        "  - {type: rack, nodes: [n4], children: [{type: node, name: n5}]}\n"
    )
    assert [(line, path) for line, path, _ in found] == [
        (6, "physicalCells[0].nodes"),
        (7, "physicalCells[1].nodes"),
        (8, "physicalCells[2]"),
    ]


@pytest.mark.parametrize(
    ("cell", "path"),
    [
        ("{type: rack, nodes: [n0, n1], index: 1}", "physicalCells[0].index"),
        ("{type: node, name: n0, index: 1}", "physicalCells[0].index"),
        (
            "{type: node, name: n0, children: [{type: switch, index: 1}]}",
            "physicalCells[0].children[0].index",
        ),
        (
            "{type: node, name: n0, children: [{type: switch, nodes: [n1]}]}",
            "physicalCells[0].children[0].nodes",
        ),
        (
            "{type: node, name: n0,"
            " children: [{type: switch, children: [{type: gpu, children: [{type: gpu}]}]}]}",
            "physicalCells[0].children[0].children[0].children",
        ),
    ],
)
def test_a_field_where_it_has_no_effect_is_refused(cell: str, path: str) -> None:
    assert [where for _, where, _ in refused(f"{USED}physicalCells: [{cell}]")] == [path]


def test_a_pin_within_a_pin_is_refused_where_it_stands() -> None:
    found = refused(
        f"{USED}physicalCells:\n"
        "  - type: rack\n"
        "    pin: rack-pin\n"
        "    children:\n"
        "      - {type: node, name: n0}\n"
        "      - type: node\n"
        "        name: n1\n"
        "        children:\n"
        "          - {type: switch}\n"
        "          - {type: switch, pin: switch-pin}\n"
        "virtualClusters: {x: {pins: [rack-pin, switch-pin]}}\n"
    )
    assert found == [
        (
            14,
            "physicalCells[0].children[1].children[1].pin",
            "the cell of switch-pin lies in that of rack-pin; pin one of them",
        )
    ]


def test_cells_inside_a_node_have_different_names() -> None:
    found = refused(
        f"{USED}physicalCells:\n"
        "  - {type: rack, children: [{type: node, name: n0, children: [\n"
        "      {type: switch, name: '1'}, {type: switch}]}, {type: node, name: n1}]}\n"
    )
    message = "two cells of one node have the name 1"
    assert found == [(7, "physicalCells[0].children[0].children[1]", message)]


def test_what_can_never_have_an_effect_is_warned_of() -> None:
    found = warned(
        f"{USED}  spare: {{child: node, count: 3}}\n"
        "physicalCells: [{type: rack, nodes: [n0], pin: mine}]\n"
        "virtualClusters:\n"
        "  vision: {cells: [{type: spare, count: 2}]}\n"
        "  speech: {cells: [{type: rack/node, count: 0}]}\n"
    )
    assert [(line, path) for line, path, _ in found] == [
        (6, "physicalCells[0]"),
        (5, "cellTypes.spare"),
        (8, "virtualClusters.vision.cells[0].type"),
        (8, "virtualClusters.vision"),
        (9, "virtualClusters.speech.cells[0].count"),
        (9, "virtualClusters.speech"),
        (6, "physicalCells[0].pin"),
    ]
    assert found[2][2] == (
        "vision can never use its 2 spare: no chain has spare as its top; the chains are rack"
    )


def test_a_type_below_the_top_of_its_chain_is_shown_as_it_is_to_be_written() -> None:
    found = warned(
        f"{USED}physicalCells: [{{type: rack, nodes: [n0, n1]}}]\n"
        "virtualClusters: {vision: {cells: [{type: node, count: 2}]}}\n"
    )
    assert found[0][2] == (
        "vision can never use its 2 node: no chain has node as its top; the chains are rack."
        " Is it rack/node?"
    )


def test_a_message_names_a_few_of_many() -> None:
    many = "".join(f"  t{number}: {{child: gpu, count: 1}}\n" for number in range(100))
    found = refused(f"{USED}{many}physicalCells: [{{type: shelf}}]\n")
    assert [message for _, _, message in found] == [
        "shelf is no cell type; there are node, rack, switch, t0, t1, t10, t11, t12, t13, t14"
        " and 93 more"
    ]
