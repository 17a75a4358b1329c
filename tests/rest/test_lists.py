"""Lists of jobs, and answers as their models document them."""

import json
from datetime import UTC, datetime
from typing import Any

from muster.contracts.jobs import JobState

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
    done = rest.status(job, 1, JobState.SUCCEEDED, completed_at=NOW)
    await rest.hear("job-updated", job, done)
    for query, names in LISTS.items():
        answer = await rest.client.get(f"/api/v2/jobs?{query}")
        assert [each["name"] for each in answer.json()] == names, query
        counted = (await rest.client.get(f"/api/v2/jobs?{query}&withTotalCount=true")).json()
        assert [each["name"] for each in counted["data"]] == names, query
        assert len(names) <= counted["totalCount"] <= 3, query


async def test_answers_are_what_the_openapi_document_says(rest: Any) -> None:
    from rest.api.models import JobDetail, JobListItem

    await rest.submit("documented")
    content = await rest.shown("documented")
    parsed = JobDetail.model_validate(content)
    again = json.loads(parsed.model_dump_json(by_alias=True))
    assert content == again
    (item,) = (await rest.client.get("/api/v2/jobs")).json()
    again = json.loads(JobListItem.model_validate(item).model_dump_json(by_alias=True))
    assert item == again
