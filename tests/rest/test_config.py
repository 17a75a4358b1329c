"""Administrators set virtual clusters and policy: checked by the Scheduler, kept in versions,
published on settings-changed.
"""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from muster.contracts.notices import SettingChanged
from muster.contracts.scheduling import SchedulingConfig
from rest_config import (
    CHECK,
    PATH,
    PROBLEM,
    SHOW,
    SPEECH,
    TEXT,
    VISION,
    WAIT_S,
    WARNING,
    audited,
    can_be_set,
    put,
    runs,
)


async def test_a_change_is_checked_kept_shown_and_in_the_audit_log(
    start_rest: Any, scheduler: Any
) -> None:
    async with start_rest(scheduler_url=scheduler.url) as rest:
        scheduler.answers[SHOW] = runs(None, None)
        before = await rest.client.get(PATH)
        assert before.headers["ETag"] == '"0"'
        assert (before.json()["version"], before.json()["newest"]) == (0, None)
        assert before.json()["scheduler"]["isTaken"]
        assert set(before.json()["scheduler"]["inForce"]["virtualClusters"]) == {"default"}

        scheduler.answers[CHECK] = can_be_set(SPEECH, WARNING)
        made = await put(rest, 0, comment="speech moves in")
        assert (made.status_code, made.headers["ETag"]) == (202, '"1"')
        assert scheduler.bodies == [TEXT.encode()] * 2, "it is checked, and compared"
        content = made.json()
        assert content["whatIf"]["state"] == "none"
        assert (content["version"], content["action"], content["by"]) == (1, "set", "admin")
        assert (content["content"], content["comment"]) == (SPEECH, "speech moves in")
        (warning,) = content["warnings"]
        assert (warning["path"], warning["line"]) == ("virtualClusters.speech", 2)

        shown = (await rest.client.get(PATH)).json()
        assert (shown["version"], shown["newest"]["content"]) == (1, SPEECH)
        assert not shown["scheduler"]["isTaken"], "it runs none yet"
        revision = await rest.runtime.pool.fetchval("SELECT revision FROM scheduling_config")
        scheduler.answers[SHOW] = runs(1, revision)
        assert (await rest.client.get(PATH)).json()["scheduler"]["isTaken"]
        scheduler.answers[SHOW] = runs(None, 1, problems=[PROBLEM])
        refused = (await rest.client.get(PATH)).json()["scheduler"]
        assert (refused["isTaken"], refused["problems"][0]["path"]) == (False, PROBLEM["path"])
        scheduler.answers[SHOW] = runs(1, revision, isHonoured=False)
        left_out = (await rest.client.get(PATH)).json()["scheduler"]
        assert (left_out["isTaken"], left_out["version"]) == (False, None)
        file = {"since": "2026-01-31T13:00:05Z", "problems": ["cluster.yaml:3: x: is unknown"]}
        scheduler.answers[SHOW] = runs(1, revision, rejectedFile=file)
        assert (await rest.client.get(PATH)).json()["scheduler"]["rejectedFile"] == file
        for away in (b"standby", {"asOf": 1}, None):
            scheduler.answers[SHOW] = away
            shown = (await rest.client.get(PATH)).json()
            assert (shown["version"], shown["scheduler"]) == (1, None)
            assert shown["schedulerProblem"]
        detail = {"version": 1, "comment": "speech moves in"}
        assert await audited(rest) == [("config.set", "scheduling", detail)]


