"""What operators see of moves that would free cells, within 80 columns."""

import json
from pathlib import Path

from rest_double import COLUMNS, Rest, muster, on_a_terminal

ADVICE = {
    "asOf": 7,
    "chain": "h100-rack",
    "cell": "h100-rack",
    "wanted": 2,
    "cells": ["r1", "r4"],
    "freeAlready": 1,
    "gpus": 12,
    "lostGpuSeconds": 9000.0,
    "isLeast": False,
    "isCut": False,
    "reason": None,
    "moves": [
        {
            "user": "ada",
            "name": "a-long-name-of-a-run-with-many-parameters-lr-0001",
            "virtualCluster": "vision-and-robotics",
            "priority": 100,
            "gpus": 8,
            "lostGpuSeconds": 9000.0,
            "pods": [
                {"pod": f"p{n}", "from": {"node": f"r4-node{n}"}, "to": {"node": f"r2-node{n}"}}
                for n in range(3)
            ],
        },
        {
            "user": "bob",
            "name": "b",
            "virtualCluster": "nlp",
            "priority": 0,
            "gpus": 4,
            "lostGpuSeconds": 0.0,
            "pods": [{"pod": "p9", "from": {"node": "r4-node7"}, "to": None}],
        },
    ],
}


def test_advice_names_the_moves_and_moves_nobody(rest: Rest, tmp_path: Path) -> None:
    rest.answer("GET /api/v2/advice?level=h100-rack&cells=2", ADVICE)
    words = ("advise", "--level", "h100-rack", "--cells", "2")
    lines = on_a_terminal(rest, tmp_path, *words)
    head, _, columns, first, second, _, sums, nothing, as_of = lines
    assert head == "With these moves r4 (h100-rack) is free: r1 already is."
    assert max(map(len, (columns, first, second))) <= COLUMNS
    assert second.split() == ["bob~b", "nlp", "0", "4", "0.0", "r4-node7", "released"]
    assert sums.startswith("12 GPUs move, 2.5 GPU-hours since the last checkpoints are lost.")
    assert "Cheaper moves may exist" in sums
    assert (nothing.partition(";")[0], as_of) == ("Nothing was moved", "as of cycle 7")
    whole = muster(rest, tmp_path, *words).out
    assert "r4-node0 r4-node1 +1" in whole
    assert "r2-node0 r2-node1 +1" in whole
    assert json.loads(muster(rest, tmp_path, *words, "-o", "json").out) == ADVICE


def test_without_advice_the_reason_is_shown(rest: Rest, tmp_path: Path) -> None:
    reason = {"code": "room", "text": "None of the 3 complete cells can be freed.", "numbers": {}}
    rest.answer("GET /api/v2/advice?cells=1", ADVICE | {"reason": reason, "moves": []})
    shown = muster(rest, tmp_path, "advise").out
    assert shown.startswith("No: None of the 3 complete cells can be freed.\n")
    rest.answer("GET /api/v2/advice?cells=1", ADVICE | {"moves": [], "freeAlready": 2})
    assert muster(rest, tmp_path, "advise").out.startswith("Free already: r1, r4 (h100-rack).")
