"""What-if comparisons of a change on the record of the last days, one at a time, each in a process
of its own.

The same question during a comparison, or some minutes after it, gets the same answer.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from muster.errors import Transient

from scheduler.domain.moments import DAY_S
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings

_log = structlog.get_logger()

Content = Mapping[str, object]

KEPT = 8
"""Answers, the newest."""

OVERTIME = 1.25
"""The factor on the comparison's time limit after which its process is ended: the simulation that
is under way finishes first.
"""

ERROR_CHARACTERS = 500
"""The most characters of the process's error output, from its end."""


@dataclass(frozen=True, slots=True)
class Question:
    """``cluster``: the present one, as text; ``before``, ``after``: the virtual clusters and policy
    in force, and the proposed ones. ``at``: now, in seconds since 1970.
    """

    cluster: str
    before: Content
    after: Content
    at: float

    @property
    def key(self) -> str:
        """The answer depends on this and on the record."""
        return json.dumps([self.before, self.after], sort_keys=True)


@dataclass(slots=True)
class Comparison:
    """A question with its answer; ``answered``: when, on the monotonic clock."""

    question: Question
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    answered: float | None = None
    answer: dict[str, Any] = field(default_factory=lambda: {"state": "running"})


class Comparisons:
    """Answers questions while `run` does."""

    def __init__(self, settings: SchedulerSettings, metrics: SchedulerMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._known: dict[str, Comparison] = {}
        self._wanted: asyncio.Queue[Comparison] = asyncio.Queue(maxsize=1)

    async def ask(self, question: Question) -> dict[str, Any]:
        """``state``: ``done`` with a ``report``, ``none`` or ``failed`` with a ``reason``, or
        ``running`` if the comparison takes longer than a request may. Raises Transient during
        another comparison.
        """
        if question.before == question.after:
            return {"state": "none", "reason": "The configuration is in force already."}
        found = self._known.get(question.key)
        if found is None or self._is_old(found):
            found = self._begin(question)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.what_if_answer_s):
                await found.is_done.wait()
        return found.answer

    def _is_old(self, found: Comparison) -> bool:
        """A failure is not kept: the next try may succeed."""
        if found.answered is None:
            return False
        age_s = time.monotonic() - found.answered
        return age_s > self._settings.what_if_kept_s or found.answer["state"] == "failed"

    def _begin(self, question: Question) -> Comparison:
        if any(each.answered is None for each in self._known.values()):
            self._metrics.what_ifs.labels("busy").inc()
            raise Transient("Another change is being compared; try again later.")
        wanted = Comparison(question)
        self._known.pop(question.key, None)
        self._known[question.key] = wanted
        for key in list(self._known)[:-KEPT]:
            del self._known[key]
        self._wanted.put_nowait(wanted)
        return wanted

    async def run(self) -> None:
        """Answer, until cancelled."""
        while True:
            wanted = await self._wanted.get()
            began = time.monotonic()
            try:
                wanted.answer = await self._answer(wanted.question)
            except OSError as error:  # no process could be started
                wanted.answer = _failed(str(error))
            finally:
                wanted.answered = time.monotonic()
                wanted.is_done.set()
            self._count(wanted.answer, wanted.answered - began)

    def _count(self, answer: Mapping[str, Any], took_s: float) -> None:
        state = answer["state"]
        is_partial = state == "done" and answer["report"]["isPartial"]
        self._metrics.what_ifs.labels("partial" if is_partial else state).inc()
        self._metrics.what_if_seconds.observe(took_s)

    async def _answer(self, question: Question) -> dict[str, Any]:
        task = json.dumps(self._task(question)).encode()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scheduler.what_if"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self._settings.what_if_s * OVERTIME):
                found, errors = await process.communicate(task)
        except TimeoutError:
            return _failed(f"It took longer than {self._settings.what_if_s * OVERTIME:g} s.")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            _log.error(
                "a comparison failed", stderr=errors.decode(errors="replace")[-ERROR_CHARACTERS:]
            )
            return _failed("The process that compared it has ended; see the Scheduler's log.")
        answer: dict[str, Any] = json.loads(found)
        match answer:
            case {"report": report}:
                return {"state": "done", "report": report}
            case {"none": reason}:
                return {"state": "none", "reason": reason}
            case _:
                return _failed(str(answer.get("failed")))

    def _task(self, question: Question) -> dict[str, object]:
        settings = self._settings
        return {
            "database_url": settings.database_url.get_secret_value(),
            "statement_timeout_s": settings.statement_timeout_s,
            "cluster": question.cluster,
            "change": question.after,
            "since": max(question.at - settings.what_if_days * DAY_S, 0.0),
            "until": question.at,
            "seconds": settings.what_if_s,
            "memory_mb": settings.what_if_mb,
        }


def _failed(reason: str) -> dict[str, Any]:
    return {"state": "failed", "reason": reason}
