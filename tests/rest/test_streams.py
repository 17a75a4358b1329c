"""Bytes of a log become events: no byte is lost, doubled or cut within a character."""

from hypothesis import given
from hypothesis import strategies as st
from rest.domain.streams import LineEvents


def text_of(events: list[bytes]) -> tuple[str, int]:
    """What a browser reads from events, and the last id."""
    text, last = "", 0
    for event in events:
        fields = [line.partition(": ")[::2] for line in event.decode().splitlines() if line]
        if ("event", "end") in fields:
            continue
        data = [value for name, value in fields if name == "data"]
        if data:
            text += "\n".join(data) + "\n"
            last = int(dict(fields)["id"])
    return text, last


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=6)
    ),
    st.lists(st.integers(1, 9)),
    st.integers(0, 1000),
)
def test_all_lines_arrive_however_they_are_cut(
    lines: list[str], cuts: list[int], start: int
) -> None:
    lines = ["".join(c for c in line if c.isprintable()) for line in lines]
    content = "".join(f"{line}\n" for line in lines).encode()
    events, made, position = LineEvents(start), list[bytes](), 0
    for cut in [*cuts, len(content)]:
        piece = content[position : position + cut]
        position += len(piece)
        if piece:
            made += list(events.take(piece, start + position))
    made += list(events.finish())
    text, last = text_of(made)
    assert text == content.decode()
    if content:
        assert last == start + len(content)


def test_a_gap_is_an_event() -> None:
    events = LineEvents(10)
    made = list(events.take(b"late\n", 105))
    assert made[0].startswith(b": 90 bytes")
    assert text_of(made[1:]) == ("late\n", 105)


def test_an_endless_line_comes_in_pieces_of_whole_characters() -> None:
    events = LineEvents(0)
    content = "é".encode() * 70_000
    made = list(events.take(content[:-1], len(content) - 1))
    made += list(events.take(content[-1:], len(content)))
    made += list(events.finish())
    assert "�" not in b"".join(made).decode()
