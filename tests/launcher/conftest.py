"""What the Launcher's tests share: a database pool, jobs as their requests, and their stories."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from launcher import store
from launcher.domain.decide import decide
from launcher.domain.model import JobWithTasks, Policy, wake_at
from launcher.domain.states import JobPhase
from launcher.handlers import Timers, jobs
from launcher.metrics import LauncherMetrics
from launcher.settings import LauncherSettings
from launcher_peers import FakeAgents, FakeScheduler, stopped
from muster.aggregates import Aggregate, apply_records
from muster.bus import Bus
from muster.channels import Outgoing
from muster.contracts.gangs import GangDecision, GangRequest
from muster.contracts.jobs import Execution, JobRequest, JobSpec, JobStatus, TaskRoleSpec
from muster.contracts.model import Model, StateMessage
from muster.contracts.notices import RevisionAcknowledged
from muster.contracts.pods import PodAction, PodRequest, PodState, PodStatus
from muster.contracts.topics import TOPICS, Kind, Service
from muster.contracts.verdicts import Verdict
from muster.db import Pool, Transaction, open_pool, transaction
from muster.decisions import Due, Input, Publish
from muster.incarnation import Incarnations
from muster.metrics import PlumbingMetrics
from muster.records import Received, message_value
from muster.relay import Relay
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

START = datetime(2026, 1, 1, tzinfo=UTC)
WAIT_S = 60
TIMERS = 10
"""As many may be due at once."""
SUBMITTED = datetime(2026, 1, 1, tzinfo=UTC)

MakeRequest = Callable[..., JobRequest]


@pytest.fixture
def settings(database_url: str) -> LauncherSettings:
    """Settings with short waits."""
    return LauncherSettings(
        database_url=SecretStr(database_url),
        retry_backoff_first_s=0.01,
        retry_backoff_longest_s=0.05,
        conflict_shortest_s=0.01,
        conflict_longest_s=0.05,
        quiet_s=0.01,
        quiet_new_s=0.02,
        job_timer_poll_s=0.02,
    )


@pytest.fixture
async def pool(settings: LauncherSettings) -> AsyncIterator[Pool]:
    """A pool on the Launcher's schema."""
    opened = await open_pool(settings, "launcher")
    yield opened
    await opened.close()


@pytest.fixture
def make_request() -> MakeRequest:
    """Makes the request for a job; ``roles`` is name → number of tasks, ``role`` goes to each."""

    def make(
        job: str,
        roles: dict[str, int] | None = None,
        role: dict[str, Any] | None = None,
        **spec: Any,
    ) -> JobRequest:
        return JobRequest(
            revision=1,
            job=job,
            name=f"name-{job}",
            user="ada",
            execution=Execution.START,
            submitted_at=SUBMITTED,
            spec=JobSpec(
                task_roles=tuple(
                    TaskRoleSpec(
                        name=name,
                        instances=number,
                        cpu=1,
                        memory_mb=100,
                        gpus=1,
                        ports={"http": 1},
                        command="true",
                        **(role or {}),
                    )
                    for name, number in (roles or {"worker": 1}).items()
                ),
                **spec,
            ),
        )

    return make


@pytest.fixture
def new_story(make_request: MakeRequest) -> Callable[..., "Story"]:
    """Begins the story of job j1."""
    return lambda *args, **kwargs: Story(make_request("j1", *args, **kwargs))


@pytest.fixture
def story_of() -> type["Story"]:
    """Begins the story of any request."""
    return Story


