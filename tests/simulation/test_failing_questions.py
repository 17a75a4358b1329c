"""A question that ends with an error, wherever that happens, leaves the state as it was."""

import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from core_door import door
from histories import history
from random_clusters import Traits
from runs import Run
from scheduler.domain.core import advising, answers
from scheduler.domain.core.auditing import audited
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.wishes import wishes
from unchanged import changed, fingerprint

SEEDS, PER_QUESTION = 8, 10

TRYING = {
    f"{name}.py"
    for name in (
        "admitting", "advising", "answers", "backtracking", "borrowing", "capacity", "choosing",
        "elsewhere", "ground", "leaving", "moving", "packing", "placing", "planning", "preempting",
        "prices", "seeking", "shortages", "victims", "ways",
    )
}  # fmt: skip
"""Modules that try things; what they do it with, and undo it, is below them."""

UNDOING = {"undo", "undo_all", "undo_restarts", "leave", "enter"}
"""Of these modules what undoes, and what takes one place."""

KEEPING = {"is_backfilling": True, "assumed_s": 100.0, "max_pass_s": 500.0, "min_run_s": 30.0}


class BrokenError(Exception):
    """The question fails here."""


class Failing:
    """Counts the calls of what tries, and fails at one of them; ``at`` 0: at none."""

    def __init__(self, at: int = 0) -> None:
        self.calls = 0
        self._at = at

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_between = event != "call" or code.co_flags & CO_GENERATOR  # or at its end
        if is_between or code.co_name in UNDOING or Path(code.co_filename).name not in TRYING:
            return
        self.calls += 1
        if self.calls == self._at:
            raise BrokenError(f"{code.co_filename}:{code.co_name}")

    def ask(self, question: Callable[[], object]) -> str:
        """Ask, and where that has failed, if it has."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            question()
        except BrokenError as error:
            return str(error)
        finally:
            sys.settrace(before)
        return ""


def questions(cluster: Cluster) -> list[Callable[[], object]]:
    """All that is asked of a state."""
    forest = cluster.hardware.forest
    found: list[Callable[[], object]] = [
        lambda cells=cells: advising.advise(cluster, wishes(forest, None, None, cells))
        for cells in (1, 2)
    ]
    waiting = [cluster.gangs[gang] for gang in cluster.queue.gangs]
    return found + [lambda live=live: answers.answer(cluster, live) for live in waiting[:4]]


@pytest.mark.parametrize("policy", [{}, KEEPING], ids=["plain", "keeping"])
def test_a_question_that_fails_leaves_all_as_it_was(policy: dict[str, object]) -> None:
    failed = 0

    def watch(run: Run) -> None:
        nonlocal failed
        cluster: Cluster = run.core.core  # type: ignore[attr-defined]
        if random.random() > 0.2 or cluster.under_way is not None:
            return
        before = fingerprint(cluster)
        for question in questions(cluster):
            counting = Failing()
            counting.ask(question)
            for _ in range(PER_QUESTION if counting.calls else 0):
                where = Failing(random.randint(1, counting.calls)).ask(question)
                failed += bool(where)
                after = fingerprint(cluster)
                assert after == before, f"seed {seed}: {where}: {changed(before, after)}"
                assert not audited(cluster), f"seed {seed}: {where}"

    for seed in range(51000, 51000 + SEEDS):
        random = Random(seed)
        history(seed, door(policy), Traits(judges="", restarts=0.0), watch=watch)
    assert failed > 50 * SEEDS
