"""Submissions, many in one transaction: what waits while one is written is written by the next.

Each caller gets their own answer once it is safe: accepted, name taken, key used for another body.
"""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog
from muster.contracts.jobs import Execution, JobRequest
from muster.contracts.secrets import JobSecrets
from muster.contracts.topics import Kind, Service
from muster.db import Transaction, is_transient
from muster.decisions import Publish
from muster.errors import MusterError, Problem, Rejected, Transient
from muster.ids import new_id
from muster.protocol import ParsedJob
from muster.relay import Relay
from muster.sealing import seal
from muster.subjects import Subjects

from rest.handlers.updates import SUBMITTED
from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store import answers
from rest.store.answers import Key, Known
from rest.store.jobs import NewJob, find_written, insert_jobs, warnings_json

_log = structlog.get_logger()

RETRY_S = 0.1
STOPPING = "The server is stopping; send the job again."
NO_KEY = (
    "can't be kept here: an operator must set MUSTER_SECRETS_PUBLIC_KEY of REST and"
    " MUSTER_SECRETS_KEYS of the Launcher, a pair from `python -m muster.make_secrets_key`"
)


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked job and who wants it. ``warnings`` are beside those of its file."""

    username: str
    address: str
    job: ParsedJob
    key: str | None
    traceparent: str | None
    warnings: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Waiting:
    """A submission and the answer that it waits for."""

    submission: Submission
    answer: "asyncio.Future[str]"
    id: str
    key: Key | None


def new_job_id() -> str:
    """An id that no job has."""
    return new_id(time.time_ns() // 1_000_000, secrets.randbits(80))


def key_of(username: str, key: str | None, job: ParsedJob) -> Key | None:
    """The key that a submission has, for this file. A file with other secrets is the same."""
    if key is None:
        return None
    return Key(username, key, hashlib.sha256(job.text.encode()).digest())


def check_secrets(job: ParsedJob, public_key: str) -> None:
    """Raises Rejected where the job has secrets and there is no key to seal them to."""
    if job.secrets is not None and not public_key:
        path = "secrets" if job.secrets.values else "prerequisites"
        problem = Problem(path, NO_KEY)
        raise Rejected("NotConfiguredError", f"The job's secrets {NO_KEY}.", (problem,))


def _sealed(job: ParsedJob, ident: str, public_key: str) -> ParsedJob:
    """The job with its secrets as only the Launcher reads them, and only as those of this job."""
    if job.secrets is None:
        return job
    secrets_of_job = JobSecrets(job=ident, **dict(job.secrets))
    text = secrets_of_job.model_dump_json(exclude_defaults=True)
    spec = job.spec.model_copy(update={"secrets": seal(text, public_key)})
    return replace(job, spec=spec, secrets=None)


class Submissions:
    """Takes submissions from requests and writes them in batches."""

    def __init__(self, relay: Relay, settings: RestSettings, metrics: RestMetrics) -> None:
        self._relay = relay
        self._settings = settings
        self._metrics = metrics
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(settings.submit_queue)
        self._bytes = 0
        self._has_ended = False

    async def submit(self, submission: Submission) -> str:
        """Write a job; returns the answer as JSON.

        Raises Rejected (name taken; key used for another body) or Transient (too busy, no
        database).
        """
        size = len(submission.job.text)
        if self._has_ended:
            raise Transient(STOPPING)
        if self._queue.full() or self._bytes + size > self._settings.submit_queue_bytes:
            self._metrics.submissions.labels("busy").inc()
            raise Transient("Too many jobs are being submitted; try again in a moment.")
        answer_comes = asyncio.get_running_loop().create_future()
        ident = new_job_id()
        job = _sealed(submission.job, ident, self._settings.secrets_public_key)
        waiting = _Waiting(
            replace(submission, job=job),
            answer_comes,
            ident,
            key_of(submission.username, submission.key, submission.job),
        )
        self._queue.put_nowait(waiting)
        self._bytes += size
        try:
            async with asyncio.timeout(self._settings.submit_timeout_s):
                answer = await waiting.answer
        except TimeoutError:
            raise Transient("The database takes no job now; try again in a moment.") from None
        except MusterError:
            self._metrics.submissions.labels("refused").inc()
            raise
        finally:
            self._bytes -= size
        self._metrics.submissions.labels("accepted").inc()
        return answer

    async def run(self) -> None:
        """Write what waits, until cancelled."""
        batch: list[_Waiting] = []
        try:
            while True:
                batch = await self._next_batch()
                await self._write_until_done(batch)
        finally:
            self._has_ended = True
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            for waiting in batch:
                _fail(waiting, Transient(STOPPING))

    async def _next_batch(self) -> list[_Waiting]:
        """All that wait, but a key only once: its second submission sees the first one's answer."""
        batch = [await self._queue.get()]
        keys = {batch[0].key}
        size = len(batch[0].submission.job.text)
        while (
            len(batch) < self._settings.submit_batch
            and size < self._settings.submit_batch_bytes
            and not self._queue.empty()
        ):
            waiting = self._queue.get_nowait()
            key = waiting.key
            if key is not None and any(k and k.key == key.key for k in keys):
                self._queue.put_nowait(waiting)
                break
            keys.add(key)
            size += len(waiting.submission.job.text)
            batch.append(waiting)
        return batch

    async def _write_until_done(self, batch: Sequence[_Waiting]) -> None:
        until = time.monotonic() + self._settings.submit_timeout_s
        is_again = False
        while True:
            wanted = [waiting for waiting in batch if not waiting.answer.done()]
            if not wanted:
                return
            try:
                self._metrics.submit_batch.observe(len(wanted))
                await self._write(wanted, is_again=is_again)
            except Exception as error:
                passes = is_transient(error)
                if passes and time.monotonic() < until:
                    is_again = True
                    await asyncio.sleep(RETRY_S)
                    continue
                _log.exception("submissions can't be written", jobs=len(wanted))
                if passes or len(wanted) == 1:
                    for waiting in wanted:
                        _fail(waiting, Transient() if passes else error)
                    return
                for waiting in wanted:
                    await self._write_until_done([waiting])
            return

    async def _write(self, batch: Sequence[_Waiting], *, is_again: bool) -> None:
        """One transaction; the callers are answered after its commit.

        ``is_again``: the connection may have been lost after a commit, so what is there already
        was written by the try before.
        """
        async with self._relay.transaction() as opened:
            conn = opened.conn
            there = await find_written(conn, [w.id for w in batch]) if is_again else frozenset()
            unwritten = [w for w in batch if w.id not in there]
            known = await answers.claim(conn, [key for w in unwritten if (key := w.key)])
            new = [w for w in unwritten if _known(w, known) is None]
            written = await write_jobs(opened, [(w.id, w.submission) for w in new])
            accepted = [w for w in new if w.id in written]
            done = {w.id: _answer(w.submission) for w in accepted}
            await answers.keep(conn, [(k, w.id, done[w.id]) for w in accepted if (k := w.key)])
            await answers.release(conn, [k for w in new if w.id not in written and (k := w.key)])
        done |= {w.id: _answer(w.submission) for w in batch if w.id in there}
        for waiting in batch:
            before = _known(waiting, known) if waiting.id not in there else None
            if before is not None:
                _answer_again(waiting, before)
            elif waiting.id in done:
                _resolve(waiting, done[waiting.id])
            else:
                _fail(waiting, _taken(waiting.submission))


