"""The example that runs an operator's command on each alert."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from cli.embedded.process import free_port
from plain_http import NO_TLS
from standardwebhooks.webhooks import Webhook

EXAMPLE = Path(__file__).parents[2] / "examples/run_on_alert.py"
SECRET = f"whsec_{base64.b64encode(b'a secret of this test').decode()}"
BODY = json.dumps({"type": "alert.raised", "data": {"alerts": [{"labels": {"node": "n1"}}]}})
START_S = 60.0


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    script = f"cat >> {tmp_path}/got; test ! -e {tmp_path}/broken"
    command = [sys.executable, str(EXAMPLE), address, "sh", "-c", script]
    process = subprocess.Popen(command, env=os.environ | {"MUSTER_HOOK_SECRET": SECRET})
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def send(url: str, secret: str, body: str = BODY) -> int:
    at = datetime.now(UTC)  # noqa: TID251 - the library asks for it
    headers = {
        "webhook-id": "m1",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign("m1", at, body),
    }
    deadline = time.monotonic() + START_S
    while True:
        try:
            return httpx2.post(url, content=body, headers=headers, verify=NO_TLS).status_code
        except httpx2.ConnectError:
            assert time.monotonic() < deadline


def test_a_signed_alert_runs_the_command_and_its_failure_is_told(url: str, tmp_path: Path) -> None:
    assert send(url, f"whsec_{base64.b64encode(b'another secret').decode()}") == 401
    assert not (tmp_path / "got").exists()
    assert send(url, SECRET) == 204
    assert json.loads((tmp_path / "got").read_text()) == [{"labels": {"node": "n1"}}]
    (tmp_path / "broken").touch()
    assert send(url, SECRET) == 500


@pytest.mark.parametrize("kind", ["receiver.test", "receiver.failing", "node.lost", "alert.raised"])
def test_a_message_without_alerts_runs_no_command(url: str, tmp_path: Path, kind: str) -> None:
    (tmp_path / "broken").touch()
    assert send(url, SECRET, json.dumps({"type": kind, "data": {"alert": "a1"}})) == 204
    assert not (tmp_path / "got").exists()


def test_a_late_remediation_is_not_begun(url: str, tmp_path: Path) -> None:
    data = {"action": "a1", "node": "n1", "until": "2026-01-31T13:00:00+00:00"}
    late = json.dumps({"type": "remediation.requested", "data": data})
    assert send(url, SECRET, late) == 204
    assert send(url, SECRET) == 204
    assert json.loads((tmp_path / "got").read_text()) == [{"labels": {"node": "n1"}}]
