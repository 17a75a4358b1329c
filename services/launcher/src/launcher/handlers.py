"""From records and timers to decisions: load, decide, save and publish, in one transaction."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from muster.aggregates import Aggregate, apply_due
from muster.bounded import ByUser, bounded
from muster.contracts.jobs import JobRequest
from muster.contracts.topics import Kind, Service, message_topics
from muster.db import Connection, Pool, is_transient
from muster.decisions import Decision, Input
from muster.exchange import REPEAT_LONGEST
from muster.ids import job_of
from muster.incarnation import Incarnations
from muster.relay import Relay

from launcher import store
from launcher.domain.decide import decide
from launcher.domain.model import JobWithTasks, Policy, wake_at
from launcher.domain.states import JOB
from launcher.metrics import LauncherMetrics
from launcher.settings import LauncherSettings

_log = structlog.get_logger()

RECEIVED_TOPICS = (
    *message_topics(Kind.JOB, Service.REST),
    *message_topics(Kind.GANG, Service.SCHEDULER),
    *message_topics(Kind.POD, Service.RUNTIME_AGENT),
    "revision-acknowledged",
    "pod-acknowledged",
)


def jobs(policy: Policy, incarnations: Incarnations) -> Aggregate[JobWithTasks]:
    """How jobs are kept and decided. ``incarnations`` know which numbers of attempts a restored
    database may have forgotten.
    """
    unused_number = incarnations.unused_number

    def decide_job(
        ident: str, job_with_tasks: JobWithTasks | None, given: Input, now: datetime
    ) -> Decision[JobWithTasks]:
        number = 0
        if job_with_tasks is not None:
            number = unused_number(job_with_tasks.job.submitted_at, is_known=True)
        elif isinstance(given, JobRequest):
            number = unused_number(given.submitted_at, is_known=False)
        return decide(ident, job_with_tasks, given, now=now, policy=policy, unused_number=number)

    return Aggregate(of=_job_in, load=store.load, decide=decide_job, save=store.save)


def _job_in(kind: Kind, subject: str) -> str:
    return subject if kind is Kind.JOB else job_of(subject)


LOCKED_PAUSE_S = 0.05


class Timers:
    """Looks for due jobs, at least every ``job_timer_poll_s``; any replica may take any job.

    What is due of a job waits while the other side has not answered a subject of its resync: an
    attempt could begin that exists already.
    """

    def __init__(
        self,
        relay: Relay,
        aggregate: Aggregate[JobWithTasks],
        settings: LauncherSettings,
        metrics: LauncherMetrics,
        after: Callable[[Mapping[str, JobWithTasks]], None],
    ) -> None:
        self._relay = relay
        self._aggregate = aggregate
        self._settings = settings
        self._metrics = metrics
        self._after = after
        self._sooner = asyncio.Event()
        self._planned: datetime | None = None

    def note(self, jobs_with_tasks: Mapping[str, JobWithTasks]) -> None:
        """These jobs have changed: one may be due before the next look."""
        times = [
            time
            for job_with_tasks in jobs_with_tasks.values()
            if (time := wake_at(job_with_tasks)) is not None
        ]
        if times and (self._planned is None or min(times) < self._planned):
            self._sooner.set()

    async def run(self) -> None:
        """Handle due timers until cancelled; retry transient failures."""
        while True:
            try:
                pause = await self._pass()
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("timers are retried", error=str(error) or type(error).__name__)
                pause = self._settings.job_timer_poll_s
            await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._sooner.wait()
        except TimeoutError:
            pass

    async def _pass(self) -> float:
        """Handle what is due; returns how long nothing is."""
        self._sooner.clear()
        try:
            rung = await self._ring(self._settings.job_timer_batch)
        except Exception as error:
            if is_transient(error):
                raise
            _log.exception("due jobs are handled one by one")
            rung = await self._ring_alone()
        now, next_at = rung.at, rung.next_at
        longest = timedelta(seconds=self._settings.job_timer_poll_s)
        self._planned = now + longest if next_at is None else min(next_at, now + longest)
        if next_at is not None:
            self._metrics.timer_lag.set(max(0.0, (now - next_at).total_seconds()))
        # Due jobs that were not taken are locked: another replica handles them.
        shortest = 0.0 if rung.jobs else LOCKED_PAUSE_S
        return max(shortest, (self._planned - now).total_seconds())

    async def _ring(self, limit: int) -> "_Rung":
        """Apply the timers of due jobs, in one transaction."""
        async with self._relay.transaction() as opened:
            conn = opened.conn
            held = await self._held(conn)
            due = await store.take_due(conn, opened.now, limit, held)
            changed = await apply_due(opened, Service.LAUNCHER, self._aggregate, due)
            next_at = await store.next_due(conn, held)
        if due:
            self._metrics.timers.inc(len(due))
            self._after(changed)
        return _Rung(len(due), opened.now, next_at)

    async def _held(self, conn: Connection) -> list[str]:
        return [_job_in(*key) for key in await self._relay.incarnations.unanswered(conn)]

    async def _ring_alone(self) -> "_Rung":
        """A job of the batch can't be decided: the others are, and this one is retried later."""
        for _ in range(self._settings.job_timer_batch):
            try:
                rung = await self._ring(1)
            except Exception as error:
                if is_transient(error):
                    raise
                await self._postpone(error)
            else:
                if not rung.jobs:
                    return rung
        return await self._ring(1)

    async def _postpone(self, error: Exception) -> None:
        async with self._relay.transaction() as opened:
            conn = opened.conn
            for ident in await store.take_due(conn, opened.now, 1, await self._held(conn)):
                _log.error("a timer can't be handled", job=ident, error=str(error))
                self._metrics.timers_failed.inc()
                later = timedelta(seconds=self._settings.timer_postpone_s)
                await store.postpone(conn, ident, opened.now + later)