class Story:
    """A job, its Scheduler and its agents; every message arrives at once and in order."""

    def __init__(self, request: JobRequest, policy: Policy | None = None) -> None:
        self.now = START
        self.policy = policy or Policy()
        self.request = request
        self.job_with_tasks: JobWithTasks | None = None
        self.scheduler = FakeScheduler()
        self.agents = FakeAgents()
        self.published: list[Publish] = []
        self.unused_number = 0
        self.receive(request)

    def receive(self, given: Input) -> "Story":
        decision = decide(
            self.request.job,
            self.job_with_tasks,
            given,
            now=self.now,
            policy=self.policy,
            unused_number=self.unused_number,
        )
        self.job_with_tasks = decision.state
        for publish in decision.messages:
            revision = 1 + sum(
                s.subject == publish.subject and s.kind is publish.kind for s in self.published
            )
            message = publish.message.model_copy(update={"revision": revision})
            self.published.append(replace(publish, message=message))
            if isinstance(message, GangRequest):
                self.scheduler.receive(message)
            elif isinstance(message, PodRequest):
                known = set(self.agents.statuses)
                self.agents.receive(message, self.now)
                for pod in set(self.agents.statuses) - known:
                    if self.agents.statuses[pod].state is PodState.FAILED:
                        self.receive(self.agents.statuses[pod])
        return self

    # What happens.

    def place(self, node: str = "n1") -> "Story":
        for gang in self.scheduler.waiting():
            self.receive(self.scheduler.place(gang, node))
        return self

    def start(self) -> "Story":
        for pod in self.agents.live():
            if self.agents.statuses[pod].started_at is None:
                self.receive(self.agents.start(pod, self.now))
        return self

    def end(self, pod: str, verdict: Verdict | None = None) -> "Story":
        return self.receive(self.agents.end(f"{self.request.job}-{pod}", self.now, verdict))

    def end_stopped(self) -> "Story":
        for pod in sorted(self.agents.stopping):
            self.receive(self.agents.end(pod, self.now, stopped()))
        return self

    def lose(self, node: str) -> "Story":
        for message in self.scheduler.lose(node):
            self.receive(message)
        return self

    def preempt(self, grace_s: float = 10, preemptor: str | None = "other-0") -> "Story":
        until = self.now + timedelta(seconds=grace_s)
        for gang in self.scheduler.placed():
            self.receive(self.scheduler.preempt(gang, until, preemptor))
        return self

    def again(self) -> "Story":
        """The next attempt begins, where it is due at once."""
        return self.wait(0)

    def stop(self) -> "Story":
        update = {"execution": Execution.STOP, "stop_requested_by": "ada"}
        return self.receive(self.request.model_copy(update=update))

    def wait(self, seconds: float) -> "Story":
        """Let time pass; the timers that the job asked for ring."""
        self.now += timedelta(seconds=seconds)
        for _ in range(TIMERS):
            due = wake_at(self.job)
            if due is None or due > self.now:
                return self
            self.receive(Due())
        raise AssertionError("a timer rings for ever")

    # What is seen.

    @property
    def job(self) -> JobWithTasks:
        assert self.job_with_tasks is not None
        return self.job_with_tasks

    def phase(self) -> JobPhase:
        return self.job.job.phase

    def status(self) -> JobStatus:
        """The newest message about the job."""
        return self.statuses()[-1]

    def statuses(self) -> list[JobStatus]:
        """All messages about the job."""
        return [s.message for s in self.published if isinstance(s.message, JobStatus)]

    def stops(self) -> dict[str, PodRequest]:
        """The asks to stop, by pod."""
        return {
            s.message.pod: s.message
            for s in self.published
            if isinstance(s.message, PodRequest) and s.message.action is PodAction.STOP
        }

    def runs(self) -> list[PodRequest]:
        """The asks to run."""
        messages = [s.message for s in self.published if isinstance(s.message, PodRequest)]
        return [w for w in messages if w.action is PodAction.RUN]

    def open_subjects(self) -> set[str]:
        """The gangs and pods that the Launcher does not yet consider over."""
        newest = {(s.kind, s.subject): s.is_open for s in self.published if s.kind is not Kind.JOB}
        return {subject for (_, subject), is_open in newest.items() if is_open}


@pytest.fixture
def new_launcher(settings: LauncherSettings) -> Callable[[Pool], "Launcher"]:
    """Makes a Launcher on a database, without a bus."""
    return lambda pool: Launcher(pool, settings)


