"""Cycles that take longer than the database, or the lease, lets them."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from muster.contracts.gangs import GangRequest
from muster.db import Connection
from muster.service import Runtime
from scheduler import store
from scheduler.domain.core import admit
from scheduler.domain.core.model import Placed
from scheduler.domain.core.nodes import Workload
from scheduler.domain.core.state import State
from scheduler.domain.rules import Rules
from scheduler.watch import Watch
from scheduler_watched import measured, until
from snapshots import take

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

GANGS = 30
HOUR_S = 3600.0


@pytest.mark.parametrize("gpus", [1, GANGS])
@pytest.mark.postgres
@pytest.mark.kafka
async def test_what_takes_longer_than_a_transaction_may_is_decided_in_several(
    gpus: int, kit: Kit, scheduler: RunScheduler, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All words come to one cycle, and the core is slow. None is like another, so that each is
    tried; ``gpus``: with one only the last gang fits.
    """
    take_dirty, attempt = store.gangs.take_dirty, admit.attempt

    def slow(*given: Any) -> Any:
        time.sleep(0.1)  # its time is the test
        return attempt(*given)

    async def together(conn: Connection, most: int) -> Sequence[GangRequest]:
        known = await conn.fetchval("SELECT count(*) FROM gang")
        return await take_dirty(conn, most) if known == GANGS else []

    monkeypatch.setattr(admit, "attempt", slow)
    monkeypatch.setattr(store.gangs, "take_dirty", together)
    names = [f"g{number:02}" for number in range(GANGS)]
    async with scheduler(deciding_timeout_s=1.0) as runtime:
        await until(lambda: measured(runtime, "is_leader"))
        await others.report(kit.report("n0", gpus=gpus))
        for number, name in enumerate(names):
            pods = kit.pods(name, GANGS - number, gpus=1)
            await others.ask(kit.gang(name, *pods))
        placed = names[0 if gpus > 1 else -1]
        await others.until(lambda: set(others.states(placed)) == {"placed"})
        assert measured(runtime, "cycle_parts_total") > 0


@pytest.mark.postgres
@pytest.mark.kafka
async def test_what_came_during_a_long_cycle_does_not_wait_for_anything_else(
    kit: Kit, scheduler: RunScheduler, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report comes between the parts of the first cycle; nothing happens after it."""
    receive, reports = Watch.on_report, list[tuple[Any, ...]]()

    def keep_second(*given: Any) -> None:
        if given[2].revision == 2:
            reports.append(given)
        else:
            receive(*given)

    def hearing(state: State, workload: Workload, *given: Any) -> Any:
        tried.append(workload.name)
        if len(tried) == 2:
            receive(*reports[0])
        return attempt(state, workload, *given)

    async def together(conn: Connection, most: int) -> Sequence[GangRequest]:
        known = await conn.fetchval("SELECT count(*) FROM gang")
        return await take_dirty(conn, most) if known == 3 and reports else []

    tried, take_dirty, attempt = list[str](), store.gangs.take_dirty, admit.attempt
    monkeypatch.setattr(Watch, "on_report", keep_second)
    monkeypatch.setattr(admit, "attempt", hearing)
    monkeypatch.setattr(store.gangs, "take_dirty", together)
    async with scheduler(cycle_part_s=1e-9, cycle_poll_s=HOUR_S) as runtime:
        await until(lambda: measured(runtime, "is_leader"))
        await others.report(kit.report("n0", gpus=3, bad=(0, 1)))
        await others.report(kit.report("n0", revision=2, gpus=3))
        for size in (1, 2, 3):
            await others.ask(kit.gang(f"g{size}", *kit.pods(f"g{size}", size, gpus=1), age=size))
        await others.until(lambda: set(others.states("g2")) == {"placed"})


def test_a_cycle_that_was_left_is_gone_on_with_before_anything_else_happens(kit: Kit) -> None:
    """So that a gang has its turn however often those before it are helped."""
    state = kit.state(kit.report("n0", gpus=8), rules=Rules(settle_s=0.0, cycle_gangs=2))
    kit.decide(state, 0.0)
    for number in range(10):
        (pod,) = kit.pods(f"large{number}", 1, gpus=9 + number)
        state.request(kit.gang(f"large{number}", pod, age=number), 0.0, 0.0)
    (pod,) = kit.pods("whole", 1, gpus=8)
    state.request(kit.gang("whole", pod, age=99), 0.0, 0.0)
    assert [state.decide(float(at), float(at)) for at in range(5)] == [[]] * 5
    assert "gangs-tried" not in [event["event"] for event in take(state.core).events()]
    state.report(kit.report("n0", revision=2, gpus=8, bad=(0,)), 5.0)
    (placed, *refused) = state.decide(5.0, 5.0)
    assert isinstance(placed, Placed)  # on GPU 0 too, which was well when the cycle began
    while state.is_under_way:
        refused += state.decide(6.0, 6.0)
    assert [each.gang for each in refused] == [f"large{number}" for number in range(10)]


def test_a_cycle_is_left_when_it_is_late_but_never_before_one_gang_was_tried(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=8))
    kit.decide(state, 0.0)
    for number in range(3):
        (pod,) = kit.pods(f"g{number}", 1, gpus=1)
        state.request(kit.gang(f"g{number}", pod, age=number), 0.0, 0.0)
    parts = [state.decide(0.0, 0.0, lambda: True)]
    while state.is_under_way:
        parts.append(state.decide(0.0, 0.0, lambda: True))
    assert [[each.gang for each in part] for part in parts if part] == [["g0"], ["g1"], ["g2"]]


def test_who_was_not_told_yet_is_told_though_it_is_asked_for_anew_between_two_cycles(
    kit: Kit,
) -> None:
    """Of the pods that it waits for one is not wanted any more: why it waits is not known before
    the end of the next cycle, which has parts.
    """
    state = kit.state(kit.report("n0", gpus=8), rules=Rules(settle_s=0.0, cycle_gangs=2))
    names, told = [f"g{number}" for number in range(8)], set[str]()
    state.request(kit.gang("all", *kit.pods("all", 1, gpus=8), priority=20), 0.0, 0.0)
    for number, name in enumerate(names):
        state.request(kit.gang(name, *kit.pods(name, 2, gpus=1, cpu=number), age=number), 0.0, 0.0)
    while state.is_under_way or not state.notices.unpublished:
        told.update(each.gang for each in kit.decide(state, 0.0))
    late = next(reversed(state.notices.unpublished))
    assert late not in told
    left = kit.pods(late, 1, gpus=1, cpu=names.index(late))
    state.request(kit.gang(late, *left, age=names.index(late)), 1.0, 1.0)
    for number in range(8):
        (pod,) = kit.pods(f"h{number}", 1, gpus=2, cpu=number)
        state.request(kit.gang(f"h{number}", pod, priority=15), 1.0, 1.0)
    for at in range(1, 30):
        told.update(each.gang for each in kit.decide(state, float(at)))
    assert told >= set(names)
