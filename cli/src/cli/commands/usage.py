"""The command about what the tasks of a job use."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from cli.client import job_path
from cli.commands.session import JobName, Output, client, full_name
from cli.output import Format, milliseconds, print_json, print_line, print_note, print_table, when

TREND = 12
BARS = "▁▂▃▄▅▆▇█"
BINARY = 1024
UNITS = ("", "K", "M", "G", "T")


def usage(
    name: JobName,
    *,
    attempt: Annotated[int | None, Parameter(help="An earlier attempt of the job.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """What a job's tasks use, and have used: on average, and how it went."""
    job = full_name(name)
    path = "/usage" if attempt is None else f"/attempts/{attempt}/usage"
    points = TREND if output is Format.TABLE else None
    content = client().get(job_path(job, path), {"points": points}).json()
    if output is Format.JSON:
        print_json(content)
        return
    tasks = content["tasks"]
    if tasks:
        begin, end = (when(milliseconds(content[name]))[5:-3] for name in ("since", "until"))
        print_line(f"{job}, attempt {content['attempt']}, {begin} to {end} (UTC):")
        print_table(
            ("TASK", "CPUS", "MEMORY", "GPU %", "GPU MEM", "NET/S", "DISK/S", "TREND"),
            [_row(task) for task in tasks],
        )
    elif not content["missing"]:
        print_line(f"{job}: nothing is known; tasks are looked at every few seconds, and figures")
        print_line("are kept for a week.")
    for each in content["missing"]:
        print_note(f"without node {each['node']}: {each['reason']}")


def _row(task: dict[str, object]) -> tuple[object, ...]:
    average, series = task["average"], task["series"]
    assert isinstance(average, dict)
    assert isinstance(series, dict)
    retry = f" ({task['attempt']})" if task["attempt"] else ""
    of_gpu = average["gpuPercent"] is not None
    return (
        f"{task['role']} {task['index']}{retry}",
        _short(average["cpus"]),
        size(average["memoryBytes"]),
        _short(average["gpuPercent"]),
        size(average["gpuMemoryBytes"]),
        size(_both(average["receivedBytesPerS"], average["sentBytesPerS"])),
        size(_both(average["readBytesPerS"], average["writtenBytesPerS"])),
        ("gpu " + trend(series["gpuPercent"], 100.0))
        if of_gpu
        else ("cpu " + trend(series["cpus"])),
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _both(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)


def size(value: float | None) -> str:
    """Bytes with at most three digits: 1.5G."""
    if value is None:
        return ""
    power = 0
    while value >= BINARY and power < len(UNITS) - 1:
        value, power = value / BINARY, power + 1
    digits = 1 if power and value < 10 else 0
    return f"{value:.{digits}f}{UNITS[power]}"


def trend(values: Sequence[float | None], full: float | None = None) -> str:
    """A bar for each value, of the full height at ``full``, else at the highest; a blank where
    nothing is known.
    """
    top = full or max((value for value in values if value is not None), default=0.0) or 1.0
    last = len(BARS) - 1
    return "".join(
        " " if value is None else BARS[min(last, round(value / top * last))] for value in values
    )
