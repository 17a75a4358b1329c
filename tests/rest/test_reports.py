"""Usage reports: GPU-hours of a week, held, used, idle, unknown and refunded."""

import asyncio
import csv
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster.contracts.jobs import (
    GpuTime,
    JobState,
    JobStatus,
    TaskRoleStatus,
    TaskState,
    TaskStatus,
)
from muster.contracts.nodes import NodeReport
from muster.contracts.reports import FIGURES, UsageReported
from muster.errors import Transient
from prometheus_client import CollectorRegistry
from rest.cluster import Cluster
from rest.domain.reports import (
    WEEK,
    JobUse,
    begin_of,
    report,
    shortened,
    to_csv,
    to_html,
    to_json,
    week_of,
)
from rest.handlers.report import Reports
from rest.metrics import RestMetrics
from rest.peers import Peers

NAMES = st.sampled_from("abcd")
SECONDS = st.floats(0, 1e7)
THIS_WEEK = week_of(datetime.fromtimestamp(time.time(), UTC))
LAST_WEEK = THIS_WEEK - 5 * WEEK
"""REST itself makes the report of the week before this one as it starts."""
HOUR = timedelta(hours=1)


@st.composite
def jobs(draw: st.DrawFn) -> JobUse:
    known = draw(SECONDS)
    busy = draw(st.floats(0, 1)) * known
    idle = draw(st.floats(0, 1)) * (known - busy)
    return JobUse(
        draw(NAMES), draw(NAMES), draw(NAMES), draw(SECONDS), draw(SECONDS), known, busy, idle
    )


@given(st.lists(jobs(), max_size=20))
def test_sums_over_virtual_clusters_users_and_jobs_are_the_clusters(found: list[JobUse]) -> None:
    since = begin_of(LAST_WEEK)
    made = report(found, since, since + WEEK)
    for lines in (made.virtual_clusters, made.users, made.jobs):
        for column in FIGURES:
            total = sum(getattr(line, column) for line in lines)
            assert total == pytest.approx(getattr(made.total, column))
        assert [line.held for line in lines] == sorted((it.held for it in lines), reverse=True)
        for line in lines:
            known = line.held - line.unknown
            assert 0 <= line.used + line.idle <= known + 1e-6
            assert 0 <= line.unknown <= line.held
    assert made.total.held * 3600 == pytest.approx(sum(job.held_s for job in found))
    assert len(shortened(made, 1).jobs) <= 1
    rows = list(csv.DictReader(io.StringIO(to_csv(made))))
    assert len(rows) == 1 + len(made.virtual_clusters) + len(made.users) + len(made.jobs)
    assert json.loads(json.dumps(to_json(made)))["total"]["name"] == "all"


@pytest.mark.parametrize(("held_s", "cell"), [(144, "0.04"), (3_600_000, "1000.0")])
def test_a_small_page_has_a_second_decimal(held_s: int, cell: str) -> None:
    since = begin_of(LAST_WEEK)
    assert f"<td>{cell}</td>" in to_html(
        report([JobUse("a", "x", "v", held_s)], since, since + WEEK)
    )


def test_names_are_escaped_on_the_page() -> None:
    since = begin_of(LAST_WEEK)
    made = report([JobUse("<b>", "x", "&", 3600)], since, since + WEEK, ["<n>"])
    page = to_html(made)
    assert to_csv(made).splitlines()[-1] == "node that did not tell,<n>,,,,,"
    assert "<b>" not in page
    assert "&lt;b&gt;~x" in page
    assert "&lt;n&gt;" in page


@given(st.integers(0, 2**32))
def test_a_moment_is_in_the_week_that_begins_on_its_monday(at_s: int) -> None:
    at = datetime.fromtimestamp(at_s, UTC)
    week = week_of(at)
    assert week.weekday() == 0
    assert begin_of(week) <= at < begin_of(week) + WEEK


class Told:
    """A job as the Launcher publishes it, message by message."""

    def __init__(self, rest: Any, job: str) -> None:
        self.rest, self.job, self.revision = rest, job, 0

    async def status(self, *tasks: TaskStatus, held_h: float = 0, **more: Any) -> None:
        self.revision += 1
        time = GpuTime(held_s=held_h * 3600, refunded_s=more.pop("refunded_h", 0) * 3600)
        await self.rest.receive(
            "job-updated",
            self.job,
            JobStatus(
                revision=self.revision, job=self.job, name="gpus", user="admin",
                virtual_cluster="default", submitted_at=begin_of(LAST_WEEK), gpu_time=time,
                task_roles=(TaskRoleStatus(name="worker", tasks=tasks),),
                **{"state": JobState.RUNNING} | more,
            ),
        )  # fmt: skip


def placed(at: datetime, gpus: int = 2, **more: Any) -> TaskStatus:
    gpu = tuple(range(gpus))
    return TaskStatus(index=0, state=TaskState.RUNNING, node="n1", gpus=gpu, placed_at=at, **more)


async def a_job(rest: Any, name: str, submitted: datetime) -> Told:
    await rest.submit(name)
    job = str(await rest.job_id(name))
    await rest.runtime.pool.execute(
        "UPDATE job SET submitted_at = $2 WHERE id = $1", job, submitted
    )
    return Told(rest, job)


async def report_of(rest: Any, week: date) -> Any:
    answer = await rest.client.get("/api/v2/reports/usage", params={"week": str(week)})
    assert answer.status_code == 200, answer.text
    return answer.json()


class FakeBus:
    """Takes messages, or is away."""

    def __init__(self) -> None:
        self.is_away = False
        self.taken: list[tuple[str, str, UsageReported]] = []

    async def broadcast(self, topic: str, key: str, model: Any, **_: Any) -> None:
        if self.is_away:
            raise Transient("the bus is away")
        self.taken.append((topic, key, model))


