"""Every request: bounds, refusals in one shape, measures, the audit log."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest


async def test_bodies_in_memory_are_bounded_and_let_go(start_rest: Any) -> None:
    async with start_rest(bodies_bytes=2000) as rest:
        assert (await rest.submit("small")).status_code == 202
        large = rest.job_file("large") + "#" * 2000
        answer = await rest.client.post("/api/v2/jobs", content=large)
        assert (answer.status_code, answer.json()["code"]) == (503, "UnavailableError")
        for n in range(10):
            assert (await rest.submit(f"small-{n}")).status_code == 202


async def test_metrics_name_routes_and_no_unknown_paths(rest: Any) -> None:
    await rest.client.get("/api/v2/jobs/admin~some-name")
    await rest.client.request("MADEUP", "/api/v2/jobs")
    text = (await rest.client.get("/metrics")).text
    assert 'route="/api/v2/jobs/{job}"' in text
    assert "MADEUP" not in text
    assert "some-name" not in text


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


async def test_a_wrong_query_is_400(rest: Any) -> None:
    for query in ("limit=50001", "limit=-1", "offset=x", "order=nonsense,ASC", "state=GONE"):
        answer = await rest.client.get(f"/api/v2/jobs?{query}")
        assert answer.status_code == 400, query
        assert answer.json()["code"] == "InvalidParametersError"
        assert answer.json()["errors"]


@pytest.mark.parametrize("day", ["yesterday", "2026-13-01", "2026-01-31T13:00:00Z"])
async def test_a_wrong_day_is_answered_by_how_to_write_one(rest: Any, day: str) -> None:
    answer = await rest.client.get("/api/v2/reports/usage", params={"week": day})
    assert answer.status_code == 400
    fault = "`week` is no day: write it like 2026-01-31"
    assert answer.json()["message"] == f"The request is not valid: {fault}."


@pytest.mark.parametrize("time", ["tomorrow", "2026-01-31", "2026-01-31T13:00:00"])
async def test_a_wrong_time_is_answered_by_how_to_write_one(rest: Any, time: str) -> None:
    wanted = {"alert": "GpuXid", "until": time}
    answer = await rest.client.post("/api/v2/alerts/mutes", json=wanted)
    assert answer.status_code == 400
    fault = "`until` is no time: write it like 2026-01-31T13:00:00Z"
    assert answer.json()["message"] == f"The request is not valid: {fault}."


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

    monkeypatch.setattr("rest.store.jobs.list_jobs", broken)
    answer = await rest.client.get("/api/v2/jobs")
    assert answer.status_code == 500
    assert answer.json()["code"] == "UnknownError"
    assert "inside-marker" not in answer.text
    answer = await rest.client.put("/api/v2/users/me", content=b"{not json")
    assert (answer.status_code, set(answer.json())) == (400, {"code", "message", "errors"})


async def test_a_body_that_is_not_json_is_an_error_with_its_place(rest: Any) -> None:
    json_type = {"Content-Type": "application/json"}
    answer = await rest.client.put("/api/v2/users/me", content=b"{not json", headers=json_type)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParametersError")
    assert answer.json()["message"].startswith("The body is not JSON from character 2 on: ")


async def test_the_audit_log_has_every_write(rest: Any) -> None:
    await rest.submit("audited")
    await rest.client.put("/api/v2/jobs/admin~audited/executionType", json={"value": "STOP"})
    entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
    actions = [(entry["username"], entry["action"], entry["object"]) for entry in entries]
    assert actions[:2] == [
        ("admin", "job.stop", "admin~audited"),
        ("admin", "job.submit", "admin~audited"),
    ]


async def test_a_body_that_does_not_come_is_not_waited_for(start_rest: Any) -> None:
    async with start_rest(body_timeout_s=5.0) as rest:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(rest.url).port)
        head = "POST /api/v2/token HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\n{"
        writer.write(head.encode())
        answer = (await reader.read()).decode()  # to the end: the connection is closed
        writer.close()
        assert answer.startswith("HTTP/1.1 408")
        assert "RequestTimeoutError" in answer
        assert (await rest.submit("in-time")).status_code == 202
