"""When a gang's work was saved last, as the Launcher tells it."""

from datetime import UTC, datetime
from typing import Any

from muster.contracts.gangs import GangRequest
from scheduler.domain.rules import Rules
from scheduler.domain.state import State
from scheduler.domain.stored import Stored

Kit = Any


def saved(kit: Kit, at: float | None, name: str = "g") -> GangRequest:
    message: GangRequest = kit.gang(name, *kit.pods(name, 1, gpus=1))
    when = None if at is None else datetime.fromtimestamp(at, UTC)
    return message.model_copy(update={"checkpointed_at": when})


def running(kit: Kit) -> State:
    state: State = kit.state(kit.report("n0", gpus=1))
    state.given.is_recording = True
    state.request(saved(kit, None), 100.0, 100.0)
    kit.decide(state, 100.0)
    return state


def lines(state: State) -> list[str]:
    found = [line for noted in state.given.take_noted() for line in noted.lines]
    return [line for line in found if "gang-checkpointed" in line]


def test_it_is_known_and_recorded_once(kit: Kit) -> None:
    state = running(kit)
    for _ in range(2):
        state.request(saved(kit, 150.0), 160.0, 160.0)
    kit.decide(state, 160.0)
    assert state.core.exported("g").checkpointed_at == 150.0
    (line,) = lines(state)
    assert '"savedAt":150' in line.replace(" ", "")


def test_what_is_to_come_and_what_was_before_its_start_is_not_so(kit: Kit) -> None:
    state = running(kit)
    state.request(saved(kit, 99.0), 160.0, 160.0)
    assert state.core.exported("g").checkpointed_at is None
    state.request(saved(kit, 170.0), 160.0, 160.0)
    assert state.core.exported("g").checkpointed_at == 160.0


def test_a_gang_that_waits_has_nothing_to_lose(kit: Kit) -> None:
    state = running(kit)
    state.request(saved(kit, 150.0, "other"), 160.0, 160.0)
    kit.decide(state, 160.0)
    assert lines(state) == []


def test_it_is_known_after_a_restart(kit: Kit) -> None:
    state = running(kit)
    state.request(saved(kit, 150.0), 160.0, 160.0)
    again = Stored(Rules(settle_s=0.0))
    again.report(kit.report("n0", gpus=1), 200.0)
    again.ledger.receive("n0", "journal-of-n0", 200.0)
    hold = state.ledger.hold_of("g-w-0")
    assert hold is not None
    again.restore_holds([hold], 200.0)
    again.change(None, 200.0)
    again.restore_gang(state.known("g"), 200.0, 200.0)
    assert again.core.exported("g").checkpointed_at == 150.0
