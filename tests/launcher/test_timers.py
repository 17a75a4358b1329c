"""Timers over a real PostgreSQL: by its clock alone, without a busy loop; and what is forgotten."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from launcher.domain.states import JobPhase
from launcher.handlers import Housekeeping
from launcher.settings import LauncherSettings
from launcher_peers import FakeAgents, FakeScheduler, failure
from muster.contracts.gangs import GangRequest
from muster.contracts.jobs import Execution, JobRequest, JobState, JobStatus
from muster.contracts.pods import PodAction, PodRequest
from muster.contracts.verdicts import Behavior, Fault
from muster.db import Pool, open_pool, transaction
from pydantic import ValidationError

MakeRequest = Callable[..., JobRequest]
NewLauncher = Callable[[Pool], Any]

pytestmark = pytest.mark.postgres

WAIT_S = 60.0
HOUR_S = 3600.0
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


class Peers:
    """A Scheduler and agents that carry one job of one task through its life."""

    def __init__(self, launcher: Any, request: JobRequest) -> None:
        self.launcher = launcher
        self.request = request
        self.scheduler = FakeScheduler()
        self.agents = FakeAgents()
        self.statuses: list[JobStatus] = []
        self.runs: list[str] = []

    async def answer(self) -> None:
        """Take what the Launcher has published."""
        for message in await self.launcher.published():
            match message:
                case GangRequest():
                    self.scheduler.receive(message)
                case PodRequest():
                    if message.action is PodAction.RUN:
                        self.runs.append(message.pod)
                    self.agents.receive(message, self.request.submitted_at)
                case JobStatus():
                    self.statuses.append(message)

    async def place(self, attempt: int) -> None:
        await self.answer()
        await self.launcher.receive([self.scheduler.place(f"{self.request.job}-{attempt}", "n1")])
        await self.answer()

    async def end(self, attempt: int) -> None:
        pod = f"{self.request.job}-{attempt}-worker-0-0"
        message = self.agents.end(pod, self.request.submitted_at, WITHDRAWN)
        await self.launcher.receive([message])
        await self.answer()


@pytest.fixture
async def shifted(settings: LauncherSettings) -> AsyncIterator[Pool]:
    """A pool on a database whose clock goes ahead of the real one by the time in `clock`."""
    pool = await open_pool(settings, "launcher, pg_catalog")
    await pool.execute(
        """CREATE TABLE clock AS SELECT interval '0' AS ahead;
        CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql
        AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM clock'"""
    )
    yield pool
    await pool.close()


async def test_a_jump_of_the_hosts_clock_fires_no_timer_and_doubles_nothing(
    pool: Pool,
    new_launcher: NewLauncher,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = new_launcher(pool)
    peers = Peers(launcher, make_request("j", time_limit_s=1800))
    await launcher.receive([peers.request])
    await peers.place(0)
    await launcher.receive([peers.agents.start("j-0-worker-0-0", peers.request.submitted_at)])
    real = time.time
    ringing = asyncio.create_task(launcher.timers.run())
    for jump_s in (HOUR_S, -HOUR_S):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
        looks = launcher.looks()
        async with asyncio.timeout(WAIT_S):
            while launcher.looks() < looks + 5:
                await asyncio.sleep(0.01)
        job_with_tasks = await launcher.job_with_tasks("j")
        assert job_with_tasks.job.phase is JobPhase.RUNNING
    ringing.cancel()
    await peers.answer()
    assert peers.runs == ["j-0-worker-0-0"]


async def test_a_jump_of_the_databases_clock_fires_no_timer_early_and_doubles_nothing(
    shifted: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(shifted)
    peers = Peers(launcher, make_request("j"))
    await launcher.receive([peers.request])
    await peers.place(0)
    await peers.end(0)
    assert (await launcher.job_with_tasks("j")).job.phase is JobPhase.BACKOFF
    await shifted.execute("UPDATE clock SET ahead = '-1 hour'")
    for _ in range(3):
        await launcher.ring()
    assert (await launcher.job_with_tasks("j")).job.phase is JobPhase.BACKOFF, "an hour early"
    await shifted.execute("UPDATE clock SET ahead = '1 hour'")
    for _ in range(3):
        await launcher.ring()
    await shifted.execute("UPDATE clock SET ahead = '-1 hour'")
    await launcher.ring()
    assert (await launcher.job_with_tasks("j")).job.attempt == 1
    await peers.place(1)
    assert peers.runs == ["j-0-worker-0-0", "j-1-worker-0-0"]
    await launcher.receive([peers.agents.end("j-1-worker-0-0", peers.request.submitted_at)])
    await peers.answer()
    assert [status.state for status in peers.statuses].count(JobState.SUCCEEDED) == 1


async def test_a_due_job_that_another_is_at_is_waited_for_without_a_busy_loop(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(pool)
    await launcher.receive([make_request("j")])
    async with transaction(pool) as conn:
        await conn.execute("SELECT FROM job FOR UPDATE")
        ringing = asyncio.create_task(launcher.timers.run())
        await asyncio.sleep(0.5)  # the time is the test
        looks = launcher.looks()
    async with asyncio.timeout(WAIT_S):
        while (await launcher.job_with_tasks("j")).job.quiet_at is not None:
            await asyncio.sleep(0.01)
    ringing.cancel()
    assert looks < 30


async def test_all_old_jobs_are_forgotten_however_many(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(pool)
    names = [f"job{number}" for number in range(7)]
    await launcher.receive([make_request(name) for name in names])
    stop = {"execution": Execution.STOP, "revision": 2}
    await launcher.receive([make_request(name).model_copy(update=stop) for name in names])
    await pool.execute("UPDATE job SET completed_at = completed_at - interval '30 days'")
    few = launcher.settings.model_copy(update={"clean_jobs": 3})
    await Housekeeping(pool, few).clean()
    assert await pool.fetchval("SELECT count(*) FROM job") == 0


async def test_a_lost_nodes_messages_are_repeated_for_some_days_only(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(pool)
    peers = Peers(launcher, make_request("j"))
    await launcher.receive([peers.request])
    await peers.place(0)
    live = peers.agents.start("j-0-worker-0-0", peers.request.submitted_at)
    await launcher.receive([live, *peers.scheduler.lose("n1")])
    await launcher.published()
    housekeeping = Housekeeping(pool, launcher.settings)
    await housekeeping.clean()
    assert {w.pod for w in await launcher.repeats() if isinstance(w, PodRequest)} == {live.pod}
    days = timedelta(days=launcher.settings.lost_messages_days)
    repeats = days / timedelta(minutes=5)
    await pool.execute("UPDATE subject SET repeats = $1 WHERE kind = 'pod'", int(repeats))
    await housekeeping.clean()
    assert not [w for w in await launcher.repeats() if isinstance(w, PodRequest)]
    # It returns all the same, and reports its pods.
    back = live.model_copy(update={"revision": live.revision + 1, "seen": 1})
    await launcher.receive([back])
    (stop,) = [w for w in await launcher.published() if isinstance(w, PodRequest)]
    assert (stop.pod, stop.action) == (live.pod, PodAction.STOP)
    assert stop.revision > back.seen, "the agent would take it for old"


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry_backoff_first_s": 400.0},
        {"conflict_shortest_s": 901.0},
        {"kept_days": 7},
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="must not be above"):
        LauncherSettings(**wrong)
