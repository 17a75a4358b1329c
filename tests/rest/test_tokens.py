"""Tokens: logins that are renewed and end, programs' tokens with names, uses and ends."""

import asyncio
import time
from datetime import datetime
from typing import Any

PASSWORD = "correct-horse"
DAY_S = 86_400


def left_s(at: str) -> float:
    """The time until then."""
    assert at.endswith("Z")
    return datetime.fromisoformat(at).timestamp() - time.time()


async def expires_s(rest: Any, ident: str) -> float:
    """How long a token still lives."""
    left: float = await rest.runtime.pool.fetchval(
        "SELECT extract(epoch FROM expires_at - now())::float8 FROM token WHERE id = $1", ident
    )
    return left


async def token_of(rest: Any) -> str:
    """The id of the admin's only token."""
    ident: str = await rest.runtime.pool.fetchval("SELECT id FROM token")
    return ident


async def test_a_login_is_renewed_until_its_last_day(rest: Any) -> None:
    login = await token_of(rest)
    pool = rest.runtime.pool
    await pool.execute("UPDATE token SET expires_at = now() + interval '1 hour'")
    answer = await rest.client.post("/api/v2/tokens/renew")
    assert answer.status_code == 200
    assert abs(await expires_s(rest, login) - 7 * DAY_S) < 60
    assert abs(left_s(answer.json()["expiresAt"]) - 7 * DAY_S) < 60
    await pool.execute("UPDATE token SET created_at = now() - interval '88 days'")
    assert (await rest.client.post("/api/v2/tokens/renew")).status_code == 200
    # What it has is not shortened; but nothing is added beyond the ninetieth day.
    assert abs(await expires_s(rest, login) - 7 * DAY_S) < 60
    await pool.execute("UPDATE token SET expires_at = now() + interval '1 hour'")
    assert (await rest.client.post("/api/v2/tokens/renew")).status_code == 200
    assert abs(await expires_s(rest, login) - 2 * DAY_S) < 60
    entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
    assert (entries[0]["action"], entries[0]["detail"]) == ("token.renew", {"token": login})


async def test_a_login_that_asked_for_less_gets_no_more_by_a_renewal(rest: Any) -> None:
    body = {"username": "admin", "password": PASSWORD, "expiration": 600}
    made = (await rest.client.post("/api/v2/token", json=body)).json()
    assert abs(left_s(made["expiresAt"]) - 600) < 60
    async with rest.with_token(made["token"]) as client:
        renewed = (await client.post("/api/v2/tokens/renew")).json()
        assert abs(left_s(renewed["expiresAt"]) - 600) < 60


async def test_a_renewal_right_after_another_writes_nothing(rest: Any) -> None:
    async def renewed_at() -> str:
        answer = await rest.client.post("/api/v2/tokens/renew")
        assert answer.status_code == 200
        return str(answer.json()["expiresAt"])

    pool = rest.runtime.pool
    await pool.execute("UPDATE token SET expires_at = expires_at - interval '2 minutes'")
    assert len({await renewed_at() for _ in range(3)}) == 1
    count = "SELECT count(*) FROM audit WHERE action = 'token.renew'"
    assert await pool.fetchval(count) == 1
    await pool.execute("UPDATE token SET life_s = 60, expires_at = now() + interval '50 s'")
    assert abs(left_s(await renewed_at()) - 60) < 5
    assert await pool.fetchval(count) == 2


async def test_what_is_over_or_of_a_program_is_not_renewed(start_rest: Any) -> None:
    async with start_rest(token_cache_s=60) as rest:
        program = (await rest.client.post("/api/v2/tokens/application")).json()["token"]
        async with rest.with_token(program) as client:
            assert (await client.post("/api/v2/tokens/renew")).status_code == 403
        await rest.runtime.pool.execute("UPDATE token SET expires_at = now()")
        assert (await rest.client.post("/api/v2/tokens/renew")).status_code == 401


