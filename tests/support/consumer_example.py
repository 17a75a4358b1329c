"""examples/consume_events.py, as somebody runs it."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "consume_events.py"
DEADLINE_S = 60.0


async def first_event(bootstrap: str, topic: str, env: Mapping[str, str] | None = None) -> str:
    """The first line that it prints. ``env``: its whole environment; None: the test's own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), bootstrap, topic, env=env, stdout=PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            return (await process.stdout.readline()).decode()
    finally:
        process.kill()
        await process.wait()
