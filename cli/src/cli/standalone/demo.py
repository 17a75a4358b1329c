"""The sample job of a first start: submitted, followed to its end, its output shown."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from cli.client import Client, CommandError, Exit
from cli.home import checkout_root
from cli.jobs import EXIT_BY_STATE, detail, is_over, submit, task_log

POLL_S = 0.5
DEMO_TIMEOUT_S = 600.0
LOGGED_ROLE = "worker"


async def follow_demo(client: Client, show: Callable[[str], None]) -> Exit:
    """Submit the distributed sample; show its changes of state and its first worker's output."""
    file = _sample()
    if file is None:
        show("The sample job is not installed with this package: submit one of your own.")
        return Exit.USAGE
    text = file.read_text()
    name = f"demo-{int(time.time()):x}"  # its own is for those who submit it themselves
    job = str((await asyncio.to_thread(submit, client, text, name))["name"])
    show(f"Submitted the sample job {job} ({file.parent.name}/{file.name})")
    state = await _follow(client, job, show)
    for line in (await asyncio.to_thread(_output, client, job)).splitlines():
        show(f"  {job}: {line}")
    show(f"The sample job {job} is {state}.")
    if state != "SUCCEEDED":
        status = (await asyncio.to_thread(detail, client, job))["jobStatus"]
        show(f"  {status.get('appExitDiagnostics') or 'No cause is known yet.'}")
    return EXIT_BY_STATE.get(state, Exit.JOB_FAILED)


async def _follow(client: Client, job: str, show: Callable[[str], None]) -> str:
    """Show each change of state; returns the last state."""
    state_shown = ""
    deadline = time.monotonic() + DEMO_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            state = (await asyncio.to_thread(detail, client, job))["jobStatus"]["state"]
        except CommandError as error:  # REST may be starting again
            if error.code is not Exit.UNREACHABLE:
                raise
            state = state_shown
        if state != state_shown:
            show(f"  {job}: {state}")
            state_shown = state
        if is_over(state_shown):
            return state_shown
        await asyncio.sleep(POLL_S)
    show(f"{job} is still {state_shown} after {DEMO_TIMEOUT_S:.0f} s: see `muster why {job}`.")
    return state_shown


def _output(client: Client, job: str) -> str:
    try:
        return task_log(client, job, LOGGED_ROLE, 0, "stdout")
    except CommandError as error:
        return f"({error})"


def _sample() -> Path | None:
    root = checkout_root()
    file = root / "examples/digits-distributed.yaml" if root else None
    return file if file is not None and file.exists() else None
