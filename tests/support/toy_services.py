"""Two toy services that exchange messages about jobs, over a real database and broker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from bus_logins import bus_settings
from muster.aggregates import Aggregate
from muster.contracts.jobs import Execution, JobRequest, JobState, JobStatus
from muster.contracts.topics import Kind, Service
from muster.db import Connection
from muster.decisions import Decision, Due, Input, MessageRejected, Publish
from muster.service import Runtime, running
from muster.settings import DatabaseSettings
from muster.subjects import publish_all

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAIT_S = 60
POISON = {"is": True}


@dataclass(frozen=True)
class Toy:
    """A toy service's state of a job: the other side's name for it, and whether a message about it
    was rejected.
    """

    job: str
    text: str = ""
    is_rejected: bool = False


def request(job: str, name: str) -> JobRequest:
    return JobRequest(job=job, name=name, user="u", execution=Execution.START, submitted_at=NOW)


def status(job: str, name: str) -> JobStatus:
    return JobStatus(
        job=job,
        name=name,
        user="u",
        virtual_cluster="default",
        state=JobState.WAITING,
        submitted_at=NOW,
    )


def rest_decide(job: str, state: Toy | None, given: Input, _now: datetime) -> Decision[Toy]:
    toy = state or Toy(job)
    match given:
        case JobStatus():
            return Decision(replace(toy, text=given.name))
        case MessageRejected():
            return Decision(replace(toy, is_rejected=True))
        case _:
            raise AssertionError(given)


def launcher_decide(job: str, _state: Toy | None, given: Input, _now: datetime) -> Decision[Toy]:
    match given:
        case JobRequest() if given.name == "poison" and POISON["is"]:
            raise ValueError("poison")
        case JobRequest() if given.name.startswith("nul"):
            return Decision(Toy(job, "\x00"))  # PostgreSQL refuses it when the batch is saved
        case JobRequest():
            answer = Publish(Kind.JOB, job, "job-updated", job, status(job, given.name.upper()))
            return Decision(Toy(job, given.name), (answer,))
        case Due() | MessageRejected():
            return Decision(None)
        case _:
            raise AssertionError(given)


async def load(conn: Connection, ids: Sequence[str]) -> Mapping[str, Toy]:
    rows = await conn.fetch("SELECT * FROM toy WHERE job = ANY($1) ORDER BY job FOR UPDATE", ids)
    return {r["job"]: Toy(r["job"], r["text"], r["is_rejected"]) for r in rows}


async def save(conn: Connection, toys: Sequence[Toy]) -> None:
    if any(toy.text == "slow" for toy in toys):
        await conn.execute("SELECT pg_sleep(3600)")
    await conn.executemany(
        "INSERT INTO toy VALUES ($1, $2, $3) ON CONFLICT (job)"
        " DO UPDATE SET text = excluded.text, is_rejected = excluded.is_rejected",
        [(t.job, t.text, t.is_rejected) for t in toys],
    )


Decide = Callable[[str, Toy | None, Input, datetime], Decision[Toy]]


@asynccontextmanager
async def toy_service(
    me: Service, decide: Decide, reads: Sequence[str], settings: DatabaseSettings
) -> AsyncIterator[Runtime]:
    aggregate = Aggregate(of=lambda _kind, job: job, load=load, decide=decide, save=save)

    @asynccontextmanager
    async def build(runtime: Runtime) -> AsyncIterator[None]:
        async with runtime.pool.acquire() as conn:
            await conn.execute(
                "CREATE TABLE IF NOT EXISTS toy"
                " (job text PRIMARY KEY, text text, is_rejected boolean)"
            )
        runtime.consume([*reads, "revision-acknowledged"], aggregate)
        yield

    async with running(me, settings, 0, build) as runtime:
        yield runtime


def toy_settings(database_url: str, bootstrap: str, **more: Any) -> DatabaseSettings:
    return DatabaseSettings(
        database_url=database_url,
        **bus_settings(bootstrap),
        fetch_wait_busy_ms=40,
        fetch_wait_idle_ms=40,
        bus_watch_s=0.1,
        repeats_per_s=1000,
        repeats_per_s_after_loss=1000,
        resync_s=0.5,
        database_connections=3,
        **more,
    )


def toy_rest(settings: DatabaseSettings) -> AbstractAsyncContextManager[Runtime]:
    return toy_service(Service.REST, rest_decide, ["job-updated"], settings)


def toy_launcher(settings: DatabaseSettings) -> AbstractAsyncContextManager[Runtime]:
    return toy_service(Service.LAUNCHER, launcher_decide, ["job-submitted"], settings)


@asynccontextmanager
async def both(
    database_url: str, bootstrap: str, **more: Any
) -> AsyncIterator[tuple[Runtime, Runtime]]:
    settings = toy_settings(database_url, bootstrap, **more)
    async with toy_rest(settings) as rest, toy_launcher(settings) as launcher:
        yield rest, launcher


async def submit(rest: Runtime, job: str, name: str) -> None:
    async with rest.relay.transaction() as opened:
        message = Publish(Kind.JOB, job, "job-submitted", job, request(job, name))
        await publish_all(opened, Service.REST, [message])


async def eventually(question: Callable[[], Any], wanted: object, wait_s: float = WAIT_S) -> None:
    """Ask until the answer is as wanted; fails with the last answer."""
    answer: object = None
    try:
        async with asyncio.timeout(wait_s):
            while (answer := await question()) != wanted:
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"wanted {wanted!r}, got {answer!r}")


async def answers(rest: Runtime) -> dict[str, str]:
    return {r["job"]: r["text"] for r in await rest.pool.fetch("SELECT job, text FROM toy")}


async def unsettled(*services: Runtime) -> int:
    count = 0
    for service in services:
        count += await service.pool.fetchval(
            "SELECT count(*) FROM subject WHERE repeat_at IS NOT NULL OR answer_at IS NOT NULL"
        )
        count += await service.pool.fetchval("SELECT count(*) FROM notice")
    return count


async def dead_letters(service: Runtime) -> int:
    count = await service.pool.fetchval("SELECT count(*) FROM subject WHERE skipped > 0")
    assert isinstance(count, int)
    return count
