"""Jobs through all five services, as a user sees them."""

import json
from pathlib import Path

import pytest
from muster.contracts.topics import Service
from scheduler_watched import until
from whole_muster import Muster, a_job, eventually

pytestmark = pytest.mark.system


async def test_a_job_runs_to_its_end_and_its_output_can_be_read(muster: Muster) -> None:
    name = await muster.submit(a_job("hello", "echo hello from task $PAI_TASK_INDEX"))
    assert await muster.end_of(name) == "SUCCEEDED"
    (task,) = (await muster.job(name))["taskRoles"]["worker"]["taskStatuses"]
    assert (task["taskState"], task["containerNodeName"]) == ("SUCCEEDED", "node-1")


async def test_a_failing_command_fails_the_job_with_its_exit_code(muster: Muster) -> None:
    name = await muster.submit(a_job("fails", "exit 3"))
    assert await muster.end_of(name) == "FAILED"
    (task,) = (await muster.job(name))["taskRoles"]["worker"]["taskStatuses"]
    assert task["containerExitCode"] == 3


async def test_a_users_failure_spends_one_retry(muster: Muster) -> None:
    name = await muster.submit(a_job("retries", "exit 3", retries=2))
    assert await muster.end_of(name) == "FAILED"
    status = (await muster.job(name))["jobStatus"]
    assert (status["retries"], status["retryDetails"]["user"]) == (2, 2)


async def test_programs_that_end_as_if_killed_spend_their_users_retries(muster: Muster) -> None:
    for command in ("exit 143", "kill -9 $$"):
        name = await muster.submit(a_job(f"ends-{command[0]}", command, retries=1))
        assert await muster.end_of(name) == "FAILED"
        status = (await muster.job(name))["jobStatus"]
        details = status["retryDetails"]
        assert (status["retries"], details["user"], details["platform"]) == (1, 1, 0)


async def test_a_running_job_can_be_stopped_and_everything_is_free_again(
    muster: Muster, tmp_path: Path
) -> None:
    """A stopped task ends when the gate is there."""
    gate = tmp_path / "gate"
    on_term = f'trap "until test -e {gate}; do sleep 0.1; done; exit 0" TERM'
    stubborn = f"{on_term}; touch {tmp_path}/$PAI_TASK_INDEX; while true; do sleep 0.1; done"
    name = await muster.submit(a_job("sleeps", stubborn, instances=2, gpus=4))
    await eventually(lambda: muster.state(name), lambda s: s == "RUNNING")
    await until(lambda: {"0", "1"} <= {path.name for path in tmp_path.iterdir()})
    answer = await muster.call("PUT", f"/api/v2/jobs/{name}/executionType", json={"value": "STOP"})
    assert answer.status_code == 202
    assert await muster.state(name) == "STOPPING"
    gate.touch()
    assert await muster.end_of(name) == "STOPPED"
    again = await muster.submit(a_job("after", "true", gpus=8))
    assert await muster.end_of(again) == "SUCCEEDED"
    await eventually(muster.unsettled, lambda count: count == 0)


async def test_a_gang_that_does_not_fit_waits_whole_with_its_reason(muster: Muster) -> None:
    first = await muster.submit(a_job("first", "exec sleep 600", gpus=6))
    await eventually(lambda: muster.state(first), lambda s: s == "RUNNING")
    second = await muster.submit(a_job("second", "true", instances=2, gpus=2))
    answer = await eventually(
        lambda: muster.call("GET", f"/api/v2/jobs/{second}/why"),
        lambda r: r.status_code == 200 and "GPU" in r.text,
    )
    assert await muster.state(second) == "WAITING", answer.text
    await muster.call("PUT", f"/api/v2/jobs/{first}/executionType", json={"value": "STOP"})
    assert await muster.end_of(second) == "SUCCEEDED"


async def test_pods_that_may_start_singly_do_not_wait_for_each_other(muster: Muster) -> None:
    job = a_job("single", "exec sleep 600", instances=3, gpus=4)
    name = await muster.submit(job + "extras: {gangAllocation: false}\n")

    async def running() -> int:
        roles = (await muster.job(name))["taskRoles"]
        return sum(t["taskState"] == "RUNNING" for t in roles["worker"]["taskStatuses"])

    await eventually(running, lambda count: count == 2)  # the third finds no room
    answer = await muster.call("PUT", f"/api/v2/jobs/{name}/executionType", json={"value": "STOP"})
    assert answer.status_code == 202
    assert await muster.end_of(name) == "STOPPED"
    await eventually(muster.unsettled, lambda count: count == 0)


async def test_a_jobs_expected_run_time_is_learnt_or_given(muster: Muster) -> None:
    """From the job file to the Scheduler, and from the Launcher's end of a job too."""
    for number in range(2):
        name = await muster.submit(a_job(f"train-{number}", "sleep 1", gpus=1))
        assert await muster.end_of(name) == "SUCCEEDED"
    failed = await muster.submit(a_job("train-2", "exit 1", gpus=1))
    assert await muster.end_of(failed) == "FAILED"
    pool = muster.runtimes[Service.SCHEDULER].pool
    (row,) = await eventually(
        lambda: pool.fetch("SELECT * FROM scheduler.run_time"),
        lambda rows: [len(row["seconds"]) for row in rows] == [2],
    )
    await eventually(muster.unsettled, lambda count: count == 0)
    assert (row["user_name"], row["name"], row["shape"]) == ("admin", "train-#", "1")
    learnt = await muster.submit(a_job("train-3", "exec sleep 600", gpus=1))
    hints = "extras: {muster: {expectedSeconds: 700, minRunSeconds: 60, borrow: true}}\n"
    given = await muster.submit(a_job("train-4", "exec sleep 600", gpus=1) + hints)
    for name in (learnt, given):
        await eventually(lambda name=name: muster.state(name), lambda s: s == "RUNNING")
    rows = await pool.fetch("SELECT expected_s, request::text FROM scheduler.gang")
    found = {json.loads(row["request"])["name"]: row for row in rows}
    assert found["train-3"]["expected_s"] == max(row["seconds"])
    assert found["train-4"]["expected_s"] is None
    message = json.loads(found["train-4"]["request"])
    assert (message["expectedS"], message["minRunS"], message["borrow"]) == (700, 60, True)
