"""What `muster up` shows is true at its place in the output."""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress

import pytest
from cli.standalone.processes import Part, State
from cli.standalone.screen import Screen


async def test_changes_of_parts_are_shown_before_a_line_that_follows_from_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen, part = Screen(), Part("rest")
    running = asyncio.create_task(screen.run(lambda: [part]))
    await asyncio.sleep(0)
    part.become(State.READY)
    screen.show("Muster is up.")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    part.become(State.STOPPED)
    screen.show("Muster is down.")
    assert capsys.readouterr().out.splitlines() == [
        "rest: starting",
        "rest: ready",
        "Muster is up.",
        "Muster is down.",
    ]


SHOWS = """
import sys
from cli.standalone.screen import Screen
for line in ("one", "two"):
    Screen().show(line)
sys.stderr.write("goes on")
"""


def test_muster_goes_on_without_a_reader_of_its_output() -> None:
    unread, output = os.pipe()
    os.close(unread)
    done = subprocess.run(
        [sys.executable, "-c", SHOWS],
        stdout=output,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(output)
    assert (done.returncode, done.stderr) == (0, b"goes on")
