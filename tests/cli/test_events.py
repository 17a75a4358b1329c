"""`muster events` is a plain consumer: it needs no group and sees what others wrote."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from aiokafka import AIOKafkaProducer
from cli.embedded.broker import EmbeddedBroker

TIMEOUT_S = 60


async def _start(home: Path, *words: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "events", "--from-start", "-o", "json", *words),
        env={"PATH": os.environ["PATH"], "MUSTER_HOME": str(home), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.kafka
async def test_events_are_followed_as_json_lines(
    fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    following = await _start(tmp_path, MUSTER_KAFKA_BOOTSTRAP=fresh_broker.bootstrap)
    producer = AIOKafkaProducer(bootstrap_servers=fresh_broker.bootstrap)
    await producer.start()
    try:
        headers = [("ce_type", b"muster.job-submitted.v1")]
        await producer.send_and_wait("job-submitted", b'{"job": "j1"}', b"j1", headers=headers)
        await producer.send_and_wait("job-updated", None, b"j1")
        assert following.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            seen = [json.loads(await following.stdout.readline()) for _ in range(2)]
            for topic in (
                "service-started",
                "node-heartbeat",
                "revision-acknowledged",
                "pod-acknowledged",
            ):
                await producer.send_and_wait(topic, b"{}", b"chatter")
            await producer.send_and_wait("pod-failed", b"{}", b"p1")
            after_chatter = json.loads(await following.stdout.readline())
    finally:
        await producer.stop()
        following.send_signal(signal.SIGINT)
        await following.wait()
    by_topic = {record["topic"]: record for record in seen}
    assert by_topic["job-submitted"]["value"] == {"job": "j1"}
    assert by_topic["job-submitted"]["headers"] == {"ce_type": "muster.job-submitted.v1"}
    assert by_topic["job-updated"]["value"] is None
    assert after_chatter["topic"] == "pod-failed"
    assert following.returncode == 130


@pytest.mark.kafka
async def test_one_jobs_events_are_followed_by_its_name(
    fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=fresh_broker.bootstrap)
    await producer.start()
    bootstrap = fresh_broker.bootstrap
    following = await _start(tmp_path, "--job", "ada~train", MUSTER_KAFKA_BOOTSTRAP=bootstrap)
    assert following.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for job, user in (("j2", b"bob"), ("j1", b"ada")):
                value = b'{"job": "%s", "user": "%s", "name": "train"}' % (job.encode(), user)
                await producer.send_and_wait("job-updated", value, job.encode())
            first = json.loads(await following.stdout.readline())
            for job in ("j2", "j1"):
                await producer.send_and_wait("pod-failed", b'{"pod": "p"}', job.encode())
            second = json.loads(await following.stdout.readline())
    finally:
        await producer.stop()
        following.send_signal(signal.SIGINT)
        await following.wait()
    assert [(it["topic"], it["key"]) for it in (first, second)] == [
        ("job-updated", "j1"),
        ("pod-failed", "j1"),
    ]


@pytest.mark.kafka
async def test_an_event_in_a_pipe_is_whole_and_on_one_line(
    fresh_broker: EmbeddedBroker,
) -> None:
    bootstrap = fresh_broker.bootstrap
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    failure = {"pod": "p" * 200, "problem": "red \x1b[31m"}
    await producer.send_and_wait("pod-failed", json.dumps(failure).encode(), b"key\nin-a-pipe")
    await producer.stop()
    words = ("--from-start", "--topic", "pod-failed")
    following = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "events", *words),
        env={"PATH": os.environ["PATH"], "MUSTER_KAFKA_BOOTSTRAP": bootstrap},
        stdout=asyncio.subprocess.PIPE,
    )
    assert following.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        line = (await following.stdout.readline()).decode()
    following.send_signal(signal.SIGINT)
    await following.wait()
    assert line.endswith(rf"  key\nin-a-pipe  pod={'p' * 200} problem=red \u001b[31m" + "\n")


async def test_a_bus_that_is_away_is_not_reachable(tmp_path: Path) -> None:
    following = await _start(tmp_path, MUSTER_KAFKA_BOOTSTRAP="127.0.0.1:9")
    async with asyncio.timeout(TIMEOUT_S):
        _, errors = await following.communicate()
    assert following.returncode == 3
    assert b"127.0.0.1:9" in errors
    assert b"Traceback" not in errors


def _muster(*words: str, url: str, kafka: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "cli", *words],
        env={
            "PATH": os.environ["PATH"],
            "MUSTER_DATABASE_URL": url,
            "MUSTER_KAFKA_BOOTSTRAP": kafka,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.kafka
@pytest.mark.postgres
async def test_resync_makes_every_open_subject_republish(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(
            "INSERT INTO launcher.subject"
            " (kind, subject, is_open, revision, acknowledged, topic, key, message)"
            " VALUES ('job', 'j1', true, 3, 3, 'job-updated', 'j1', '{}'),"
            " ('job', 'j2', false, 3, 3, 'job-updated', 'j2', '{}')"
        )
        bus = fresh_broker.bootstrap
        done = await asyncio.to_thread(_muster, "events", "resync", url=database_url, kafka=bus)
        assert done.returncode == 0, done.stderr
        following = await _start(tmp_path, MUSTER_KAFKA_BOOTSTRAP=bus)
        assert following.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            record = json.loads(await following.stdout.readline())
        following.send_signal(signal.SIGINT)
        await following.wait()
        assert (record["topic"], record["key"]) == ("settings-changed", "exchange/resync")
        assert record["value"]["revision"] > 1_000_000
        assert "launcher: 1 to be acknowledged again" in done.stdout
        assert "rest: 0 to be acknowledged again" in done.stdout
        row = await connection.fetchrow(
            "SELECT revision, acknowledged FROM launcher.subject WHERE subject = 'j1'"
        )
        assert row is not None
        assert row["revision"] > row["acknowledged"]
    finally:
        await connection.close()


@pytest.mark.postgres
def test_agents_that_can_not_be_asked_are_named(database_url: str) -> None:
    done = _muster("events", "redrive", url=database_url, kafka="127.0.0.1:9")
    assert done.returncode == 3
    assert "launcher: 0 republished" in done.stdout
    assert "The agents were not asked" in done.stderr


@pytest.mark.parametrize("command", ["redrive", "resync"])
@pytest.mark.parametrize("url", ["postgresql://muster@127.0.0.1:9/muster", "nonsense"])
def test_a_database_that_is_away_is_not_reachable(command: str, url: str) -> None:
    done = _muster("events", command, url=url)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_a_topic_that_there_is_not_is_wrong_usage() -> None:
    done = _muster("events", "--topic", "job-submited", url="")
    assert done.returncode == 2
    assert "there are job-submitted," in done.stderr
