"""The Launcher over a real PostgreSQL: messages lost, doubled, reordered; timers that survive."""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from launcher import store
from launcher.domain.model import JobWithTasks, Placement, StopCause, Task
from launcher.domain.states import JobPhase, TaskPhase
from launcher.handlers import RECEIVED_TOPICS, Counting, Housekeeping
from launcher_peers import FakeAgents, FakeScheduler, failure, stopped
from muster.aggregates import Aggregate
from muster.contracts.gangs import GangRequest
from muster.contracts.jobs import Execution, JobRequest, JobState, JobStatus
from muster.contracts.model import StateMessage
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.pods import PodRequest
from muster.contracts.topics import TOPICS, Kind, Service
from muster.contracts.verdicts import Behavior, Fault
from muster.db import Pool, transaction
from muster.decisions import Decision, Due, Input
from muster.records import subject_of

MakeRequest = Callable[..., JobRequest]
NewLauncher = Callable[[Pool], Any]

pytestmark = pytest.mark.postgres

WAIT_S = 60
ROUNDS = 400


class World:
    """A Launcher and its peers; their messages are doubled, reordered and lost."""

    def __init__(self, launcher: Any, seed: int) -> None:
        self.launcher = launcher
        self.random = random.Random(seed)
        self.scheduler = FakeScheduler()
        self.agents = FakeAgents()
        self.statuses: dict[str, JobStatus] = {}
        self.published: list[StateMessage] = []
        self.story: set[tuple[str, int]] = set()

    async def round(self, *, is_fair: bool) -> None:
        """Some messages arrive, some pods start and end; in a fair round all of them do."""
        self.published += await self.launcher.published()
        if is_fair:
            self.published += await self.launcher.repeats()
        for message in self._arriving(self.published, is_fair):
            self._deliver(message)
        self.published = self.published[-300:]
        self._act()
        if not is_fair:
            self._preempt()
        messages = [*self.scheduler.decisions.values(), *self.agents.statuses.values()]
        acks = self._acknowledgements() if is_fair else []
        await self.launcher.receive([*self._arriving(messages, is_fair), *acks])

    def _arriving(self, messages: Sequence[StateMessage], is_fair: bool) -> list[StateMessage]:
        if is_fair:
            found = list(messages)
        else:
            found = [w for w in messages for _ in range(self.random.choice((0, 0, 1, 1, 2)))]
        self.random.shuffle(found)
        return found

    def _deliver(self, message: StateMessage) -> None:
        match message:
            case GangRequest():
                self.scheduler.receive(message)
            case PodRequest():
                self.agents.receive(message, NOW)
            case JobStatus():
                known = self.statuses.get(message.job)
                if known is None or known.revision < message.revision:
                    assert known is None or known.state not in FINAL, "a final state moved"
                    self.statuses[message.job] = message

    def _act(self) -> None:
        for gang in self.scheduler.waiting():
            self.scheduler.place(gang, self.random.choice(("n1", "n2")))
        for pod in self.agents.live():
            if pod in self.agents.stopping:
                self.agents.end(pod, NOW, stopped())
            elif self.agents.statuses[pod].started_at is None:
                self.agents.start(pod, NOW)
            elif "lucky" in pod or self.random.random() < 0.8:
                self.agents.end(pod, NOW)
            else:
                self.agents.end(pod, NOW, failure(Behavior.TRANSIENT, Fault.PLATFORM, -1010))

    def _preempt(self) -> None:
        for gang in self.scheduler.placed():
            if self.random.random() < 0.2:
                preemptor = self.random.choice(("other-0", None))
                self.scheduler.preempt(gang, NOW, preemptor)

    def _acknowledgements(self) -> list[RevisionAcknowledged]:
        received: list[tuple[Kind, StateMessage]] = [
            *((Kind.JOB, w) for w in self.statuses.values()),
            *((Kind.GANG, w) for w in self.scheduler.gangs.values()),
            *((Kind.POD, w) for w in self.agents.requests.values()),
        ]
        side = {Kind.JOB: "rest", Kind.GANG: "scheduler", Kind.POD: "runtime-agent"}
        return [
            RevisionAcknowledged(
                sender=side[kind],
                receiver="launcher",
                journal=getattr(message, "journal", None),
                applied=(
                    AppliedRevision(
                        kind=kind.value,
                        subject=subject_of(kind, message),
                        revision=message.revision,
                        sender_revision=10_000,
                    ),
                ),
            )
            for kind, message in received
        ]


