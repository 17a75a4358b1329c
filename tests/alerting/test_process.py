"""The process itself: killed at a bad moment, stopped while a receiver hangs; and what it must not
give away.
"""

import asyncio
import os
import resource
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from muster.contracts.jobs import JobState
from muster.webhook_secrets import signing_secret

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

KEY = "marker-key"
PATH = "/marker-path"
PASSWORD = "marker-password"
STATES = "SELECT state FROM delivery"
DEADLINE_S = 60.0
MEMORY_SPARE_MB = 10
"""The 10,000 deliveries that are added would take more, with their texts."""
TABLES = ("delivery", "event", "receiver", "alert", "notice", "job_watch")


@asynccontextmanager
async def alerting(cluster: Any, output: bytearray, **settings: str) -> AsyncIterator[Process]:
    """The command, with its output; killed at the end of the block where it still runs."""
    environment = os.environ | {
        "MUSTER_DATABASE_URL": cluster.database_url,
        "MUSTER_KAFKA_BOOTSTRAP": cluster.broker.bootstrap,
        "MUSTER_HTTP_PORT": "0",
        "MUSTER_GROUP_SESSION_S": "0.5",
        "MUSTER_FETCH_WAIT_BUSY_MS": "10",
        "MUSTER_FETCH_WAIT_IDLE_MS": "10",
        "MUSTER_WEBHOOK_KEY": KEY,
        "MUSTER_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
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
    await cluster.rows("UPDATE delivery SET lease_until = now()")  # time passes
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
    patient = {"MUSTER_WEBHOOK_TIMEOUT_S": "600", "MUSTER_DELIVERY_LEASE_S": "900"}
    async with alerting(cluster, output, **patient) as process:
        await hanging.wait_for(1)
        await cluster.until("SELECT count(*) FROM delivery WHERE reason IS NOT NULL", [(1,)])
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            assert await process.wait() == 0
    assert hanging.requests[0].path.endswith(PATH)
    kept = str([await cluster.rows(f"SELECT t::text FROM {name} AS t") for name in TABLES])
    for secret in (KEY, PATH, PASSWORD, signing_secret(KEY, "s1", 1)):
        assert secret not in output.decode()
        assert secret not in kept
    assert "tried again" in output.decode()


@pytest.mark.slow
async def test_memory_stays_bounded_while_receivers_are_away(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    """What waits is rows: five times as many deliveries, tried again as in an hour of failures,
    cost no more memory and no more connections.
    """
    receiver = await start_receiver(is_hanging=True)
    subscriptions = 10
    for number in range(subscriptions):
        await cluster.subscribe(id=f"s{number}", webhook_url=receiver.url)
    output = bytearray()
    away = {"MUSTER_WEBHOOK_TIMEOUT_S": "0.3", "MUSTER_PAUSE_FAILURES": "1000000"}
    async with alerting(cluster, output, **away) as process:
        connections: list[int] = []
        counting = asyncio.create_task(_count_connections(receiver.port, connections))
        await _fail_jobs(cluster, 0, 250, subscriptions)
        await _let_an_hour_pass(cluster)
        before_mb = _memory_mb(process.pid)
        await _fail_jobs(cluster, 250, 1250, subscriptions)
        await _let_an_hour_pass(cluster)
        after_mb = _memory_mb(process.pid)
        counting.cancel()
    assert after_mb - before_mb < MEMORY_SPARE_MB, (before_mb, after_mb)
    slots = 2 * subscriptions  # MUSTER_RECEIVER_SLOTS
    # The loop closes a socket in its next turn, when the slot may have another one already.
    assert 0 < max(connections) <= 2 * slots


async def _fail_jobs(cluster: Any, first: int, end: int, subscriptions: int) -> None:
    """These jobs fail; returns when all deliveries of all jobs up to now wait."""
    for start in range(first, end, 200):
        names = range(start, min(end, start + 200))
        await asyncio.gather(*(cluster.job(f"j{n}", 1, JobState.FAILED) for n in names))
    waiting = "SELECT count(*) FROM delivery WHERE state = 'waiting'"
    await cluster.until(waiting, [(end * subscriptions,)])


TIME_PASSES = """
    UPDATE delivery SET next_at = now() WHERE id IN (
        SELECT id FROM delivery WHERE attempts > 0 FOR UPDATE SKIP LOCKED
    )
"""
"""Not of those that are just recorded: both would wait for each other."""


async def _let_an_hour_pass(cluster: Any) -> None:
    """All deliveries are due again and again; returns after a hundred more attempts."""
    attempts = "SELECT sum(attempts)::int FROM delivery"
    ((start,),) = await cluster.rows(attempts)
    async with asyncio.timeout(DEADLINE_S):
        while (await cluster.rows(attempts))[0][0] < start + 100:
            await cluster.rows(TIME_PASSES)
            await asyncio.sleep(0.1)


async def _count_connections(port: int, counts: list[int]) -> None:
    """How many connections to the port somebody holds, again and again until cancelled.

    The kernel shows what the sender holds; the receiver notices a closed connection late.
    """
    while True:
        counts.append(_connections_to(port))
        await asyncio.sleep(0.02)


def _connections_to(port: int) -> int:
    """Lines of proc(5)'s net/tcp with this remote port and a socket that a process still holds."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(it[2].endswith(f":{port:04X}") and it[9] != "0" for it in lines)


def _memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
