"""A burst of equal jobs without GPUs on one machine: none is preempted for another."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from muster.contracts.gangs import GangRequest
from muster.service import Runtime

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

JOBS = 150


@pytest.mark.timeout(180)
@pytest.mark.postgres
@pytest.mark.kafka
async def test_of_a_burst_of_equal_jobs_none_is_preempted_for_another(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    """They have more CPU than there is, and end one after the other, those of one user first."""
    names = [f"j{number:03}" for number in range(JOBS)]

    def asked(name: str) -> GangRequest:
        message: GangRequest = kit.gang(name, *kit.pods(name, 1, cpu=1), age=int(name[1:]))
        return message.model_copy(update={"user": "uvw"[int(name[1:]) % 3]})

    def preempted() -> list[str]:
        return [gang for topic, gang in others.topics if topic == "gang-preempted"]

    def placed() -> list[str]:
        return [name for name in sorted(running) if others.states(name) == ["placed"]]

    async with scheduler():
        await others.report(kit.report("n0", gpus=4, cpu=6))
        for name in names:
            await others.ask(asked(name))
        running = set(names)
        while running:
            await others.until(lambda: placed() or preempted())
            assert preempted() == []
            running.remove(name := placed()[-1])
            await others.ask(asked(name).model_copy(update={"pods": ()}))
