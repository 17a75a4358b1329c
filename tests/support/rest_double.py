"""A server that has REST's paths with a test's answers, and the command `muster` against it."""

from __future__ import annotations

import http.server
import json
import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked_muster import run_forked

TIMEOUT_S = 180
COLUMNS = 80
OURS = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
"""Of the environment what a command needs to be the one that is tested."""
JOB = "ada~digits"
LOG = f"/api/v2/jobs/{JOB}/attempts/0/taskRoles/train/taskIndex/0/attempts/0/logs"


def job_status(state: str) -> dict[str, Any]:
    return {
        "name": "digits",
        "tags": [],
        "jobStatus": {
            "username": "ada",
            "state": state,
            "retries": 0,
            "virtualCluster": "default",
            "submissionTime": 1_700_000_000_000,
            "attemptId": 0,
            "reason": {"code": "no-gpus", "text": "2 GPUs wanted, 1 free", "numbers": {}},
        },
        "taskRoles": {
            "train": {
                "taskStatuses": [
                    {"taskIndex": 0, "taskState": state, "attemptId": 0, "containerNodeName": "n1"}
                ]
            }
        },
    }


@dataclass
class Rest:
    """The stub: answers by path, and what it was asked. In answers a surrogate stands for a byte
    that is no UTF-8.
    """

    url: str = ""
    answers: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    first: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[tuple[str, str, bytes, dict[str, str]]] = field(default_factory=list)

    def answer(self, request: str, content: object, status: int = 200) -> None:
        self.answers[request] = (status, "application/json", json.dumps(content))


@contextmanager
def rest_double() -> Iterator[Rest]:
    """The server, while the block runs."""
    stub = Rest()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stub.asked.append((self.command, self.path, body, dict(self.headers.items())))
            missing = (404, "application/json", '{"code": "NoJobError", "message": "No such job."}')
            request = f"{self.command} {self.path}"
            earlier = stub.first.get(request)
            answer = earlier.pop(0) if earlier else stub.answers.get(request, missing)
            status, kind, text = answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            for name, value in stub.headers.get(request, {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode(errors="surrogateescape"))

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(frozen=True)
class Ran:
    """How a command ended. In `out` a surrogate stands for a byte that is no UTF-8."""

    code: int
    out: str
    err: str


def muster(rest: Rest, home: Path, *words: str, text: str = "") -> Ran:
    return run_cli(home, *words, text=text, MUSTER_URL=rest.url, MUSTER_TOKEN="a-token")


def run_cli(
    home: Path, *words: str, text: str = "", timeout_s: float = TIMEOUT_S, **environment: str
) -> Ran:
    done = run_forked(
        words,
        given=text.encode(),
        environment={**OURS, "MUSTER_HOME": str(home), **environment},
        timeout_s=int(timeout_s),
    )
    out = done.stdout.decode(errors="surrogateescape")
    return Ran(done.returncode, out, done.stderr.decode())


AWAY = (503, "application/json", '{"code": "Away", "message": "It starts again."}')


def on_a_terminal(rest: Rest, home: Path, *words: str) -> list[str]:
    """A command's lines on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = {
        **OURS,
        "MUSTER_HOME": str(home),
        "MUSTER_URL": rest.url,
        "MUSTER_TOKEN": "a-token",
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
    }
    with subprocess.Popen([sys.executable, "-m", "cli", *words], env=environment, stdout=theirs):
        os.close(theirs)
        content = b""
        while select.select([ours], [], [], TIMEOUT_S)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            content += piece
    os.close(ours)
    return content.decode().splitlines()
