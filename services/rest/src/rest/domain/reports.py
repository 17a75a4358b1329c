"""The usage report of a week: GPU-hours that jobs held, by virtual cluster, user and job.

All numbers are of GPUs that jobs held in the week: ``used``, with a kernel running; ``idle``, at
looks that found 0 percent; ``unknown``, of which no agent told. ``refunded`` is what attempts had
held that ended in the week by the platform's fault or for a drain; it may reach back before it.
"""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from html import escape
from typing import Any

from muster.contracts.reports import FIGURES, decimals

from rest.domain.times import iso

HOUR_S = 3600
WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job held in the week, and what agents know of it; all in GPU seconds."""

    user: str
    name: str
    virtual_cluster: str
    held_s: float
    refunded_s: float = 0.0
    known_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """GPU-hours under one name."""

    name: str
    held: float
    used: float
    idle: float
    unknown: float
    refunded: float

    def shown(self) -> dict[str, Any]:
        """Rounded, as answers have it."""
        return {"name": self.name} | {each: round(getattr(self, each), 3) for each in FIGURES}


@dataclass(frozen=True, slots=True)
class Report:
    """All lines, the most GPU-hours first. ``missing``: nodes whose agents did not tell."""

    since: datetime
    until: datetime
    total: Line
    virtual_clusters: Sequence[Line]
    users: Sequence[Line]
    jobs: Sequence[Line]
    missing: Sequence[str] = ()


def week_of(at: datetime) -> date:
    """The Monday of the week, in UTC."""
    day = at.astimezone(UTC).date()
    return day - timedelta(days=day.weekday())


def begin_of(week: date) -> datetime:
    """When a week begins."""
    return datetime.combine(week, time(0), UTC)


def report(
    jobs: Iterable[JobUse], since: datetime, until: datetime, missing: Sequence[str] = ()
) -> Report:
    """The figures of jobs, summed up in three ways."""
    used = [_credible(job) for job in jobs]
    return Report(
        since,
        until,
        _line("all", used),
        _lines(used, lambda job: job.virtual_cluster),
        _lines(used, lambda job: job.user),
        _lines(used, lambda job: f"{job.user}~{job.name}"),
        missing,
    )


def _credible(job: JobUse) -> JobUse:
    """Agents look every few seconds, so they may tell of a little more than was held."""
    if job.known_s <= job.held_s or not job.known_s:
        return job
    share = job.held_s / job.known_s
    busy_s, idle_s = job.busy_s * share, job.idle_s * share
    return replace(job, known_s=job.held_s, busy_s=busy_s, idle_s=idle_s)


def _lines(jobs: Iterable[JobUse], name_of: Callable[[JobUse], str]) -> list[Line]:
    by_name: dict[str, list[JobUse]] = {}
    for job in jobs:
        by_name.setdefault(name_of(job), []).append(job)
    lines = [_line(name, same) for name, same in by_name.items()]
    return sorted(lines, key=lambda line: (-line.held, line.name))


def _line(name: str, jobs: Sequence[JobUse]) -> Line:
    held, known = sum(job.held_s for job in jobs), sum(job.known_s for job in jobs)
    return Line(
        name,
        held / HOUR_S,
        sum(job.busy_s for job in jobs) / HOUR_S,
        sum(job.idle_s for job in jobs) / HOUR_S,
        max(0.0, held - known) / HOUR_S,
        sum(job.refunded_s for job in jobs) / HOUR_S,
    )


def shortened(made: Report, most: int) -> Report:
    """With at most so many users and jobs, those that held the most. The totals stay."""
    return replace(made, users=made.users[:most], jobs=made.jobs[:most])


def to_json(made: Report) -> dict[str, Any]:
    """The report as answers have it."""
    return {
        "since": iso(made.since),
        "until": iso(made.until),
        "total": made.total.shown(),
        "virtualClusters": [line.shown() for line in made.virtual_clusters],
        "users": [line.shown() for line in made.users],
        "jobs": [line.shown() for line in made.jobs],
        "missing": list(made.missing),
    }


def _parts(made: Report) -> tuple[tuple[str, Sequence[Line]], ...]:
    return (
        ("virtual cluster", made.virtual_clusters),
        ("user", made.users),
        ("job", made.jobs),
    )


def to_csv(made: Report) -> str:
    """A line for each virtual cluster, user, job and missing node, and one for all."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(("by", "name", *(f"{each}_gpu_hours" for each in FIGURES)))
    for by, lines in (("all", [made.total]), *_parts(made)):
        for line in lines:
            writer.writerow((by, *line.shown().values()))
    writer.writerows(
        ("node that did not tell", node, *[""] * len(FIGURES)) for node in made.missing
    )
    return out.getvalue()


def to_html(made: Report) -> str:
    """A page without scripts."""
    days = f"{made.since:%Y-%m-%d} to {made.until:%Y-%m-%d}"
    tables = "".join(
        f"<h2>By {by}</h2>{_table(by, lines, made.total)}" for by, lines in _parts(made)
    )
    missing = ", ".join(made.missing)
    note = f"<p>Nodes that did not tell: {escape(missing)}.</p>" if missing else ""
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>GPU-hours {days}</title><style>'
        "body{font-family:sans-serif;margin:2em}td,th{padding:2px 12px;text-align:right}"
        "td:first-child,th:first-child{text-align:left}tfoot{font-weight:bold}</style></head>"
        f"<body><h1>GPU-hours, {days}</h1>{note}{tables}</body></html>"
    )


def _table(by: str, lines: Sequence[Line], total: Line) -> str:
    head = "".join(f"<th>{each}</th>" for each in (by, *FIGURES))
    digits = decimals(total.held)
    body = "".join(f"<tr>{_cells(line, digits)}</tr>" for line in lines)
    foot = f"<tfoot><tr>{_cells(total, digits)}</tr></tfoot>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table>"


def _cells(line: Line, digits: int) -> str:
    figures = (f"<td>{getattr(line, each):.{digits}f}</td>" for each in FIGURES)
    return f"<td>{escape(line.name)}</td>{''.join(figures)}"