def received(message: Model) -> Received:
    """A message as it comes from the bus."""
    topic, key = {
        JobRequest: ("job-submitted", "job"),
        GangDecision: ("placement-decided", "gang"),
        PodStatus: ("pod-started", "job"),
        RevisionAcknowledged: ("revision-acknowledged", "sender"),
    }[type(message)]
    if isinstance(message, RevisionAcknowledged) and message.sender == Service.RUNTIME_AGENT:
        topic = "pod-acknowledged"
    value = message.model_dump_json().encode()
    return Received(topic, 0, 0, getattr(message, key), {}, value)


class CountingRelay(Relay):
    """A relay that nobody runs: what is published is kept here."""

    transactions = 0

    def __init__(self, bus: Bus, pool: Pool) -> None:
        super().__init__(bus, pool, Incarnations(bus, 0.0))
        self.outgoing: list[Outgoing] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.transactions += 1
        async with super().transaction() as opened:
            yield opened
            # Before the commit: a test that has seen it may end the publishing process.
            self.outgoing += opened.outgoing


class Launcher:
    """A Launcher on a database, without a bus: a test gives and takes its messages."""

    def __init__(self, pool: Pool, settings: LauncherSettings) -> None:
        self.pool = pool
        self.settings = settings
        self.metrics = LauncherMetrics(CollectorRegistry())
        self.registry = CollectorRegistry()
        bus = Bus(settings, Service.LAUNCHER, PlumbingMetrics(self.registry))
        self.relay = CountingRelay(bus, pool)
        # Jobs here are submitted at a fixed time, and the database's clock is the real one.
        policy = replace(settings.policy(), start_longest=timedelta(days=36_500))
        self.use(jobs(policy, self.relay.incarnations))

    def use(self, aggregate: Aggregate[JobWithTasks]) -> None:
        """Decide like this."""
        self.aggregate = aggregate
        self.timers = Timers(self.relay, aggregate, self.settings, self.metrics, lambda _: None)

    async def receive(self, messages: Sequence[Model]) -> None:
        async with self.relay.transaction() as opened:
            records = [received(message) for message in messages]
            await apply_records(opened, Service.LAUNCHER, self.aggregate, records)

    async def published(self) -> list[StateMessage]:
        """What was published; it is forgotten then."""
        records, self.relay.outgoing = self.relay.outgoing, []
        return [_message(each.topic, (each.value or b"").decode()) for each in records]

    async def repeats(self) -> list[StateMessage]:
        """The last message about each subject that the other side has not acknowledged."""
        async with self.pool.acquire() as conn:
            rows = await conn.fetch("SELECT * FROM subject WHERE repeat_at IS NOT NULL")
        return [
            _message(
                row["topic"], message_value(_text(row["message"]), row["revision"], row["seen"])
            )
            for row in rows
            if row["message"] is not None
        ]

    async def job_with_tasks(self, job: str) -> JobWithTasks:
        async with transaction(self.pool) as conn:
            return (await store.load(conn, [job]))[job]

    def looks(self) -> int:
        """How often the timers have been looked at."""
        return self.relay.transactions

    async def ring(self) -> None:
        """A whole look at the timers."""
        looks = self.looks()
        ringing = asyncio.create_task(self.timers.run())
        async with asyncio.timeout(WAIT_S):
            while self.looks() < looks + 2:
                await asyncio.sleep(0.005)
        ringing.cancel()
        await asyncio.gather(ringing, return_exceptions=True)

    async def ring_until(self, is_done: Callable[[JobWithTasks], bool], job: str) -> JobWithTasks:
        """Run the timers until the job is as wanted."""
        ringing = asyncio.create_task(self.timers.run())
        try:
            async with asyncio.timeout(WAIT_S):
                while not is_done(job_with_tasks := await self.job_with_tasks(job)):
                    await asyncio.sleep(0.01)
                return job_with_tasks
        finally:
            ringing.cancel()


def _text(message: object) -> str:
    return message if isinstance(message, str) else json.dumps(message)


def _message(topic: str, value: str) -> StateMessage:
    model = TOPICS[topic].model.model_validate_json(value)
    assert isinstance(model, StateMessage)
    return model
