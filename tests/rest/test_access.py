"""Passwords, tokens and rights; and what is never shown."""

import base64
from typing import Any

import pytest
from rest.settings import RestSettings

PASSWORD = "correct-horse"


def basic(username: str, token: str) -> dict[str, str]:
    value = base64.b64encode(f"{username}:{token}".encode()).decode()
    return {"Authorization": f"Basic {value}"}


async def test_a_client_without_a_token_gets_nothing(rest: Any) -> None:
    async with rest.with_token("") as client:
        for path in ("jobs", "users", "tokens", "cluster/nodes", "virtual-clusters", "audit"):
            answer = await client.get(f"/api/v2/{path}")
            assert answer.status_code == 401, path
            assert answer.json()["code"] == "UnauthorizedUserError"
        for path in ("info", "authn/info", "protocol/schema.json"):
            assert (await client.get(f"/api/v2/{path}")).status_code == 200
        for header in ("Bearer", "Bearer nonsense", "Basic !!!", "Basic YQ==", "Digest x"):
            answer = await client.get("/api/v2/jobs", headers={"Authorization": header})
            assert answer.status_code == 401, header


async def test_a_login_by_form_or_by_json_gives_a_token(rest: Any) -> None:
    for path in ("authn/basic/login", "token"):
        form = {"username": "admin", "password": PASSWORD}
        for body in ({"json": form}, {"data": form}):
            answer = await rest.client.post(f"/api/v2/{path}", **body)
            assert answer.status_code == 200
            assert answer.json()["user"] == "admin"
            assert answer.json()["admin"] is True
            async with rest.with_token(answer.json()["token"]) as client:
                check = (await client.get("/api/v2/tokens/check")).json()
                assert check == {"username": "admin", "application": False, "admin": True}


