"""How a fork that has become a program ends: as Python would end the program."""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def end_with(run: Callable[[], object], broken: int) -> NoReturn:
    """Run it, and end this process with its exit status; ``broken``: that of any exception. Nothing
    of the process before the fork goes on here, and nothing of it is cleaned up.
    """
    code = broken
    try:
        run()
        code = 0
    except SystemExit as end:
        code = status_of(end)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def status_of(end: SystemExit) -> int:
    """The exit status. A text is an error, and is printed."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
