"""Shared parts of the programs that read and write files: `simulate`, `import_trace`.

Exit statuses: 0; 2 if a file or the command is wrong (stderr has all problems, as
`file:line: field: message`); 9 if an output can't be written; 130 after an interrupt.
"""

import gzip
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scheduler.domain.formats.fields import FormatError, finding_text

DONE, WRONG_INPUT, FAILED, INTERRUPTED = 0, 2, 9, 130

GZIP = b"\x1f\x8b"
PROGRESS_S = 2.0
"""Seconds until progress is shown, and between two updates."""

Source = io.BufferedReader | gzip.GzipFile


class InputError(Exception):
    """A file can't be read."""


def run(program: Callable[[], int]) -> None:
    """Run a program and end with its status."""
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        code = program()
        sys.stdout.flush()
    except BrokenPipeError:  # nothing reads the output; Python would try once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        code = WRONG_INPUT
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        code = FAILED
    sys.exit(code)


def is_same(output: Path | None, read: str) -> bool:
    """Whether the output would overwrite an input file."""
    try:
        return output is not None and read != "-" and output.is_file() and output.samefile(read)
    except OSError:  # opening the file reports it
        return False


def name_of(path: str) -> str:
    """A file's name in error messages."""
    return "stdin" if path == "-" else path


@contextmanager
def opened(path: str) -> Iterator[Source]:
    """A file or stdin, decompressed if packed. Raises InputError."""
    with ExitStack() as stack:
        try:
            if path == "-":
                source = stack.enter_context(os.fdopen(0, "rb", closefd=False))
            else:
                source = stack.enter_context(Path(path).open("rb"))
            is_packed = source.peek(len(GZIP))[: len(GZIP)] == GZIP
        except OSError as error:
            raise InputError(str(error)) from None
        yield stack.enter_context(gzip.open(source)) if is_packed else source


def read_twice(path: str, stack: ExitStack) -> str:
    """The path of a file that can be read twice; stdin is copied, for the life of ``stack``."""
    if path != "-":
        return path
    with tempfile.NamedTemporaryFile(delete=False) as copy:
        stack.callback(Path(copy.name).unlink)
        shutil.copyfileobj(sys.stdin.buffer, copy)
    return copy.name


def read(source: Source, most: int, *, is_line: bool = False) -> bytes:
    """At most so many bytes. Raises InputError."""
    try:
        return source.readline(most) if is_line else source.read(most)
    except (OSError, EOFError) as error:  # EOFError: packed, and cut off
        raise InputError(f"{getattr(source, 'name', 'stdin')}: {error}") from None


def lines(source: Source, most: int, progress: "Progress") -> Iterator[bytes]:
    """Lines; a line of more than ``most`` bytes is cut, and is still too long."""
    while line := read(source, most + 1, is_line=True):
        progress.step()
        yield line
        while len(line) > most and not line.endswith(b"\n"):
            line = read(source, most + 1, is_line=True)
    progress.end()


class Progress:
    """Shows on a terminal how many lines were read. ``what``: what a line is."""

    def __init__(self, what: str, *, is_shown: bool) -> None:
        self._what = what
        self._is_shown = is_shown and sys.stderr.isatty()
        self._count = 0
        self._was_shown = False
        self._next_at = time.monotonic() + PROGRESS_S

    def step(self) -> None:
        """One more."""
        self._count += 1
        if self._is_shown and time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + PROGRESS_S
            self._was_shown = True
            sys.stderr.write(f"\r{self._count:,} {self._what}")
            sys.stderr.flush()

    def end(self) -> None:
        """All lines are read; clear the display."""
        if self._was_shown:
            sys.stderr.write("\r\x1b[K")


def refuse(file: str, error: FormatError) -> int:
    """Print all problems of a file; returns the exit status."""
    lines = [finding_text(file, finding) for finding in error.findings]
    if error.more:
        lines.append(f"and {error.more} more")
    sys.stderr.write("\n".join(lines) + "\n")
    return WRONG_INPUT
