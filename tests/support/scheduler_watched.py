"""What a test waits for, in a Scheduler that runs in its process and elsewhere."""

import asyncio
from collections.abc import Callable

from muster.service import Runtime

DEADLINE_S = 60.0


def measured(runtime: Runtime, name: str) -> float:
    """A metric of the Scheduler as it is now."""
    value = runtime.registry.get_sample_value(f"muster_scheduler_{name}")
    assert value is not None, name
    return value


async def until_alive(runtime: Runtime, nodes: int) -> None:
    """Wait until this number of nodes is alive."""
    name = "muster_scheduler_nodes"
    await until(lambda: runtime.registry.get_sample_value(name, {"state": "alive"}) == nodes)


async def until(what: Callable[[], object]) -> None:
    """Wait until something is so; raises TimeoutError."""
    async with asyncio.timeout(DEADLINE_S):
        while not what():
            await asyncio.sleep(0.02)
