"""Jobs over HTTP: shown, stopped, and updated by the Launcher's messages."""

from datetime import UTC, datetime, timedelta
from typing import Any

from muster.contracts.gangs import GangClass
from muster.contracts.jobs import (
    Execution,
    JobState,
    Retries,
    TaskRoleStatus,
    TaskState,
    TaskStatus,
)
from muster.contracts.model import Reason
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.verdicts import Behavior, Fault, Verdict

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKE = Verdict(
    code=3,
    phrase="UserFailed",
    rule="r1",
    fault=Fault.USER,
    behavior=Behavior.UNKNOWN,
    cause="it broke",
    evidence="boom",
)


ROLES = (TaskRoleStatus(name="worker", tasks=(TaskStatus(index=0, state=TaskState.SUCCEEDED),)),)


async def test_a_get_after_a_submission_shows_it(rest: Any) -> None:
    answer = await rest.submit("first")
    assert answer.status_code == 202
    assert answer.json()["name"] == "admin~first"
    assert [w["path"] for w in answer.json()["warnings"]] == ["prerequisites[0].uri"]
    job = await rest.shown("first")
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
    (warning,) = [w for w in answer.json()["warnings"] if w["path"] == "defaults.virtualCluster"]
    assert (warning["line"], warning["column"]) == (12, 12)
    assert (await rest.shown("elsewhere"))["jobStatus"]["virtualCluster"] == "vc1"


async def test_the_message_is_written_in_the_transaction_of_the_submission(rest: Any) -> None:
    await rest.submit("published")
    (message,) = await rest.messages(await rest.job_id("published"))
    assert message.execution is Execution.START
    assert (message.user, message.name) == ("admin", "published")
    assert message.spec is not None
    assert message.spec.task_roles[0].command == "python train.py"


async def test_a_get_after_a_stop_shows_it_whatever_the_launcher_still_publishes(rest: Any) -> None:
    await rest.submit("stopped")
    job = await rest.job_id("stopped")
    stop = {"value": "STOP"}
    answer = await rest.client.put("/api/v2/jobs/admin~stopped/executionType", json=stop)
    assert answer.status_code == 202
    assert answer.json()["message"] == "admin~stopped: stop requested (was WAITING)."
    content = await rest.shown("stopped")
    assert content["jobStatus"]["state"] == "STOPPING"
    assert content["jobStatus"]["executionType"] == "STOP"
    (message,) = await rest.messages(job)
    assert message.execution is Execution.STOP
    assert message.stop_requested_by == "admin"
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.RUNNING))
    assert (await rest.shown("stopped"))["jobStatus"]["state"] == "STOPPING"
    again = await rest.client.put("/api/v2/jobs/admin~stopped/executionType", json=stop)
    assert again.status_code == 202
    text = "admin~stopped: stop requested before; it is STOPPING."
    assert again.json()["message"] == text
    await rest.receive("job-updated", job, rest.status(job, 2, JobState.STOPPED))
    assert (await rest.shown("stopped"))["jobStatus"]["state"] == "STOPPED"
    over = await rest.client.put("/api/v2/jobs/admin~stopped/executionType", json=stop)
    assert over.status_code == 409
    assert over.json()["message"] == "admin~stopped is already STOPPED: nothing to stop."
    start = {"value": "START"}
    restart = await rest.client.put("/api/v2/jobs/admin~stopped/executionType", json=start)
    assert restart.status_code == 409


