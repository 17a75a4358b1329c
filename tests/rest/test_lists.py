"""Lists of jobs, and answers as their models document them."""

import json
from datetime import UTC, datetime
from typing import Any

import asyncpg
from muster.contracts.jobs import JobState
from rest.domain.listing import Listing
from rest.store.jobs import conditions

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


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
    "tagsContain=x,one more&order=jobName,ASC": ["a", "b"],
    "tagsContain=X": [],
    "tagsNotContain=x&order=jobName,ASC": ["b", "c"],
    "tagsContain=one more&tagsNotContain=x": ["b"],
    "limit=0": [],
}


async def test_lists_are_filtered_ordered_and_paged(rest: Any) -> None:
    for name in ("a", "b", "c"):
        content = rest.job_file(name)
        if name == "c":
            content += "extras: {hivedScheduler: {jobPriorityClass: prod}}\n"
        await rest.client.post("/api/v2/jobs", content=content)
    job = await rest.job_id("b")
    for name, tag in (("a", "x"), ("a", "one more"), ("b", "one more")):
        answer = await rest.client.put(f"/api/v2/jobs/admin~{name}/tag", json={"value": tag})
        assert answer.json() == {"message": f"admin~{name} has the tag {tag}."}
    done = rest.status(job, 1, JobState.SUCCEEDED, completed_at=NOW)
    await rest.receive("job-updated", job, done)
    for query, names in LISTS.items():
        answer = await rest.client.get(f"/api/v2/jobs?{query}")
        assert [each["name"] for each in answer.json()] == names, query
        counted = (await rest.client.get(f"/api/v2/jobs?{query}&withTotalCount=true")).json()
        assert [each["name"] for each in counted["data"]] == names, query
        assert len(names) <= counted["totalCount"] <= 3, query


async def test_answers_are_as_in_the_openapi_document(rest: Any) -> None:
    from rest.api.models import JobDetail, JobListItem

    await rest.submit("documented")
    content = await rest.shown("documented")
    parsed = JobDetail.model_validate(content)
    again = json.loads(parsed.model_dump_json(by_alias=True))
    assert content == again
    (item,) = (await rest.client.get("/api/v2/jobs")).json()
    again = json.loads(JobListItem.model_validate(item).model_dump_json(by_alias=True))
    assert item == again


async def test_each_time_of_openpais_has_a_twin_in_iso_8601(rest: Any) -> None:
    await rest.submit("timed")
    job = await rest.job_id("timed")
    ends = {"completed_at": NOW, "launched_at": NOW, "created_at": NOW}
    await rest.receive("job-updated", job, rest.status(job, 1, JobState.SUCCEEDED, **ends))
    (item,) = (await rest.client.get("/api/v2/jobs")).json()
    for content in (item, (await rest.shown("timed"))["jobStatus"]):
        irregular = {"submissionTime": "submittedAt", "retryDelayTime": "retryAt"}
        names = [name for name in content if name.endswith("Time")]
        assert len(names) >= 5
        for name in names:
            twin = content[irregular.get(name, name.removesuffix("Time") + "At")]
            assert (content[name] is None) == (twin is None), name
            if twin is not None:
                assert twin.endswith("Z")
                assert int(datetime.fromisoformat(twin).timestamp() * 1000) == content[name]
        assert content["completedAt"] == "2026-01-01T12:00:00.000Z"


async def test_the_audit_log_is_paged(rest: Any) -> None:
    for name in ("a", "b", "c"):
        await rest.submit(name)

    async def objects(query: str) -> list[str]:
        entries = (await rest.client.get(f"/api/v2/audit?{query}")).json()["entries"]
        return [entry["object"] for entry in entries]

    everything = await objects("")
    assert len(everything) >= 3
    assert await objects("limit=2") + await objects("offset=2&limit=2") == everything[:4]
    assert await objects("offset=1000") == []
    assert (await rest.client.get("/api/v2/audit?limit=50001")).status_code == 400


async def test_users_and_subscriptions_are_paged(rest: Any) -> None:
    hook = {"events": ["job-failed"], "webhookUrl": "https://example.org/hook"}
    for name in ("ann", "bob", "eve"):
        async with await rest.make_user(name) as user:
            await user.post("/api/v2/alerts/subscriptions", json=hook)
    for path, key, field, names in (
        ("users", "users", "username", ["admin", "ann", "bob", "eve"]),
        ("alerts/subscriptions", "subscriptions", "owner", ["ann", "bob", "eve"]),
    ):

        async def page(query: str, path: str = path, key: str = key, field: str = field) -> Any:
            answer = (await rest.client.get(f"/api/v2/{path}?{query}")).json()
            return [each[field] for each in answer[key]], answer["total"]

        assert await page("") == (names, len(names))
        assert await page("limit=2") == (names[:2], len(names))
        assert await page("offset=2&limit=2") == (names[2:4], len(names))
        assert await page("offset=9") == ([], len(names))
        assert (await rest.client.get(f"/api/v2/{path}?limit=50001")).status_code == 400
    own = (await user_page(rest, "ann")).json()
    assert (len(own["subscriptions"]), own["total"]) == (1, 1)


async def user_page(rest: Any, name: str) -> Any:
    async with rest.with_token(await rest.log_in(name, "correct-horse")) as client:
        return await client.get("/api/v2/alerts/subscriptions")


async def test_a_keyword_is_found_in_any_part_of_a_name_and_nowhere_else(rest: Any) -> None:
    user = await rest.make_user("Zoe.Q")
    async with user:
        for name in ("Train_ResNet-50", "ab", "überall"):
            answer = await user.post("/api/v2/jobs", content=rest.job_file(name))
            assert answer.status_code in (202, 400)  # not every name is one
    for keyword, count in (
        ("resnet", 1),
        ("NET-5", 1),
        ("n_r", 1),
        ("ab", 1),
        ("zoe.q", 2),
        ("e", 2),
        ("efau", 2),
        ("zoe.q train", 0),
        ("q train_resnet", 0),
        ("50 default", 0),
        ("resnet%", 0),
        ("res_et", 0),
        ("  ", 0),
        ("", 2),
    ):
        found = await rest.client.get("/api/v2/jobs", params={"keyword": keyword})
        assert len(found.json()) == count, keyword


async def test_a_rare_keyword_is_found_by_its_index_among_many(
    rest: Any, database_url: str
) -> None:
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "rest"})
    await conn.execute(
        "INSERT INTO job (id, username, name, virtual_cluster, total_tasks, total_gpus,"
        " total_task_roles, submitted_at, state) SELECT 'j' || n, 'user' || n % 50,"
        " 'train_' || n || '_' || substr(md5(n::text), 1, 8), 'default', 1, 1, 1,"
        " now() - n * interval '1 s', 'SUCCEEDED' FROM generate_series(1, 20000) AS n"
    )
    await conn.execute("ANALYZE job")
    for asked in (
        Listing(keyword="_19999_"),
        Listing(keyword="no-such-job", states=("RUNNING",), usernames=("user1",)),
    ):
        where, args = conditions(asked)
        plan = await conn.fetch(
            f"EXPLAIN SELECT * FROM job {where} ORDER BY submitted_at DESC, id DESC LIMIT 5000",
            *args,
        )
        text = "\n".join(row[0] for row in plan)
        assert "job_trigrams" in text, text
        assert "Seq Scan" not in text
    await conn.close()
    (found,) = (await rest.client.get("/api/v2/jobs?keyword=_19999_")).json()
    assert found["name"].startswith("train_19999_")
