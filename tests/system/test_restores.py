"""A database goes back by some seconds amid many jobs: no name runs twice, all jobs end right."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from job_stream import Jobs, a_seed
from parts_of_muster import Parts, parts_up

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

JOBS, FEWER_JOBS = 100, 32
"""Of a restore in the chaos tests, and of one beside all other tests."""
WAIT_S = 240.0
NOTICE_S = 60.0


@dataclass(frozen=True)
class Case:
    """What goes back. `service`: its schema alone, while it is stopped or `is_running`."""

    how: str
    service: str = ""
    is_running: bool = False
    is_bus_lost: bool = False

    def __str__(self) -> str:
        words = [self.how, self.service, "running" * self.is_running, "no bus" * self.is_bus_lost]
        return " ".join(word for word in words if word)


SERVER = [Case(how) for how in ("disk snapshot", "base backup")]
SCHEMAS = [
    Case("dump", service, is_running)
    for service in ("rest", "launcher", "scheduler")
    for is_running in (False, True)
]


def with_and_without_bus(cases: list[Case]) -> list[Case]:
    return [
        Case(each.how, each.service, each.is_running, is_bus_lost)
        for each in cases
        for is_bus_lost in (False, True)
    ]


async def submit_some(jobs: Jobs, count: int, rng: random.Random) -> None:
    for _ in range(count):
        await jobs.submit()
        await jobs.stop_some(0.1)
        await jobs.look()
        await asyncio.sleep(rng.uniform(0.0, 0.25))


@asynccontextmanager
async def going_back(parts: Parts, case: Case, rng: random.Random) -> AsyncIterator[None]:
    """Back up, let the block run, and put back."""
    backup = parts.home / "backup"
    if case.how == "disk snapshot":
        await parts.disk_snapshot(backup)
    elif case.how == "base backup":
        await parts.base_backup(backup)
    else:
        await parts.dump(case.service, backup)
    yield
    if case.service and not case.is_running:
        await parts.stop(case.service)
    if case.is_bus_lost:
        parts.broker.kill()
    if not case.service:
        parts.put_back_server(backup, kills=rng.random() < 0.5)
    else:
        await parts.put_back_schema(case.service, backup)
    if case.is_bus_lost:
        parts.broker.start()
    if case.is_running:
        before = parts.restarts(case.service)
        async with asyncio.timeout(NOTICE_S):
            while parts.restarts(case.service) == before:
                await asyncio.sleep(0.1)
        log = parts.programs[case.service].log.read_text()
        assert "DatabaseRestored" in log
    elif case.service:
        parts.start(case.service)


async def survives(case: Case, seed: int, home: Path, count: int = JOBS) -> None:
    """The test itself."""
    print(f"seed {seed}: {case}")
    rng = random.Random(seed)
    async with parts_up(home, print) as (parts, http):
        jobs = Jobs(http, parts, rng)
        await submit_some(jobs, rng.randint(count // 4, count // 2), rng)
        async with going_back(parts, case, rng):
            await submit_some(jobs, count // 4, rng)
            await asyncio.sleep(rng.uniform(1.5, 4.0))
        await submit_some(jobs, count // 4, rng)
        has_lost_jobs = case.service in ("", "rest")
        await jobs.end_right(seed, WAIT_S, may_be_gone=has_lost_jobs)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(SERVER, id="the server"),
        pytest.param(SCHEMAS, id="one service"),
    ],
)
async def test_a_database_that_goes_back_doubles_and_loses_nothing(
    cases: list[Case], tmp_path: Path
) -> None:
    seed = a_seed()
    case = random.Random(seed).choice(with_and_without_bus(cases))
    await survives(case, seed, tmp_path / "home", FEWER_JOBS)


@pytest.mark.chaos
@pytest.mark.parametrize("case", with_and_without_bus(SERVER + SCHEMAS), ids=str)
async def test_every_database_that_goes_back_doubles_and_loses_nothing(
    case: Case, tmp_path: Path
) -> None:
    await survives(case, a_seed(), tmp_path / "home")