async def test_the_launchers_messages_are_shown(rest: Any) -> None:
    await rest.submit("shown")
    job = await rest.job_id("shown")
    reason = Reason(code="no-room", text="8 GPUs are wanted, 2 are free", numbers={"free": 2})
    waiting = rest.status(job, 1, JobState.WAITING, reason=reason)
    await rest.receive("job-updated", job, waiting)
    why = (await rest.client.get("/api/v2/jobs/admin~shown/why")).json()
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
    lent = rest.status(
        job,
        2,
        JobState.RUNNING,
        gang_class=GangClass.GUARANTEED,
        lender="speech",
        task_roles=(TaskRoleStatus(name="worker", min_instances=1, tasks=(task,)),),
    )
    await rest.receive("job-updated", job, lent)
    content = await rest.shown("shown")
    held = (content["jobStatus"]["gangClass"], content["jobStatus"]["lender"])
    assert held == ("guaranteed", "speech")
    shown_role = content["taskRoles"]["worker"]["taskRoleStatus"]
    assert shown_role == {"name": "worker", "minInstances": 1}
    failed = rest.status(
        job,
        3,
        JobState.FAILED,
        attempt=1,
        retries=Retries(user=1),
        launched_at=NOW,
        completed_at=NOW + timedelta(seconds=5),
        task_roles=(TaskRoleStatus(name="worker", tasks=(task,)),),
        verdict=BROKE,
    )
    await rest.receive("job-updated", job, failed)
    content = await rest.shown("shown")
    state = content["jobStatus"]
    assert state["state"] == "FAILED"
    assert state["retryDetails"] == {"user": 1, "platform": 0, "resource": 0}
    assert state["completedTime"] - state["launchedTime"] == 5000
    assert (state["appExitCode"], state["appExitType"]) == (3, "USER_FAILURE")
    assert state["appExitMessages"]["container"] == "boom"
    why = (await rest.client.get("/api/v2/jobs/admin~shown/why")).json()
    assert why["reason"]["text"] == "it broke"
    shown_task = content["taskRoles"]["worker"]["taskStatuses"][0]
    assert shown_task["containerPorts"] == {"http": "20000", "sync": "20001,20002"}
    assert shown_task["containerGpus"] == 0b101
    assert shown_task["containerNodeName"] == "n1"
    first = (await rest.client.get("/api/v2/jobs/admin~shown/attempts/0")).json()
    assert first["jobStatus"]["attemptId"] == 0
    latest = (await rest.client.get("/api/v2/jobs/admin~shown/attempts/1")).json()
    assert latest["jobStatus"]["attemptId"] == 1
    none = await rest.client.get("/api/v2/jobs/admin~shown/attempts/2")
    assert none.status_code == 404
    assert "has no attempt 2; the newest are 0, 1." in none.text


async def test_a_failed_attempt_does_not_show_the_reason_of_the_next_ones_wait(rest: Any) -> None:
    await rest.submit("again")
    job = await rest.job_id("again")
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.WAITING, verdict=BROKE))
    waits = Reason(code="quota", text="default has no GPU left.", numbers={})
    retried = rest.status(job, 2, JobState.WAITING, attempt=1, reason=waits)
    await rest.receive("job-updated", job, retried)
    first = (await rest.client.get("/api/v2/jobs/admin~again/attempts/0")).json()
    state = first["jobStatus"]
    assert (state["reason"], state["appExitDiagnostics"]) == (None, "it broke")
    latest = (await rest.client.get("/api/v2/jobs/admin~again/attempts/1")).json()
    assert latest["jobStatus"]["reason"]["text"] == "default has no GPU left."


async def test_final_states_never_move(rest: Any) -> None:
    await rest.submit("over")
    job = await rest.job_id("over")
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.SUCCEEDED))
    for revision, state in enumerate((JobState.RUNNING, JobState.FAILED, JobState.STOPPED), 2):
        await rest.receive("job-updated", job, rest.status(job, revision, state))
        assert (await rest.shown("over"))["jobStatus"]["state"] == "SUCCEEDED"
    last = rest.status(job, 9, JobState.SUCCEEDED, retries=Retries(user=2), task_roles=ROLES)
    await rest.receive("job-updated", job, last)
    assert (await rest.shown("over"))["jobStatus"]["retries"] == 2


