"""Muster's programs, which start at once: a process that has imported one forks for each start.

From its `main` on a program is a process of its own, with its own environment and exit status.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ended_program import end_with

TIMEOUT_S = 60


class Programs:
    """Runs programs to their end, one at a time."""

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if "MUSTER_" not in name}
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.communicate()

    def run(self, program: str, settings: Mapping[str, str]) -> tuple[int, str]:
        """The exit status, and all that it wrote. A signal ends one that takes too long."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.NamedTemporaryFile() as output:
            asked = {"program": program, "settings": dict(settings), "output": output.name}
            self._server.stdin.write(json.dumps(asked) + "\n")
            self._server.stdin.flush()
            code = int(self._server.stdout.readline())
            return code, Path(output.name).read_text()


def _serve() -> None:
    sys.path.pop(0)  # this file's folder
    for line in sys.stdin:
        asked = json.loads(line)
        program = asked["program"]
        is_package = find_spec(f"{program}.__main__") if "." not in program else None
        module = importlib.import_module(f"{program}.app" if is_package else program)
        child = os.fork()
        if not child:
            end_with(partial(_become, module.main, program, asked), broken=1)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(main: Callable[[], object], program: str, asked: dict[str, Any]) -> None:
    """What of this process is another than the program's, then the program."""
    signal.alarm(TIMEOUT_S)
    output = os.open(asked["output"], os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(asked["settings"])
    sys.argv = [program]
    main()


if __name__ == "__main__":
    _serve()
