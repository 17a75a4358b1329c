"""CSV: rows with their lines, and what is no row, which hides no other."""

from collections.abc import Iterable

import pytest
from scheduler.domain.core.config import Finding
from scheduler.domain.formats.fields import FormatError
from scheduler.domain.trace.csv_rows import MAX_COLUMNS, MAX_ROW_BYTES, Rows


def read(data: bytes, columns: tuple[str, ...] | None = None) -> list[tuple[int, object]]:
    """Lines, with the cell of column b or what is wrong."""
    rows: Iterable[object] = Rows(data.splitlines(keepends=True), columns)
    return [
        (each.line, each.message if isinstance(each, Finding) else each.cell("b"))
        for each in rows  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"a,b\n1,2\n3,4\n", [(2, "2"), (3, "4")]),
        (b"a,b\r\n1,2\r\n", [(2, "2")]),
        (b"\xef\xbb\xbfb,a\n1,2", [(2, "1")]),
        (b"\n \na , b\n\n1,  2 \n", [(5, "2")]),
        (b'a,b\n"1","2, and ""more"""\n', [(2, '2, and "more"')]),
        (b'a,b\n1, "2, 3"\n', [(2, "2, 3")]),
        (b'a,b\n1,"2\n\n3"\n4,5\n', [(2, "2\n\n3"), (5, "5")]),
        ("a,b\n1,é\n".encode(), [(2, "é")]),
        (b"a,b\n", []),
        (b"b,\n1,2\n", [(2, "1")]),
    ],
)
def test_rows_have_the_line_on_which_they_begin(
    data: bytes, found: list[tuple[int, object]]
) -> None:
    assert read(data) == found


def test_columns_may_be_named_elsewhere() -> None:
    assert read(b"1,2\n3,4\n", ("a", "b")) == [(1, "2"), (2, "4")]


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"a,b\n1\n1,2\n", 2, "has 1 cells, and there are 2 columns"),
        (b"a,b\n1,2,3\n1,2\n", 2, "has 3 cells, and there are 2 columns"),
        (b'a,b\n"1"2,3\n1,2\n', 2, "is not CSV: ',' expected after '\"'"),
        (b"a,b\n1,\xff\n1,2\n", 2, "is not UTF-8 from byte 3 of line 2 on; save the file as UTF-8"),
        (
            b'a,b\n1,"2\n\xff"\n1,2\n',
            2,
            "is not UTF-8 from byte 1 of line 3 on; save the file as UTF-8",
        ),
        (b"a,b\n1," + b"2" * MAX_ROW_BYTES + b"\n1,2\n", 2, "is longer than 65536 bytes"),
    ],
)
def test_what_is_no_row_is_told_and_the_next_one_is_read(
    data: bytes, line: int, message: str
) -> None:
    (first, said), *rest = read(data)
    assert first == line
    assert str(said).startswith(message)
    assert [cell for _, cell in rest][-1] == "2"


def test_a_quote_that_is_left_open_is_told_where_it_was_opened() -> None:
    [(line, said)] = read(b'a,b\n1,2\n3,"4\n5,6\n')[1:]
    assert (line, said) == (3, "is not CSV: unexpected end of data")
    many = b'a,b\n1,"2\n' + b"3,4\n" * MAX_ROW_BYTES
    (line, said), *rest = read(many)
    assert line == 2
    assert str(said).endswith("the most in a row; is a quote left open?")
    assert {cell for _, cell in rest} == {"4"}


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"", 1, "is empty; it must begin with a line of columns"),
        (b"\n\n", 1, "is empty; it must begin with a line of columns"),
        (b"a,b,a\n", 1, "has the column 'a' 2 times; keep one"),
        (b"\na,b\x07\n", 2, "has the column 'b\\x07', which has a character that can't be printed"),
        (b"a,\xff\n", 1, "is not UTF-8"),
        (b"a," * MAX_COLUMNS, 1, "has 1001 columns; 1000 are the most"),
        (b"a" * (MAX_ROW_BYTES + 1), 1, "is longer than 65536 bytes"),
    ],
)
def test_a_list_without_a_header_is_refused(data: bytes, line: int, message: str) -> None:
    with pytest.raises(FormatError) as refused:
        read(data)
    [found] = refused.value.findings
    assert found.line == line
    assert found.message.startswith(message)
