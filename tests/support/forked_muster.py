"""The command `muster` in a fork of the test's process, which has loaded its modules already: a
start of Python with them takes longer than most commands.

A few tests start the installed program itself, and prove that it is this one.
"""

import gc
import importlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any

import cli.app
import scheduler.import_trace
import scheduler.simulate  # noqa: F401  loaded before the fork
from ended_program import end_with, status_of

BROKEN = 70
LAST_FD = 4096

Ran = subprocess.CompletedProcess[bytes]


def run_forked(
    words: Sequence[str],
    *,
    given: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: int,
) -> Ran:
    """Run a command to its end; ``given``: what comes in by a pipe. After ``timeout_s`` the kernel
    ends it.
    """
    theirs, ours = os.pipe()
    if given is None:
        os.close(theirs)
        theirs = os.open(os.devnull, os.O_RDONLY)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(timeout_s)
            streams = theirs, out.fileno(), err.fileno()
            end_with(partial(_run, words, environment, streams), broken=BROKEN)
        os.close(theirs)
        with os.fdopen(ours, "wb") as pipe, suppress(BrokenPipeError):
            pipe.write(given or b"")
            pipe.flush()
        _, status = os.waitpid(pid, 0)
        return Ran(words, os.waitstatus_to_exitcode(status), _content(out), _content(err))


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _run(
    words: Sequence[str], environment: Mapping[str, str] | None, streams: tuple[int, int, int]
) -> None:
    """What of the test's process is another than the command's, then the command."""
    gc.disable()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, LAST_FD)
    sys.stdin = io.TextIOWrapper(io.FileIO(0), "utf-8", "surrogateescape")
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), "utf-8", "backslashreplace", None, True)
    sys.unraisablehook = sys.__unraisablehook__
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    subprocess.run = partial(_run_here, subprocess.run)  # type: ignore[assignment]
    sys.argv = ["muster", *words]
    cli.app.main()


def _run_here(run: Callable[..., Any], command: Sequence[str], **options: Any) -> Any:
    """What ``python -P -m MODULE …`` would do, of a program of the Scheduler's; others are run."""
    match command:
        case [sys.executable, "-P", "-m", module, *words]:
            sys.argv = [module, *words]
        case _:
            return run(command, **options)
    try:
        importlib.import_module(module).main()
    except SystemExit as end:
        return Ran(command, status_of(end))
    return Ran(command, 0)
