"""Forks supervisors out of one warm process, which costs a tenth of a fresh interpreter for each.

It reads one pod directory a line from its standard input and ends when that closes, so it lives as
long as the agent; its children lead their own sessions and live on.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from runtime_agent.supervisor import proc
from runtime_agent.supervisor.run import supervise

SUPERVISOR_LOG = "supervisor.log"


def serve() -> int:
    """Fork a supervisor for each line, until the agent has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps, this process never waits
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    proc.boot_id()  # read once for all
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, pages shared with children
    for line in sys.stdin.buffer:
        directory = Path(os.fsdecode(line.rstrip(b"\n")))
        if os.fork() == 0:
            _detach(directory)
    return 0


def _detach(directory: Path) -> NoReturn:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        redirect(directory)
        code = supervise(directory)
    except BaseException:  # the log is the only place to report it
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def redirect(directory: Path) -> None:
    """Standard input and output lead nowhere; what goes wrong is written beside the pod."""
    null = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    log = os.open(directory / SUPERVISOR_LOG, flags, 0o600)
    for descriptor, standard in ((null, 0), (null, 1), (log, 2)):
        os.dup2(descriptor, standard)
    for descriptor in (null, log):
        os.close(descriptor)
