"""Tables fit the terminal; elsewhere they are whole. No text changes the terminal."""

import json
import sys

import pytest
from cli.output import print_facts, print_json, print_line, print_note, print_table

NAME = "ada~a-long-name-of-a-run-with-many-parameters-lr-0001-bs-512"


def table(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    columns: int,
    is_terminal: bool = True,
    ends_in_text: bool = False,
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    row = (NAME, "RUNNING", "default", "its disk is almost full")
    print_table(("JOB", "STATE", "VC", "WHY"), [row], ends_in_text=ends_in_text)
    return capsys.readouterr().out.splitlines()


def test_names_are_cut_in_their_middle_until_a_row_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    heading, row = table(capsys, monkeypatch, columns=80)
    assert len(row) == 80
    assert row.startswith("ada~a-long-name-of")
    assert "…" in row
    assert "-bs-512  RUNNING  default  its disk is almost full" in row
    assert heading.index("STATE") == row.index("RUNNING")


def test_nothing_is_cut_that_would_not_be_readable_any_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert table(capsys, monkeypatch, columns=10)[1].startswith("ada~a-…s-512  RUNNING  default  ")


def test_a_text_at_the_end_may_be_as_long_as_it_likes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = table(capsys, monkeypatch, columns=40, ends_in_text=True)[1]
    assert row.endswith("its disk is almost full")
    assert "…" in row


def test_where_no_terminal_is_everything_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = table(capsys, monkeypatch, columns=40, is_terminal=False)[1]
    assert row == f"{NAME}  RUNNING  default  its disk is almost full"


HOSTILE = "a\x1b[2J\x9b1m\r\nready\u202e"
ESCAPED = r"a\u001b[2J\u009b1m\r\nready\u202e"


def test_texts_of_others_change_no_terminal_and_add_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("NAME", "STATE"), [(HOSTILE, "lost")])
    print_facts({"name": HOSTILE})
    print_line(HOSTILE)
    print_note(HOSTILE)
    print_json({"name": HOSTILE})
    shown = capsys.readouterr()
    table, facts, line, document = shown.out.partition("\n")[2].split("\n", 3)
    assert table == f"{ESCAPED}  lost"
    assert (facts, line, shown.err) == (f"name  {ESCAPED}", ESCAPED, f"{ESCAPED}\n")
    assert ESCAPED in document
    assert json.loads(document) == {"name": HOSTILE}