async def test_a_restored_launcher_takes_no_final_attempt_back(rest: Any) -> None:
    await rest.submit("over")
    job = await rest.job_id("over")
    final = rest.status(job, 1, JobState.FAILED, attempt=2)
    await rest.receive("job-updated", job, final)
    await rest.receive("job-updated", job, rest.status(job, 2, JobState.FAILED, attempt=1))
    assert (await rest.shown("over"))["jobStatus"]["attemptId"] == 2


async def has_a_stop_for_the_launcher(rest: Any, job: str) -> bool:
    """REST's latest message on the job is a stop, its last; whether it is to go out."""
    assert (await rest.messages(job))[-1].execution is Execution.STOP
    query = "SELECT is_open, repeat_at FROM subject WHERE subject = $1"
    row = await rest.runtime.pool.fetchrow(query, job)
    assert not row["is_open"]
    return row["repeat_at"] is not None


async def test_only_a_launcher_that_has_forgotten_an_ended_job_gets_a_stop(
    rest: Any,
) -> None:
    await rest.submit("over")
    job = await rest.job_id("over")
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.WAITING))
    for revision in (2, 3):
        final = rest.status(job, revision, JobState.FAILED, task_roles=ROLES)
        await rest.receive("job-updated", job, final)
        assert not await has_a_stop_for_the_launcher(rest, job)
    forgotten = final.model_copy(update={"revision": 4, "seen": 0})
    await rest.receive("job-updated", job, forgotten)
    assert await has_a_stop_for_the_launcher(rest, job)


async def test_a_job_that_ends_while_its_start_is_on_its_way_is_followed_by_a_stop(
    rest: Any,
) -> None:
    """The Launcher may read that START after it was restored."""
    await rest.submit("over")
    job = await rest.job_id("over")
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.FAILED))
    assert await has_a_stop_for_the_launcher(rest, job)


async def test_a_launcher_that_never_knew_a_job_does_not_empty_its_last_page(rest: Any) -> None:
    await rest.submit("over")
    job = await rest.job_id("over")
    stopped = rest.status(job, 1, JobState.STOPPED, task_roles=ROLES)
    await rest.receive("job-updated", job, stopped)
    await rest.receive("job-updated", job, rest.status(job, 2, JobState.STOPPED))
    assert (await rest.shown("over"))["taskRoles"].keys() == {"worker"}


async def test_an_attempt_that_a_restored_launcher_has_forgotten_can_be_read(rest: Any) -> None:
    await rest.submit("again")
    job = await rest.job_id("again")
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.RUNNING, attempt=2))
    await rest.receive("job-updated", job, rest.status(job, 2, JobState.WAITING, attempt=1))
    assert (await rest.shown("again"))["jobStatus"]["attemptId"] == 1
    kept = await rest.client.get("/api/v2/jobs/admin~again/attempts/2")
    assert kept.json()["jobStatus"]["attemptId"] == 2


async def test_a_launcher_that_runs_a_final_job_gets_a_stop(rest: Any) -> None:
    """As where the Launcher's database was restored."""
    await rest.submit("final")
    job = await rest.job_id("final")
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.WAITING))
    await rest.receive("job-updated", job, rest.status(job, 2, JobState.SUCCEEDED))
    assert not await has_a_stop_for_the_launcher(rest, job)
    await rest.receive("job-updated", job, rest.status(job, 3, JobState.RUNNING))
    assert await has_a_stop_for_the_launcher(rest, job)


async def test_a_job_that_rest_does_not_know_gets_a_stop(rest: Any) -> None:
    await rest.receive("job-updated", "unknown", rest.status("unknown", 1, JobState.RUNNING))
    (message,) = await rest.messages("unknown")
    assert message.execution is Execution.STOP
    assert message.spec is None
    await rest.receive("job-updated", "ended", rest.status("ended", 1, JobState.STOPPED))
    rows = await rest.runtime.pool.fetch("SELECT message FROM subject WHERE subject = 'ended'")
    assert [row["message"] for row in rows] == [None]


