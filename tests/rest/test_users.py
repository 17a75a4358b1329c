"""Users come, get and lose rights, and go; one admin stays, and no name is given twice."""

import asyncio
from typing import Any

PASSWORD = "correct-horse"


def change(username: str, **fields: object) -> dict[str, Any]:
    return {"data": {"username": username} | fields}


async def test_rights_are_given_and_taken_at_once(start_rest: Any) -> None:
    async with (
        start_rest() as rest,
        start_rest() as other,
        await rest.make_user("ann") as ann,
        other.with_token(ann.headers["Authorization"].split()[1]) as ann_there,
    ):

        async def codes() -> set[int]:
            return {(await each.get("/api/v2/audit")).status_code for each in (ann, ann_there)}

        assert await codes() == {403}
        made = await rest.client.put("/api/v2/users", json=change("ann", admin=True))
        assert made.status_code == 201
        assert (await ann.get("/api/v2/audit")).status_code == 200
        await rest.eventually(codes, {200})
        body = {"events": ["node-lost"], "email": "ann@example.org"}
        assert (await ann.post("/api/v2/alerts/subscriptions", json=body)).status_code < 300
        taken = await rest.client.put("/api/v2/users", json=change("ann", admin=False))
        assert taken.status_code == 201
        assert taken.json()["message"] == "The user ann is changed. 1 subscription ended."
        assert (await ann.get("/api/v2/audit")).status_code == 403
        await rest.eventually(codes, {403})
        assert (await ann.get("/api/v2/alerts/subscriptions")).json()["total"] == 0
        entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
        assert (entries[0]["username"], entries[0]["object"]) == ("admin", "ann")
        assert entries[0]["detail"] == {
            "changed": ["admin"],
            "admin": False,
            "endedSubscriptions": 1,
        }


async def test_the_audit_log_has_the_rights_that_users_got(rest: Any) -> None:
    rights = {"admin": True, "email": "eve@example.org", "maxPriority": {"*": 10}}
    rights["ownsVirtualCluster"] = ["default"]
    new = rights | {"username": "eve", "password": PASSWORD, "virtualCluster": ["default"]}
    assert (await rest.client.post("/api/v2/users", json=new)).status_code == 201
    more = {"maxPriority": {"default": 7}, "password": PASSWORD + "1", "extension": {"a": 1}}
    assert (await rest.client.put("/api/v2/users", json=change("eve", **more))).status_code == 201
    changed, created = (await rest.client.get("/api/v2/audit")).json()["entries"][:2]
    assert created["detail"] == rights | {"virtualCluster": ["default"]}
    assert changed["detail"] == {
        "changed": ["extension", "maxPriority", "password"],
        "maxPriority": {"default": 7},
    }


async def test_a_removed_admin_is_out_at_once(start_rest: Any) -> None:
    async with start_rest() as rest, start_rest() as other, await rest.make_user("ann") as ann:
        await rest.client.put("/api/v2/users", json=change("ann", admin=True))
        token = (await ann.post("/api/v2/tokens/application")).json()["token"]
        async with rest.with_token(token) as here, other.with_token(token) as there:
            for client in (here, there):
                assert (await client.get("/api/v2/audit")).status_code == 200
            assert (await rest.client.delete("/api/v2/users/ann")).status_code == 200
            assert (await here.get("/api/v2/audit")).status_code == 401
            assert (await ann.get("/api/v2/jobs")).status_code == 401

            async def code() -> int:
                status: int = (await there.get("/api/v2/audit")).status_code
                return status

            await rest.eventually(code, 401)
        login = {"username": "ann", "password": PASSWORD}
        assert (await rest.client.post("/api/v2/token", json=login)).status_code == 401


async def test_a_demoted_admin_changes_nothing_where_the_token_is_still_cached(
    start_rest: Any,
) -> None:
    async with (
        start_rest() as rest,
        start_rest(token_cache_s=3600.0) as other,
        await rest.make_user("ann", admin=True) as ann,
        await rest.make_user("bob") as bob,
        other.with_token(ann.headers["Authorization"].split()[1]) as there,
    ):
        await bob.post("/api/v2/jobs", content=rest.job_file("digits"))
        hook = {"events": ["job-failed"], "webhookUrl": "https://example.org/bob"}
        bobs = (await bob.post("/api/v2/alerts/subscriptions", json=hook)).json()["id"]
        program = (await bob.post("/api/v2/tokens/application")).json()["id"]
        assert (await there.get("/api/v2/audit")).status_code == 200
        taken = await rest.client.put("/api/v2/users", json=change("ann", admin=False))
        assert taken.status_code == 201
        assert (await there.get("/api/v2/audit")).status_code == 200  # as the cache has it
        everything = {"events": ["node-lost"], "webhookUrl": "https://example.org/all"}
        answers = [
            await there.put("/api/v2/users", json=change("ann", admin=True)),
            await there.post("/api/v2/users", json={"username": "eve", "password": PASSWORD}),
            await there.delete("/api/v2/users/bob"),
            await there.post("/api/v2/alerts/subscriptions", json=everything),
            await there.put(f"/api/v2/alerts/subscriptions/{bobs}", json=hook),
            await there.delete(f"/api/v2/alerts/subscriptions/{bobs}"),
            await there.delete(f"/api/v2/tokens/{program}"),
            await there.put("/api/v2/jobs/bob~digits/executionType", json={"value": "STOP"}),
            await there.put("/api/v2/cluster/nodes/n1/order", json={"value": "drain"}),
            await there.delete("/api/v2/cluster/config?whatIf=false", headers={"If-Match": '"0"'}),
        ]
        assert [answer.status_code for answer in answers] == [403] * len(answers)


