"""Bytes become a tree with lines; hostile bytes become one error, soon."""

import json

import pytest
from muster.protocol.document import MAX_BYTES, MAX_DEPTH, MAX_NODES, read_document
from muster.protocol.problems import ProtocolError


def refused(data: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        read_document(data)
    return caught.value


def test_every_field_knows_its_line_and_column() -> None:
    _, root = read_document(b"a: 1\nb:\n  c:\n    - x\n    - y: 2\n")
    assert root.value == {"a": 1, "b": {"c": ["x", {"y": 2}]}}
    assert isinstance(root.children, dict)
    b = root.children["b"]
    assert (b.line, b.column) == (2, 1)
    assert isinstance(b.children, dict)
    c = b.children["c"]
    assert isinstance(c.children, list)
    assert [(node.line, node.column) for node in c.children] == [(4, 7), (5, 7)]


def test_a_repeated_key_is_refused_with_both_lines() -> None:
    (problem,) = refused(b"a: 1\nb: 2\na: 3\n").problems
    assert problem.line == 3
    assert "line 1" in problem.message


def test_aliases_and_merge_keys_repeat_values() -> None:
    _, root = read_document(b"x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: [*x, *x]\n")
    assert root.value["y"] == {"a": 1, "b": 3}
    assert root.value["z"] == [{"a": 1, "b": 2}] * 2


def test_an_anchor_that_holds_itself_is_refused() -> None:
    assert refused(b"a: &a\n  b: *a\n").problems[0].line == 2


def billion_laughs() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for n in range(1, 12):
        lines.append(f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 10) + "]")
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    "bomb",
    [
        billion_laughs(),
        b"[" * MAX_BYTES,
        b"- " * (MAX_BYTES // 2),
        b"{a: " * (MAX_BYTES // 4),
        b"? " * (MAX_BYTES // 2),
        b"-\n" * (MAX_BYTES // 2),
        b"[[]," * (MAX_BYTES // 4),
        b"- *a\n" * (MAX_BYTES // 5),
        b"x" * (MAX_BYTES + 1),
    ],
    ids=["aliases", "flow", "compact", "maps", "keys", "long", "wide", "undefined", "large"],
)
def test_a_bomb_is_refused(bomb: bytes) -> None:
    assert len(refused(bomb).problems) == 1


def test_the_limits_themselves_pass() -> None:
    read_document(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    read_document(b"- x\n" * (MAX_NODES - 1))
    read_document(b"x" * MAX_BYTES)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a: [\n", 1),
        (b"a: b\n---\nc: d\n", 2),
        (b"a: 1\nb: \xff\n", 2),
        (b"a: 1\nb: \x07\n", 2),
        (b'a: 1\nb: "\\0"\n', 2),
        (b"a: 1\nb: !python/object x\n", 2),
        (b"a: 1\nb: !!int x\n", 2),
        (b"a: 1\n[1]: x\n", 2),
        (b"a: 1\n? {b: c}\n: x\n", 2),
        (b"a: 1\n~: x\n", 2),
        (b"a: 1\n<<: [7]\n", 2),
    ],
)
def test_what_is_not_a_plain_document_is_refused_at_its_line(data: bytes, line: int) -> None:
    assert refused(data).problems[0].line == line


def test_a_byte_order_mark_and_windows_lines_are_fine() -> None:
    _, root = read_document(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert root.value == {"a": 1, "b": 2}


PAIR = r"\ud83d\ude00"
FOUR_BYTES = "\N{GRINNING FACE}"


def test_escapes_of_two_halves_are_read_in_json_and_places_stay() -> None:
    data = f'{{"a": "{PAIR}x\\\\ud83d",\n "b": ["{FOUR_BYTES}", "{PAIR}{PAIR}"], "c": 1}}'
    assert json.loads(data)["b"] == [FOUR_BYTES, FOUR_BYTES * 2]
    text, root = read_document(data.encode())
    assert text == data
    assert root.value == json.loads(data)
    assert isinstance(root.children, dict)
    places = {key: (node.line, node.column) for key, node in root.children.items()}
    second = data.splitlines()[1]
    assert places == {"a": (1, 2), "b": (2, 2), "c": (2, second.index('"c"') + 1)}


def test_a_command_in_yaml_keeps_such_escapes_to_itself() -> None:
    _, root = read_document(f"a: |\n  {PAIR}\nb: '{PAIR}'\n".encode())
    assert root.value == {"a": f"{PAIR}\n", "b": PAIR}


@pytest.mark.parametrize(
    "data", [f'{{"a": "{PAIR}", "b": "\\ude00"}}', '{"a": "\\ud83d"}', 'b: "x \\ud83d y"\n']
)
def test_half_a_character_is_refused_at_its_place(data: str) -> None:
    (problem,) = refused(data.encode()).problems
    assert "half a character" in problem.message
    at = data.replace(PAIR, "x" * len(PAIR)).index("\\u")
    assert (problem.line, problem.column) == (1, at + 1)


def test_json_of_many_escapes_costs_little() -> None:
    many = ",".join([f'"{PAIR}"'] * (MAX_NODES - 3))
    _, root = read_document(f'{{"a":[{many}]}}'.encode())
    assert root.value == {"a": [FOUR_BYTES] * (MAX_NODES - 3)}
    assert len(refused(f'{{"a":[{many},{many}]}}'.encode()).problems) == 1