@asynccontextmanager
async def making(rest: Any, *agents: str) -> AsyncIterator[Reports]:
    """A replica that knows these agents, and no others."""
    cluster, peers = Cluster(), Peers(rest.runtime.settings, RestMetrics(CollectorRegistry()))
    for number, url in enumerate(agents):
        cluster._take_report(
            NodeReport(
                node=f"n{number}", revision=1, journal="j", boot="b", at=begin_of(THIS_WEEK),
                address="127.0.0.1", log_url=url, version="1", cpu=1, memory_mb=1,
            )
        )  # fmt: skip
    try:
        bus: Any = FakeBus()
        yield Reports(rest.runtime.pool, peers, cluster, rest.runtime.settings, bus)
    finally:
        await peers.close()


async def test_a_week_counts_what_was_held_in_it_and_nothing_twice(rest: Any, agent: Any) -> None:
    monday, before = begin_of(LAST_WEEK), LAST_WEEK - WEEK
    told = await a_job(rest, "gpus", monday - 3 * HOUR)
    await told.status(placed(monday - 2 * HOUR), held_h=5)
    async with making(rest) as reports:
        await reports.make(before)
    assert (await report_of(rest, before))["total"]["held"] == pytest.approx(5 + 2 * 2)
    await told.status(placed(monday + 10 * HOUR), held_h=5 + 2 * 2 + 6, refunded_h=3)
    sums = {"gpu_known_s": 36_000, "gpu_busy_s": 18_000, "gpu_idle_s": 3_600}
    jobs = {told.job: sums, "unknown": sums}
    agent.logs["/usage"] = json.dumps({"jobs": jobs}).encode()
    async with making(rest, agent.url, agent.url, "http://127.0.0.1:1") as reports:
        await reports.make(LAST_WEEK)
        [(topic, key, message)] = cast("FakeBus", reports.bus).taken
    assert (topic, key) == ("usage-reported", str(LAST_WEEK))
    assert (message.total.used, message.jobs[0].name, message.missing) == (10, "admin~gpus", 1)
    of_monday = 6 + 2 * (7 * 24 - 10)
    answer = await report_of(rest, LAST_WEEK)
    assert answer["total"]["held"] == pytest.approx(of_monday)
    assert answer["total"]["refunded"] == pytest.approx(3)
    assert answer["total"]["unknown"] == pytest.approx(of_monday - 20)
    assert (answer["total"]["used"], answer["total"]["idle"]) == (10, 2)  # of both agents
    assert answer["missing"] == ["n2"]
    assert answer["jobs"][0]["name"] == "admin~gpus"
    end = {"completed_at": begin_of(THIS_WEEK), "state": JobState.SUCCEEDED}
    ended = placed(monday, completed_at=begin_of(THIS_WEEK))
    await told.status(ended, held_h=9 + of_monday + 1, refunded_h=3, **end)
    so_far = await report_of(rest, THIS_WEEK)
    assert so_far["total"]["held"] == pytest.approx(1)
    assert so_far["total"]["refunded"] == 0
    text = await rest.client.get(f"/api/v2/reports/usage?format=csv&week={LAST_WEEK}")
    assert text.text.splitlines()[0].startswith("by,name,held_gpu_hours,used_gpu_hours")
    page = await rest.client.get(f"/api/v2/reports/usage?format=html&week={LAST_WEEK}")
    assert "admin~gpus" in page.text


async def test_a_job_from_before_an_upgrade_counts_from_the_weeks_begin(rest: Any) -> None:
    monday = begin_of(LAST_WEEK)
    told = await a_job(rest, "gpus", monday - 500 * HOUR)
    old = TaskStatus(
        index=0, state=TaskState.RUNNING, node="n1", gpus=(0,), launched_at=monday - 400 * HOUR
    )
    await told.status(old)
    async with making(rest) as reports:
        await reports.make(LAST_WEEK)
    assert (await report_of(rest, LAST_WEEK))["total"]["held"] == pytest.approx(7 * 24)


async def test_of_many_replicas_one_makes_a_report_and_only_once(rest: Any) -> None:
    told = await a_job(rest, "gpus", begin_of(LAST_WEEK))
    await told.status(placed(begin_of(LAST_WEEK)))
    week = LAST_WEEK
    assert (await rest.client.get(f"/api/v2/reports/usage?week={week}")).status_code == 404
    async with making(rest) as reports:
        made = await asyncio.gather(*(reports.make(week) for _ in range(4)))
        assert sum(each is not None for each in made) == 1
        assert await reports.make(week) is None


async def test_a_report_that_the_bus_did_not_take_is_made_again_later(rest: Any) -> None:
    told = await a_job(rest, "gpus", begin_of(LAST_WEEK))
    await told.status(placed(begin_of(LAST_WEEK)))
    async with making(rest) as reports:
        bus = cast("FakeBus", reports.bus)
        bus.is_away = True
        with pytest.raises(Transient):
            await reports.make(LAST_WEEK)
        bus.is_away = False
        assert await reports.make(LAST_WEEK) is None  # another replica may be at it
        await told.status(placed(begin_of(LAST_WEEK), gpus=8))
        past = "UPDATE usage_week SET claimed_at = claimed_at - interval '1 hour'"
        await rest.runtime.pool.execute(past)
        made = await reports.make(LAST_WEEK)
        assert made is not None
        assert made.total.held == pytest.approx(2 * 7 * 24)  # as it was when the week was closed
        assert len(bus.taken) == 1
