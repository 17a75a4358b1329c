"""Who may make and end mutes, and how many."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rest.api import mutes
from rest_double import run_cli

MUTES = "/api/v2/alerts/mutes"


async def body(rest: Any, alert: str = "GpuXid") -> dict[str, str]:
    now: datetime = await rest.runtime.pool.fetchval("SELECT now()")
    return {"alert": alert, "until": (now.astimezone(UTC) + timedelta(hours=1)).isoformat()}


async def test_no_user_ends_a_mute_for_everybody_whatever_their_name(rest: Any) -> None:
    made = await rest.client.post(MUTES, json=await body(rest))
    assert (made.status_code, made.json()["owner"]) == (201, None)
    path = f"{MUTES}/{made.json()['id']}"
    async with await rest.make_user("everybody") as user:
        assert (await user.delete(path)).status_code == 403
        own = await user.post(MUTES, json=await body(rest))
        assert (await user.delete(f"{MUTES}/{own.json()['id']}")).status_code == 200
    assert (await rest.client.delete(path)).status_code == 200


async def test_an_admin_mutes_for_themselves_alone(rest: Any, tmp_path: Path) -> None:
    wish = await body(rest)
    made = [await rest.client.post(MUTES, json=wish | {"own": own}) for own in (True, False)]
    assert [it.json()["owner"] for it in made] == ["admin", None]
    async with await rest.make_user("ann") as ann:
        own = await ann.post(MUTES, json=wish | {"own": False})
        assert own.json()["owner"] == "ann"
        assert (await ann.delete(f"{MUTES}/{made[0].json()['id']}")).status_code == 403
    words = ("alerts", "mute", "--alert", "GpuXid")
    server = {"MUSTER_URL": rest.url, "MUSTER_TOKEN": rest.token}
    for more, owner in (("--own",), "admin"), ((), None):
        ran = await asyncio.to_thread(run_cli, tmp_path, *words, *more, **server)
        whose = f"the subscriptions of {owner}" if owner else "everybody"
        muted = f"Muted GpuXid for {whose} until "
        assert (ran.code, ran.out.startswith(muted)) == (0, True), ran.err
        newest = (await rest.client.get(MUTES)).json()["mutes"][-1]
        assert newest["owner"] == owner
    for wrong in (words[:2], (*words, "--job", "ann~train")):
        ran = await asyncio.to_thread(run_cli, tmp_path, *wrong, **server)
        assert (ran.code, "either --alert or --job" in ran.err) == (2, True)
    entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
    owners = [it["detail"]["owner"] for it in entries if it["action"] == "mute.create"]
    assert owners == [None, "admin", "ann", None, "admin"]


async def test_a_mute_of_a_job_that_is_not_there_names_the_nearest_ones(
    rest: Any, tmp_path: Path
) -> None:
    async with await rest.make_user("ada") as ada:
        assert (await ada.post("/api/v2/jobs", content=rest.job_file("run5"))).status_code == 202
    server = {"MUSTER_URL": rest.url, "MUSTER_TOKEN": rest.token}
    note = "No job is known by the name"
    holds = "The mute holds all the same."
    for job, hint in {
        "run5": f"{note} admin~run5. Did you mean ada~run5? {holds}",
        "adda~run": f"{note} adda~run. Did you mean ada~run5? {holds}",
        "bob~evaluate": f"{note} bob~evaluate. {holds}",
        "ada~run5": "",
    }.items():
        words = ("alerts", "mute", "--job", job)
        ran = await asyncio.to_thread(run_cli, tmp_path, *words, **server)
        full = job if "~" in job else f"admin~{job}"
        assert (ran.code, ran.err.strip()) == (0, hint)
        assert ran.out.startswith(f"Muted {full} for everybody until ")
    bare = {**await body(rest), "job": "run5"}
    del bare["alert"]
    made = (await rest.client.post(MUTES, json=bare)).json()
    assert made["note"] == f"{note} run5. Did you mean ada~run5? {holds}"


async def test_mutes_that_are_over_count_until_they_are_forgotten(
    rest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutes, "MAX_MUTES", 2)
    monkeypatch.setattr(mutes, "MAX_PUBLISHED", 3)
    async with await rest.make_user("ann") as ann:
        for _ in range(3):
            made = await ann.post(MUTES, json=await body(rest))
            assert made.status_code == 201
            assert (await ann.delete(f"{MUTES}/{made.json()['id']}")).status_code == 200
        refused = await ann.post(MUTES, json=await body(rest))
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidParametersError")
        assert "MUSTER_REMOVED_DAYS" in refused.json()["message"]
    for wanted in (201, 201, 400):  # administrators' own count, without ann's
        assert (await rest.client.post(MUTES, json=await body(rest))).status_code == wanted
