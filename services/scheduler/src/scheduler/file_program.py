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
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scheduler.domain.formats.fields import FormatError, finding_text

DONE, WRONG_INPUT, FAILED, INTERRUPTED = 0, 2, 9, 130

GZIP = b"\x1f\x8b"
PROGRESS_S = 2.0
"""Seconds until progress is shown, and between two updates."""


class InputError(Exception):
    """A file can't be read; the text has its name and the fix."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open file. ``name``: its name in error messages."""

    name: str
    file: io.BufferedReader | gzip.GzipFile

    def read(self, most: int) -> bytes:
        """At most so many bytes. Raises InputError."""
        with _reported(self.name):
            return self.file.read(most)

    def line(self, most: int) -> bytes:
        """The next line, or its first ``most`` bytes. Raises InputError."""
        with _reported(self.name):
            return self.file.readline(most)


@contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except EOFError:
        fix = "copy or export it again"
        raise InputError(f"{name}: is cut off: its gzip data has no end; {fix}") from None
    except (gzip.BadGzipFile, zlib.error):
        fix = "copy or export it again"
        raise InputError(f"{name}: is damaged: its gzip data can't be unpacked; {fix}") from None
    except OSError as error:
        raise InputError(f"{name}: can't be read: {error.strerror}") from None


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
        name = "the output" if error.filename is None else error.filename
        sys.stderr.write(f"{name}: can't be written: {error.strerror}\n")
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
def opened(path: str, name: str | None = None) -> Iterator[Source]:
    """A file or stdin, decompressed if packed. ``name``: in messages, by default the path. Raises
    InputError.
    """
    name = name_of(path) if name is None else name
    with ExitStack() as stack:
        with _reported(name):
            if path == "-":
                file = stack.enter_context(os.fdopen(0, "rb", closefd=False))
            else:
                file = stack.enter_context(Path(path).open("rb"))
            is_packed = file.peek(len(GZIP))[: len(GZIP)] == GZIP
        yield Source(name, stack.enter_context(gzip.open(file)) if is_packed else file)


def read_twice(path: str, stack: ExitStack) -> str:
    """The path of a file that can be read twice; stdin is copied, for the life of ``stack``."""
    if path != "-":
        return path
    with tempfile.NamedTemporaryFile(delete=False) as copy:
        stack.callback(Path(copy.name).unlink)
        shutil.copyfileobj(sys.stdin.buffer, copy)
    return copy.name


def lines(source: Source, most: int, progress: "Progress") -> Iterator[bytes]:
    """Lines; a line of more than ``most`` bytes is cut, and is still too long."""
    while line := source.line(most + 1):
        progress.step()
        yield line
        while len(line) > most and not line.endswith(b"\n"):
            line = source.line(most + 1)
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
