"""What `muster up` shows: lines that stay; on a terminal a table of the parts below them."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

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


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Be quiet from now on. A Console would end the program."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class Screen:
    """Takes lines at any time; shows the parts as they change while `run` runs.

    What has changed before a line is shown before it, so that the line is true where it stands.
    """

    def __init__(self) -> None:
        self._console = _Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._show_parts: Callable[[], None] = lambda: None

    def show(self, line: str) -> None:
        """Print one line that stays. Muster continues also where the output's reader is gone."""
        with contextlib.suppress(OSError):
            self._show_parts()
            self._console.print(escape(line))

    async def run(self, parts: Callable[[], Sequence[Part]]) -> None:
        """Keep the table up to date until cancelled; on a pipe, print changes of state as lines."""
        with self._shown(parts) as self._show_parts:
            try:
                while True:
                    with contextlib.suppress(OSError):
                        self._show_parts()
                    await asyncio.sleep(REFRESH_S)
            finally:
                self._show_parts = lambda: None

    @contextlib.contextmanager
    def _shown(self, parts: Callable[[], Sequence[Part]]) -> Iterator[Callable[[], None]]:
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                yield lambda: live.update(_table(parts()) if parts() else "", refresh=True)
            return
        shown: dict[str, State] = {}

        def show_changes() -> None:
            for part in parts():
                if shown.get(part.name) is not part.state:
                    shown[part.name] = part.state
                    self._console.print(escape(f"{part.name}: {part.state}"))

        yield show_changes


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
