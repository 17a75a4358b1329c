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
from scheduler.domain import given
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.model import Decision, Placed
from scheduler.domain.pace import Pace

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

GANGS = 30


def test_who_took_too_long_takes_on_less_and_slowly_more_again() -> None:
    pace = Pace(500, 4.0)
    pace.took(2.0, has_more=True)
    assert pace.most == 500
    pace.took(10.0, has_more=True)
    assert pace.most == 50
    pace.took(1.0, has_more=True)
    pace.took(0.1, has_more=False)  # there was not more to do
    assert pace.most == 50
    for expected in (100, 200, 400, 500, 500):
        pace.took(0.9, has_more=True)
        assert pace.most == expected
    for _ in range(9):
        pace.took(100.0, has_more=True)
    assert pace.most == 1


@pytest.mark.postgres
@pytest.mark.kafka
async def test_what_takes_longer_than_a_transaction_may_is_decided_in_several(
    kit: Kit, scheduler: RunScheduler, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All words come to one cycle, and the core is slow."""
    run_cycle, take_dirty = given.run_cycle, store.take_dirty
    names = [f"g{number}" for number in range(GANGS)]
    placed: list[int] = []

    def slow(cluster: Cluster, at: float) -> list[Decision]:
        found = run_cycle(cluster, at)
        placed.append(sum(isinstance(decision, Placed) for decision in found))
        time.sleep(0.1 * placed[-1])  # its time is the test
        return found

    async def together(conn: Connection, most: int) -> Sequence[GangRequest]:
        known = await conn.fetchval("SELECT count(*) FROM gang")
        return await take_dirty(conn, most) if known == GANGS else []

    monkeypatch.setattr(given, "run_cycle", slow)
    monkeypatch.setattr(store, "take_dirty", together)
    async with scheduler(deciding_timeout_s=1.0) as runtime:
        await others.report(kit.report("n0", gpus=GANGS))
        for name in names:
            await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
        await others.until(lambda: all(others.states(name) == ["placed"] for name in names))
        assert max(placed) == GANGS  # it was tried, and failed
        assert runtime.registry.get_sample_value("muster_scheduler_rebuilds_total") > 1
