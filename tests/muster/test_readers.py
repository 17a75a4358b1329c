"""A reader whose bus is away tries again, and says why once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from bare_bus import a_bus
from muster.bus import LOG_IN, Bus
from muster.readers import Follower

AWAY = "127.0.0.1:1"
WAIT_S = 60


@asynccontextmanager
async def following(bus: Bus) -> AsyncIterator[Follower]:
    follower = Follower(bus, ["settings-changed"], lambda *_: None)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until_restarted(follower: Follower, times: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while follower.restarts < times:
            await asyncio.sleep(0.02)


async def test_a_failure_is_logged_once_however_often_it_is_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with following(a_bus(AWAY)) as follower:
        await until_restarted(follower, 3)
    assert capsys.readouterr().out.count("reading failed") == 1


async def test_no_reader_logs_in_while_the_bus_refuses_the_log_in() -> None:
    refusing = a_bus(AWAY)
    refusing.refusals.note(LOG_IN, "a wrong password")
    async with following(refusing) as waiting:
        async with following(a_bus(AWAY)) as other:
            await until_restarted(other, 5)
        assert waiting.restarts == 0
        refusing.refusals.note(LOG_IN, None)
        await until_restarted(waiting, 1)
