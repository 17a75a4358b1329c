"""The commands against a server that speaks REST's paths: what people see, what scripts can rely
on.
"""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 30
JOB = "ada~digits"
LOG = f"/api/v2/jobs/{JOB}/attempts/0/taskRoles/train/taskIndex/0/attempts/0/logs"


def _status(state: str) -> dict[str, Any]:
    return {
        "name": "digits",
        "jobStatus": {
            "username": "ada",
            "state": state,
            "retries": 0,
            "virtualCluster": "default",
            "submissionTime": 1_700_000_000_000,
            "attemptId": 0,
            "reason": {"code": "no-gpus", "text": "2 GPUs wanted, 1 free", "numbers": {}},
        },
        "taskRoles": {
            "train": {
                "taskStatuses": [
                    {"taskIndex": 0, "taskState": state, "attemptId": 0, "containerNodeName": "n1"}
                ]
            }
        },
    }


@dataclass
class Rest:
    """The stub: answers by path, and what it was asked."""

    url: str = ""
    answers: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    first: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[tuple[str, str, bytes, dict[str, str]]] = field(default_factory=list)

    def answer(self, request: str, content: object, status: int = 200) -> None:
        self.answers[request] = (status, "application/json", json.dumps(content))


@pytest.fixture
def rest() -> Iterator[Rest]:
    stub = Rest()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stub.asked.append((self.command, self.path, body, dict(self.headers.items())))
            missing = (404, "application/json", '{"code": "NoJobError", "message": "No such job."}')
            request = f"{self.command} {self.path}"
            earlier = stub.first.get(request)
            answer = earlier.pop(0) if earlier else stub.answers.get(request, missing)
            status, kind, text = answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            for name, value in stub.headers.get(request, {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


def _muster(rest: Rest, home: Path, *words: str, text: str = "") -> Ran:
    return _run(home, *words, text=text, MUSTER_URL=rest.url, MUSTER_TOKEN="a-token")


def _run(home: Path, *words: str, text: str = "", **environment: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words],
        env={"PATH": os.environ["PATH"], "MUSTER_HOME": str(home), **environment},
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def test_a_submission_is_sent_whole_and_only_once(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    ran = _muster(
        rest, tmp_path, "submit", "-", "--name", "other", text="name: digits\ntype: job\n"
    )
    assert (ran.code, ran.out) == (0, f"{JOB}\n")
    [(_, _, body, headers)] = rest.asked
    assert body == b"name: other\ntype: job\n"
    assert headers["Authorization"] == "Bearer a-token"
    assert headers["Idempotency-Key"]


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("STOPPED", 6)])
def test_waiting_for_a_job_ends_with_its_status(
    rest: Rest, tmp_path: Path, state: str, code: int
) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    rest.answer(f"GET /api/v2/jobs/{JOB}", _status(state))
    ran = _muster(rest, tmp_path, "submit", "-", "--wait", "-o", "json", text="name: digits\n")
    assert ran.code == code
    assert json.loads(ran.out)["jobStatus"]["state"] == state


def test_waiting_is_bounded_where_asked(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    rest.answer(f"GET /api/v2/jobs/{JOB}", _status("RUNNING"))
    ran = _muster(
        rest, tmp_path, "submit", "-", "--wait", "--timeout", "0.1", text="name: digits\n"
    )
    assert ran.code == 7
    assert "still RUNNING" in ran.err


def test_every_problem_of_a_refused_file_is_told_with_its_place(rest: Rest, tmp_path: Path) -> None:
    problems = [
        {"path": "taskRoles.a.instances", "line": 7, "message": "must be 1 or more"},
        {"path": "name", "line": 2, "message": "has a space"},
    ]
    refusal = {"code": "InvalidProtocolError", "message": "2 problems", "errors": problems}
    rest.answer("POST /api/v2/jobs", refusal, 400)
    ran = _muster(rest, tmp_path, "submit", "-", text="name: digits\n")
    assert ran.code == 4
    assert "line 7: taskRoles.a.instances: must be 1 or more" in ran.err
    assert "line 2: name: has a space" in ran.err


@pytest.mark.parametrize(
    ("status", "code"), [(401, 5), (403, 5), (404, 4), (409, 4), (500, 3), (503, 3)]
)
def test_refusals_have_exit_codes_of_their_own(
    rest: Rest, tmp_path: Path, status: int, code: int
) -> None:
    rest.answer(f"GET /api/v2/jobs/{JOB}", {"code": "X", "message": "Not so."}, status)
    ran = _muster(rest, tmp_path, "job", JOB)
    assert ran.code == code
    assert "Not so." in ran.err


def test_usage_and_absence_have_exit_codes_of_their_own(rest: Rest, tmp_path: Path) -> None:
    assert _muster(rest, tmp_path, "jobs", "--nonsense").code == 2
    assert _muster(rest, tmp_path, "submit", str(tmp_path / "none.yaml")).code == 2
    rest.url = "http://127.0.0.1:9"
    ran = _muster(rest, tmp_path, "jobs")
    assert ran.code == 3
    assert "muster up" in ran.err


def test_why_says_the_servers_reason(rest: Rest, tmp_path: Path) -> None:
    reason = {"code": "no-gpus", "text": "2 GPUs wanted, 1 free", "numbers": {}}
    content = {
        "name": JOB,
        "state": "WAITING",
        "reason": reason,
        "scheduler": {"ahead": 3, "asOf": 7},
    }
    rest.answer(f"GET /api/v2/jobs/{JOB}/why", content)
    said_to_people = f"{JOB} is WAITING: 2 GPUs wanted, 1 free\n  ahead: 3\n"
    assert _muster(rest, tmp_path, "why", JOB).out == said_to_people
    said = json.loads(_muster(rest, tmp_path, "why", JOB, "-o", "json").out)
    assert said["reason"]["code"] == "no-gpus"
    missing = content | {"scheduler": None, "schedulerProblem": "The Scheduler does not answer."}
    rest.answer(f"GET /api/v2/jobs/{JOB}/why", missing)
    assert "The Scheduler does not answer." in _muster(rest, tmp_path, "why", JOB).out


def test_why_and_job_tell_how_a_job_failed(rest: Rest, tmp_path: Path) -> None:
    reason = {"code": "Unknown", "text": "No rule knows it.", "numbers": {"exitCode": 7}}
    rest.answer(f"GET /api/v2/jobs/{JOB}/why", {"name": JOB, "state": "FAILED", "reason": reason})
    detail = _status("FAILED")
    detail["jobStatus"] |= {
        "reason": None,
        "appExitDiagnostics": "No rule knows it.",
        "appExitTriggerMessage": "train[0] failed: 1 of minFailedInstances 1",
        "appExitSpec": {"symptom": "Exit code 7.", "evidence": "\x1b[31mno room"},
    }
    rest.answer(f"GET /api/v2/jobs/{JOB}", detail)
    assert _muster(rest, tmp_path, "why", JOB).out == (
        f"{JOB} is FAILED: No rule knows it.\n"
        "  ended by: train[0] failed: 1 of minFailedInstances 1\n"
        "  symptom: Exit code 7.\n"
        "  it wrote:  [31mno room\n"
    )
    said = _muster(rest, tmp_path, "job", JOB).out
    assert "Exit code 7." in said
    assert "no room" in said


def test_a_job_is_stopped_by_the_paths_of_openpai(rest: Rest, tmp_path: Path) -> None:
    rest.answer(f"PUT /api/v2/jobs/{JOB}/executionType", {}, 202)
    assert _muster(rest, tmp_path, "stop", JOB).code == 0
    assert json.loads(rest.asked[0][2]) == {"value": "STOP"}


def _with_log(rest: Rest) -> None:
    rest.answer(f"GET /api/v2/jobs/{JOB}", _status("SUCCEEDED"))
    rest.answer(f"GET {LOG}", {"locations": [{"name": "all", "uri": f"{LOG}/all"}]})


def test_a_log_is_printed_as_it_is(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    rest.answers[f"GET {LOG}/all"] = (200, "text/plain", "first\nsecond\n")
    assert _muster(rest, tmp_path, "logs", JOB).out == "first\nsecond\n"


def test_a_log_longer_than_an_answer_is_printed_whole(rest: Rest, tmp_path: Path) -> None:
    """The first byte that is kept is the 100th: what was before it was rotated away."""
    _with_log(rest)
    parts = ((100, "", "one\ntw"), (106, "?offset=106", "o\nthree"))
    for begin, query, text in parts:
        request = f"GET {LOG}/all{query}"
        rest.answers[request] = (200, "text/plain", text)
        rest.headers[request] = {"X-Log-Offset": str(begin), "X-Log-End": "113"}
    assert _muster(rest, tmp_path, "logs", JOB).out == "one\ntwo\nthree"


def test_the_agents_times_are_shown_only_where_asked_for(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    text = "2026-01-01T00:00:00Z stdout P first \n2026-01-01T00:00:01Z stderr F half\n"
    rest.answers[f"GET {LOG}/all"] = (200, "text/plain", text)
    assert _muster(rest, tmp_path, "logs", JOB).out == "first half\n"
    assert _muster(rest, tmp_path, "logs", JOB, "--times").out == text


def test_a_followed_log_ends_with_the_task(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    events = (
        ": alive\n\nid: 1\ndata: first\n\nid: 2\ndata: second\ndata: third\n\nevent: end\ndata:\n\n"
    )
    rest.answers[f"GET {LOG}/all/events"] = (200, "text/event-stream", events)
    assert _muster(rest, tmp_path, "logs", JOB, "-f").out == "first\nsecond\nthird\n"


AWAY = (503, "application/json", '{"code": "Away", "message": "It starts again."}')
EVENTS = "id: 1\ndata: first\n\nevent: end\ndata:\n\n"


def test_a_followed_log_outlives_a_restart_of_the_server(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    rest.answers[f"GET {LOG}/all/events"] = (200, "text/event-stream", EVENTS)
    rest.first[f"GET {LOG}/all/events"] = [AWAY]
    running = (200, "application/json", json.dumps(_status("RUNNING")))
    rest.first[f"GET /api/v2/jobs/{JOB}"] = [running, AWAY, running]
    ran = _muster(rest, tmp_path, "logs", JOB, "-f")
    assert (ran.code, ran.out) == (0, "first\n"), ran.err


def test_another_attempts_log_is_followed_from_its_start(rest: Rest, tmp_path: Path) -> None:
    _with_log(rest)
    broken = (200, "text/event-stream", "id: 9\ndata: before\n\n")
    rest.first[f"GET {LOG}/all/events"] = [broken]
    earlier = (200, "application/json", json.dumps(_status("RUNNING")))
    rest.first[f"GET /api/v2/jobs/{JOB}"] = [earlier]
    later = _status("RUNNING")
    later["taskRoles"]["train"]["taskStatuses"][0]["attemptId"] = 1
    rest.answer(f"GET /api/v2/jobs/{JOB}", later)
    log = LOG.removesuffix("0/logs") + "1/logs"
    rest.answer(f"GET {log}", {"locations": [{"name": "all", "uri": f"{log}/all"}]})
    rest.answers[f"GET {log}/all/events"] = (200, "text/event-stream", EVENTS)
    assert _muster(rest, tmp_path, "logs", JOB, "-f").out == "before\nfirst\n"
    assert "Last-Event-ID" not in rest.asked[-1][3]


def test_a_task_that_there_is_not_is_told_also_while_its_job_runs(
    rest: Rest, tmp_path: Path
) -> None:
    rest.answer(f"GET /api/v2/jobs/{JOB}", _status("RUNNING"))
    ran = _muster(rest, tmp_path, "logs", JOB, "nobody", "-f")
    assert ran.code == 4
    assert "there are: train 0" in ran.err


def test_waiting_outlives_a_restart_of_the_server(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    rest.answer(f"GET /api/v2/jobs/{JOB}", _status("SUCCEEDED"))
    rest.first[f"GET /api/v2/jobs/{JOB}"] = [AWAY]
    assert _muster(rest, tmp_path, "submit", "-", "--wait", text="name: digits\n").code == 0


@pytest.mark.parametrize(
    "url", ["localhost:8080", "http://host:port", "ftp://host", "http://host/path", "http://:1"]
)
def test_what_is_no_address_of_a_server_is_wrong_usage(
    rest: Rest, tmp_path: Path, url: str
) -> None:
    rest.url = url
    ran = _muster(rest, tmp_path, "jobs")
    assert ran.code == 2
    assert "http://host:8080" in ran.err


def test_a_name_is_taken_as_it_is(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    _muster(rest, tmp_path, "submit", "-", "--name", r"\1", text="name: digits\n")
    assert rest.asked[0][2] == b"name: \\1\n"


@pytest.mark.parametrize(
    ("file", "sent"),
    [
        (
            '{"type": "job", "name": "a\\"b", "x": "name: c"}',
            '{"type": "job", "name": "z", "x": "name: c"}',
        ),
        (
            "# mine\nx: |\n  name: c\nname:  digits  # its name\n",
            "# mine\nx: |\n  name: c\nname:  z  # its name\n",
        ),
        ("{type: job, 'name': 'it''s', x: 1}\r\n", "{type: job, 'name': \"z\", x: 1}\r\n"),
    ],
)
def test_another_name_leaves_all_else_as_it_was(
    rest: Rest, tmp_path: Path, file: str, sent: str
) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    path = tmp_path / "job"
    path.write_bytes(file.encode())
    assert _muster(rest, tmp_path, "submit", str(path), "--name", "z").code == 0
    assert rest.asked[0][2].decode() == sent


@pytest.mark.parametrize("file", ["type: job\n", "name: {a: b}\n", "name: |\n  x\n", "a: [\n"])
def test_a_name_that_can_t_be_replaced_is_refused(rest: Rest, tmp_path: Path, file: str) -> None:
    ran = _muster(rest, tmp_path, "submit", "-", "--name", "z", text=file)
    assert (ran.code, rest.asked) == (4, [])
    assert "name" in ran.err or "not YAML" in ran.err


def test_a_login_is_kept_for_the_commands_that_follow(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/authn/basic/login", {"token": "short"})
    rest.answer("POST /api/v2/tokens/application", {"token": "long", "application": True})
    ran = _muster(rest, tmp_path, "login", "ada", text="secret\n")
    assert ran.code == 0
    assert "secret" not in ran.out + ran.err
    kept = json.loads((tmp_path / "credentials.json").read_text())
    assert kept == {"url": rest.url, "token": "long", "user": "ada"}


def test_nothing_runs_here_and_nothing_answers_is_not_reachable(rest: Rest, tmp_path: Path) -> None:
    rest.url = "http://127.0.0.1:9"
    assert _muster(rest, tmp_path, "status", "-o", "json").code == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MUSTER_PORT", "99999"),
        ("MUSTER_KAFKA_PORT", "0"),
        ("MUSTER_FAKE_GPUS", "-1"),
        ("MUSTER_TOPIC_PARTITIONS", "0"),
        ("MUSTER_LOG_MAX_MB", "0"),
        ("MUSTER_KAFKA", "another"),
    ],
)
def test_a_setting_that_can_not_be_is_told_before_anything_starts(
    tmp_path: Path, name: str, value: str
) -> None:
    ran = _run(tmp_path, "up", **{name: value})
    assert ran.code == 2
    assert f"{name}: " in ran.err
    assert not any(tmp_path.iterdir())


def test_a_home_that_can_not_be_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for words in (["up"], ["jobs"], ["status"]):
        ran = _run(file, *words)
        assert ran.code in (2, 9)
        assert str(file) in ran.err
        assert "Traceback" not in ran.err
