"""A gang whose pods have secrets gets the keys of its nodes' agents with its places."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from muster.service import Runtime

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def test_a_placement_keeps_the_key_that_its_gang_needs_over_a_restart(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    def keys(gang: str) -> list[str | None]:
        return [pod.secrets_key for pod in others.decisions[gang].pods]

    async with scheduler():
        await others.report(kit.report("n0", gpus=2, secrets_key="the-key"))
        for name, needs_keys in (("with", True), ("without", False)):
            gang = kit.gang(name, *kit.pods(name, 1, gpus=1))
            await others.ask(gang.model_copy(update={"needs_keys": needs_keys}))
            await others.until(lambda name=name: others.states(name) == ["placed"])
        assert (keys("with"), keys("without")) == (["the-key"], [None])
    async with scheduler():
        await others.report(kit.report("n0", revision=2, gpus=2, secrets_key="a-new-key"))
        asks = kit.pods("with", 2, gpus=0)
        before = others.decisions["with"].revision
        again = kit.gang("with", kit.pods("with", 1, gpus=1)[0], asks[1])
        await others.ask(again.model_copy(update={"needs_keys": True}))
        await others.until(lambda: others.decisions["with"].revision > before)
        await others.until(lambda: others.states("with") == ["placed", "placed"])
        assert keys("with") == ["the-key", "a-new-key"]
