"""Services under supervision: started again when they die or hang, stopped with grace."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cli.embedded.process import EmbeddedServerError, free_port, is_port_free
from cli.standalone.processes import (
    Backoff,
    Patience,
    Program,
    ServiceProcess,
    State,
    answers,
)

DEADLINE_S = 60.0
QUICK = Patience(first_s=0.02, longest_s=0.1, steady_s=60, hung_s=DEADLINE_S)

SERVER = """
import http.server, pathlib, signal, sys, time
port, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = self.path != "/readyz" or not (folder / "unready").exists()
        self.send_response(200 if ready else 503); self.end_headers()
    def log_message(self, *_): pass
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_port_that_another_is_about_to_listen_on_is_given_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        monkeypatch.setattr("cli.embedded.process.SERVER_PORTS", range(port, port + 1))
        assert is_port_free(port)
        with pytest.raises(EmbeddedServerError):
            free_port()
    assert free_port() == port


async def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def _program(folder: Path, *words: str, grace_s: float = DEADLINE_S) -> Program:
    port = free_port()
    return Program(
        name="stub",
        command=(sys.executable, "-c", SERVER, str(port), str(folder), *words),
        environment={"PATH": "/usr/bin:/bin"},
        port=port,
        log=folder / "stub.log",
        stop_grace_s=grace_s,
    )


@asynccontextmanager
async def _running(
    program: Program, notices: list[str], patience: Patience = QUICK
) -> AsyncIterator[ServiceProcess]:
    service = ServiceProcess(program, notices.append, patience)
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        service.kill()
        await task


async def test_a_killed_service_is_started_again_with_a_notice(tmp_path: Path) -> None:
    notices: list[str] = []
    async with _running(_program(tmp_path), notices) as service:
        await service.ready.wait()
        first = service.part.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await _until(lambda: service.part.restarts == 1, "not started again")
        await service.ready.wait()
        assert service.part.pid != first
    assert "stub was ended by SIGKILL" in notices[0]
    assert str(tmp_path / "stub.log") in notices[0]


async def test_a_service_that_can_not_be_started_is_tried_again(tmp_path: Path) -> None:
    notices: list[str] = []
    nowhere = tmp_path / "nowhere" / "stub.log"
    async with _running(replace(_program(tmp_path), log=nowhere), notices) as service:
        await _until(lambda: service.part.restarts > 1, "not tried again")
        nowhere.parent.mkdir()
        await service.ready.wait()
    assert "can't be started" in notices[0]


async def test_a_service_that_hangs_is_replaced(tmp_path: Path) -> None:
    notices: list[str] = []
    impatient = replace(QUICK, hung_s=10.0)
    async with _running(_program(tmp_path), notices, impatient) as service:
        await service.ready.wait()
        assert service.part.pid is not None
        before = service.part.restarts  # a slow start may have been taken for a hang
        os.kill(service.part.pid, signal.SIGSTOP)
        await _until(lambda: service.part.restarts > before, "the hung service was kept")
        await service.ready.wait()
    assert "has not answered" in notices[0]


async def test_readiness_is_followed_without_restarts(tmp_path: Path) -> None:
    async with _running(_program(tmp_path), []) as service:
        await service.ready.wait()
        (tmp_path / "unready").touch()
        await _until(lambda: service.part.state is State.UNREADY, "still ready")
        (tmp_path / "unready").unlink()
        await service.ready.wait()
        assert service.part.restarts == 0


async def test_a_stop_is_asked_for_before_it_is_forced(tmp_path: Path) -> None:
    notices: list[str] = []
    async with _running(_program(tmp_path), notices) as service:
        await service.ready.wait()
        await service.stop()
    assert not notices
    async with _running(_program(tmp_path, "stubborn", grace_s=0.3), notices) as service:
        await service.ready.wait()
        await service.stop()
    assert "did not end within" in notices[0]


async def test_its_log_is_written_by_itself(tmp_path: Path) -> None:
    async with _running(_program(tmp_path), []) as service:
        await service.ready.wait()
    assert "listening" in (tmp_path / "stub.log").read_text()


def test_waits_double_up_to_a_bound_and_start_anew_after_a_steady_run() -> None:
    backoff = Backoff(Patience(first_s=1, longest_s=5, steady_s=60))
    assert [backoff.after(0) for _ in range(4)] == [1, 2, 4, 5]
    assert backoff.after(60) == 1


@pytest.mark.parametrize("status", [b"503", b"404"])
async def test_only_200_is_ready(status: bytes) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 " + status + b" no\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert not await answers(port, "/readyz")
