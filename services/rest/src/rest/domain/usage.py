"""What a job's tasks used over an attempt, from the sums that agents keep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from muster.contracts.jobs import JobStatus
from muster.ids import PodName, parse_pod

from rest.domain.times import iso

KEPT = timedelta(days=8)
"""How long agents keep figures."""
LOOK_S = 4.0
"""How often agents look by default; a shorter step has nothing to show."""
SKEW = timedelta(minutes=1)
"""Between the clocks of the Launcher and of agents."""
VALUES = 20_000
"""The most points of one figure in an answer, of all tasks together."""

Sums = Mapping[str, float | None]
Columns = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Span:
    """The time of an answer, in steps."""

    since: datetime
    until: datetime
    step_s: float

    def query(self) -> dict[str, float]:
        """As agents are asked, whose clocks differ a little."""
        return {
            "since": (self.since - SKEW).timestamp(),
            "until": (self.until + SKEW).timestamp(),
            "step": self.step_s,
        }


def span_of(status: JobStatus, points: int, now: datetime) -> Span:
    """The attempt's life as far as agents may know it."""
    tasks = sum(len(role.tasks) for role in status.task_roles)
    begun = status.attempt_launched_at or status.attempt_created_at or status.submitted_at
    since = max(begun, now - KEPT)
    until = max(status.attempt_completed_at or now, since)
    most = max(1, min(points, VALUES // max(1, tasks)))
    asked_s = (until - since + 2 * SKEW).total_seconds()
    return Span(since, until, max(LOOK_S, asked_s / most))


def agents_of(status: JobStatus) -> dict[str, str | None]:
    """The nodes of the attempt's tasks, with the addresses that the Launcher knew."""
    tasks = (task for role in status.task_roles for task in role.tasks)
    return {task.node: task.log_url for task in tasks if task.node is not None}


def tasks_of(
    status: JobStatus, answers: Mapping[str, Mapping[str, Columns]]
) -> list[dict[str, Any]]:
    """The figures of the attempt's tasks, in the order of the job file. ``answers``: by node and
    pod. Those of earlier attempts of a task are there while its node is one of the job's.
    """
    roles = {role.name: number for number, role in enumerate(status.task_roles)}
    gpus = {
        task.pod: len(task.gpus) for role in status.task_roles for task in role.tasks if task.pod
    }
    found = []
    for node, pods in answers.items():
        for pod, columns in pods.items():
            name = _name(pod)
            if name is None or name.job_attempt != status.attempt or name.role not in roles:
                continue
            order = (roles[name.role], name.index, name.task_attempt)
            shown = {
                "role": name.role,
                "index": name.index,
                "attempt": name.task_attempt,
                "node": node,
                "gpus": gpus.get(pod),
                "average": figures(*_summed(columns)),
                "series": _series(columns),
            }
            found.append((order, shown))
    return [shown for _, shown in sorted(found, key=lambda each: each[0])]


def figures(sums: Sums, spans: Sums | None = None) -> dict[str, float | None]:
    """What is used on average; None: not known. ``spans``: the seconds in which each was known,
    where these are not all.
    """
    known_s = sums.get("gpu_known_s")

    def per_second(name: str) -> float | None:
        value, span_s = sums.get(name), (spans or {}).get(name, sums.get("span_s"))
        return None if value is None or not span_s else value / span_s

    def percent(name: str) -> float | None:
        value = sums.get(name)
        return None if value is None or not known_s else 100 * value / known_s

    return {
        "cpus": _rounded(per_second("cpu_s"), 3),
        "memoryBytes": _rounded(per_second("memory")),
        "gpuPercent": _rounded(percent("gpu_busy_s"), 1),
        "gpuIdlePercent": _rounded(percent("gpu_idle_s"), 1),
        "gpuMemoryBytes": _rounded(per_second("gpu_memory")),
        "receivedBytesPerS": _rounded(per_second("received")),
        "sentBytesPerS": _rounded(per_second("sent")),
        "readBytesPerS": _rounded(per_second("read")),
        "writtenBytesPerS": _rounded(per_second("written")),
    }


def _rounded(value: float | None, digits: int = 0) -> float | None:
    return None if value is None else round(value, digits or None)


def _summed(columns: Columns) -> tuple[Sums, Sums]:
    """The sums of what is known, and the seconds in which it was."""
    sums, spans = dict[str, float | None](), dict[str, float | None]()
    for name, column in columns.items():
        pairs = zip(column, columns.get("span_s", ()), strict=False)
        known = [(each, span_s or 0.0) for each, span_s in pairs if each is not None]
        sums[name] = sum(each for each, _ in known) if known else None
        spans[name] = sum(span_s for _, span_s in known)
    return sums, spans


def _series(columns: Columns) -> dict[str, list[Any]]:
    """One list for each figure, in order of time; ``at`` is the end of a step."""
    times = [iso(datetime.fromtimestamp(at_s or 0, UTC)) for at_s in columns.get("at_s", ())]
    steps = [
        figures({name: column[number] for name, column in columns.items()})
        for number in range(len(times))
    ]
    names = figures({})
    return {"at": times, **{name: [step[name] for step in steps] for name in names}}


def _name(pod: str) -> PodName | None:
    try:
        return parse_pod(pod)
    except ValueError:
        return None
