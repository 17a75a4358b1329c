"""`muster usage`: what people see of what a job's tasks use."""

import json
from pathlib import Path
from typing import Any

from cli.commands.usage import size, trend
from rest_double import JOB, Rest, muster, on_a_terminal

NONE = dict.fromkeys(
    ("cpus", "memoryBytes", "gpuPercent", "gpuIdlePercent", "gpuMemoryBytes", "receivedBytesPerS",
     "sentBytesPerS", "readBytesPerS", "writtenBytesPerS")
)  # fmt: skip


def a_task(index: int, average: dict[str, Any], **series: list[float | None]) -> dict[str, Any]:
    whole = {name: [None, None] for name in NONE} | series
    return {
        "role": "worker-of-a-long-name", "index": index, "attempt": index, "node": "n1", "gpus": 1,
        "average": NONE | average, "series": whole | {"at": ["", ""]},
    }  # fmt: skip


def test_usage_is_a_table_that_fits_the_terminal(rest: Rest, tmp_path: Path) -> None:
    used = {"cpus": 1.52, "memoryBytes": 3 << 30, "gpuPercent": 51.0, "gpuMemoryBytes": 70 << 30}
    content = {
        "name": JOB, "attempt": 0, "stepS": 300.0,
        "since": "2026-01-31T13:00:00.000Z", "until": "2026-01-31T14:00:00.000Z",
        "tasks": [
            a_task(0, used | {"receivedBytesPerS": 1024.0}, gpuPercent=[100.0, 2.0]),
            a_task(1, {"cpus": 0.5}, cpus=[0.5, None]),
        ],
        "missing": [{"node": "n2", "reason": "It does not answer."}],
    }  # fmt: skip
    rest.answer(f"GET /api/v2/jobs/{JOB}/usage?points=12", content)
    ran = muster(rest, tmp_path, "usage", JOB)
    assert ran.code == 0
    title, headings, first, second = ran.out.splitlines()
    assert title == f"{JOB}, attempt 0, 01-31 13:00 to 01-31 14:00 (UTC):"
    assert headings.split()[:2] == ["TASK", "CPUS"]
    assert first.split()[1:] == ["0", "1.5", "3.0G", "51.0", "70G", "1.0K", "gpu", "█▁"]
    assert second.split()[1:] == ["1", "(1)", "0.5", "cpu", "█"]
    assert "n2" in ran.err
    shown = on_a_terminal(rest, tmp_path, "usage", JOB)
    assert max(len(line) for line in shown if "worker" in line) <= 80
    rest.answer(f"GET /api/v2/jobs/{JOB}/attempts/2/usage", content)
    ran = muster(rest, tmp_path, "usage", JOB, "--attempt", "2", "-o", "json")
    assert json.loads(ran.out) == content


def test_figures_are_short() -> None:
    sizes = [size(value) for value in (None, 0, 1023, 1024, 10240, 1.5 * 2**40, 2.0**60)]
    assert sizes == ["", "0", "1023", "1.0K", "10K", "1.5T", "1048576T"]
    assert trend([0, None, 50, 100, 140], 100.0) == "▁ ▅██"
    assert trend([]) == ""
    assert trend([0.0, 0.0]) == "▁▁"


def test_a_report_shows_the_most_hours_and_has_all_as_csv(rest: Rest, tmp_path: Path) -> None:
    hours = {"held": 100.04, "used": 60.0, "idle": 5.0, "unknown": 10.0, "refunded": 2.5}
    content = {
        "since": "2026-01-26T00:00:00.000Z", "until": "2026-02-02T00:00:00.000Z",
        "total": {"name": "all", **hours}, "virtualClusters": [{"name": "vision", **hours}],
        "users": [{"name": "ann", **hours}],
        "jobs": [{"name": f"ann~job-{number}", **hours} for number in range(12)],
        "missing": ["n7"],
    }  # fmt: skip
    rest.answer("GET /api/v2/reports/usage?week=2026-01-31", content)
    ran = muster(rest, tmp_path, "report", "--week", "2026-01-31")
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["vision", "100.0", "60.0", "5.0", "10.0", "2.5"] in lines
    assert ["ann~job-9", "100.0", "60.0", "5.0", "10.0", "2.5"] in lines
    assert "and 2 more" in ran.out
    assert "ann~job-11" not in ran.out
    assert "n7" in ran.err
    rest.answers["GET /api/v2/reports/usage?format=csv"] = (200, "text/csv", "by,name\nall,all\n")
    assert muster(rest, tmp_path, "report", "--csv").out == "by,name\nall,all\n"