async def write_jobs(
    opened: Transaction, jobs: Sequence[tuple[str, Submission]]
) -> dict[str, datetime]:
    """Write jobs by id, and publish them. Returns those whose name was free, with their time."""
    written = await insert_jobs(opened.conn, [_new_job(ident, it) for ident, it in jobs])
    accepted = [(ident, it) for ident, it in jobs if ident in written]
    if not accepted:
        return written
    subjects = Subjects(opened, Service.REST)
    await subjects.load(((Kind.JOB, ident) for ident, _ in accepted), are_new=True)
    for ident, submission in accepted:
        message = JobRequest(
            job=ident,
            name=submission.job.name,
            user=submission.username,
            execution=Execution.START,
            submitted_at=written[ident],
            spec=submission.job.spec,
        )
        publish = Publish(Kind.JOB, ident, SUBMITTED, ident, message)
        subjects.publish(publish, submission.traceparent)
    await subjects.save()
    return written


def _known(waiting: _Waiting, known: dict[tuple[str, str], Known]) -> Known | None:
    key = waiting.key
    return None if key is None else known.get((key.username, key.key))


def _new_job(ident: str, submission: Submission) -> NewJob:
    job = submission.job
    return NewJob(
        id=ident,
        username=submission.username,
        name=job.name,
        virtual_cluster=job.spec.virtual_cluster,
        priority_class=job.priority_class,
        total_tasks=job.tasks,
        total_gpus=job.gpus,
        total_task_roles=len(job.spec.task_roles),
        config=job.text,
        spec=job.spec.model_dump_json(exclude_none=True),
        warnings=warnings_json(_warnings_of(submission)),
        address=submission.address,
    )


def _warnings_of(submission: Submission) -> list[dict[str, object]]:
    """All warnings about a job, as answers show them."""
    return [problem_json(each) for each in (*submission.job.warnings, *submission.warnings)]


def problem_json(problem: Problem) -> dict[str, object]:
    """A problem as answers show it."""
    shown: dict[str, object] = {"path": problem.path, "message": problem.message}
    if problem.line is not None:
        shown |= {"line": problem.line, "column": problem.column}
    return shown


def _answer(submission: Submission) -> str:
    name = f"{submission.username}~{submission.job.name}"
    content = {
        "message": f"The job {name} is accepted.",
        "name": name,
        "warnings": _warnings_of(submission),
    }
    return json.dumps(content)


def _taken(submission: Submission) -> Rejected:
    name = f"{submission.username}~{submission.job.name}"
    message = f"There is a job {name} already; choose another name."
    problem = Problem("name", "is taken; choose another name")
    return Rejected("ConflictJobError", message, (problem,))


def repeated_answer(key: Key, known: Known) -> str:
    """The same answer again. Raises Rejected where the key was used for another file."""
    if key.body_digest == known.body_digest:
        return known.answer
    message = (
        f"The Idempotency-Key {key.key!r} was used for another job file; use a new one for a new"
        " job."
    )
    problem = Problem("Idempotency-Key", "was used for another job file")
    raise Rejected("IdempotencyKeyError", message, (problem,))


def _answer_again(waiting: _Waiting, known: Known) -> None:
    assert waiting.key is not None
    try:
        _resolve(waiting, repeated_answer(waiting.key, known))
    except Rejected as error:
        _fail(waiting, error)


def _resolve(waiting: _Waiting, answer: str) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(answer)


def _fail(waiting: _Waiting, error: BaseException) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
