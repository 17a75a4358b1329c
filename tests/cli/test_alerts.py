"""What `muster alerts` prints of REST's answers."""

from pathlib import Path
from typing import Any

import pytest
from rest_double import Rest, muster

MUTE = {"id": "7", "alert": "GpuXdi", "owner": None, "until": "2026-01-31T13:00:00Z"}
NOTE = "No alert or event is known by the name GpuXdi. Did you mean GpuXid?"


@pytest.mark.parametrize("note", [None, NOTE])
def test_a_mute_of_a_name_that_nobody_knows_is_made_with_a_note(
    rest: Rest, tmp_path: Path, note: str | None
) -> None:
    rest.answer("POST /api/v2/alerts/mutes", MUTE | {"note": note}, 201)
    ran = muster(rest, tmp_path, "alerts", "mute", "--alert", "GpuXdi")
    assert (ran.code, ran.out.startswith("Muted GpuXdi for everybody until ")) == (0, True)
    assert ran.err.strip() == (note or "")


def test_notes_on_rules_are_printed(rest: Rest, tmp_path: Path) -> None:
    answer = {"version": 3, "trial": [], "notes": [f"Action a: {NOTE}"]}
    rest.answer("POST /api/v2/alerts/rules/check", answer)
    rest.answer("PUT /api/v2/alerts/rules?comment=", answer)
    for words in ((), ("--check",)):
        ran = muster(rest, tmp_path, "alerts", "rules", "-", *words, text="actions: []\n")
        assert (ran.code, ran.err) == (0, f"Action a: {NOTE}\n")


def test_counts_are_one_or_more(rest: Rest, tmp_path: Path) -> None:
    def trial(fired: int, failed: int) -> dict[str, Any]:
        return {"rule": "r", "fired": fired, "events": 9, "failed": failed}

    trials = {"trial": [trial(1, 0), trial(0, 1)], "notes": []}
    rest.answer("POST /api/v2/alerts/rules/check", trials)
    (tmp_path / "rules.yaml").write_text("rules: []\n")
    ran = muster(rest, tmp_path, "alerts", "rules", str(tmp_path / "rules.yaml"), "--check")
    assert ran.out.splitlines()[1:] == [
        "r would have fired 1 time on the last day.",
        "r would have fired 0 times on the last day; it could not evaluate 1 event.",
    ]
    rest.answer(
        "GET /api/v2/alerts?job=ada~train&limit=100&state=firing", {"alerts": [], "total": 2}
    )
    assert "There are 2 more" in muster(rest, tmp_path, "alerts", "--job", "ada~train").out
    rest.answer("GET /api/v2/alerts?limit=100&state=firing", {"alerts": [], "total": 1})
    assert "There is 1 more; --limit" in muster(rest, tmp_path, "alerts").out
