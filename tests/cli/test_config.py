"""Administrators show, set, compare and roll back virtual clusters and policy."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rest_double import Rest, muster

PATH = "/api/v2/cluster/config"
SPEECH = {"virtualClusters": {"speech": {"cells": [{"type": "node", "count": 2}]}}}
YAML = """\
virtualClusters:
  speech:
    cells:
    - type: node
      count: 2
"""


def version(number: int, content: Any, **more: Any) -> dict[str, Any]:
    return {
        "version": number,
        "action": "set",
        "by": "admin",
        "at": "2023-11-14T22:13:20.000Z",
        "comment": "",
        "rolledBackTo": None,
        "content": content,
    } | more


def holding(newest: Any, **running: Any) -> dict[str, Any]:
    return {
        "version": 0 if newest is None else newest["version"],
        "newest": newest,
        "scheduler": {
            "asOf": 3,
            "isTaken": True,
            "version": None if newest is None else newest["version"],
            "problems": [],
            "inForce": {"virtualClusters": {"default": {"cells": [], "pins": []}}},
        }
        | running,
        "schedulerProblem": None,
    }


def sent(rest: Rest) -> list[tuple[str, str, bytes, str | None]]:
    """What changes something."""
    return [
        (method, path, body, headers.get("If-Match"))
        for method, path, body, headers in rest.asked
        if method != "GET" and not path.endswith("/what-if")
    ]


def would(state: str, *, is_harm: bool = False, **report: Any) -> dict[str, Any]:
    """What a change would have done."""
    found = {
        "days": 7.0,
        "isPartial": False,
        "text": ["This delays 14 gangs of speech by 40m00s on average (median 35m00s)."],
        "table": "This delays 14 gangs of speech.\n\nGangs          20\n",
    }
    return {
        "state": state,
        "reason": None if state == "done" else "Nothing was recorded.",
        "needsAcceptance": is_harm,
        "report": found | report if state == "done" else None,
        "warnings": [{"path": "policy.mood", "message": "has no effect", "line": 3}],
    }


NOTE = "note: not compared with the last days: Nothing was recorded.\n"
WHAT_IF = f"POST {PATH}/what-if"


def test_what_holds_is_shown_as_a_file_that_can_be_set_again(rest: Rest, tmp_path: Path) -> None:
    newest = version(4, SPEECH, comment="speech\nmoves in")
    rest.answer(f"GET {PATH}", holding(newest))
    head = "# version 4, set by admin at 2023-11-14 22:13:20 UTC: speech moves in\n"
    for words in (("config",), ("config", "show")):
        ran = muster(rest, tmp_path, *words)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == f"{head}# The Scheduler runs it.\n{YAML}"
    shown = muster(rest, tmp_path, "config", "show", "-o", "json")
    assert json.loads(shown.out) == holding(newest)

    problem = {"path": "virtualClusters.speech.cells[0].count", "line": None, "message": "is 2"}
    rest.answer(f"GET {PATH}", holding(newest, isTaken=False, version=3, problems=[problem]))
    assert muster(rest, tmp_path, "config").out.splitlines()[1:3] == [
        "# The Scheduler runs version 3, as this can't be honoured:",
        "#   virtualClusters.speech.cells[0].count: is 2",
    ]
    file = {"since": "2026-01-31T13:00:05Z", "problems": ["cluster.yaml:3: x: is unknown"]}
    rest.answer(f"GET {PATH}", holding(None, rejectedFile=file))
    assert muster(rest, tmp_path, "config").out.splitlines()[1:4] == [
        "# The Scheduler rejects the changed cluster file since 2026-01-31T13:00:05Z; the previous"
        " one stays in force:",
        "#   cluster.yaml:3: x: is unknown",
        "# What is in force is the cluster's file's, or the nodes':",
    ]
    rest.answer(f"GET {PATH}", holding(newest, isTaken=False, version=None))
    assert muster(rest, tmp_path, "config").out.splitlines()[1] == "# The Scheduler runs none yet."
    away = holding(newest) | {"scheduler": None, "schedulerProblem": "It does not answer."}
    rest.answer(f"GET {PATH}", away)
    line = "# Whether the Scheduler runs it is not known: It does not answer."
    assert muster(rest, tmp_path, "config").out.splitlines()[1] == line


def test_where_nothing_is_set_what_is_in_force_is_shown(rest: Rest, tmp_path: Path) -> None:
    rest.answer(f"GET {PATH}", holding(None))
    lines = muster(rest, tmp_path, "config").out.splitlines()
    assert lines[0] == "# version 0: nothing was set ever"
    assert lines[1] == "# What is in force is the cluster's file's, or the nodes':"
    assert lines[2:4] == ["virtualClusters:", "  default:"]
    rest.answer(f"GET {PATH}", holding(version(2, None, action="remove")))
    assert "remove by admin" in muster(rest, tmp_path, "config").out
    away = holding(version(2, None)) | {"scheduler": None, "schedulerProblem": "Away."}
    rest.answer(f"GET {PATH}", away)
    assert muster(rest, tmp_path, "config").out.splitlines()[-1].endswith("not known: Away.")


def test_versions_are_listed(rest: Rest, tmp_path: Path) -> None:
    listed = [
        version(3, None, action="rollback", rolledBackTo=1, comment="too early"),
        version(2, None),
    ]
    content = {"versions": listed, "total": 5}
    rest.answer(f"GET {PATH}/versions?limit=2", content)
    ran = muster(rest, tmp_path, "config", "versions", "--limit", "2")
    assert [re.split("  +", line) for line in ran.out.splitlines()] == [
        ["VERSION", "MADE (UTC)", "BY", "ACTION", "COMMENT"],
        ["3", "2023-11-14 22:13:20", "admin", "rollback to 1", "too early"],
        ["2", "2023-11-14 22:13:20", "admin", "set"],
        ["There are 3 more; --limit shows more of them."],
    ]
    ran = muster(rest, tmp_path, "config", "versions", "--limit", "2", "-o", "json")
    assert json.loads(ran.out) == content


def test_a_file_is_set_after_the_version_that_holds(rest: Rest, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(YAML)
    rest.answer(f"GET {PATH}", holding(version(4, SPEECH)))
    warning = {"path": "virtualClusters.speech", "line": 2, "message": "owns nothing"}
    made = version(5, SPEECH) | {"warnings": [warning]}
    rest.answer(f"PUT {PATH}?comment=why+not", made, 202)
    rest.answer(f"PUT {PATH}?comment=", made, 202)
    rest.answer(WHAT_IF, would("none"))
    ran = muster(rest, tmp_path, "config", "set", str(file), "--comment", "why not")
    assert (ran.code, ran.out) == (0, "version 5\n")
    assert ran.err == f"{NOTE}note: line 2: virtualClusters.speech: owns nothing\n"
    ran = muster(rest, tmp_path, "config", "set", "-", "--after", "3", "-o", "json", text="{}")
    assert json.loads(ran.out) == made
    assert sent(rest) == [
        ("PUT", f"{PATH}?comment=why+not", YAML.encode(), '"4"'),
        ("PUT", f"{PATH}?comment=", b"{}", '"3"'),
    ]
    assert muster(rest, tmp_path, "config", "set", str(tmp_path / "none.yaml")).code == 2


def test_refusals_are_shown_by_line(rest: Rest, tmp_path: Path) -> None:
    problems = [
        {"path": "policy.graceSeconds", "line": 7, "message": "is no number"},
        {"path": "", "message": "and 3 more"},
    ]
    refusal = {"code": "InvalidConfigError", "message": "Two problems.", "errors": problems}
    rest.answer(WHAT_IF, refusal, 400)
    ran = muster(rest, tmp_path, "config", "set", "-", "--after", "0", text=YAML)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.splitlines() == [
        "muster: Two problems.",
        "  line 7: policy.graceSeconds: is no number",
        "  and 3 more",
    ]
    conflict = {"code": "ConflictConfigError", "message": "Version 2 holds now.", "errors": []}
    rest.answer(WHAT_IF, would("none"))
    rest.answer(f"PUT {PATH}?comment=", conflict, 412)
    ran = muster(rest, tmp_path, "config", "set", "-", "--after", "0", text=YAML)
    assert (ran.code, ran.err) == (4, f"{NOTE}muster: Version 2 holds now.\n")


def test_what_it_would_have_done_is_shown_before_it_is_set(rest: Rest, tmp_path: Path) -> None:
    rest.first[WHAT_IF] = [(200, "application/json", json.dumps(would("running")))]
    rest.answer(WHAT_IF, would("done"))
    made = version(1, SPEECH) | {"warnings": []}
    rest.answer(f"PUT {PATH}?comment=", made, 202)
    words = ("config", "set", "-", "--after", "0")
    ran = muster(rest, tmp_path, *words, text=YAML)
    table = "On the events of 7 days:\nThis delays 14 gangs of speech.\n\nGangs          20\n\n"
    assert (ran.code, ran.out) == (0, f"{table}version 1\n")
    assert ran.err == "What it would have made of the last days is being looked at ...\n"
    assert [body for method, path, body, _ in rest.asked if "what-if" in path] == [
        YAML.encode()
    ] * 2
    shown = muster(rest, tmp_path, *words, "-o", "json", text=YAML)
    assert json.loads(shown.out) == made

    asked = len(sent(rest))
    rest.answer(WHAT_IF, would("done", isPartial=True, days=1.0))
    ran = muster(rest, tmp_path, *words, "--dry-run", text=YAML)
    assert (ran.code, ran.out) == (0, table.replace("7 days", "the first 1 day"))
    assert ran.err == "note: line 3: policy.mood: has no effect\n"
    ran = muster(rest, tmp_path, *words, "--dry-run", "-o", "json", text=YAML)
    assert json.loads(ran.out) == would("done", isPartial=True, days=1.0)
    assert len(sent(rest)) == asked
    assert muster(rest, tmp_path, *words, "--dry-run", "--no-what-if", text=YAML).code == 2


def test_a_change_that_delays_much_needs_the_option_yes(rest: Rest, tmp_path: Path) -> None:
    rest.answer(WHAT_IF, would("done", is_harm=True))
    words = ("config", "set", "-", "--after", "0")
    ran = muster(rest, tmp_path, *words, text=YAML)
    assert ran.code == 4
    assert ran.out.startswith("On the events of 7 days:\nThis delays 14 gangs of speech.\n")
    assert ran.err.startswith(
        "note: line 3: policy.mood: has no effect\n"
        "muster: Nothing is changed. This delays 14 gangs of speech by 40m00s"
    )
    assert sent(rest) == []
    made = version(1, SPEECH) | {"warnings": []}
    rest.answer(f"PUT {PATH}?comment=&acceptDelays=true", made, 202)
    assert muster(rest, tmp_path, *words, "--yes", text=YAML).out.endswith("\n\nversion 1\n")


@pytest.mark.parametrize(("typed", "is_set"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_a_user_at_a_terminal_is_asked(
    rest: Rest, tmp_path: Path, typed: str, is_set: bool
) -> None:
    rest.answer(WHAT_IF, would("done", is_harm=True))
    rest.answer(
        f"PUT {PATH}?comment=&acceptDelays=true", version(1, SPEECH) | {"warnings": []}, 202
    )
    file = tmp_path / "config.yaml"
    file.write_text(YAML)
    terminal, stdin = os.openpty()
    os.write(terminal, typed.encode())
    ran = subprocess.run(
        [sys.executable, "-m", "cli", "config", "set", str(file), "--after", "0"],
        env=os.environ | {"MUSTER_URL": rest.url, "MUSTER_TOKEN": "a-token"},
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(terminal)
    os.close(stdin)
    assert "Set it all the same? [y/N]" in ran.stderr
    assert (ran.returncode, len(sent(rest))) == ((0, 1) if is_set else (4, 0))


def test_a_change_with_unknown_delays_needs_the_option_no_what_if(
    rest: Rest, tmp_path: Path
) -> None:
    rest.answer(WHAT_IF, would("failed"))
    words = ("config", "set", "-", "--after", "0")
    ran = muster(rest, tmp_path, *words, "--yes", text=YAML)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.endswith(" --no-what-if sets it all the same.\n")
    rest.answer(f"PUT {PATH}?comment=&whatIf=false", version(1, SPEECH) | {"warnings": []}, 202)
    ran = muster(rest, tmp_path, *words, "--no-what-if", text=YAML)
    assert (ran.code, ran.out, ran.err) == (0, "version 1\n", "")
    assert [path for _, path, _, _ in sent(rest)] == [f"{PATH}?comment=&whatIf=false"]


def test_a_version_is_rolled_back_to_and_what_is_set_removed(rest: Rest, tmp_path: Path) -> None:
    rest.answer(f"GET {PATH}", holding(version(4, SPEECH)))
    rest.answer(f"POST {PATH}/rollback", version(5, SPEECH) | {"warnings": []}, 202)
    rest.answer(f"POST {PATH}/versions/2/what-if", would("none"))
    rest.answer(f"POST {PATH}/removal/what-if", would("done", is_harm=True))
    target = f"DELETE {PATH}?comment=&acceptDelays=true"
    rest.answer(target, version(6, None) | {"warnings": []}, 202)
    ran = muster(rest, tmp_path, "config", "rollback", "2", "--comment", "back")
    assert (ran.code, ran.out, ran.err) == (0, "version 5\n", NOTE)
    assert muster(rest, tmp_path, "config", "remove", "--after", "5").code == 4
    ran = muster(rest, tmp_path, "config", "remove", "--after", "5", "--yes")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "version 6")
    (rolled, removed) = sent(rest)
    assert (json.loads(rolled[2]), rolled[3]) == ({"version": 2, "comment": "back"}, '"4"')
    assert removed[3] == '"5"'


def test_versions_are_compared_as_yaml(rest: Rest, tmp_path: Path) -> None:
    other = {"virtualClusters": {"speech": {"cells": [{"type": "node", "count": 3}]}}}
    rest.answer(f"GET {PATH}/versions/1", version(1, SPEECH))
    rest.answer(f"GET {PATH}/versions/2", version(2, other))
    rest.answer(f"GET {PATH}/versions/3", version(3, None))
    rest.answer(f"GET {PATH}", holding(version(2, other)))
    ran = muster(rest, tmp_path, "config", "diff", "1")
    assert ran.out.splitlines() == [
        "--- version 1",
        "+++ version 2",
        "@@ -2,4 +2,4 @@",
        "   speech:",
        "     cells:",
        "     - type: node",
        "-      count: 2",
        "+      count: 3",
    ]
    assert muster(rest, tmp_path, "config", "diff", "1", "2").out == ran.out
    removed = muster(rest, tmp_path, "config", "diff", "1", "3").out
    assert removed.splitlines()[2:4] == ["@@ -1,5 +0,0 @@", "-virtualClusters:"]
    assert muster(rest, tmp_path, "config", "diff", "2", "2").out == ""
    assert muster(rest, tmp_path, "config", "diff", "9").code == 4
