"""The tables of states: total, free of dead ends, and the same as their printed diagrams."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from launcher.domain import states
from launcher.domain.states import (
    JOB,
    JOB_SHOWN,
    TASK,
    TASK_SHOWN,
    Illegal,
    JobEvent,
    JobPhase,
    Machine,
    Moved,
    Stale,
    TaskEvent,
    TaskPhase,
)
from muster.contracts.jobs import JobState, TaskState

MACHINES: list[tuple[Machine[Any, Any], type[StrEnum], type[StrEnum], Mapping[Any, StrEnum]]] = [
    (JOB, JobPhase, JobEvent, JOB_SHOWN),
    (TASK, TaskPhase, TaskEvent, TASK_SHOWN),
]
machines = pytest.mark.parametrize(
    ("machine", "phases", "events", "shown"), MACHINES, ids=["job", "task"]
)


@machines
def test_every_pair_has_exactly_one_meaning(
    machine: Machine[Any, Any],
    phases: type[StrEnum],
    events: type[StrEnum],
    shown: Mapping[Any, StrEnum],
) -> None:
    for state in phases:
        for event in events:
            meaning = machine.advance(state, event)
            if (state, event) in machine.moves:
                assert meaning == Moved(machine.moves[state, event])
                assert (state, event) not in machine.stale
            else:
                expected = Stale() if (state, event) in machine.stale else Illegal()
                assert meaning == expected


@machines
def test_every_state_is_reached_and_leads_to_an_end(
    machine: Machine[Any, Any],
    phases: type[StrEnum],
    events: type[StrEnum],
    shown: Mapping[Any, StrEnum],
) -> None:
    assert _reached(machine, {machine.start}) == set(phases)
    for state in phases:
        assert _reached(machine, {state}) & machine.final, f"{state} leads nowhere"


def _reached(machine: Machine[Any, Any], found: set[Any]) -> set[Any]:
    while True:
        more = {to for (state, _), to in machine.moves.items() if state in found} - found
        if not more:
            return found
        found = found | more


@machines
def test_no_event_leaves_a_final_state(
    machine: Machine[Any, Any],
    phases: type[StrEnum],
    events: type[StrEnum],
    shown: Mapping[Any, StrEnum],
) -> None:
    assert {state.value for state in machine.final} == {"succeeded", "failed", "stopped"}
    for state in machine.final:
        assert not any(isinstance(machine.advance(state, event), Moved) for event in events)


@machines
def test_users_see_a_state_of_every_phase_and_final_ones_only_when_over(
    machine: Machine[Any, Any],
    phases: type[StrEnum],
    events: type[StrEnum],
    shown: Mapping[Any, StrEnum],
) -> None:
    over = {"SUCCEEDED", "FAILED", "STOPPED"}
    assert set(shown) == set(phases)
    for state, seen in shown.items():
        assert isinstance(seen, JobState | TaskState)
        assert (seen.value in over) == (state in machine.final)


def test_a_stop_is_taken_in_every_state_that_is_not_over() -> None:
    for state in set(JobPhase) - JOB.final - {JobPhase.STOPPING}:
        assert JOB.advance(state, JobEvent.STOP_ASKED) == Moved(JobPhase.STOPPING)


def test_the_printed_diagrams_are_those_of_the_tables() -> None:
    page = Path(__file__).parents[2] / "docs" / "job-states.md"
    assert page.read_text() == states.document(), (
        "print it anew: .venv/bin/python -m launcher.domain.states > docs/job-states.md"
    )
