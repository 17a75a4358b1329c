"""What the tasks of a job use, from the agents of its nodes."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from muster.contracts.jobs import JobState, JobStatus, TaskRoleStatus, TaskState, TaskStatus
from muster.service_keys import refusal, service_key
from rest.domain.usage import span_of
from service_auth import CLUSTER_KEY

NOW = datetime.fromtimestamp(time.time(), UTC)
USAGE = "/api/v2/jobs/admin~used/usage"


async def run_job(rest: Any, *tasks: TaskStatus) -> str:
    await rest.submit("used")
    job = str(await rest.job_id("used"))
    status = JobStatus(
        revision=1, job=job, name="used", user="admin", virtual_cluster="default",
        state=JobState.RUNNING, attempt=1, submitted_at=NOW, attempt_launched_at=NOW,
        task_roles=(TaskRoleStatus(name="worker", tasks=tasks),),
    )  # fmt: skip
    await rest.receive("job-updated", job, status)
    return job


def a_task(index: int, node: str, log_url: str, **more: Any) -> TaskStatus:
    return TaskStatus(index=index, state=TaskState.RUNNING, node=node, log_url=log_url, **more)


async def test_the_figures_of_a_jobs_tasks_are_shown_and_who_is_missing(
    rest: Any, agent: Any
) -> None:
    tasks = [a_task(index, "n1", agent.url) for index in (0, 1)]
    job = await run_job(rest, *tasks, a_task(2, "n2", "http://127.0.0.1:1"))
    at_s = NOW.timestamp()
    columns = {
        "at_s": [at_s + 15, at_s + 30],
        "span_s": [15, 15],
        "cpu_s": [30, 45],
        "memory": [1500, 4500],
        "gpu_known_s": [30, 30],
        "gpu_busy_s": [30, 0],
        "gpu_idle_s": [0, 30],
        "gpu_memory": [150, 150],
        "received": [None, 15],
    }
    pods = {f"{job}-1-worker-0-1": columns, f"{job}-0-worker-0-0": columns, "no-pod": columns}
    agent.logs[f"/usage/{job}"] = json.dumps({"pods": pods}).encode()
    answer = (await rest.client.get(USAGE)).json()
    [task] = answer["tasks"]
    assert [task[name] for name in ("role", "index", "attempt", "node")] == ["worker", 0, 1, "n1"]
    assert task["average"] == {
        "cpus": 2.5, "memoryBytes": 200, "gpuPercent": 50, "gpuIdlePercent": 50,
        "gpuMemoryBytes": 10, "receivedBytesPerS": 1, "sentBytesPerS": None,
        "readBytesPerS": None, "writtenBytesPerS": None,
    }  # fmt: skip
    assert task["series"]["cpus"] == [2, 3]
    assert task["series"]["gpuPercent"] == [100, 0]
    assert task["series"]["receivedBytesPerS"] == [None, 1]
    assert answer["missing"] == [
        {"node": "n2", "reason": "Node n2 does not answer; try again later."}
    ]
    [(path, query, token)] = agent.asked
    key = service_key(CLUSTER_KEY, "agent/n1")
    token = token.removeprefix("bearer ")
    assert refusal(key, "agent/n1", path, token, now_s=time.time()) is None
    assert float(query["since"]) < at_s < float(query["until"])


async def test_an_answer_that_is_none_hides_no_other(rest: Any, agent: Any) -> None:
    assert (await rest.client.get(USAGE)).status_code == 404
    job = await run_job(rest, a_task(0, "n1", agent.url))
    for content in (b"[]", b"no json", b'{"pods": {"p": {"at_s": [1], "cpu_s": []}}}'):
        agent.logs[f"/usage/{job}"] = content
        answer = await rest.client.get(USAGE)
        assert (answer.status_code, answer.json()["tasks"]) == (200, [])
        assert "can't be read" in answer.json()["missing"][0]["reason"]
    del agent.logs[f"/usage/{job}"]
    assert "older version" in (await rest.client.get(USAGE)).json()["missing"][0]["reason"]
    assert (await rest.client.get(USAGE, params={"points": 0})).status_code == 400
    earlier = "/api/v2/jobs/admin~used/attempts/0/usage"
    assert (await rest.client.get(earlier)).status_code == 404


def test_an_answer_is_about_the_attempts_life_whatever_agents_are_asked() -> None:
    begun, ended = NOW - timedelta(hours=2), NOW - timedelta(hours=1)
    status = JobStatus(
        revision=1, job="j", name="n", user="u", virtual_cluster="v", state=JobState.SUCCEEDED,
        submitted_at=begun, attempt_launched_at=begun, attempt_completed_at=ended, task_roles=(),
    )  # fmt: skip
    span = span_of(status, 60, NOW)
    assert (span.since, span.until) == (begun, ended)
    assert span.query()["since"] < begun.timestamp()
    assert span.query()["until"] > ended.timestamp()


def test_an_answer_has_a_bounded_number_of_points() -> None:
    for tasks, points in ((1, 60), (1, 1000), (10_000, 60), (50_000, 1000)):
        status = JobStatus(
            revision=1, job="j", name="n", user="u", virtual_cluster="v", state=JobState.RUNNING,
            submitted_at=datetime(2020, 1, 1, tzinfo=UTC),
            task_roles=(
                TaskRoleStatus(
                    name="w",
                    tasks=tuple(TaskStatus(index=i, state=TaskState.RUNNING) for i in range(tasks)),
                ),
            ),
        )  # fmt: skip
        span = span_of(status, points, NOW)
        query = span.query()
        steps = (query["until"] - query["since"]) / query["step"]
        assert steps <= points + 1e-6
        assert steps * tasks <= max(20_000, tasks) + 1e-6
