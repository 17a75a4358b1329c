"""Jobs over HTTP: submitted, listed, looked at, stopped."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from muster.contracts.jobs import (
    Execution,
    JobRequest,
    JobState,
    JobStatus,
    Retries,
    TaskRoleStatus,
    TaskState,
    TaskStatus,
)
from muster.contracts.model import Reason
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.verdicts import Behavior, Fault, Verdict

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def status(job: str, revision: int, state: JobState, **more: Any) -> JobStatus:
    return JobStatus(
        revision=revision,
        seen=1,
        job=job,
        name="j",
        user="admin",
        virtual_cluster="default",
        state=state,
        submitted_at=NOW,
        **more,
    )


async def shown(rest: Any, name: str) -> dict[str, Any]:
    answer = await rest.client.get(f"/api/v2/jobs/admin~{name}")
    assert answer.status_code == 200
    content: dict[str, Any] = answer.json()
    return content


async def said(rest: Any, job: str) -> list[JobRequest]:
    """The words that were said about a job, as they are stored."""
    rows = await rest.runtime.pool.fetch("SELECT word FROM subject WHERE subject = $1", job)
    return [JobRequest.model_validate_json(row["word"]) for row in rows]


async def test_a_get_after_a_submission_shows_it(rest: Any) -> None:
    answer = await rest.submit("first")
    assert answer.status_code == 202
    assert answer.json()["name"] == "admin~first"
    assert [w["path"] for w in answer.json()["warnings"]] == ["prerequisites[0].uri"]
    job = await shown(rest, "first")
    assert job["jobStatus"]["state"] == "WAITING"
    tasks = job["taskRoles"]["worker"]["taskStatuses"]
    assert [task["taskState"] for task in tasks] == ["WAITING", "WAITING"]
    listed = (await rest.client.get("/api/v2/jobs")).json()
    assert [each["name"] for each in listed] == ["first"]
    assert (listed[0]["totalTaskNumber"], listed[0]["totalGpuNumber"]) == (2, 2)
    config = await rest.client.get("/api/v2/jobs/admin~first/config")
    assert config.text == rest.job_file("first")
    assert config.headers["content-type"].startswith("text/yaml")


async def test_a_virtual_cluster_that_is_not_there_is_a_warning(rest: Any) -> None:
    content = rest.job_file("elsewhere") + "defaults: {virtualCluster: vc1}\n"
    answer = await rest.client.post("/api/v2/jobs", content=content)
    assert answer.status_code == 202
    assert "defaults.virtualCluster" in [w["path"] for w in answer.json()["warnings"]]
    assert (await shown(rest, "elsewhere"))["jobStatus"]["virtualCluster"] == "vc1"


async def test_the_word_is_said_in_the_transaction_of_the_submission(rest: Any) -> None:
    await rest.submit("spoken")
    (word,) = await said(rest, await rest.job_id("spoken"))
    assert word.execution is Execution.START
    assert (word.user, word.name) == ("admin", "spoken")
    assert word.spec is not None
    assert word.spec.task_roles[0].command == "python train.py"


async def test_a_get_after_a_stop_shows_it_whatever_the_launcher_still_says(rest: Any) -> None:
    await rest.submit("stopped")
    job = await rest.job_id("stopped")
    stop = {"value": "STOP"}
    answer = await rest.client.put("/api/v2/jobs/admin~stopped/executionType", json=stop)
    assert answer.status_code == 202
    content = await shown(rest, "stopped")
    assert content["jobStatus"]["state"] == "STOPPING"
    assert content["jobStatus"]["executionType"] == "STOP"
    (word,) = await said(rest, job)
    assert word.execution is Execution.STOP
    assert word.stop_requested_by == "admin"
    await rest.hear("job-updated", job, status(job, 1, JobState.RUNNING))
    assert (await shown(rest, "stopped"))["jobStatus"]["state"] == "STOPPING"
    again = await rest.client.put("/api/v2/jobs/admin~stopped/executionType", json=stop)
    assert again.status_code == 202
    await rest.hear("job-updated", job, status(job, 2, JobState.STOPPED))
    assert (await shown(rest, "stopped"))["jobStatus"]["state"] == "STOPPED"
    over = await rest.client.put("/api/v2/jobs/admin~stopped/executionType", json=stop)
    assert over.status_code == 409
    start = {"value": "START"}
    restart = await rest.client.put("/api/v2/jobs/admin~stopped/executionType", json=start)
    assert restart.status_code == 409


async def test_what_the_launcher_says_is_shown(rest: Any) -> None:
    await rest.submit("told")
    job = await rest.job_id("told")
    reason = Reason(code="no-room", text="8 GPUs are wanted, 2 are free", numbers={"free": 2})
    waiting = status(job, 1, JobState.WAITING, reason=reason)
    await rest.hear("job-updated", job, waiting)
    why = (await rest.client.get("/api/v2/jobs/admin~told/why")).json()
    assert why["reason"] == {"code": "no-room", "text": reason.text, "numbers": {"free": 2}}
    task = TaskStatus(
        index=0,
        state=TaskState.FAILED,
        pod="p",
        node="n1",
        address="10.0.0.1",
        gpus=(0, 2),
        ports={"http": (20000,), "sync": (20001, 20002)},
        exit_code=3,
    )
    verdict = Verdict(
        code=3,
        phrase="UserFailed",
        rule="r1",
        fault=Fault.USER,
        behavior=Behavior.UNKNOWN,
        cause="it broke",
        evidence="boom",
    )
    failed = status(
        job,
        2,
        JobState.FAILED,
        attempt=1,
        retries=Retries(user=1),
        launched_at=NOW,
        completed_at=NOW + timedelta(seconds=5),
        task_roles=(TaskRoleStatus(name="worker", tasks=(task,)),),
        verdict=verdict,
    )
    await rest.hear("job-updated", job, failed)
    content = await shown(rest, "told")
    state = content["jobStatus"]
    assert state["state"] == "FAILED"
    assert state["retryDetails"] == {"user": 1, "platform": 0, "resource": 0}
    assert state["completedTime"] - state["launchedTime"] == 5000
    assert (state["appExitCode"], state["appExitType"]) == (3, "USER_FAILURE")
    assert state["appExitMessages"]["container"] == "boom"
    why = (await rest.client.get("/api/v2/jobs/admin~told/why")).json()
    assert why["reason"]["text"] == "it broke"
    shown_task = content["taskRoles"]["worker"]["taskStatuses"][0]
    assert shown_task["containerPorts"] == {"http": "20000", "sync": "20001,20002"}
    assert shown_task["containerGpus"] == 0b101
    assert shown_task["containerNodeName"] == "n1"
    first = (await rest.client.get("/api/v2/jobs/admin~told/attempts/0")).json()
    assert first["jobStatus"]["attemptId"] == 0
    latest = (await rest.client.get("/api/v2/jobs/admin~told/attempts/1")).json()
    assert latest["jobStatus"]["attemptId"] == 1
    none = await rest.client.get("/api/v2/jobs/admin~told/attempts/2")
    assert none.status_code == 404


async def test_final_states_never_move(rest: Any) -> None:
    await rest.submit("over")
    job = await rest.job_id("over")
    await rest.hear("job-updated", job, status(job, 1, JobState.SUCCEEDED))
    await rest.hear("job-updated", job, status(job, 2, JobState.RUNNING))
    assert (await shown(rest, "over"))["jobStatus"]["state"] == "SUCCEEDED"


async def test_a_job_that_rest_does_not_know_is_told_to_stop(rest: Any) -> None:
    await rest.hear("job-updated", "stranger", status("stranger", 1, JobState.RUNNING))
    (word,) = await said(rest, "stranger")
    assert word.execution is Execution.STOP
    assert word.spec is None
    await rest.hear("job-updated", "ended", status("ended", 1, JobState.STOPPED))
    rows = await rest.runtime.pool.fetch("SELECT word FROM subject WHERE subject = 'ended'")
    assert [row["word"] for row in rows] == [None]


async def test_a_submission_that_the_launcher_could_not_handle_says_so(rest: Any) -> None:
    await rest.submit("poisoned")
    job = await rest.job_id("poisoned")
    applied = AppliedRevision(kind="job", subject=job, revision=1, spoken=0, dead=True)
    dead = RevisionAcknowledged(sender="launcher", receiver="rest", applied=(applied,))
    await rest.hear("revision-acknowledged", job, dead)
    why = (await rest.client.get("/api/v2/jobs/admin~poisoned/why")).json()
    assert why["reason"]["code"] == "dead-letter"


async def test_a_name_that_is_taken_is_409(rest: Any) -> None:
    await rest.submit("twice")
    answer = await rest.submit("twice")
    assert answer.status_code == 409
    assert answer.json()["code"] == "ConflictJobError"
    other = await rest.make_user("other")
    async with other:
        theirs = await other.post("/api/v2/jobs", content=rest.job_file("twice"))
        assert theirs.status_code == 202


async def test_many_submissions_at_once_are_each_answered_for_themselves(rest: Any) -> None:
    answers = await asyncio.gather(*(rest.submit(f"many-{n % 20}") for n in range(60)))
    codes = [answer.status_code for answer in answers]
    assert sorted(codes) == [202] * 20 + [409] * 40
    for n in range(20):
        mine = [a.status_code for i, a in enumerate(answers) if i % 20 == n]
        assert sorted(mine) == [202, 409, 409]


async def test_an_idempotency_key_gives_the_same_answer_and_makes_one_job(rest: Any) -> None:
    key = {"Idempotency-Key": "k1"}
    _, *answers = await asyncio.gather(
        rest.submit("first"),  # while it is written the others wait, and so stand together
        *(rest.submit("once", **key) for _ in range(20)),
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert len((await rest.client.get("/api/v2/jobs")).json()) == 2
    other_body = await rest.submit("another", **key)
    assert other_body.status_code == 422
    assert other_body.json()["code"] == "IdempotencyKeyError"
    user = await rest.make_user("second")
    async with user:
        theirs = await user.post(
            "/api/v2/jobs", content=rest.job_file("once"), headers={"Idempotency-Key": "k1"}
        )
        assert theirs.status_code == 202


async def test_a_key_of_a_refused_submission_may_be_used_again(rest: Any) -> None:
    await rest.submit("taken")
    refused = await rest.submit("taken", **{"Idempotency-Key": "k2"})
    assert refused.status_code == 409
    mended = await rest.submit("free", **{"Idempotency-Key": "k2"})
    assert mended.status_code == 202


async def test_two_replicas_keep_one_promise(start_rest: Any) -> None:
    async with start_rest() as one, start_rest() as two:
        key = {"Idempotency-Key": "both"}
        answers = await asyncio.gather(
            *((one, two)[n % 2].submit("shared", **key) for n in range(20)),
            *((one, two)[n % 2].submit(f"name-{n // 2}") for n in range(20)),
        )
        assert {a.status_code for a in answers[:20]} == {202}
        assert sorted(a.status_code for a in answers[20:]) == [202] * 10 + [409] * 10
        assert len((await two.client.get("/api/v2/jobs")).json()) == 11
        await one.client.put("/api/v2/jobs/admin~shared/executionType", json={"value": "STOP"})
        content = (await two.client.get("/api/v2/jobs/admin~shared")).json()
        assert content["jobStatus"]["state"] == "STOPPING"


async def test_bodies_in_memory_are_bounded_and_let_go(start_rest: Any) -> None:
    async with start_rest(bodies_bytes=2000) as rest:
        assert (await rest.submit("small")).status_code == 202
        large = rest.job_file("large") + "#" * 2000
        answer = await rest.client.post("/api/v2/jobs", content=large)
        assert (answer.status_code, answer.json()["code"]) == (503, "UnavailableError")
        for n in range(10):
            assert (await rest.submit(f"small-{n}")).status_code == 202


async def test_metrics_name_routes_and_no_made_up_words(rest: Any) -> None:
    await rest.client.get("/api/v2/jobs/admin~some-name")
    await rest.client.request("MADEUP", "/api/v2/jobs")
    text = (await rest.client.get("/metrics")).text
    assert 'route="/api/v2/jobs/{job}"' in text
    assert "MADEUP" not in text
    assert "some-name" not in text


async def test_what_waits_to_be_written_is_bounded(start_rest: Any) -> None:
    async with start_rest(submit_queue_bytes=2000) as rest:
        answers = await asyncio.gather(*(rest.submit(f"flood-{n}") for n in range(60)))
        codes = {answer.status_code for answer in answers}
        assert codes == {202, 503}
        assert all(a.headers["retry-after"] for a in answers if a.status_code == 503)
        accepted = [answer for answer in answers if answer.status_code == 202]
        assert len((await rest.client.get("/api/v2/jobs")).json()) == len(accepted)
        assert (await rest.submit("afterwards")).status_code == 202


async def test_a_wrong_file_is_told_with_lines(rest: Any) -> None:
    content = rest.job_file("bad").replace("gpu: 1", "gpus: 1").replace("type: job", "type: x")
    answer = await rest.client.post("/api/v2/jobs", content=content)
    assert answer.status_code == 400
    body = answer.json()
    assert body["code"] == "InvalidProtocolError"
    assert [(e["path"], e["line"]) for e in body["errors"]] == [
        ("type", 3),
        ("taskRoles.worker.resourcePerInstance.gpu", 10),
        ("taskRoles.worker.resourcePerInstance.gpus", 10),
    ]


async def test_a_large_body_is_refused_before_it_is_read(rest: Any) -> None:
    async def unannounced() -> Any:
        for _ in range(40):
            yield b"#" * 65_536

    answer = await rest.client.post("/api/v2/jobs", content=b"#" * (2**20 + 1))
    assert answer.status_code == 413
    answer = await rest.client.post("/api/v2/jobs", content=unannounced())
    assert answer.status_code == 413
    assert answer.json()["code"] == "RequestTooLargeError"
    answer = await rest.client.put("/api/v2/users/me", content=b" " * 70_000)
    assert answer.status_code == 413


async def test_a_job_with_secrets_is_refused_and_kept_nowhere(rest: Any) -> None:
    content = rest.job_file("secret") + "secrets: {key: marker-in-clear}\n"
    answer = await rest.client.post(
        "/api/v2/jobs", content=content, headers={"Idempotency-Key": "s"}
    )
    assert answer.status_code == 400
    assert "marker-in-clear" not in answer.text
    for table in ("job", "job_file", "idempotency", "outbox", "subject", "audit"):
        rows = await rest.runtime.pool.fetch(f"SELECT * FROM {table}")
        assert "marker-in-clear" not in str([dict(row) for row in rows])


async def test_only_the_owner_or_an_admin_stops_a_job(rest: Any) -> None:
    await rest.submit("mine")
    other = await rest.make_user("stranger")
    async with other:
        path = "/api/v2/jobs/admin~mine/executionType"
        answer = await other.put(path, json={"value": "STOP"})
        assert answer.status_code == 403
        assert answer.json()["code"] == "ForbiddenUserError"
        await other.post("/api/v2/jobs", content=rest.job_file("theirs"))
        path = "/api/v2/jobs/stranger~theirs/executionType"
        assert (await rest.client.put(path, json={"value": "STOP"})).status_code == 202


LISTS = {
    "": ["c", "b", "a"],
    "order=jobName,ASC": ["a", "b", "c"],
    "order=jobName,DESC&limit=2": ["c", "b"],
    "order=jobName,ASC&offset=1&limit=1": ["b"],
    "order=completionTime,ASC": ["b", "a", "c"],
    "order=completionTime,DESC": ["c", "a", "b"],
    "order=jobPriority,ASC&limit=1": ["c"],
    "state=SUCCEEDED,FAILED&order=jobName,ASC": ["b"],
    "state=WAITING&order=jobName,ASC": ["a", "c"],
    "username=nobody": [],
    "username=admin,nobody&keyword=B": ["b"],
    "jobPriority=prod": ["c"],
    "jobPriority=default&order=jobName,ASC": ["a", "b"],
    "jobPriority=default&keyword=c": [],
    "vc=other": [],
    "keyword=%25": [],
    "tagsContain=x": [],
    "tagsNotContain=x&order=jobName,ASC": ["a", "b", "c"],
    "limit=0": [],
}


async def test_lists_are_filtered_ordered_and_paged(rest: Any) -> None:
    for name in ("a", "b", "c"):
        content = rest.job_file(name)
        if name == "c":
            content += "extras: {hivedScheduler: {jobPriorityClass: prod}}\n"
        await rest.client.post("/api/v2/jobs", content=content)
    job = await rest.job_id("b")
    done = status(job, 1, JobState.SUCCEEDED, completed_at=NOW)
    await rest.hear("job-updated", job, done)
    for query, names in LISTS.items():
        answer = await rest.client.get(f"/api/v2/jobs?{query}")
        assert [each["name"] for each in answer.json()] == names, query
        counted = (await rest.client.get(f"/api/v2/jobs?{query}&withTotalCount=true")).json()
        assert [each["name"] for each in counted["data"]] == names, query
        assert len(names) <= counted["totalCount"] <= 3, query


async def test_a_wrong_query_is_400(rest: Any) -> None:
    for query in ("limit=50001", "limit=-1", "offset=x", "order=nonsense,ASC", "state=GONE"):
        answer = await rest.client.get(f"/api/v2/jobs?{query}")
        assert answer.status_code == 400, query
        assert answer.json()["code"] == "InvalidParametersError"
        assert answer.json()["errors"]


async def test_what_is_not_there_is_refused_in_the_one_shape(rest: Any) -> None:
    for path in ("jobs/nobody~x", "jobs/x", "jobs/a~b/config", "jobs/a~b/why", "nothing"):
        answer = await rest.client.get(f"/api/v2/{path}")
        assert answer.status_code == 404, path
        assert set(answer.json()) == {"code", "message", "errors"}
    answer = await rest.client.get("/api/v2/jobs/a%00~b")
    assert answer.status_code == 400
    answer = await rest.client.request("PATCH", "/api/v2/jobs")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert answer.json()["code"] == "NoApiError"


async def test_a_bug_is_a_500_that_tells_nothing_of_its_inside(
    rest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_args: object) -> None:
        raise ZeroDivisionError("inside-marker")

    monkeypatch.setattr("rest.api.jobs.list_jobs", broken)
    answer = await rest.client.get("/api/v2/jobs")
    assert answer.status_code == 500
    assert answer.json()["code"] == "UnknownError"
    assert "inside-marker" not in answer.text
    answer = await rest.client.put("/api/v2/users/me", content=b"{not json")
    assert (answer.status_code, set(answer.json())) == (400, {"code", "message", "errors"})


async def test_the_audit_log_has_every_write(rest: Any) -> None:
    await rest.submit("audited")
    await rest.client.put("/api/v2/jobs/admin~audited/executionType", json={"value": "STOP"})
    entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
    actions = [(entry["username"], entry["action"], entry["object"]) for entry in entries]
    assert actions[:2] == [
        ("admin", "job.stop", "admin~audited"),
        ("admin", "job.submit", "admin~audited"),
    ]


async def test_a_database_that_is_away_is_503_and_no_job_is_lost(rest: Any) -> None:
    await rest.submit("before")
    await rest.runtime.pool.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'muster-rest' AND pid <> pg_backend_pid()"
    )
    after = await rest.submit("after")
    assert after.status_code == 202
    names = [each["name"] for each in (await rest.client.get("/api/v2/jobs")).json()]
    assert names == ["after", "before"]


async def test_answers_are_what_the_openapi_document_says(rest: Any) -> None:
    from rest.api.models import JobDetail, JobListItem

    await rest.submit("documented")
    content = await shown(rest, "documented")
    parsed = JobDetail.model_validate(content)
    again = json.loads(parsed.model_dump_json(by_alias=True))
    assert content == again
    (item,) = (await rest.client.get("/api/v2/jobs")).json()
    again = json.loads(JobListItem.model_validate(item).model_dump_json(by_alias=True))
    assert item == again