async def test_a_wrong_password_and_an_unknown_user_look_the_same(rest: Any) -> None:
    answers = [
        await rest.client.post("/api/v2/token", json={"username": name, "password": "guess-1"})
        for name in ("admin", "nobody", "not a name!")
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1


async def test_guessing_is_slowed_down_for_the_guesser_only(start_rest: Any) -> None:
    async with start_rest(password_attempts=3) as rest:
        await rest.make_user("victim")
        codes = []
        for _ in range(5):
            body = {"username": "victim", "password": "guess-1"}
            codes.append((await rest.client.post("/api/v2/token", json=body)).status_code)
        assert codes == [401, 401, 401, 429, 429]
        assert await rest.log_in("admin", PASSWORD)


async def test_tokens_are_listed_without_themselves_and_revoked(rest: Any) -> None:
    made = (await rest.client.post("/api/v2/tokens/application")).json()["token"]
    listed = await rest.client.get("/api/v2/tokens")
    assert made not in listed.text
    assert rest.token not in listed.text
    assert [token["application"] for token in listed.json()["tokens"]] == [False, True]
    assert [token["expiresAt"] is None for token in listed.json()["tokens"]] == [False, True]
    async with rest.with_token(made) as program:
        assert (await program.get("/api/v2/jobs")).status_code == 200
        assert (await program.post("/api/v2/tokens/application")).status_code == 403
        mine = listed.json()["tokens"][0]["id"]
        assert (await program.delete(f"/api/v2/tokens/{mine}")).status_code == 403
        assert (await program.delete(f"/api/v2/tokens/{made}")).status_code == 200
        assert (await program.get("/api/v2/jobs")).status_code == 401
    assert (await rest.client.delete("/api/v2/tokens/unknown")).status_code == 404
    assert (await rest.client.delete("/api/v2/authn/basic/logout")).status_code == 200
    assert (await rest.client.get("/api/v2/jobs")).status_code == 401


async def test_tokens_of_a_user_are_bounded(start_rest: Any) -> None:
    async with start_rest(application_tokens=2, logins_per_user=2) as rest:
        made = [await rest.client.post("/api/v2/tokens/application") for _ in range(3)]
        assert [answer.status_code for answer in made] == [200, 200, 400]
        assert "revoke one" in made[-1].json()["message"]
        tokens = [await rest.log_in("admin", PASSWORD) for _ in range(2)]
        for token, code in ((rest.token, 401), *((token, 200) for token in tokens)):
            async with rest.with_token(token) as client:

                async def check(client: Any = client) -> int:
                    status: int = (await client.get("/api/v2/tokens/check")).status_code
                    return status

                await rest.eventually(check, code)


async def test_an_application_token_sets_no_password(rest: Any) -> None:
    made = (await rest.client.post("/api/v2/tokens/application")).json()["token"]
    async with rest.with_token(made) as program:
        new = {"username": "eve", "password": PASSWORD}
        made = await program.post("/api/v2/users", json=new)
        reset = {"data": {"username": "admin", "password": "taken-over"}, "patch": True}
        password = await program.put("/api/v2/users", json=reset)
        assert (made.status_code, password.status_code) == (403, 403)
    assert await rest.log_in("admin", PASSWORD)


async def test_private_facts_are_shown_to_their_owners_and_to_admins(rest: Any) -> None:
    mine = {"email": "ann@example.org", "extension": {"key": "secret"}}
    seen = []
    async with await rest.make_user("ann") as ann, await rest.make_user("bob") as bob:
        assert (await ann.put("/api/v2/users/me", json=mine)).status_code == 201
        for client in (rest.client, ann, bob):
            one = (await client.get("/api/v2/users/ann")).json()
            listed = (await client.get("/api/v2/users")).json()["users"]
            assert one in listed
            assert [user["username"] for user in listed] == ["admin", "ann", "bob"]
            seen.append((one["email"], one["extension"], one["number"]))
    sql = "SELECT number FROM account WHERE username = 'ann'"
    number = await rest.runtime.pool.fetchval(sql)
    assert seen == [*[("ann@example.org", {"key": "secret"}, number)] * 2, ("", {}, None)]


async def test_a_login_that_is_no_json_is_refused(rest: Any) -> None:
    for body in (b"[" * 60_000, b"{", b"\xff", b"7", b""):
        answer = await rest.client.post("/api/v2/token", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParametersError")


async def test_a_forwarded_address_counts_from_trusted_proxies_only(start_rest: Any) -> None:
    for trusted, address in (
        ("", "127.0.0.1"),
        ("127.0.0.1", "192.0.2.7"),
        ("10.0.0.0/8,127.0.0.0/8", "192.0.2.7"),
    ):
        async with start_rest(http_trusted_proxies=trusted) as rest:
            forwarded = {"X-Forwarded-For": "192.0.2.7"}
            await rest.client.post("/api/v2/tokens/application", headers=forwarded)
            entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
            assert (entries[0]["action"], entries[0]["address"]) == ("token.create", address)


async def test_basic_takes_an_application_token_of_that_user_only(rest: Any) -> None:
    made = (await rest.client.post("/api/v2/tokens/application")).json()["token"]
    async with rest.with_token("") as client:
        for headers, code in (
            (basic("admin", made), 200),
            (basic("other", made), 401),
            (basic("admin", rest.token), 401),
            (basic("admin", PASSWORD), 401),
        ):
            assert (await client.get("/api/v2/jobs", headers=headers)).status_code == code


async def test_a_token_expires(rest: Any) -> None:
    token = await rest.log_in("admin", PASSWORD)
    await rest.runtime.pool.execute("UPDATE token SET expires_at = now() - interval '1 s'")
    async with rest.with_token(token) as client:
        assert (await client.get("/api/v2/jobs")).status_code == 401


async def test_users_are_made_changed_and_removed_by_admins(rest: Any) -> None:
    async with await rest.make_user("ann") as ann:
        new = {"username": "eve", "password": PASSWORD}
        assert (await ann.post("/api/v2/users", json=new)).status_code == 403
        twice = await rest.client.post("/api/v2/users", json=new | {"username": "ann"})
        assert (twice.status_code, twice.json()["code"]) == (409, "ConflictUserError")
        shown = (await ann.get("/api/v2/users/ann")).json()
        assert (shown["username"], shown["admin"], shown["grouplist"]) == ("ann", False, [])
        assert (await ann.get("/api/v2/users/nobody")).status_code == 404
        wrong = {"newPassword": "another-one", "oldPassword": "guess-1"}
        assert (await ann.put("/api/v2/users/me", json=wrong)).status_code == 403
        right = {"newPassword": "another-one", "oldPassword": PASSWORD, "email": "ann@example.org"}
        assert (await ann.put("/api/v2/users/me", json=right)).status_code == 201
        assert (await ann.get("/api/v2/jobs")).status_code == 401
    assert await rest.log_in("ann", "another-one")
    users = (await rest.client.get("/api/v2/users")).json()["users"]
    assert [user["email"] for user in users] == ["", "ann@example.org"]
    reset = {"data": {"username": "ann", "password": "a-third-one"}, "patch": True}
    assert (await rest.client.put("/api/v2/users", json=reset)).status_code == 201
    assert await rest.log_in("ann", "a-third-one")
    assert (await rest.client.delete("/api/v2/users/ann")).status_code == 200
    assert (await rest.client.get("/api/v2/users/ann")).status_code == 404


async def test_an_odd_name_or_a_short_password_is_refused(rest: Any) -> None:
    for change in ({"username": "a~b"}, {"username": "ü"}, {"password": "short"}, {"more": 1}):
        body = {"username": "fine", "password": PASSWORD} | change
        answer = await rest.client.post("/api/v2/users", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParametersError")
        assert "short" not in answer.text


async def test_passwords_and_tokens_are_kept_nowhere_in_clear(rest: Any, capsys: Any) -> None:
    made = (await rest.client.post("/api/v2/tokens/application")).json()["token"]
    await rest.log_in("admin", PASSWORD)
    rows: list[Any] = []
    for table in ("account", "token", "audit", "subject", "notice"):
        rows += await rest.runtime.pool.fetch(f"SELECT * FROM {table}")
    kept = str([dict(row) for row in rows])
    printed = capsys.readouterr()
    for secret in (PASSWORD, made, rest.token, "internal-marker-token"):
        assert secret not in kept
        assert secret not in printed.out + printed.err


async def test_the_first_start_prints_the_password_once(start_rest: Any, capsys: Any) -> None:
    from muster.db import open_pool
    from rest.handlers.access import make_admin

    async with start_rest() as rest:
        settings: RestSettings = rest.runtime.settings.model_copy(update={"admin_password": None})
        pool = await open_pool(settings, "rest")
        assert await make_admin(pool, settings) is None
        await pool.execute("DELETE FROM account")
        made = await make_admin(pool, settings)
        assert made is not None
        assert await make_admin(pool, settings) is None
        await pool.close()
        assert await rest.log_in("admin", made)
        assert made not in capsys.readouterr().out


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_lost_administrator_is_back_after_a_start(
    start_rest: Any, *, is_removed: bool
) -> None:
    """By the statement of services/rest/docs/operations.md."""
    async with start_rest() as rest, await rest.make_user("ann", admin=True) as ann:
        if is_removed:
            assert (await ann.delete("/api/v2/users/admin")).status_code == 200
        await rest.runtime.pool.execute("UPDATE rest.account SET is_admin = false WHERE is_admin")
        await rest.runtime.pool.execute("UPDATE account SET password_hash = 'lost'")
    async with start_rest() as rest:  # it logs in as admin
        entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
        assert ("user.recover", "admin", {"admin": True}) in [
            (entry["action"], entry["object"], entry["detail"]) for entry in entries
        ]
        assert (await rest.client.get("/api/v2/users/ann")).json()["admin"] is False


def test_a_password_that_is_too_short_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMIN_PASSWORD", "a1b2")
    with pytest.raises(ValueError, match="8 to 256 characters") as caught:
        RestSettings()
    assert "a1b2" not in str(caught.value)
