"""A question that ends with an error, wherever that happens, leaves the state as it was."""

import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from digests import digest
from scheduler.domain.core.cycle import Core
from scheduler_audit import audited
from seeds import how_many
from test_core_answers import a_history, waiting

SEEDS, PER_QUESTION = how_many(1, deep=20), 4

TRYING = {
    f"{name}.py"
    for name in (
        "advise", "answers", "attempt", "costs", "evict", "explain", "fit", "lend", "place",
        "rebind", "reserve", "shortage",
    )
}  # fmt: skip
"""Modules that try things; the changes that they make, and undo, are below them."""

KEEPING = {"is_backfilling": True, "assumed_s": 20.0, "max_pass_s": 100.0, "min_run_s": 10.0}


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
        if is_between or Path(code.co_filename).name not in TRYING:
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


def questions(core: Core) -> list[Callable[[], object]]:
    """All that is asked of a state."""
    asks = core.questions
    found: list[Callable[[], object]] = [
        lambda cells=cells: asks.advise(None, None, cells) for cells in (1, 2)
    ]
    return found + [lambda name=name: asks.counterfactual(name) for name in waiting(core)[:4]]


@pytest.mark.parametrize("policy", [{}, KEEPING], ids=["plain", "keeping"])
def test_a_question_that_fails_leaves_all_as_it_was(policy: dict[str, object]) -> None:
    failed = 0
    for seed in range(SEEDS):
        random = Random(seed)
        for core, _ in a_history(seed, policy):
            if random.random() > 0.2:
                continue
            before = digest(core)
            for question in questions(core):
                counting = Failing()
                counting.ask(question)
                for _ in range(PER_QUESTION if counting.calls else 0):
                    where = Failing(random.randint(1, counting.calls)).ask(question)
                    failed += bool(where)
                    assert digest(core) == before, f"seed {seed}: {where}"
                    assert not audited(core), f"seed {seed}: {where}"
    assert failed > 20 * SEEDS
