"""What `muster up` shows: lines that stay; on a terminal a table of the parts below them."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cli.standalone.processes import Part, State

REFRESH_S = 1.0
COLOURS = {
    State.READY: "green",
    State.STARTING: "yellow",
    State.UNREADY: "yellow",
    State.WAITING: "red",
    State.STOPPED: "dim",
}


class Screen:
    """Takes lines at any time; shows the parts as they change while `run` runs."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """Print one line that stays. Where nobody reads any more, Muster goes on all the same."""
        with contextlib.suppress(OSError):
            self._console.print(escape(line))

    async def run(self, parts: Callable[[], Sequence[Part]]) -> None:
        """Keep the table up to date until cancelled; on a pipe, tell changes of state in lines."""
        if not self._console.is_terminal:
            await self._tell(parts)
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                if known := parts():
                    live.update(_table(known), refresh=True)
                await asyncio.sleep(REFRESH_S)

    async def _tell(self, parts: Callable[[], Sequence[Part]]) -> None:
        told: dict[str, State] = {}
        while True:
            for part in parts():
                if told.get(part.name) is not part.state:
                    told[part.name] = part.state
                    self.say(f"{part.name}: {part.state}")
            await asyncio.sleep(REFRESH_S)


def _table(parts: Sequence[Part]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("part", "state", "for", "pid", "restarts"):
        table.add_column(heading)
    for part in parts:
        colour = COLOURS[part.state]
        table.add_row(
            part.name,
            f"[{colour}]{part.state}[/] {escape(part.note)}",
            _age(time.monotonic() - part.since),
            str(part.pid or ""),
            str(part.restarts or ""),
        )
    return table


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
