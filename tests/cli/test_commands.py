"""The commands against a double of REST: what people see, what scripts can rely on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.home import Credentials, write_credentials
from rest_double import (
    AWAY,
    JOB,
    LOG,
    TIMEOUT_S,
    Rest,
    job_status,
    muster,
    on_a_terminal,
    run_cli,
)


def test_a_submission_is_sent_whole_and_only_once(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    ran = muster(rest, tmp_path, "submit", "-", "--name", "other", text="name: digits\ntype: job\n")
    assert (ran.code, ran.out) == (0, f"{JOB}\n")
    [(_, _, body, headers)] = rest.asked
    assert body == b'name: "other"\ntype: job\n'
    assert headers["Authorization"] == "Bearer a-token"
    assert headers["Idempotency-Key"]


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("STOPPED", 6)])
def test_waiting_for_a_job_ends_with_its_status(
    rest: Rest, tmp_path: Path, state: str, code: int
) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status(state))
    ran = muster(rest, tmp_path, "submit", "-", "--wait", "-o", "json", text="name: digits\n")
    assert ran.code == code
    assert json.loads(ran.out)["jobStatus"]["state"] == state


def test_waiting_is_bounded_where_asked(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("RUNNING"))
    ran = muster(rest, tmp_path, "submit", "-", "--wait", "--timeout", "0.1", text="name: digits\n")
    assert ran.code == 7
    assert "still RUNNING" in ran.err


def test_every_problem_of_a_refused_file_is_shown_with_its_place(
    rest: Rest, tmp_path: Path
) -> None:
    problems = [
        {"path": "taskRoles.a.instances", "line": 7, "message": "must be 1 or more"},
        {"path": "name", "line": 2, "message": "has a space"},
    ]
    refusal = {"code": "InvalidProtocolError", "message": "2 problems", "errors": problems}
    rest.answer("POST /api/v2/jobs", refusal, 400)
    ran = muster(rest, tmp_path, "submit", "-", text="name: digits\n")
    assert ran.code == 4
    assert "line 7: taskRoles.a.instances: must be 1 or more" in ran.err
    assert "line 2: name: has a space" in ran.err


def test_a_single_problem_is_shown_once(rest: Rest, tmp_path: Path) -> None:
    problem = {"path": "name", "line": 2, "message": "has a space"}
    message = "The job file has one problem. Line 2: `name` has a space."
    refusal = {"code": "InvalidProtocolError", "message": message, "errors": [problem]}
    rest.answer("POST /api/v2/jobs", refusal, 400)
    ran = muster(rest, tmp_path, "submit", "-", text="name: digits\n")
    assert ran.err == f"muster: {message}\n"


def test_of_several_problems_the_first_is_shown_once(rest: Rest, tmp_path: Path) -> None:
    problems = [
        {"path": "rules.0.when", "line": 2, "message": "is no expression"},
        {"path": "presetsOff.0", "line": 7, "message": "there is no such preset"},
    ]
    message = "The rules have 2 problems. Line 2: `rules.0.when` is no expression"
    refusal = {"code": "InvalidConfigError", "message": message, "errors": problems}
    rest.answer("POST /api/v2/alerts/rules/check", refusal, 400)
    ran = muster(rest, tmp_path, "alerts", "rules", "-", "--check", text="rules: []\n")
    assert ran.err.splitlines() == [
        f"muster: {message}",
        "  line 7: presetsOff.0: there is no such preset",
    ]


def test_a_wrong_password_is_not_answered_by_how_to_log_in(rest: Rest, tmp_path: Path) -> None:
    refusal = {"code": "IncorrectPasswordError", "message": "The password is wrong."}
    rest.answer("POST /api/v2/authn/basic/login", refusal, 401)
    ran = muster(rest, tmp_path, "login", "ada", text="secret\n")
    assert (ran.code, ran.err) == (5, "muster: The password is wrong.\n")


@pytest.mark.parametrize(
    ("status", "code"), [(401, 5), (403, 5), (404, 4), (409, 4), (500, 3), (503, 3)]
)
def test_refusals_have_exit_codes_of_their_own(
    rest: Rest, tmp_path: Path, status: int, code: int
) -> None:
    rest.answer(f"GET /api/v2/jobs/{JOB}", {"code": "X", "message": "Not so."}, status)
    ran = muster(rest, tmp_path, "job", JOB)
    assert ran.code == code
    assert "Not so." in ran.err


def test_usage_and_absence_have_exit_codes_of_their_own(rest: Rest, tmp_path: Path) -> None:
    assert muster(rest, tmp_path, "jobs", "--nonsense").code == 2
    assert muster(rest, tmp_path, "submit", str(tmp_path / "none.yaml")).code == 2
    rest.url = "http://127.0.0.1:9"
    ran = muster(rest, tmp_path, "jobs")
    assert ran.code == 3
    assert "muster up" in ran.err


def test_why_shows_the_servers_reason(rest: Rest, tmp_path: Path) -> None:
    reason = {"code": "no-gpus", "text": "2 GPUs wanted, 1 free", "numbers": {}}
    content = {
        "name": JOB,
        "state": "WAITING",
        "reason": reason,
        "scheduler": {"ahead": 3, "asOf": 7},
    }
    rest.answer(f"GET /api/v2/jobs/{JOB}/why", content)
    text = f"{JOB} is WAITING: 2 GPUs wanted, 1 free\n  code: no-gpus\n  ahead: 3\nas of cycle 7\n"
    assert muster(rest, tmp_path, "why", JOB).out == text
    answer = json.loads(muster(rest, tmp_path, "why", JOB, "-o", "json").out)
    assert answer["reason"]["code"] == "no-gpus"
    missing = content | {"scheduler": None, "schedulerProblem": "The Scheduler does not answer."}
    rest.answer(f"GET /api/v2/jobs/{JOB}/why", missing)
    assert "The Scheduler does not answer." in muster(rest, tmp_path, "why", JOB).out


@pytest.mark.parametrize("state", ["WAITING", "RUNNING"])
def test_why_shows_the_code_of_a_task_that_has_its_place(
    rest: Rest, tmp_path: Path, state: str
) -> None:
    reason = {"code": "not-taken", "text": "The pod can't be created in Kubernetes yet: no."}
    gang = {"gang": "g-0", "state": "placed", "reason": None, "class": "guaranteed"}
    content = {"name": JOB, "state": state, "reason": reason, "scheduler": {"gangs": [gang]}}
    rest.answer(f"GET /api/v2/jobs/{JOB}/why", content)
    assert muster(rest, tmp_path, "why", JOB).out == (
        f"{JOB} is {state}: The pod can't be created in Kubernetes yet: no.\n"
        "  code: not-taken\n"
        "  class: guaranteed\n"
    )


def test_why_and_job_show_how_a_job_failed(rest: Rest, tmp_path: Path) -> None:
    reason = {"code": "Unknown", "text": "No rule knows it.", "numbers": {"exitCode": 7}}
    rest.answer(f"GET /api/v2/jobs/{JOB}/why", {"name": JOB, "state": "FAILED", "reason": reason})
    detail = job_status("FAILED")
    detail["jobStatus"] |= {
        "reason": None,
        "appExitDiagnostics": "No rule knows it.",
        "appExitTriggerMessage": "train[0] failed: 1 of minFailedInstances 1",
        "appExitSpec": {
            "rule": "unrecognised",
            "type": "UNKNOWN_FAILURE",
            "behavior": "UNKNOWN",
            "symptom": "Exit code 7.",
            "evidence": "\x1b[31mno room",
        },
        "retryDetails": {"user": 2, "platform": 1, "resource": 0},
    }
    rest.answer(f"GET /api/v2/jobs/{JOB}", detail)
    assert muster(rest, tmp_path, "why", JOB).out == (
        f"{JOB} is FAILED: No rule knows it.\n"
        "  rule: unrecognised\n"
        "  at fault: unknown\n"
        "  retries: 2 of its own, 1 of the platform's; such a failure is retried as jobRetryCount"
        " allows\n"
        "  ended by: train[0] failed: 1 of minFailedInstances 1\n"
        "  symptom: Exit code 7.\n"
        "  it wrote: \\u001b[31mno room\n"
    )
    text = muster(rest, tmp_path, "job", JOB).out
    assert "Exit code 7." in text
    assert "no room" in text


@pytest.mark.parametrize(
    ("kind", "behavior", "party", "retried"),
    [
        ("USER_FAILURE", "PERMANENT", "the job", "never retried"),
        ("PLATFORM_FAILURE", "TRANSIENT", "the platform", "retried at no cost"),
        ("PLATFORM_FAILURE", "TRANSIENT_CONFLICT", "the platform", "retried at no cost"),
    ],
)
def test_why_names_the_party_at_fault_and_whether_the_failure_is_retried(
    rest: Rest, tmp_path: Path, kind: str, behavior: str, party: str, retried: str
) -> None:
    rest.answer(f"GET /api/v2/jobs/{JOB}/why", {"name": JOB, "state": "FAILED", "reason": "Ended."})
    detail = job_status("FAILED")
    detail["jobStatus"] |= {"appExitSpec": {"type": kind, "behavior": behavior}}
    rest.answer(f"GET /api/v2/jobs/{JOB}", detail)
    assert muster(rest, tmp_path, "why", JOB).out == (
        f"{JOB} is FAILED: Ended.\n"
        f"  at fault: {party}\n"
        f"  retries: none; such a failure is {retried}\n"
    )


def test_a_job_shows_its_retries_by_cause_and_its_newest_earlier_attempts(
    rest: Rest, tmp_path: Path
) -> None:
    now = job_status("RUNNING")
    counts = {"user": 1, "platform": 10, "resource": 1}
    now["jobStatus"] |= {"reason": None, "attemptId": 12, "retryDetails": counts}
    rest.answer(f"GET /api/v2/jobs/{JOB}", now)
    for attempt in range(12):
        earlier = job_status("FAILED")
        earlier["jobStatus"] |= {
            "attemptId": attempt,
            "appLaunchedTime": 1_700_000_000_000,
            "appCompletedTime": 1_700_000_065_000,
            "appExitCode": -1001,
            "appExitDiagnostics": f"The Scheduler declared placement {attempt} lost.",
        }
        if attempt != 5:
            rest.answer(f"GET /api/v2/jobs/{JOB}/attempts/{attempt}", earlier)
    lines = muster(rest, tmp_path, "job", JOB).out.splitlines()
    table = [re.split("  +", line) for line in lines]
    causes = "1 of its own, 10 of the platform's, 1 for conflicts over resources"
    assert ["retries", causes] in table
    heading = table.index(["ATTEMPT", "STATE", "ENDED (UTC)", "TOOK", "EXIT", "WHY"])
    assert [row[0] for row in table[heading + 1 :]] == [
        str(n) for n in (11, 10, 9, 8, 7, 6, 4, 3, 2)
    ]
    assert table[heading + 1][1:-1] == ["FAILED", "11-14 22:14", "1m05s", "-1001"]
    assert lines[heading + 1].endswith("The Scheduler declared placement 11 lost.")
    cut = on_a_terminal(rest, tmp_path, "job", JOB)[-1]
    assert len(cut) <= 80
    assert "…" in cut


def test_a_preempted_attempt_of_a_job_shows_for_whom(rest: Rest, tmp_path: Path) -> None:
    now, earlier = job_status("RUNNING"), job_status("FAILED")
    now["jobStatus"]["attemptId"] = 1
    rest.answer(f"GET /api/v2/jobs/{JOB}", now)
    whom = "w[0] was preempted, and its gang with it: The gang hi has priority 30, this one 20."
    earlier["jobStatus"] |= {
        "attemptId": 0,
        "appExitCode": -1003,
        "appExitDiagnostics": "The pod had to leave its place.",
        "appExitTriggerMessage": whom,
    }
    rest.answer(f"GET /api/v2/jobs/{JOB}/attempts/0", earlier)
    assert muster(rest, tmp_path, "job", JOB).out.splitlines()[-1].endswith(whom)


def test_a_server_that_is_away_hides_no_attempts_of_a_job(rest: Rest, tmp_path: Path) -> None:
    now = job_status("RUNNING")
    now["jobStatus"]["attemptId"] = 1
    rest.answer(f"GET /api/v2/jobs/{JOB}", now)
    rest.answers[f"GET /api/v2/jobs/{JOB}/attempts/0"] = AWAY
    assert muster(rest, tmp_path, "job", JOB).code == 3


def test_states_are_taken_in_any_case_and_no_retry_is_zero(rest: Rest, tmp_path: Path) -> None:
    job = job_status("RUNNING")["jobStatus"] | {"name": "digits", "totalGpuNumber": 8}
    listed = [job | {"totalTaskNumber": 2, "launchedTime": 0, "completedTime": 65_000}]
    rest.answer("GET /api/v2/jobs?state=RUNNING%2CWAITING&limit=50", listed)
    heading, row = on_a_terminal(rest, tmp_path, "jobs", "--state", "running,Waiting")
    columns = zip(re.split("  +", heading), re.split("  +", row), strict=True)
    assert dict(columns)["RETRIES"] == "0"


def test_a_job_shows_the_lender_of_its_gpus_and_how_much_of_it_waits_to_grow(
    rest: Rest, tmp_path: Path
) -> None:
    detail = job_status("RUNNING")
    detail["jobStatus"] |= {"reason": None, "gangClass": "guaranteed", "lender": "speech"}
    tasks = [
        {"taskIndex": n, "taskState": "RUNNING" if n < 6 else "WAITING", "attemptId": 0}
        for n in range(8)
    ]
    role = {"taskRoleStatus": {"name": "train", "minInstances": 2}, "taskStatuses": tasks}
    detail["taskRoles"] = {"train": role}
    rest.answer(f"GET /api/v2/jobs/{JOB}", detail)
    table = [re.split("  +", line) for line in muster(rest, tmp_path, "job", JOB).out.splitlines()]
    assert ["class", "guaranteed, borrowed from speech"] in table
    assert ["size", "runs with 6 of 8 tasks; 2 wait for room to grow into"] in table
    assert [words[1] for words in table if words[0].startswith("train ")] == [
        *["RUNNING"] * 6,
        *["to grow"] * 2,
    ]
    detail["jobStatus"]["state"] = "WAITING"
    rest.answer(f"GET /api/v2/jobs/{JOB}", detail)
    assert "to grow" not in muster(rest, tmp_path, "job", JOB).out


def test_a_job_that_runs_in_part_says_why_its_other_tasks_wait(rest: Rest, tmp_path: Path) -> None:
    detail = job_status("RUNNING")
    detail["jobStatus"]["reason"] = None
    reason = {"code": "shape", "text": "Nothing is free.", "numbers": {}}
    tasks = [
        {"taskIndex": 0, "taskState": "RUNNING", "reason": None},
        {"taskIndex": 1, "taskState": "WAITING", "reason": reason},
        {"taskIndex": 2, "taskState": "WAITING", "reason": reason},
    ]
    detail["taskRoles"] = {"w": {"taskRoleStatus": {"name": "w"}, "taskStatuses": tasks}}
    for shown, why in (
        (tasks, "task w 1: Nothing is free. (1 more waits)"),
        (tasks[:2], "task w 1: Nothing is free."),
    ):
        detail["taskRoles"]["w"]["taskStatuses"] = shown
        rest.answer(f"GET /api/v2/jobs/{JOB}", detail)
        lines = muster(rest, tmp_path, "job", JOB).out.splitlines()
        assert ["why", why] in [re.split("  +", line) for line in lines]


def test_a_job_is_stopped_by_the_paths_of_openpai(rest: Rest, tmp_path: Path) -> None:
    answer = {"message": f"{JOB}: stop requested (was RUNNING)."}
    rest.answer(f"PUT /api/v2/jobs/{JOB}/executionType", answer, 202)
    ran = muster(rest, tmp_path, "stop", JOB)
    assert (ran.code, ran.out, ran.err) == (0, f"{JOB}: stop requested (was RUNNING).\n", "")
    assert json.loads(rest.asked[0][2]) == {"value": "STOP"}
    assert json.loads(muster(rest, tmp_path, "stop", JOB, "-o", "json").out) == answer


def test_a_job_is_tagged_and_found_by_its_tag(rest: Rest, tmp_path: Path) -> None:
    for method in ("PUT", "DELETE"):
        rest.answer(f"{method} /api/v2/jobs/{JOB}/tag", {"message": f"{method} x"})
    assert muster(rest, tmp_path, "tag", JOB, "x").out == "PUT x\n"
    assert muster(rest, tmp_path, "tag", JOB, "x", "--remove").out == "DELETE x\n"
    assert [json.loads(it[2]) for it in rest.asked] == [{"value": "x"}] * 2
    rest.answer("GET /api/v2/jobs?tagsContain=x&limit=50", [])
    assert muster(rest, tmp_path, "jobs", "--tag", "x").code == 0
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("RUNNING") | {"tags": ["x", "y"]})
    assert "tags             x, y" in muster(rest, tmp_path, "job", JOB).out


def test_a_stop_that_is_waited_for_tells_the_job_alone_in_json(rest: Rest, tmp_path: Path) -> None:
    rest.answer(f"PUT /api/v2/jobs/{JOB}/executionType", {"message": "Asked."}, 202)
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("STOPPED"))
    ran = muster(rest, tmp_path, "stop", JOB, "--wait")
    assert (ran.code, ran.out) == (0, f"Asked.\n{JOB}: STOPPED\n")
    ran = muster(rest, tmp_path, "stop", JOB, "--wait", "-o", "json")
    assert (ran.code, json.loads(ran.out)) == (0, job_status("STOPPED"))


def test_a_bare_name_is_a_job_of_the_user_whose_token_is_sent(rest: Rest, tmp_path: Path) -> None:
    write_credentials(tmp_path, Credentials(rest.url, "token-of-bert", "bert"))
    rest.answer("GET /api/v2/tokens/check", {"username": "ada", "admin": False})
    for user in ("ada", "bert"):
        rest.answer(f"GET /api/v2/jobs/{user}~digits/why", {"state": "RUNNING", "reason": user})
    ran = muster(rest, tmp_path, "why", "digits")
    assert ran.out == "ada~digits is RUNNING: ada\n"
    rest.asked.clear()
    assert run_cli(tmp_path, "why", "digits").out == "bert~digits is RUNNING: bert\n"
    assert muster(rest, tmp_path, "why", JOB).code == 0
    asked = [(path, headers["Authorization"]) for _, path, _, headers in rest.asked]
    assert asked == [
        ("/api/v2/jobs/bert~digits/why", "Bearer token-of-bert"),
        (f"/api/v2/jobs/{JOB}/why", "Bearer a-token"),
    ]


def test_a_token_that_the_server_refuses_completes_no_name(rest: Rest, tmp_path: Path) -> None:
    refusal = {"code": "UnauthorizedUserError", "message": "The token is not valid."}
    rest.answer("GET /api/v2/tokens/check", refusal, 401)
    ran = muster(rest, tmp_path, "logs", "digits")
    assert (ran.code, len(rest.asked)) == (5, 1)


def test_waiting_outlives_a_restart_of_the_server(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("SUCCEEDED"))
    rest.first[f"GET /api/v2/jobs/{JOB}"] = [AWAY]
    assert muster(rest, tmp_path, "submit", "-", "--wait", text="name: digits\n").code == 0


@pytest.mark.parametrize(
    "url", ["localhost:8080", "http://host:port", "ftp://host", "http://host/path", "http://:1"]
)
def test_what_is_no_address_of_a_server_is_wrong_usage(
    rest: Rest, tmp_path: Path, url: str
) -> None:
    rest.url = url
    ran = muster(rest, tmp_path, "jobs")
    assert ran.code == 2
    assert "http://host:8080" in ran.err


def test_a_name_is_taken_as_it_is(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    muster(rest, tmp_path, "submit", "-", "--name", r"\1", text="name: digits\n")
    assert rest.asked[0][2] == b'name: "\\\\1"\n'


@pytest.mark.parametrize(
    ("file", "sent"),
    [
        (
            '{"type": "job", "name": "a\\"b", "x": "name: c"}',
            '{"type": "job", "name": "z", "x": "name: c"}',
        ),
        (
            "# mine\nx: |\n  name: c\nname:  digits  # its name\n",
            '# mine\nx: |\n  name: c\nname:  "z"  # its name\n',
        ),
        ("\ufeffname: digits\n", 'name: "z"\n'),
        ("{type: job, 'name': 'it''s', x: 1}\r\n", "{type: job, 'name': \"z\", x: 1}\r\n"),
    ],
)
def test_another_name_leaves_all_else_as_it_was(
    rest: Rest, tmp_path: Path, file: str, sent: str
) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    path = tmp_path / "job"
    path.write_bytes(file.encode())
    assert muster(rest, tmp_path, "submit", str(path), "--name", "z").code == 0
    assert rest.asked[0][2].decode() == sent


def test_another_name_may_look_like_a_number(rest: Rest, tmp_path: Path) -> None:
    rest.answer("POST /api/v2/jobs", {"name": JOB}, 202)
    muster(rest, tmp_path, "submit", "-", "--name", "2024", text="name: digits\n")
    assert rest.asked[0][2] == b'name: "2024"\n'


@pytest.mark.parametrize("words", [("jobs",), ("logs", JOB), ("logs", JOB, "-f")])
def test_a_reader_that_goes_away_ends_a_command_quietly(
    rest: Rest, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """As `muster logs … | head -1` does; the job goes on."""
    rest.answer("GET /api/v2/jobs?limit=50", [])
    rest.answer(f"GET /api/v2/jobs/{JOB}", job_status("RUNNING"))
    rest.answer(f"GET {LOG}", {"locations": [{"name": "all", "uri": f"{LOG}/all"}]})
    rest.answers[f"GET {LOG}/all"] = (200, "text/plain", "first\n" * 10_000)
    rest.answers[f"GET {LOG}/all/events"] = (200, "text/event-stream", "data: first\n\n" * 10_000)
    unread, output = os.pipe()
    os.close(unread)
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words],
        env={"PATH": os.environ["PATH"], "MUSTER_HOME": str(tmp_path), "MUSTER_URL": rest.url},
        stdout=output,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(output)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("file", ["type: job\n", "name: {a: b}\n", "name: |\n  x\n", "a: [\n"])
def test_a_name_that_can_t_be_replaced_is_refused(rest: Rest, tmp_path: Path, file: str) -> None:
    ran = muster(rest, tmp_path, "submit", "-", "--name", "z", text=file)
    assert (ran.code, rest.asked) == (4, [])
    assert "name" in ran.err or "not YAML" in ran.err


def test_nothing_runs_here_and_nothing_answers_is_not_reachable(rest: Rest, tmp_path: Path) -> None:
    rest.url = "http://127.0.0.1:9"
    assert muster(rest, tmp_path, "status", "-o", "json").code == 3


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
def test_an_impossible_setting_is_an_error_before_anything_starts(
    tmp_path: Path, name: str, value: str
) -> None:
    ran = run_cli(tmp_path, "up", **{name: value})
    assert ran.code == 2
    assert f"{name}: " in ran.err
    assert not any(tmp_path.iterdir())


def test_an_impossible_home_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for words in (["up"], ["jobs"], ["status"]):
        ran = run_cli(file, *words)
        assert ran.code in (2, 9)
        assert str(file) in ran.err
        assert "Traceback" not in ran.err