@dataclass(frozen=True, slots=True)
class _Rung:
    """How many jobs' timers were handled, when, and when the next are due."""

    jobs: int
    at: datetime
    next_at: datetime | None


class Counting:
    """Counts open jobs, and their GPUs by user. Names of users are exported only to holders of the
    metrics' token: without one every process of this machine reads metrics.
    """

    def __init__(self, pool: Pool, settings: LauncherSettings, metrics: LauncherMetrics) -> None:
        self._pool = pool
        self._settings = settings
        self._metrics = metrics
        self._shows_users = bool(settings.metrics_token.get_secret_value())

    async def run(self) -> None:
        """Count until cancelled; retry transient failures."""
        while True:
            try:
                await self.count()
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("counting is retried", error=str(error) or type(error).__name__)
            await asyncio.sleep(self._settings.count_jobs_every_s)

    async def count(self) -> None:
        """One round."""
        gpus: ByUser = {}
        async with self._pool.acquire() as conn:
            open_jobs = await store.count_open(conn)
            if self._shows_users:
                gpus = bounded(await store.gpus_of_users(conn), self._settings.metrics_users)
        for phase in JOB_PHASES_OPEN:
            self._metrics.jobs_open.labels(phase.value).set(open_jobs.get(phase, 0))
        self._metrics.note_users(gpus)


class Housekeeping:
    """Deletes jobs that ended long ago, and messages to agents that are gone."""

    def __init__(self, pool: Pool, settings: LauncherSettings) -> None:
        self._pool = pool
        self._settings = settings

    async def run(self) -> None:
        """Clean until cancelled; retry transient failures."""
        while True:
            try:
                await self.clean()
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("cleaning is retried", error=str(error) or type(error).__name__)
            await asyncio.sleep(self._settings.clean_jobs_every_s)

    async def clean(self) -> None:
        """One round."""
        settings, gone, silent = self._settings, 0, 0
        repeats = settings.lost_messages_days * timedelta(days=1) // REPEAT_LONGEST
        async with self._pool.acquire() as conn:
            while found := await store.forget(conn, settings.kept_days, settings.clean_jobs):
                gone += found
            while found := await store.forget_unreceived(conn, repeats, settings.clean_jobs):
                silent += found
        if gone:
            _log.info("old jobs were forgotten", jobs=gone)
        if silent:
            _log.warning(
                "messages on pods were never acknowledged: their nodes are gone", pods=silent
            )


JOB_PHASES_OPEN = tuple(phase for phase in type(JOB.start) if phase not in JOB.final)
