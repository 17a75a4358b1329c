"""`muster logs`: whole logs, earlier ones, and logs that are followed to their job's end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rest_double import AWAY, JOB, LOG, Rest, job_status, muster


def _with_log(rest: Rest) -> None:
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("SUCCEEDED"))
    rest.answer(f"GET {LOG}", {"locations": [{"name": "all", "uri": f"{LOG}/all"}]})


def test_a_log_is_printed_as_it_is(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    rest.answers[f"GET {LOG}/all"] = (200, "text/plain", "first\nsecond\n")
    assert muster(rest, tmp_path, "logs", JOB).out == "first\nsecond\n"


@pytest.mark.parametrize("follow", [(), ("-f",)])
@pytest.mark.parametrize("stream", ["all", "stdout"])
def test_a_log_is_printed_byte_for_byte(
    rest: Rest, tmp_path: Path, stream: str, follow: tuple[str, ...]
) -> None:
    _with_log(rest)
    locations = [{"name": each, "uri": f"{LOG}/{each}"} for each in ("all", "stdout")]
    rest.answer(f"GET {LOG}", {"locations": locations})
    text = "Latin-1: caf\udce9, no UTF-8: \udcff\udc80, UTF-8: \u20ac"
    line = f"2026-01-01T00:00:00Z stdout F {text}" if stream == "all" else text
    rest.answers[f"GET {LOG}/{stream}"] = (200, "text/plain", f"{line}\n")
    events = f"id: 1\ndata: {line}\n\nevent: end\ndata:\n\n"
    rest.answers[f"GET {LOG}/{stream}/events"] = (200, "text/event-stream", events)
    assert muster(rest, tmp_path, "logs", JOB, "--stream", stream, *follow).out == f"{text}\n"


def test_a_log_longer_than_an_answer_is_printed_whole(rest: Rest, tmp_path: Path) -> None:
    """The first byte that is kept is the 100th: what was before it was rotated away."""
    _with_log(rest)
    parts = ((100, "", "one\ntw"), (106, "?offset=106", "o\nthree"))
    for begin, query, text in parts:
        request = f"GET {LOG}/all{query}"
        rest.answers[request] = (200, "text/plain", text)
        rest.headers[request] = {"X-Log-Offset": str(begin), "X-Log-End": "113"}
    assert muster(rest, tmp_path, "logs", JOB).out == "one\ntwo\nthree"


def test_the_agents_times_are_shown_only_where_asked_for(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    text = "2026-01-01T00:00:00Z stdout P first \n2026-01-01T00:00:01Z stderr F half\n"
    rest.answers[f"GET {LOG}/all"] = (200, "text/plain", text)
    assert muster(rest, tmp_path, "logs", JOB).out == "first half\n"
    assert muster(rest, tmp_path, "logs", JOB, "--times").out == text


def test_a_followed_log_ends_with_the_task(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    events = (
        ": alive\n\nid: 1\ndata: first\n\nid: 2\ndata: second\ndata: third\n\nevent: end\ndata:\n\n"
    )
    rest.answers[f"GET {LOG}/all/events"] = (200, "text/event-stream", events)
    assert muster(rest, tmp_path, "logs", JOB, "-f").out == "first\nsecond\nthird\n"


OVER = {"state": "SUCCEEDED"}
EVENTS = "id: 1\ndata: first\n\nevent: end\ndata:\n\n"


def test_a_followed_log_outlives_a_restart_of_the_server(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    rest.answers[f"GET {LOG}/all/events"] = (200, "text/event-stream", EVENTS)
    rest.first[f"GET {LOG}/all/events"] = [AWAY]
    running = (200, "application/json", json.dumps(job_status("RUNNING")))
    rest.first[f"GET /api/v2/jobs/{JOB}"] = [running, AWAY, running]
    ran = muster(rest, tmp_path, "logs", JOB, "-f")
    assert (ran.code, ran.out) == (0, "first\n"), ran.err


def test_a_log_is_followed_over_a_retry_to_the_jobs_end(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    rest.answers[f"GET {LOG}/all/events"] = (200, "text/event-stream", EVENTS)
    first, second = job_status("RUNNING"), job_status("RUNNING")
    second["jobStatus"]["attemptId"] = 1
    statuses = [first, first, second]
    rest.first[f"GET /api/v2/jobs/{JOB}"] = [
        (200, "application/json", json.dumps(each)) for each in statuses
    ]
    rest.answer(f"GET /api/v2/jobs/{JOB}", second | {"jobStatus": second["jobStatus"] | OVER})
    log = LOG.replace(f"{JOB}/attempts/0", f"{JOB}/attempts/1")
    rest.answer(f"GET {log}", {"locations": [{"name": "all", "uri": f"{log}/all"}]})
    events = EVENTS.replace("first", "second")
    rest.answers[f"GET {log}/all/events"] = (200, "text/event-stream", events)
    ran = muster(rest, tmp_path, "logs", JOB, "-f")
    assert (ran.code, ran.out) == (0, "first\nsecond\n")
    assert ran.err == f"note: {JOB}: attempt 1 begins.\n"


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_an_earlier_attempts_log_is_shown_where_it_is_asked_for(
    rest: Rest, tmp_path: Path, follow: tuple[str, ...]
) -> None:
    _with_log(rest)
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("RUNNING") | {"taskRoles": {}})
    rest.answer(f"GET /api/v2/jobs/{JOB}/attempts/0", job_status("FAILED"))
    rest.answers[f"GET {LOG}/all"] = (200, "text/plain", "first\n")
    rest.answers[f"GET {LOG}/all/events"] = (200, "text/event-stream", EVENTS)
    ran = muster(rest, tmp_path, "logs", JOB, "--attempt", "0", *follow)
    assert (ran.code, ran.out) == (0, "first\n"), ran.err


def test_the_reason_of_a_wait_is_shown_once_while_the_log_is_awaited(
    rest: Rest, tmp_path: Path
) -> None:
    _with_log(rest)
    waits = {"code": "NoTaskLogError", "message": f"{JOB} is WAITING: 2 GPUs wanted, 1 free."}
    waiting = (200, "application/json", json.dumps(job_status("WAITING")))
    rest.first[f"GET /api/v2/jobs/{JOB}"] = [waiting] * 2
    rest.first[f"GET {LOG}"] = [(404, "application/json", json.dumps(waits))] * 2
    rest.answers[f"GET {LOG}/all/events"] = (200, "text/event-stream", EVENTS)
    ran = muster(rest, tmp_path, "logs", JOB, "-f")
    assert (ran.code, ran.out, ran.err) == (0, "first\n", f"note: {waits['message']}\n")


def test_another_attempts_log_is_followed_from_its_start(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    broken = (200, "text/event-stream", "id: 9\ndata: before\n\n")
    rest.first[f"GET {LOG}/all/events"] = [broken]
    earlier = (200, "application/json", json.dumps(job_status("RUNNING")))
    rest.first[f"GET /api/v2/jobs/{JOB}"] = [earlier]
    later = job_status("RUNNING")
    later["taskRoles"]["train"]["taskStatuses"][0]["attemptId"] = 1
    later["jobStatus"] |= OVER
    rest.answer(f"GET /api/v2/jobs/{JOB}", later)
    log = LOG.removesuffix("0/logs") + "1/logs"
    rest.answer(f"GET {log}", {"locations": [{"name": "all", "uri": f"{log}/all"}]})
    rest.answers[f"GET {log}/all/events"] = (200, "text/event-stream", EVENTS)
    assert muster(rest, tmp_path, "logs", JOB, "-f").out == "before\nfirst\n"
    assert "Last-Event-ID" not in rest.asked[-1][3]


def test_an_unknown_task_is_an_error_also_while_its_job_runs(rest: Rest, tmp_path: Path) -> None:
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("RUNNING"))
    ran = muster(rest, tmp_path, "logs", JOB, "nobody", "-f")
    assert ran.code == 4
    assert "there are: train 0" in ran.err