async def test_what_cannot_be_honoured_is_refused_by_line_and_changes_nothing(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers[CHECK] = can_be_set(None) | {"errors": [PROBLEM, PROBLEM]}
    async with start_rest(scheduler_url=scheduler.url, config_bytes=200) as rest:
        refused = await put(rest, 0)
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidConfigError")
        assert "2 problems. Line 3: `virtualClusters" in refused.json()["message"]
        assert [(each["path"], each["line"]) for each in refused.json()["errors"]] == [
            (PROBLEM["path"], 3)
        ] * 2
        assert (await put(rest, 0, "#" * 201)).status_code == 413
        scheduler.answers[CHECK] = can_be_set({"policy": {"a": "x" * 200}})
        grown = await put(rest, 0)
        assert "aliases" in grown.json()["message"]
        assert (await rest.client.get(f"{PATH}/versions")).json()["versions"] == []
        assert await audited(rest) == []


async def test_without_the_schedulers_answer_nothing_is_changed(
    start_rest: Any, scheduler: Any
) -> None:
    async with start_rest(scheduler_url=scheduler.url) as rest:
        for away in (b"standby", None, {"asOf": 1}, b"no json"):
            scheduler.answers[CHECK] = away
            answer = await put(rest, 0)
            assert (answer.status_code, answer.json()["code"]) == (503, "UnavailableError")
            assert "nothing was changed" in answer.json()["message"]
        assert (await rest.client.get(f"{PATH}/versions")).json()["versions"] == []
        removed = await rest.client.delete(PATH, headers={"If-Match": "0"})
        assert removed.status_code == 202, "the file stands for itself"
        assert removed.json()["whatIf"]["state"] == "none"
    async with start_rest() as rest:
        assert (await put(rest, 1)).status_code == 501


async def test_a_faster_change_is_not_overwritten(start_rest: Any, scheduler: Any) -> None:
    scheduler.answers[CHECK] = can_be_set(SPEECH)
    async with start_rest(scheduler_url=scheduler.url) as rest:
        answers = await asyncio.gather(*(put(rest, 0) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [202, 412, 412, 412, 412]
        late = await put(rest, 0)
        assert (late.status_code, late.json()["code"]) == (412, "ConflictConfigError")
        assert "Version 1 holds now, by admin" in late.json()["message"]
        assert (await put(rest, 2)).status_code == 412
        blind = await rest.client.put(PATH, content=TEXT)
        assert (blind.status_code, blind.json()["code"]) == (428, "NoVersionError")
        odd = await rest.client.put(PATH, content=TEXT, headers={"If-Match": "*"})
        assert (odd.status_code, odd.json()["code"]) == (400, "InvalidParametersError")
        for method, path, body in (
            ("DELETE", PATH, None),
            ("POST", f"{PATH}/rollback", {"version": 1}),
        ):
            stale = await rest.client.request(method, path, json=body, headers={"If-Match": "0"})
            assert stale.status_code == 412
        unknown = await rest.client.delete(PATH, headers={"If-Match": "7"})
        assert unknown.status_code == 412
        assert (await rest.client.get(PATH)).json()["version"] == 1


async def test_a_rollback_and_a_removal_are_versions_too(start_rest: Any, scheduler: Any) -> None:
    async with start_rest(scheduler_url=scheduler.url, config_versions=4) as rest:

        async def roll_back(after: int, to: int, comment: str = "") -> Any:
            return await rest.client.post(
                f"{PATH}/rollback",
                json={"version": to, "comment": comment},
                headers={"If-Match": str(after)},
            )

        for after, content in enumerate((SPEECH, VISION)):
            scheduler.answers[CHECK] = can_be_set(content)
            assert (await put(rest, after)).status_code == 202
        scheduler.answers[CHECK] = can_be_set(SPEECH, WARNING)
        back = await roll_back(2, 1, "too early")
        assert back.status_code == 202, back.text
        assert (back.json()["version"], back.json()["content"]) == (3, SPEECH)
        assert (back.json()["action"], back.json()["rolledBackTo"]) == ("rollback", 1)
        assert back.json()["warnings"] == [{"path": WARNING["path"], "message": "owns nothing"}]
        removed = await rest.client.delete(
            PATH, headers={"If-Match": '"3"'}, params={"comment": "by file again"}
        )
        assert (removed.json()["action"], removed.json()["content"]) == ("remove", None)
        scheduler.answers[CHECK] = can_be_set(None) | {"errors": [PROBLEM]}
        refused = await roll_back(4, 2)
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidConfigError")
        assert "line" not in refused.json()["errors"][0]
        again = await roll_back(4, 4)
        assert (again.status_code, again.json()["content"]) == (202, None)
        assert (await roll_back(5, 1)).status_code == 404, "only four versions are kept"

        listed = (await rest.client.get(f"{PATH}/versions", params={"limit": 3})).json()
        assert [(each["version"], each["action"]) for each in listed["versions"]] == [
            (5, "rollback"),
            (4, "remove"),
            (3, "rollback"),
        ]
        assert listed["total"] == 4
        rest_ = (await rest.client.get(f"{PATH}/versions", params={"offset": 3})).json()
        assert [each["version"] for each in rest_["versions"]] == [2]
        second = (await rest.client.get(f"{PATH}/versions/2")).json()
        assert second["content"] == VISION
        assert (await rest.client.get(f"{PATH}/versions/1")).status_code == 404
        assert [(action, detail) for action, _, detail in await audited(rest)] == [
            ("config.rollback", {"version": 5, "rolledBackTo": 4}),
            ("config.remove", {"version": 4, "comment": "by file again"}),
            ("config.rollback", {"version": 3, "rolledBackTo": 1, "comment": "too early"}),
            ("config.set", {"version": 2}),
            ("config.set", {"version": 1}),
        ]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("PUT", ""),
        ("DELETE", ""),
        ("GET", "/versions"),
        ("GET", "/versions/1"),
        ("POST", "/rollback"),
        ("POST", "/what-if"),
        ("POST", "/removal/what-if"),
        ("POST", "/versions/1/what-if"),
    ],
)
async def test_it_is_for_admins_only(rest: Any, method: str, path: str) -> None:
    body = {"version": 1} if method == "POST" else None
    async with await rest.make_user("ada") as ada:
        answer = await ada.request(method, PATH + path, json=body, headers={"If-Match": "0"})
        assert (answer.status_code, answer.json()["code"]) == (403, "ForbiddenUserError")
    async with rest.with_token("") as nobody:
        answer = await nobody.request(method, PATH + path, json=body)
        assert answer.status_code == 401


async def settings_published(bootstrap: str) -> Any:
    """A reader of its records."""
    consumer = AIOKafkaConsumer(
        "settings-changed",
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
    )
    await consumer.start()

    async def next_record() -> tuple[str, SettingChanged | None]:
        async with asyncio.timeout(WAIT_S):
            while (record := await consumer.getone()).key != b"scheduling":
                pass
        ident = dict(record.headers)["ce_id"].decode()
        value = record.value
        return ident, None if value is None else SettingChanged.model_validate_json(value)

    return consumer, next_record


async def test_it_is_published_at_once_and_repeated_and_above_earlier_revisions_after_a_restore(
    start_rest: Any, scheduler: Any, fresh_broker: Any
) -> None:
    scheduler.answers[CHECK] = can_be_set(SPEECH)
    given = {"scheduler_url": scheduler.url, "kafka_bootstrap": fresh_broker.bootstrap}
    async with start_rest(**given, settings_repeat_s=0.2) as rest:
        consumer, next_record = await settings_published(fresh_broker.bootstrap)
        assert (await put(rest, 0)).status_code == 202
        _, published = await next_record()
        config = SchedulingConfig.model_validate(published.value)
        assert (config.version, config.content, config.by) == (1, SPEECH, "admin")
        _, again = await next_record()
        assert again == published
        assert (await rest.client.delete(PATH, headers={"If-Match": "1"})).status_code == 202
        while (removed := await next_record())[1] is not None:
            pass
        revision = int(removed[0].rpartition("/")[2])
        assert removed[0] == f"rest/setting/scheduling/{revision}"
        assert revision > published.revision
        assert (await next_record())[1] is None, "a removal is repeated, as long as it holds"

        await rest.runtime.pool.execute(
            "UPDATE scheduling_config SET revision = 1, content = '{}' WHERE version = 2"
        )
        async with asyncio.timeout(WAIT_S):
            while (lifted := (await next_record())[1]) is None or lifted.revision <= revision:
                pass
        assert SchedulingConfig.model_validate(lifted.value).version == 2
        await consumer.stop()