NOW = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
FINAL = {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}


async def test_jobs_end_right_whatever_is_lost_doubled_and_reordered(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    launcher = new_launcher(pool)
    world = World(launcher, seed)
    requests = [
        make_request(f"job{n}", {"ps": 1, "worker": n % 3 + 1}, gang=n % 2 == 0) for n in range(12)
    ]
    ringing = asyncio.create_task(launcher.timers.run())
    try:
        async with asyncio.timeout(WAIT_S * 3):
            await launcher.receive([*requests, *requests])
            for number in range(ROUNDS):
                await world.round(is_fair=number > 30)
                if await _is_at_rest(launcher):
                    break
                await asyncio.sleep(0.01)
    finally:
        ringing.cancel()
    assert {s.state for s in world.statuses.values()} == {JobState.SUCCEEDED}
    assert len(world.statuses) == len(requests)
    assert await _is_at_rest(launcher)
    assert not any(message.pods for message in world.scheduler.decisions.values())
    assert world.agents.forgotten == set(world.agents.statuses)


async def _is_at_rest(launcher: Any) -> bool:
    async with launcher.pool.acquire() as conn:
        return bool(
            await conn.fetchval(
                "SELECT NOT EXISTS (SELECT FROM subject WHERE is_open OR repeat_at IS NOT NULL)"
                " AND NOT EXISTS (SELECT FROM notice)"
                " AND NOT EXISTS (SELECT FROM job WHERE wake_at IS NOT NULL)"
            )
        )


async def test_a_retry_comes_after_a_restart(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    before = new_launcher(pool)
    world = World(before, 1)
    await before.receive([make_request("lucky")])
    world.scheduler.receive(next(w for w in await before.published() if isinstance(w, GangRequest)))
    await before.receive([world.scheduler.place("lucky-0", "n1")])
    world.agents.receive(
        next(w for w in await before.published() if isinstance(w, PodRequest)), NOW
    )
    reset = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1010)
    await before.receive([world.agents.end("lucky-0-worker-0-0", NOW, reset)])
    waiting = await before.job_with_tasks("lucky")
    assert waiting.job.phase is JobPhase.BACKOFF
    assert waiting.job.retry_at is not None

    after = new_launcher(pool)
    retried = await after.ring_until(
        lambda job_with_tasks: job_with_tasks.job.phase is JobPhase.WAITING, "lucky"
    )

    assert retried.job.attempt == 1
    assert retried.job.retries.model_dump() == {"user": 0, "platform": 1, "resource": 0}
    assert retried.job.accountable == 0
    assert "lucky-1" in {w.gang for w in await after.published() if isinstance(w, GangRequest)}


async def test_a_preempted_gang_is_requested_again_after_a_restart_in_between(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(pool)
    world, request = World(launcher, 1), make_request("lucky", {"worker": 2})
    await launcher.receive([request])
    world.scheduler.receive(
        next(w for w in await launcher.published() if isinstance(w, GangRequest))
    )
    await launcher.receive([world.scheduler.place("lucky-0", "n1")])
    for message in await launcher.published():
        if isinstance(message, PodRequest):
            world.agents.receive(message, NOW)

    launcher = new_launcher(pool)
    now = await pool.fetchval("SELECT clock_timestamp()")
    preempt = world.scheduler.preempt("lucky-0", now + timedelta(minutes=20), None)
    await launcher.receive([preempt, preempt])
    asked = {w.pod: w for w in await launcher.published() if isinstance(w, PodRequest)}
    assert len(asked) == 2
    for message in asked.values():
        assert message.stop is not None
        assert 0 < message.stop.grace_s <= 1200
        world.agents.receive(message, NOW)

    launcher = new_launcher(pool)
    ends = [world.agents.end(pod, NOW, stopped()) for pod in sorted(world.agents.stopping)]
    await launcher.receive([preempt, *ends, preempt])
    story = [w for w in await launcher.published() if isinstance(w, GangRequest | JobStatus)]
    assert [w.pods for w in story if isinstance(w, GangRequest)] == [()]
    ended = max(
        (w for w in story if isinstance(w, JobStatus)), key=lambda message: message.revision
    )
    assert ended.verdict is not None
    assert ended.verdict.rule == "drained"

    launcher = new_launcher(pool)
    await launcher.receive([preempt])
    await launcher.ring_until(
        lambda job_with_tasks: job_with_tasks.job.phase is JobPhase.WAITING, "lucky"
    )
    again = {w.gang: w for w in await launcher.published() if isinstance(w, GangRequest)}["lucky-1"]
    assert len(again.pods) == 2
    assert again.submitted_at == request.submitted_at
    retried = await launcher.job_with_tasks("lucky")
    assert (retried.job.accountable, retried.job.retries.user) == (0, 0)


async def test_an_attempt_beyond_its_time_limit_is_ended_after_a_restart(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    before = new_launcher(pool)
    world = World(before, 1)
    await before.receive([make_request("slow", time_limit_s=1)])
    world.scheduler.receive(next(w for w in await before.published() if isinstance(w, GangRequest)))
    await before.receive([world.scheduler.place("slow-0", "n1")])
    world.agents.receive(
        next(w for w in await before.published() if isinstance(w, PodRequest)), NOW
    )
    await before.receive([world.agents.start("slow-0-worker-0-0", NOW)])

    after = new_launcher(pool)
    late = await after.ring_until(
        lambda job_with_tasks: job_with_tasks.job.phase is JobPhase.COMPLETING, "slow"
    )

    assert late.job.outcome is not None
    assert late.job.outcome.verdict is not None
    assert late.job.outcome.verdict.code == -1004
    assert [w.action for w in await after.published() if isinstance(w, PodRequest)] == ["stop"]


async def test_a_job_that_cannot_be_decided_leaves_its_neighbours_their_timers(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(pool)
    await launcher.receive([make_request("bad"), make_request("good")])
    await launcher.published()
    aggregate: Aggregate[JobWithTasks] = launcher.aggregate
    decide = aggregate.decide

    def poisoned(
        job: str, job_with_tasks: JobWithTasks | None, given: Input, now: datetime
    ) -> Decision[JobWithTasks]:
        if job == "bad" and isinstance(given, Due):
            raise ValueError("poison")
        return decide(job, job_with_tasks, given, now)

    launcher.use(Aggregate(launcher.aggregate.of, store.load, poisoned, store.save))
    await launcher.ring_until(lambda job_with_tasks: job_with_tasks.job.quiet_at is None, "good")

    story = [w for w in await launcher.published() if isinstance(w, JobStatus)]
    assert [(w.job, w.state) for w in story] == [("good", JobState.WAITING)]
    assert (await launcher.job_with_tasks("bad")).job.quiet_at is not None


async def test_what_is_stored_is_read_back_as_it_was(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(pool)
    await launcher.receive([make_request("j", {"ps": 1, "worker": 2})])
    job_with_tasks = await launcher.job_with_tasks("j")
    full = Task(
        role="worker",
        index=1,
        phase=TaskPhase.STOPPING,
        attempt=3,
        accountable=1,
        streak=2,
        placement=Placement("n1", "10.0.0.1", "http://n1", "jrnl", (0, 3), {"http": (20000,)}),
        stop=StopCause.PREEMPTION,
        created_at=NOW,
        launched_at=NOW,
        completed_at=NOW,
        retry_at=NOW,
        exit_code=7,
        verdict=failure(Behavior.PERMANENT),
    )
    changed = replace(
        job_with_tasks,
        tasks={**job_with_tasks.tasks, full.key: full},
        changed=frozenset({full.key}),
    )
    async with transaction(pool) as conn:
        await store.save(conn, [changed])

    again = await launcher.job_with_tasks("j")

    assert again.job == job_with_tasks.job
    assert dict(again.tasks) == dict(changed.tasks)
    assert list(again.tasks) == [("ps", 0), ("worker", 0), ("worker", 1)]


async def test_a_program_that_writes_nul_bytes_fails_like_any_other(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    """PostgreSQL takes no NUL in JSON: the end would be a dead letter, and the job run for ever."""
    launcher = new_launcher(pool)
    world = World(launcher, 1)
    await launcher.receive([make_request("j")])
    world.scheduler.receive(
        next(w for w in await launcher.published() if isinstance(w, GangRequest))
    )
    await launcher.receive([world.scheduler.place("j-0", "n1")])
    world.agents.receive(
        next(w for w in await launcher.published() if isinstance(w, PodRequest)), NOW
    )
    story = failure(Behavior.PERMANENT).model_copy(update={"evidence": "Error: \0\0 bad"})
    await launcher.receive([world.agents.end("j-0-worker-0-0", NOW, story)])
    final = next(w for w in await launcher.published() if isinstance(w, JobStatus))
    assert final.state is JobState.FAILED
    assert final.verdict is not None
    assert final.verdict.evidence == "Error: \ufffd\ufffd bad"


@pytest.mark.parametrize("other", [{"journal": "another"}, {"node": "n2"}])
async def test_what_another_agent_tells_of_a_pod_is_acknowledged_to_it_and_changes_nothing(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest, other: dict[str, str]
) -> None:
    launcher = new_launcher(pool)
    world = World(launcher, 1)
    await launcher.receive([make_request("j", {"worker": 1})])
    world.scheduler.receive(
        next(w for w in await launcher.published() if isinstance(w, GangRequest))
    )
    await launcher.receive([world.scheduler.place("j-0", "n1")])
    world.agents.receive(
        next(w for w in await launcher.published() if isinstance(w, PodRequest)), NOW
    )
    await launcher.receive([world.agents.start("j-0-worker-0-0", NOW)])
    await launcher.published()
    before = await launcher.job_with_tasks("j")
    row = "SELECT seen, key, journal FROM subject WHERE kind = 'pod'"
    known = await pool.fetchrow(row)
    ended = world.agents.end("j-0-worker-0-0", NOW, failure(Behavior.TRANSIENT))
    repeated = ended.model_copy(update={"revision": 900, **other})
    await launcher.receive([repeated])
    assert await launcher.job_with_tasks("j") == before
    assert await pool.fetchrow(row) == known
    (answer,) = launcher.relay.outgoing
    story = RevisionAcknowledged.model_validate_json(answer.value)
    assert (answer.key, story.journal) == (repeated.node, repeated.journal)
    assert [(each.subject, each.revision) for each in story.applied] == [(repeated.pod, 900)]
    assert launcher.registry.get_sample_value("muster_stray_messages_total") == 1


async def test_only_the_changed_tasks_of_a_large_job_are_written(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(pool)
    world = World(launcher, 1)
    await launcher.receive([make_request("big", {"worker": 50})])
    world.scheduler.receive(
        next(w for w in await launcher.published() if isinstance(w, GangRequest))
    )
    await launcher.receive([world.scheduler.place("big-0", "n1")])
    for message in await launcher.published():
        if isinstance(message, PodRequest):
            world.agents.receive(message, NOW)
    before = await _row_versions(pool)
    await launcher.receive([world.agents.start("big-0-worker-7-0", NOW)])
    after = await _row_versions(pool)
    assert {key for key in after if after[key] != before[key]} == {("worker", 7)}


async def _row_versions(pool: Pool) -> Mapping[tuple[str, int], object]:
    async with pool.acquire() as conn:
        rows = await conn.fetch("SELECT role, index, xmin::text AS version FROM task")
    return {(row["role"], row["index"]): row["version"] for row in rows}


async def test_jobs_that_ended_long_ago_are_forgotten_and_open_ones_are_counted(
    pool: Pool, new_launcher: NewLauncher, make_request: MakeRequest
) -> None:
    launcher = new_launcher(pool)
    stop = {"execution": Execution.STOP, "revision": 2}
    await launcher.receive([make_request("old"), make_request("new"), make_request("open")])
    await launcher.receive([make_request(j).model_copy(update=stop) for j in ("old", "new")])
    async with pool.acquire() as conn:
        await conn.execute(
            "UPDATE job SET completed_at = completed_at - $1::interval WHERE id = 'old'",
            timedelta(days=launcher.settings.kept_days + 1),
        )

    await Housekeeping(pool, launcher.settings).clean()
    await Counting(pool, launcher.settings, launcher.metrics).count()

    async with pool.acquire() as conn:
        kept = {row["id"] for row in await conn.fetch("SELECT id FROM job")}
        tasks = {row["job"] for row in await conn.fetch("SELECT job FROM task")}
    assert kept == tasks == {"new", "open"}
    assert launcher.metrics.jobs_open.labels("waiting")._value.get() == 1


def test_the_launcher_receives_the_messages_of_all_its_peers() -> None:
    messages = [TOPICS[name] for name in RECEIVED_TOPICS if TOPICS[name].kind]
    senders = {sender for topic in messages for sender in topic.senders}
    assert senders == {Service.REST, Service.SCHEDULER, Service.RUNTIME_AGENT}
    assert {"revision-acknowledged", "pod-acknowledged"} < set(RECEIVED_TOPICS)
