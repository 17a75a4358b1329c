"""Logs: located, read, followed by text and by events, from the agent that has them."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from muster.contracts.jobs import JobState, JobStatus, TaskRoleStatus, TaskState, TaskStatus
from muster.contracts.model import Reason
from muster.contracts.verdicts import Behavior, Fault, Verdict
from muster.service_keys import refusal, service_key
from service_auth import CLUSTER_KEY

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOGS = "/api/v2/jobs/admin~logged/attempts/0/taskRoles/worker/taskIndex/0/attempts/0/logs"


async def run_task(rest: Any, agent: Any, state: TaskState = TaskState.RUNNING) -> None:
    """Submit a job, whose task runs at the agent."""
    await rest.submit("logged")
    job = await rest.job_id("logged")
    task = TaskStatus(
        index=0, state=state, pod="pod-1", node="n", log_url=agent.url, launched_at=NOW
    )
    status = JobStatus(
        revision=1,
        job=job,
        name="logged",
        user="admin",
        virtual_cluster="default",
        state=JobState.RUNNING,
        submitted_at=NOW,
        task_roles=(TaskRoleStatus(name="worker", tasks=(task,)),),
    )
    await rest.receive("job-updated", job, status)


async def test_logs_are_located_and_read(rest: Any, agent: Any) -> None:
    await run_task(rest, agent)
    agent.logs["/logs/pod-1/stdout"] = b"one\ntwo\n" + b"x" * 20_000
    locations = (await rest.client.get(LOGS)).json()["locations"]
    assert [location["name"] for location in locations] == ["stdout", "stderr", "all"]
    answer = await rest.client.get(locations[0]["uri"])
    assert answer.content == agent.logs["/logs/pod-1/stdout"]
    assert answer.headers["content-type"].startswith("text/plain")
    token = agent.asked[0][2].removeprefix("bearer ")
    key, path = service_key(CLUSTER_KEY, "agent/n"), "/logs/pod-1/stdout"
    assert refusal(key, "agent/n", path, token, now_s=time.time()) is None
    assert CLUSTER_KEY not in token
    part = await rest.client.get(locations[0]["uri"], params={"offset": 4})
    assert part.text.startswith("two\n")
    tail = (await rest.client.get(LOGS, params={"tail-mode": "true"})).json()["locations"]
    assert len((await rest.client.get(tail[0]["uri"])).content) == 16 * 1024
    missing = await rest.client.get(f"{LOGS}/stderr")
    assert (missing.status_code, missing.json()["code"]) == (404, "NoTaskLogError")


async def test_a_log_longer_than_an_answer_is_read_in_parts(start_rest: Any, agent: Any) -> None:
    async with start_rest(log_bytes=8) as rest:
        await run_task(rest, agent)
        agent.logs["/logs/pod-1/stdout"] = b"0123456789"
        offset, seen = 0, b""
        for size in (8, 2):
            answer = await rest.client.get(f"{LOGS}/stdout", params={"offset": offset})
            assert len(answer.content) == size
            assert answer.headers["x-log-offset"] == str(offset)
            assert answer.headers["x-log-end"] == "10"
            seen, offset = seen + answer.content, offset + size
        assert seen == b"0123456789"


async def test_a_task_without_logs_is_404_and_an_agent_that_is_away_503(
    rest: Any, agent: Any
) -> None:
    await rest.submit("logged")
    assert (await rest.client.get(f"{LOGS}/stdout")).status_code == 404
    agent.url = "http://127.0.0.1:1"
    await run_task(rest, agent)
    for path in (f"{LOGS}/stdout", f"{LOGS}/stdout/events"):
        answer = await rest.client.get(path)
        assert answer.status_code == 503
        assert "is in the cluster no more" in answer.json()["message"]
    other = LOGS.replace("attempts/0/logs", "attempts/7/logs")
    assert (await rest.client.get(other)).status_code == 404
    assert (await rest.client.get(f"{LOGS}/secrets")).status_code == 400


async def test_the_log_of_a_job_that_waits_or_was_never_placed_is_an_error_with_the_reason(
    rest: Any,
) -> None:
    await rest.submit("logged")
    job = await rest.job_id("logged")
    refusal = (await rest.client.get(LOGS)).json()
    assert refusal["code"] == "NoTaskLogError"
    assert refusal["message"].startswith("admin~logged is WAITING")
    task = TaskStatus(index=0, state=TaskState.WAITING, pod="pod-1")
    status = JobStatus(
        revision=1,
        job=job,
        name="logged",
        user="admin",
        virtual_cluster="default",
        state=JobState.WAITING,
        reason=Reason(code="no-gpus", text="2 GPUs are wanted, 1 is free.", numbers={}),
        submitted_at=NOW,
        task_roles=(TaskRoleStatus(name="worker", tasks=(task,)),),
    )
    for revision, state, placed in (
        (1, JobState.WAITING, "is not placed on a node yet"),
        (2, JobState.FAILED, "was never placed on a node"),
    ):
        message = status.model_copy(update={"revision": revision, "state": state})
        await rest.receive("job-updated", job, message)
        for path in (LOGS, f"{LOGS}/all", f"{LOGS}/all/events"):
            answer = await rest.client.get(path)
            assert (answer.status_code, answer.json()["message"]) == (
                404,
                f"admin~logged is {state.value}: 2 GPUs are wanted, 1 is free."
                f" Its task worker 0 {placed}, so it has no log.",
            )


def a_status(job: str, *tasks: TaskStatus, **more: Any) -> JobStatus:
    """The first message on a job with these tasks, which runs."""
    more = {"revision": 1, "state": JobState.RUNNING} | more
    return JobStatus(
        job=job,
        name="logged",
        user="admin",
        virtual_cluster="default",
        submitted_at=NOW,
        task_roles=(TaskRoleStatus(name="worker", tasks=tasks),),
        **more,
    )


async def test_the_log_of_a_surplus_task_that_waits_says_for_what(rest: Any) -> None:
    await rest.submit("logged")
    job = await rest.job_id("logged")
    needed = TaskStatus(index=0, state=TaskState.RUNNING, pod="pod-0", node="n")
    waits = [TaskStatus(index=index, state=TaskState.WAITING) for index in (1, 2)]
    status = a_status(job, needed, *waits)
    roles = tuple(each.model_copy(update={"min_instances": 2}) for each in status.task_roles)
    await rest.receive("job-updated", job, status.model_copy(update={"task_roles": roles}))
    for index, hint in (
        (1, ""),  # the job needs it
        (2, " The job runs without it until there is room to grow into."),
    ):
        path = LOGS.replace("taskIndex/0", f"taskIndex/{index}")
        assert (await rest.client.get(path)).json()["message"] == (
            f"admin~logged is RUNNING. Its task worker {index} is not placed on a node yet,"
            f" so it has no log.{hint}"
        )


@pytest.mark.parametrize("state", [JobState.WAITING, JobState.RUNNING])
async def test_a_task_without_a_node_does_not_wait_for_what_another_waits_for(
    rest: Any, state: JobState
) -> None:
    await rest.submit("logged")
    why = Reason(
        code="not-taken", text="The pod can't be created in Kubernetes yet: no.", numbers={}
    )
    waits = TaskStatus(index=0, state=TaskState.WAITING, pod="pod-0")
    held_up = TaskStatus(index=1, state=TaskState.WAITING, pod="pod-1", node="n", reason=why)
    job = await rest.job_id("logged")
    await rest.receive("job-updated", job, a_status(job, waits, held_up, state=state, reason=why))
    assert (await rest.client.get(LOGS)).json()["message"] == (
        f"admin~logged is {state.value}. Its task worker 0 is not placed on a node yet,"
        " so it has no log."
    )


async def test_a_task_that_was_never_placed_says_how_it_ended_itself(rest: Any) -> None:
    await rest.submit("logged")
    refused = Verdict(
        code=-1, phrase="Refused", rule="refused", fault=Fault.USER, behavior=Behavior.PERMANENT,
        cause="No node has 9 GPUs.", symptom="", outcome="",
    )  # fmt: skip
    over = TaskStatus(index=0, state=TaskState.FAILED, pod="pod-0", verdict=refused)
    runs = TaskStatus(index=1, state=TaskState.RUNNING, pod="pod-1", node="n")
    job = await rest.job_id("logged")
    await rest.receive("job-updated", job, a_status(job, over, runs))
    never = "Its task worker 0 was never placed on a node, so it has no log"
    assert (await rest.client.get(LOGS)).json()["message"] == (
        f"admin~logged is RUNNING. {never}: No node has 9 GPUs."
    )
    why = refused.model_copy(update={"cause": "The program aborted."})
    ended = runs.model_copy(update={"state": TaskState.FAILED})
    message = a_status(job, over, ended, revision=2, state=JobState.FAILED, verdict=why)
    await rest.receive("job-updated", job, message)
    assert (await rest.client.get(LOGS)).json()["message"] == (
        f"admin~logged is FAILED: The program aborted. {never}: No node has 9 GPUs."
    )
    message = a_status(job, over, ended, revision=3, state=JobState.FAILED, verdict=refused)
    await rest.receive("job-updated", job, message)
    assert (await rest.client.get(LOGS)).json()["message"] == (
        f"admin~logged is FAILED: No node has 9 GPUs. {never}."
    )


async def test_a_task_that_has_not_begun_on_its_node_says_why(rest: Any) -> None:
    await rest.submit("logged")
    job = await rest.job_id("logged")
    why = Reason(code="image-not-pulled", text="The registry does not answer.", numbers={})
    waits = TaskStatus(index=0, state=TaskState.WAITING, pod="pod-0", node="n", reason=why)
    await rest.receive("job-updated", job, a_status(job, waits, state=JobState.WAITING, reason=why))
    assert (await rest.client.get(LOGS)).json()["message"] == (
        "admin~logged is WAITING. Its task worker 0 has not begun yet, so it has no log: The"
        " registry does not answer."
    )
    denied = Verdict(
        code=254, phrase="Denied", rule="image-denied", fault=Fault.USER,
        behavior=Behavior.PERMANENT, cause="The image does not exist.",
    )  # fmt: skip
    over = waits.model_copy(update={"state": TaskState.FAILED, "reason": None, "verdict": denied})
    message = a_status(job, over, revision=2, state=JobState.FAILED, verdict=denied)
    await rest.receive("job-updated", job, message)
    assert (await rest.client.get(f"{LOGS}/all")).json()["message"] == (
        "admin~logged is FAILED: The image does not exist. Its task worker 0 never began, so it has"
        " no log."
    )


async def read_events(lines: Any, count: int) -> list[dict[str, str]]:
    """The next events of a stream, without comments. Dropping ``lines`` ends the stream."""
    events: list[dict[str, str]] = []
    now: dict[str, str] = {}
    async for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            now[name] = f"{now[name]}\n{value}" if name in now else value
        elif now:
            events.append(now)
            now = {}
            if len(events) == count:
                break
    return events


async def test_events_carry_offsets_and_resume(rest: Any, agent: Any) -> None:
    await run_task(rest, agent)
    agent.logs["/logs/pod-1/all"] = b"one\ntwo\nhal"
    path = f"{LOGS}/all/events"
    async with rest.client.stream("GET", path) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert await read_events(response.aiter_lines(), 1) == [{"id": "8", "data": "one\ntwo"}]
    agent.more.put_nowait(b"f\n10%\r20%\n")
    agent.more.put_nowait(None)
    agent.more.put_nowait(None)
    async with rest.client.stream("GET", path, headers={"Last-Event-ID": "4"}) as response:
        events = await read_events(response.aiter_lines(), 9)
    text = "\n".join(event["data"] for event in events if event.get("event") != "end")
    assert text.startswith("two")
    assert events[-1]["event"] == "end"


async def test_a_followed_text_ends_with_the_task(rest: Any, agent: Any) -> None:
    await run_task(rest, agent)
    agent.logs["/logs/pod-1/stdout"] = b"begin\n"
    for piece in (b"more\n", None):
        agent.more.put_nowait(piece)
    answer = await rest.client.get(f"{LOGS}/stdout", params={"follow": "true"})
    assert answer.text == "begin\nmore\n"


async def test_a_silent_log_has_heartbeats(start_rest: Any, agent: Any) -> None:
    async with start_rest(stream_heartbeat_s=0.05) as rest:
        await run_task(rest, agent)
        agent.logs["/logs/pod-1/stdout"] = b""
        async with rest.client.stream("GET", f"{LOGS}/stdout/events") as response:
            comments = 0
            async for line in response.aiter_lines():
                comments += line.startswith(":")
                if comments == 3:
                    break
        assert comments == 3


@pytest.mark.parametrize(
    "settings", [{"log_streams_per_user": 1}, {"log_streams_of_all": 1}], ids=["user", "all"]
)
async def test_readers_of_logs_are_limited_and_places_come_back(
    start_rest: Any, agent: Any, settings: dict[str, int]
) -> None:
    async with start_rest(**settings) as rest:
        await run_task(rest, agent)
        agent.logs["/logs/pod-1/stdout"] = b"line\n"
        path = f"{LOGS}/stdout/events"
        async with rest.client.stream("GET", path) as response:
            lines = response.aiter_lines()
            await read_events(lines, 1)
            for second in (path, f"{LOGS}/stdout"):
                answer = await rest.client.get(second)
                assert answer.status_code == 429
                assert int(answer.headers["retry-after"]) > 0

        async def follow() -> int:
            async with rest.client.stream("GET", path) as again:
                status: int = again.status_code
                return status

        await rest.eventually(follow, 200)


async def test_streams_end_when_the_server_stops(start_rest: Any, agent: Any) -> None:
    async with start_rest() as rest:
        await run_task(rest, agent)
        agent.logs["/logs/pod-1/stdout"] = b"line\n"
        ended = asyncio.Event()

        async def follow() -> list[str]:
            async with (
                rest.with_token(rest.token) as client,
                client.stream("GET", f"{LOGS}/stdout/events") as response,
            ):
                lines = []
                async for line in response.aiter_lines():
                    lines.append(line)
                    if line == "data: line":
                        ended.set()
                return lines

        following = asyncio.create_task(follow())
        await ended.wait()
        rest.runtime.stopping.set()
        lines = await following
        assert "event: end" not in lines


async def test_a_followed_log_ends_when_its_reader_is_removed(start_rest: Any, agent: Any) -> None:
    async with start_rest(stream_heartbeat_s=0.05, token_cache_s=0.01) as rest:
        await run_task(rest, agent)
        agent.logs["/logs/pod-1/stdout"] = b"line\n"

        async def follow(username: str, path: str) -> str:
            read = ""
            async with await rest.make_user(username) as user, user.stream("GET", path) as response:
                async for text in response.aiter_text():
                    if "line" in text:
                        await rest.client.delete(f"/api/v2/users/{username}")
                    read += text
            return read

        async with asyncio.timeout(60):
            read = await follow("ann", f"{LOGS}/stdout/events")
            assert read.endswith(
                ": The token is not valid any more, or its rights have changed.\n\n"
            )
            assert "event: end" not in read
            with pytest.raises(httpx2.RemoteProtocolError):  # so a text does not look whole
                await follow("bob", f"{LOGS}/stdout?follow=true")


async def test_an_agent_that_goes_away_ends_the_events_without_the_last_one(
    rest: Any, agent: Any
) -> None:
    await run_task(rest, agent)
    agent.logs["/logs/pod-1/stdout"] = b"line\n"
    async with rest.client.stream("GET", f"{LOGS}/stdout/events") as response:
        lines = response.aiter_lines()
        assert await read_events(lines, 1) == [{"id": "5", "data": "line"}]
        agent.hang_up()
        rest_of_it = [line async for line in lines]
    assert "event: end" not in rest_of_it
    assert any("stopped answering" in line for line in rest_of_it)


@pytest.mark.parametrize("follow", ["true", "false"])
async def test_a_text_whose_agent_goes_away_does_not_look_whole(
    rest: Any, agent: Any, follow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await run_task(rest, agent)
    agent.logs["/logs/pod-1/stdout"] = b"line\n"
    agent.is_slow = True
    path = f"{LOGS}/stdout?follow={follow}"
    async with rest.client.stream("GET", path) as response:
        pieces = response.aiter_bytes()
        assert await anext(pieces) == b"line\n"
        agent.hang_up()
        with pytest.raises(httpx2.RemoteProtocolError):
            await anext(pieces)
    log = capsys.readouterr().out
    assert "an answer could not be sent to its end" in log
    assert "a request failed" not in log


@pytest.mark.parametrize(
    ("networks", "url"),
    [
        ("10.0.0.0/8", "{agent}"),
        ("127.0.0.0/8", "http://169.254.169.254/latest/meta-data"),
        ("127.0.0.0/8", "http://[::ffff:10.0.0.1]:80"),
        ("127.0.0.0/8", "http://2130706433.invalid"),
        ("127.0.0.0/8", "{agent}/?"),
        ("127.0.0.0/8", "{agent}/#"),
        ("127.0.0.0/8", "http://root:secret@127.0.0.1"),
        ("127.0.0.0/8", "file:///etc"),
        ("127.0.0.0/8", "gopher://127.0.0.1"),
    ],
)
async def test_a_node_that_lies_about_its_address_leads_rest_nowhere(
    start_rest: Any, agent: Any, networks: str, url: str
) -> None:
    async with start_rest(agent_networks=networks) as rest:
        agent.logs["/logs/pod-1/stdout"] = b"one\n"
        agent.url = url.format(agent=agent.url)
        await run_task(rest, agent)
        answer = await rest.client.get(f"{LOGS}/stdout")
        if ".invalid" in url:
            assert answer.status_code == 503
        else:
            assert (answer.status_code, answer.json()["code"]) == (502, "AgentAddressError")
            assert "Node n reports" in answer.json()["message"]
        assert agent.asked == []


async def test_an_address_outside_the_networks_is_an_error_with_node_and_setting(
    start_rest: Any, agent: Any
) -> None:
    async with start_rest(agent_networks="10.0.0.0/8") as rest:
        await run_task(rest, agent)
        message = (await rest.client.get(f"{LOGS}/stdout")).json()["message"]
        for part in ("Node n ", agent.url, "127.0.0.1", "MUSTER_AGENT_NETWORKS"):
            assert part in message
        metrics = (await rest.client.get("/metrics")).text
        assert "muster_rest_agent_addresses_refused_total 1.0" in metrics


async def test_an_agent_that_redirects_leads_rest_nowhere(rest: Any, agent: Any) -> None:
    await run_task(rest, agent)
    agent.redirect = f"{agent.url}/elsewhere"
    assert (await rest.client.get(f"{LOGS}/stdout")).status_code == 503
    assert [path for path, *_ in agent.asked] == ["/logs/pod-1/stdout"]
