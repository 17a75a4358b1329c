"""REST shows the effect of a change of virtual clusters and policy before it is set."""

from typing import Any

import pytest
from rest_config import (
    CHECK,
    PATH,
    PROBLEM,
    SPEECH,
    TEXT,
    WARNING,
    WHAT_IF,
    audited,
    can_be_set,
    put,
)


def row(virtual_cluster: str, later: int, mean_s: float | None, **more: Any) -> dict[str, Any]:
    """What becomes of a virtual cluster."""
    return {
        "virtualCluster": virtual_cluster,
        "text": f"This delays {later} gangs of {virtual_cluster}.",
        "later": {"gangs": later, "meanSeconds": mean_s, "medianSeconds": mean_s},
        "notStarted": 0,
        "refused": {"before": 0, "after": 0},
    } | more


def would(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What the Scheduler tells of a change."""
    report = {
        "since": "2026-01-24T13:00:00Z",
        "until": "2026-01-31T13:00:00Z",
        "days": 7.0,
        "isPartial": False,
        "tookSeconds": 12.5,
        "text": [each["text"] for each in rows],
        "table": "a table\n",
        "users": [{"user": "eve", "gangs": 14}],
        "virtualClusters": list(rows),
    }
    return {"asOf": 5, "state": "done", "report": report | more}


async def test_a_change_that_delays_is_made_when_that_is_accepted(
    start_rest: Any, scheduler: Any
) -> None:
    """14 gangs of speech by 40 minutes; vision's few seconds would be no hindrance."""
    scheduler.answers[CHECK] = can_be_set(SPEECH, WARNING)
    answer = would(row("speech", 14, 2400), row("vision", 3, 599), isPartial=True)
    scheduler.answers[WHAT_IF] = answer
    async with start_rest(scheduler_url=scheduler.url) as rest:
        refused = await put(rest, 0)
        assert (refused.status_code, refused.json()["code"]) == (409, "DelaysConfigError")
        message = refused.json()["message"]
        assert message.startswith("On the events of 7 days: This delays 14 gangs of speech. Send")
        (problem,) = refused.json()["errors"]
        assert problem["path"] == "virtualClusters.speech"
        assert (await rest.client.get(f"{PATH}/versions")).json()["versions"] == []

        looked = (await rest.client.post(f"{PATH}/what-if", content=TEXT)).json()
        assert (looked["state"], looked["needsAcceptance"]) == ("done", True)
        assert looked["report"]["users"] == [{"user": "eve", "gangs": 14}]
        assert looked["report"]["table"] == "a table\n"
        assert [each["message"] for each in looked["warnings"]] == [WARNING["message"]]

        made = await put(rest, 0, acceptDelays="true")
        assert (made.status_code, made.json()["warnings"]) == (202, looked["warnings"])
        assert made.json()["whatIf"] | {"warnings": looked["warnings"]} == looked
        lines = ["This delays 14 gangs of speech.", "This delays 3 gangs of vision."]
        what_if = {"text": lines, "days": 7.0, "isPartial": True, "accepted": True}
        assert await audited(rest) == [
            ("config.set", "scheduling", {"version": 1, "whatIf": what_if})
        ]
        again = (await rest.client.post(f"{PATH}/versions/1/what-if")).json()
        (warning,) = again["warnings"]
        # A stored version has no text, and so no lines.
        assert (warning["path"], "line" in warning) == (WARNING["path"], False)
        assert again | {"warnings": looked["warnings"]} == looked


@pytest.mark.parametrize(
    ("harm", "is_harm"),
    [
        (row("a", 9, 599.9), False),
        (row("a", 1, 600), True),
        (row("a", 0, None, notStarted=1), True),
        (row("a", 0, None, refused={"before": 1, "after": 2}), True),
        (row("a", 0, None, refused={"before": 2, "after": 1}), False),
    ],
)
async def test_what_is_to_be_accepted(
    start_rest: Any, scheduler: Any, harm: dict[str, Any], is_harm: bool
) -> None:
    scheduler.answers[CHECK] = can_be_set(SPEECH)
    scheduler.answers[WHAT_IF] = would(row("b", 0, None), harm)
    async with start_rest(scheduler_url=scheduler.url) as rest:
        assert (await put(rest, 0)).status_code == (409 if is_harm else 202)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"state": "running"}, "WhatIfRunningError"),
        ({"state": "failed", "reason": "It took too long."}, "WhatIfFailedError"),
        (b"standby", "WhatIfFailedError"),
        (None, "WhatIfFailedError"),
        ({"state": "done", "report": {"days": "many"}}, "WhatIfFailedError"),
    ],
)
async def test_a_change_without_a_what_if_needs_an_explicit_skip(
    start_rest: Any, scheduler: Any, answer: Any, code: str
) -> None:
    scheduler.answers[CHECK] = can_be_set(SPEECH)
    scheduler.answers[WHAT_IF] = answer
    async with start_rest(scheduler_url=scheduler.url) as rest:
        refused = await put(rest, 0)
        assert (refused.status_code, refused.json()["code"]) == (409, code)
        assert "whatIf=false" in refused.json()["message"]
        refused = await put(rest, 0, acceptDelays="true")
        assert refused.json()["code"] == code
        before = scheduler.seen.count(WHAT_IF)
        made = await put(rest, 0, whatIf="false")
        assert (made.status_code, made.json()["whatIf"]["state"]) == (202, "skipped")
        assert scheduler.seen.count(WHAT_IF) == before
        detail = {"version": 1, "whatIf": {"state": "skipped"}}
        assert await audited(rest) == [("config.set", "scheduling", detail)]
        headers = {"If-Match": "1"}
        back = await rest.client.post(f"{PATH}/rollback", json={"version": 1}, headers=headers)
        assert (back.status_code, back.json()["code"]) == (409, code)
        wanted = {"version": 1, "whatIf": False}
        back = await rest.client.post(f"{PATH}/rollback", json=wanted, headers=headers)
        assert back.status_code == 202, back.text


