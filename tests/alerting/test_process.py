"""The process itself: killed at a bad moment, stopped while a receiver hangs; and what it must not
give away.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from muster.contracts.jobs import JobState
from muster.webhook_secrets import signing_secret

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

KEY = "marker-key"
PATH = "/marker-path"
PASSWORD = "marker-password"
STATES = "SELECT state FROM delivery"
TABLES = ("delivery", "event", "receiver", "alert", "outbox", "job_watch")


@asynccontextmanager
async def alerting(cluster: Any, output: bytearray, **settings: str) -> AsyncIterator[Process]:
    """The command, with its output; killed at the end of the block where it still runs."""
    environment = os.environ | {
        "MUSTER_DATABASE_URL": cluster.database_url,
        "MUSTER_KAFKA_BOOTSTRAP": cluster.broker.bootstrap,
        "MUSTER_HTTP_PORT": "0",
        "MUSTER_FETCH_WAIT_BUSY_MS": "10",
        "MUSTER_FETCH_WAIT_IDLE_MS": "10",
        "MUSTER_WEBHOOK_KEY": KEY,
        "MUSTER_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
        "MUSTER_DELIVERY_LEASE_S": "0.5",
        "MUSTER_SMTP_PASSWORD": PASSWORD,
        **settings,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "alerting", env=environment, stdout=PIPE, stderr=STDOUT
    )
    assert process.stdout is not None
    reading = asyncio.create_task(_read(process.stdout, output))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def _read(stream: asyncio.StreamReader, output: bytearray) -> None:
    while part := await stream.read(65536):
        output += part


@pytest.mark.slow
async def test_a_kill_between_sending_and_recording_sends_again_and_never_after_a_success(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(is_hanging=True)
    await cluster.subscribe(webhook_url=receiver.url)
    await cluster.job("j1", 1, JobState.FAILED)
    output = bytearray()
    async with alerting(cluster, output) as process:
        await receiver.wait_for(1)
        process.send_signal(signal.SIGKILL)
        await process.wait()
    assert await cluster.rows(STATES) == [("waiting",)]
    receiver.is_hanging = False
    async with alerting(cluster, output) as process:
        await cluster.until(STATES, [("sent",)])
        process.send_signal(signal.SIGTERM)
        await process.wait()
    async with alerting(cluster, output):
        await cluster.job("j1", 1, JobState.FAILED)
        await cluster.job("j2", 1, JobState.FAILED)
        await cluster.until(STATES, [("sent",), ("sent",)])
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert len(ids) == 3
    assert ids[0] == ids[1]
    assert ids[2] != ids[0]


async def test_a_stop_does_not_wait_for_a_receiver_and_nothing_secret_was_given_away(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    hanging = await start_receiver(is_hanging=True)
    failing = await start_receiver(status=500)
    await cluster.subscribe(webhook_url=hanging.url + PATH)
    await cluster.subscribe(id="s2", webhook_url=failing.url + PATH)
    await cluster.job("j1", 1, JobState.FAILED)
    output = bytearray()
    async with alerting(cluster, output) as process:
        await hanging.wait_for(1)
        await cluster.until("SELECT count(*) FROM delivery WHERE reason IS NOT NULL", [(1,)])
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0
    assert hanging.requests[0].path.endswith(PATH)
    kept = str([await cluster.rows(f"SELECT t::text FROM {name} AS t") for name in TABLES])
    for secret in (KEY, PATH, PASSWORD, signing_secret(KEY, "s1", 1)):
        assert secret not in output.decode()
        assert secret not in kept
    assert "tried again" in output.decode()
