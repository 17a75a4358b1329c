"""What the programs have in common that read files and write others: `simulate`, `import_trace`.

They end with 0; 2 where a file or the command is wrong (all that is, on stderr, as
`file:line: field: message`); 9 where something can't be written; 130 where they were interrupted.
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

from scheduler.domain.formats.fields import FormatError, told

DONE, WRONG_INPUT, FAILED, INTERRUPTED = 0, 2, 9, 130

GZIP = b"\x1f\x8b"
PROGRESS_S = 2.0
"""Seconds before progress is shown, and between two times."""

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
    except BrokenPipeError:  # the reader of our output is gone; Python would try once more
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
    """Whether a file that is read would be written over."""
    try:
        return output is not None and read != "-" and output.is_file() and output.samefile(read)
    except OSError:  # it is told where it is opened
        return False


def name_of(path: str) -> str:
    """How a file is called where something is wrong with it."""
    return "stdin" if path == "-" else path


@contextmanager
def opened(path: str) -> Iterator[Source]:
    """A file or stdin, unpacked where it is packed. Raises InputError."""
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
    """The path of a file that can be read more than once: of stdin a copy, as long as ``stack``."""
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
    """Lines; of one of more than ``most`` bytes its beginning, which is too long too."""
    while line := read(source, most + 1, is_line=True):
        progress.step()
        yield line
        while len(line) > most and not line.endswith(b"\n"):
            line = read(source, most + 1, is_line=True)
    progress.end()


class Progress:
    """How many lines were read, on a terminal, where it takes long. ``what`` they are."""

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
        """All are read; what was shown goes away."""
        if self._was_shown:
            sys.stderr.write("\r\x1b[K")


def refuse(file: str, error: FormatError) -> int:
    """Tell all that is wrong with a file; the status to end with."""
    said = [told(file, finding) for finding in error.findings]
    if error.more:
        said.append(f"and {error.more} more")
    sys.stderr.write("\n".join(said) + "\n")
    return WRONG_INPUT