async def test_only_what_can_be_set_is_compared(start_rest: Any, scheduler: Any) -> None:
    scheduler.answers[CHECK] = can_be_set(None) | {"errors": [PROBLEM]}
    async with start_rest(scheduler_url=scheduler.url, config_bytes=200) as rest:
        refused = await rest.client.post(f"{PATH}/what-if", content=TEXT)
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidConfigError")
        large = await rest.client.post(f"{PATH}/what-if", content="#" * 201)
        assert large.status_code == 413
        assert (await rest.client.post(f"{PATH}/versions/7/what-if")).status_code == 404
        assert WHAT_IF not in scheduler.seen


async def test_a_removal_and_a_rollback_to_one_are_compared_too(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers[CHECK] = can_be_set(SPEECH)
    async with start_rest(scheduler_url=scheduler.url) as rest:

        async def remove(after: int, **query: str) -> Any:
            headers = {"If-Match": str(after)}
            return await rest.client.delete(PATH, headers=headers, params=query)

        async def roll_back(after: int, **options: bool) -> Any:
            headers, wanted = {"If-Match": str(after)}, {"version": 2, **options}
            return await rest.client.post(f"{PATH}/rollback", json=wanted, headers=headers)

        assert (await put(rest, 0)).status_code == 202
        scheduler.answers[WHAT_IF] = would(row("a", 1, 600))
        for path in ("removal", "versions/1"):
            looked = (await rest.client.post(f"{PATH}/{path}/what-if")).json()
            assert (looked["state"], looked["needsAcceptance"]) == ("done", True)
        refused = await remove(1)
        assert (refused.status_code, refused.json()["code"]) == (409, "DelaysConfigError")
        assert scheduler.bodies[-1] == b"", "a removal is asked without a text"
        removed = await remove(1, acceptDelays="true")
        assert (removed.status_code, removed.json()["whatIf"]["state"]) == (202, "done")
        assert (await roll_back(2)).json()["code"] == "DelaysConfigError"
        assert (await roll_back(2, acceptDelays=True)).status_code == 202
        scheduler.answers[WHAT_IF] = None
        assert (await remove(3)).json()["code"] == "WhatIfFailedError"
        assert (await remove(3, whatIf="false")).status_code == 202