async def test_a_program_has_a_token_with_a_name_and_an_end(rest: Any) -> None:
    wanted = {"name": "nightly training", "expiration": 3600}
    made = (await rest.client.post("/api/v2/tokens/application", json=wanted)).json()
    assert (made["name"], made["application"]) == ("nightly training", True)
    assert abs(left_s(made["expiresAt"]) - 3600) < 60
    for wrong in ({"expiration": 59}, {"name": "x" * 65}, {"name": "a\nb"}, {"life": 1}):
        answer = await rest.client.post("/api/v2/tokens/application", json=wrong)
        assert answer.status_code == 400, wrong
    async with rest.with_token(made["token"]) as program:
        assert (await program.get("/api/v2/jobs")).status_code == 200
        listed = (await rest.client.get("/api/v2/tokens")).json()["tokens"]
        [mine] = [each for each in listed if each["id"] == made["id"]]
        assert mine["name"] == "nightly training"
        assert mine["expiresAt"] == made["expiresAt"]
        await rest.runtime.pool.execute("UPDATE token SET expires_at = now() WHERE is_application")

        async def code() -> int:
            status: int = (await program.get("/api/v2/jobs")).status_code
            return status

        await rest.eventually(code, 401)


async def test_the_last_use_is_noted_once_in_a_while(start_rest: Any) -> None:
    async with start_rest(token_cache_s=0.001) as rest:
        pool = rest.runtime.pool
        made = (await rest.client.post("/api/v2/tokens/application")).json()
        version = "SELECT xmin::text, used_at FROM token WHERE id = $1"
        assert (await pool.fetchrow(version, made["id"]))["used_at"] is None
        async with rest.with_token(made["token"]) as program:
            await program.get("/api/v2/jobs")
            first = await pool.fetchrow(version, made["id"])
            assert first["used_at"] is not None
            await program.get("/api/v2/jobs")
            assert await pool.fetchrow(version, made["id"]) == first, "no write by each request"
            await pool.execute("UPDATE token SET used_at = used_at - interval '6 minutes'")
            await program.get("/api/v2/jobs")
            assert (await pool.fetchrow(version, made["id"]))["used_at"] > first["used_at"]
        scraped = (await rest.client.get("/metrics")).text
        assert 'muster_rest_tokens_presented_total{kind="application"} 3.0' in scraped


async def test_admins_see_and_end_anybodys_tokens(rest: Any) -> None:
    async with await rest.make_user("ann") as ann, await rest.make_user("bob") as bob:
        body = {"name": "mine"}
        made = (await ann.post("/api/v2/tokens/application", json=body)).json()
        for client, code in ((bob, 403), (ann, 200), (rest.client, 200)):
            answer = await client.get("/api/v2/tokens", params={"username": "ann"})
            assert answer.status_code == code
        assert [each["name"] for each in answer.json()["tokens"]] == ["", "mine"]
        assert made["token"] not in answer.text
        missing = await rest.client.get("/api/v2/tokens", params={"username": "nobody"})
        assert (missing.status_code, missing.json()["code"]) == (404, "NoUserError")
        async with rest.with_token(made["token"]) as program:
            assert (await program.get("/api/v2/jobs")).status_code == 200
            path = f"/api/v2/tokens/{made['id']}"
            assert (await bob.delete(path)).status_code == 403
            assert (await rest.client.delete(path)).status_code == 200
            assert (await program.get("/api/v2/jobs")).status_code == 401
        entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
        assert [entries[0][name] for name in ("username", "action", "object", "detail")] == [
            "admin",
            "token.revoke",
            "ann",
            {"token": made["id"]},
        ]


async def test_a_login_with_a_password_that_was_just_changed_is_refused(
    start_rest: Any,
) -> None:
    """The check of the old password takes longer than the change."""
    async with start_rest(password_hashes=2) as rest, await rest.make_user("ann"):
        pool = rest.runtime.pool
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute("LOCK TABLE password_failure IN EXCLUSIVE MODE")
            login = rest.client.build_request(
                "POST", "/api/v2/token", json={"username": "ann", "password": PASSWORD}
            )
            waiting = asyncio.create_task(rest.client.send(login))

            async def waits() -> bool:
                held: bool = await pool.fetchval(
                    "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
                )
                return held

            await rest.eventually(waits, True)
            reset = {"data": {"username": "ann", "password": "another-one"}}
            assert (await rest.client.put("/api/v2/users", json=reset)).status_code == 201
        assert (await waiting).status_code == 401
