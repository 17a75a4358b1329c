"""The usage report of a week becomes one event, for whoever subscribed to it."""

from collections.abc import Sequence

from muster.contracts.reports import FIGURES, UsageLine, UsageReported, decimals
from muster.contracts.subscriptions import AlertEvent
from muster.counted import counted

from alerting.domain.events import SEVERITIES, Event

NAME, FIGURE = 32, 10
"""Characters of a column."""


def event_of(report: UsageReported) -> Event:
    """The message that people read; webhooks get the figures as they are."""
    week, total = report.week, report.total
    share = f", {total.used / total.held:.0%} used" if total.held > total.unknown else ""
    digits = decimals(total.held)
    lines = [
        "GPU-hours that jobs held, and what of them was used (a kernel ran), idle (at 0 percent),"
        " of unknown use, or refunded (lost by the platform's fault or to a drain).",
        "",
    ]
    for heading, found in (
        ("VIRTUAL CLUSTER", report.virtual_clusters),
        ("USER", report.users),
        ("JOB", report.jobs),
    ):
        lines += [*_table(heading, found, digits), ""]
    lines += _table("ALL", [total], digits)
    if report.missing:
        lines += ["", f"{counted(report.missing, 'node')} did not tell what was used."]
    lines += ["", f"Everything: muster report --week {week} --csv"]
    return Event(
        key=f"{AlertEvent.USAGE_REPORTED}/{week}",
        name=AlertEvent.USAGE_REPORTED,
        at=report.at,
        severity=SEVERITIES[AlertEvent.USAGE_REPORTED],
        title=f"GPU-hours, week of {week}: {total.held:.0f} held{share}",
        text="\n".join(lines),
        thread="usage-report",
        data=report.model_dump(mode="json", by_alias=True),
    )


def _table(heading: str, lines: Sequence[UsageLine], digits: int) -> list[str]:
    head = f"  {heading:<{NAME}}" + "".join(f"{column:>{FIGURE}}" for column in FIGURES)
    return [head, *(_row(line, digits) for line in lines)]


def _row(line: UsageLine, digits: int) -> str:
    name = line.name if len(line.name) <= NAME else line.name[: NAME - 1] + "…"
    figures = (f"{getattr(line, column):>{FIGURE}.{digits}f}" for column in FIGURES)
    return f"  {name:<{NAME}}" + "".join(figures)