async def test_the_last_admin_stays(rest: Any) -> None:
    answers = [
        await rest.client.put("/api/v2/users", json=change("admin", admin=False)),
        await rest.client.delete("/api/v2/users/admin"),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (409, "LastAdminError")
        assert "another user one first" in answer.json()["message"]
    assert (await rest.client.get("/api/v2/audit")).status_code == 200


async def test_two_admins_demoted_or_removed_at_once_leave_one(start_rest: Any) -> None:
    """Each is demoted, or removed, at another replica, many times over."""
    async with start_rest() as one, start_rest() as other:
        for number in range(12):
            name = f"ann{number}"
            new = {"username": name, "password": PASSWORD, "admin": True}
            assert (await one.client.post("/api/v2/users", json=new)).status_code == 201
            goes = one.client.put("/api/v2/users", json=change("admin", admin=False))
            goes_too = (
                other.client.delete(f"/api/v2/users/{name}")
                if number % 2
                else other.client.put("/api/v2/users", json=change(name, admin=False))
            )
            codes = [answer.status_code for answer in await asyncio.gather(goes, goes_too)]
            pool = one.runtime.pool
            admins = await pool.fetch("SELECT username FROM account WHERE is_admin")
            assert len(admins) == 1, codes
            assert 409 in codes or 403 in codes  # 403: the caller was demoted just before
            await pool.execute("UPDATE account SET is_admin = username = 'admin'")
            await one.eventually(_audit(one), 200)
            await one.eventually(_audit(other), 200)


def _audit(rest: Any) -> Any:
    async def code() -> int:
        status: int = (await rest.client.get("/api/v2/audit")).status_code
        return status

    return code


async def test_nobody_gets_the_name_and_the_jobs_of_a_removed_user(rest: Any) -> None:
    async with await rest.make_user("ann") as ann:
        content = rest.job_file("mine")
        assert (await ann.post("/api/v2/jobs", content=content)).status_code == 202
    assert (await rest.client.delete("/api/v2/users/ann")).status_code == 200
    again = await rest.client.post("/api/v2/users", json={"username": "ann", "password": PASSWORD})
    assert (again.status_code, again.json()["code"]) == (409, "ConflictUserError")
    assert "choose another name" in again.json()["message"]
    assert (await rest.client.get("/api/v2/users/ann")).status_code == 404
    assert (await rest.client.delete("/api/v2/users/ann")).status_code == 404
    reset = await rest.client.put("/api/v2/users", json=change("ann", password=PASSWORD))
    assert (reset.status_code, reset.json()["code"]) == (404, "NoUserError")
    assert [
        each["username"] for each in (await rest.client.get("/api/v2/users")).json()["users"]
    ] == ["admin"]
    assert (await rest.client.get("/api/v2/jobs/ann~mine")).status_code == 200
    kept = await rest.runtime.pool.fetchrow("SELECT * FROM account WHERE username = 'ann'")
    assert (kept["password_hash"], kept["email"], kept["extension"]) == ("", "", {})


async def test_a_name_is_not_given_again_while_its_user_is_just_removed(start_rest: Any) -> None:
    async with start_rest() as one, start_rest() as other:
        for number in range(10):
            new = {"username": f"ann{number}", "password": PASSWORD}
            assert (await one.client.post("/api/v2/users", json=new)).status_code == 201
            _, again = await asyncio.gather(
                one.client.delete(f"/api/v2/users/ann{number}"),
                other.client.post("/api/v2/users", json=new),
            )
            assert again.status_code == 409


async def test_a_start_without_an_admin_makes_one_beside_other_users(start_rest: Any) -> None:
    async with start_rest() as rest:
        await rest.make_user("ann")
        await rest.runtime.pool.execute("DELETE FROM account WHERE username = 'admin'")
    async with start_rest() as rest:  # which logs in as the admin
        users = (await rest.client.get("/api/v2/users")).json()["users"]
        assert [(each["username"], each["admin"]) for each in users] == [
            ("admin", True),
            ("ann", False),
        ]
