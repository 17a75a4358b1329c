"""Times beyond all calendars: whoever asks for them is answered, and nothing else stands still."""

from math import inf, nan
from typing import Any

import pytest
from scheduler.domain.core.config import Policy
from scheduler.domain.moments import time_of, written
from scheduler.domain.state import State
from scheduler_answers import served

Kit = Any

NOW = 1.7e9
LAST = "9999-12-31T23:59:59Z"


@pytest.mark.parametrize(
    ("at", "told"),
    [
        (0.5, "1970-01-01T00:00:00Z"),
        (NOW, "2023-11-14T22:13:20Z"),
        (253_402_300_799.9, LAST),
        (1e15, LAST),
        (inf, LAST),
        (nan, LAST),
        (-1e15, "0001-01-01T00:00:00Z"),
    ],
)
def test_every_moment_can_be_told(at: float, told: str) -> None:
    assert time_of(at) == told


def waiting(kit: Kit, policy: Policy, priority: int = 10) -> State:
    """One gang runs on all there is, and another waits."""
    state: State = kit.state(kit.report("a", gpus=4), policy=policy)
    state.ledger.receive("a", "", NOW)
    state.request(kit.gang("runs", *kit.pods("runs", 1, gpus=4)), NOW, NOW)
    kit.decide(state, NOW)
    waits = kit.gang("waits", *kit.pods("waits", 1, gpus=4), age=1, priority=priority)
    state.request(waits, NOW, NOW)
    kit.decide(state, NOW + 1)
    return state


async def test_a_start_that_is_never_expected_is_told(kit: Kit) -> None:
    state = waiting(kit, Policy(assumed_s=1e15))
    async with served(state) as (_, client):
        job = state.gangs["waits"].request.job
        for path in ("/queue", "/gangs/waits", f"/jobs/{job}/why"):
            assert (await client.get(path)).status_code == 200, path
        queue = (await client.get("/queue")).json()["gangs"]
        assert [each["expectedStart"] for each in queue] == [LAST]


def test_until_when_others_are_protected_is_told_as_a_time(kit: Kit) -> None:
    reason = waiting(kit, Policy(min_run_s=3600.0), priority=20).reason_of("waits")
    assert reason is not None
    assert reason.numbers["protectedUntil"] == (end := "2023-11-14T23:13:20Z")
    assert reason.text.endswith(
        f"1 gang of lower priority is protected from it, until {end} at the least."
    )


def test_until_when_others_leave_is_told_as_a_time(kit: Kit) -> None:
    reason = waiting(kit, Policy(), priority=20).reason_of("waits")
    assert reason is not None
    assert reason.numbers["until"] == (end := "2023-11-14T22:13:51Z")
    assert reason.text == f"It starts when 1 gang has left, by {end} at the latest."


async def test_a_grace_without_end_is_told(kit: Kit) -> None:
    state = waiting(kit, Policy(grace_s=1e15), priority=20)
    preemption = state.gangs["runs"].preemption
    assert preemption is not None
    assert written(preemption.until) == LAST
    async with served(state) as (_, client):
        answer = (await client.get("/gangs/waits")).json()
        assert LAST in answer["reason"]["text"]