async def test_a_submission_that_the_launcher_could_not_handle_shows_it(rest: Any) -> None:
    await rest.submit("poisoned")
    job = await rest.job_id("poisoned")
    applied = AppliedRevision(
        kind="job", subject=job, revision=1, sender_revision=0, is_rejected=True
    )
    dead = RevisionAcknowledged(sender="launcher", receiver="rest", applied=(applied,))
    await rest.receive("revision-acknowledged", job, dead)
    why = (await rest.client.get("/api/v2/jobs/admin~poisoned/why")).json()
    assert why["reason"]["code"] == "dead-letter"


async def test_a_job_shows_a_message_of_the_launcher_that_was_rejected(rest: Any) -> None:
    await rest.submit("stuck")
    job = await rest.job_id("stuck")
    path = "/api/v2/jobs/admin~stuck"
    rejected = "gang g-0: the other side rejected the Launcher's latest message."
    status = rest.status(job, 1, JobState.WAITING)
    await rest.receive("job-updated", job, status.model_copy(update={"dead_letter": rejected}))
    reason = (await rest.client.get(f"{path}/why")).json()["reason"]
    assert reason["code"] == "dead-letter"
    assert reason["text"].startswith(rejected)
    assert "muster events redrive" in reason["text"]
    await rest.receive("job-updated", job, rest.status(job, 2, JobState.WAITING))
    assert (await rest.client.get(path)).json()["jobStatus"]["reason"] is None
    status = rest.status(job, 3, JobState.STOPPED)
    await rest.receive("job-updated", job, status.model_copy(update={"dead_letter": rejected}))
    assert (await rest.client.get(path)).json()["jobStatus"]["reason"] is None


async def test_only_the_owner_or_an_admin_stops_a_job(rest: Any) -> None:
    await rest.submit("mine")
    other = await rest.make_user("other")
    async with other:
        path = "/api/v2/jobs/admin~mine/executionType"
        answer = await other.put(path, json={"value": "STOP"})
        assert answer.status_code == 403
        assert answer.json()["code"] == "ForbiddenUserError"
        await other.post("/api/v2/jobs", content=rest.job_file("theirs"))
        path = "/api/v2/jobs/other~theirs/executionType"
        assert (await rest.client.put(path, json={"value": "STOP"})).status_code == 202


async def test_a_job_has_tags_until_they_are_removed(rest: Any) -> None:
    await rest.submit("tagged")
    path = "/api/v2/jobs/admin~tagged/tag"
    for tag in ("slow", "keep", "slow"):
        assert (await rest.client.put(path, json={"value": tag})).status_code == 200
    assert (await rest.shown("tagged"))["tags"] == ["keep", "slow"]
    job = await rest.job_id("tagged")
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.RUNNING))
    gone = {"method": "DELETE", "url": path, "json": {"value": "keep"}}
    assert (await rest.client.request(**gone)).status_code == 200
    assert (await rest.shown("tagged"))["tags"] == ["slow"]
    again = await rest.client.request(**gone)
    assert (again.status_code, again.json()["code"]) == (404, "NoTagError")
    for wrong in ("a,b", "", " a", "a\nb", "x" * 65):
        assert (await rest.client.put(path, json={"value": wrong})).status_code == 400, wrong
    for number in range(49):
        await rest.client.put(path, json={"value": str(number)})
    full = await rest.client.put(path, json={"value": "one too many"})
    assert (full.status_code, full.json()["message"]) == (
        400,
        "A job has at most 50 tags: remove one.",
    )
    missing = await rest.client.put("/api/v2/jobs/admin~none/tag", json={"value": "t"})
    assert missing.status_code == 404
    entries = (await rest.client.get("/api/v2/audit?limit=100")).json()["entries"]
    tagged = [it for it in entries if it["action"] in ("job.tag", "job.untag")]
    assert len(tagged) == 2 + 1 + 49
