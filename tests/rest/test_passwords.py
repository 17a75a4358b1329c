"""Guessing passwords is slow, at all replicas together; and no other user locks anybody out for
long.
"""

import asyncio
from typing import Any

import httpx2

PASSWORD, WRONG = "correct-horse", "guess-1"
STRANGER = "192.0.2.7"


async def guess(
    rest: Any, username: str, address: str = STRANGER, password: str = WRONG
) -> httpx2.Response:
    """A login from an address; a trusted proxy tells it."""
    body = {"username": username, "password": password}
    headers = {"X-Forwarded-For": address}
    answer: httpx2.Response = await rest.client.post("/api/v2/token", json=body, headers=headers)
    return answer


async def guesses(rest: Any, username: str, addresses: list[str]) -> list[int]:
    return [(await guess(rest, username, each)).status_code for each in addresses]


async def failures(rest: Any) -> list[tuple[str, str, str, Any]]:
    """The failures in the audit log, oldest first."""
    rows = await rest.runtime.pool.fetch(
        "SELECT username, action, address, detail FROM audit WHERE action LIKE '%.fail' ORDER BY id"
    )
    return [(r["username"], r["action"], r["address"], r["detail"]["cause"]) for r in rows]


async def test_replicas_count_together_and_answer_when_to_try_again(start_rest: Any) -> None:
    how = {"password_attempts": 3, "http_trusted_proxies": "127.0.0.1"}
    async with start_rest(**how) as one, start_rest(**how) as other:
        for name in ("admin", "nobody"):
            codes = [(await guess(rest, name)).status_code for rest in (one, other, one, other)]
            assert codes == [401, 401, 401, 429], name
        answer = await guess(other, "admin", password=PASSWORD)
        assert (answer.status_code, answer.json()["code"]) == (429, "TooManyRequestsError")
        assert 0 < int(answer.headers["Retry-After"]) <= 300
        assert f"wait {answer.headers['Retry-After']} seconds" in answer.json()["message"]
        # The guesser's address is locked out: the user gets in, and their tokens work.
        assert (await guess(other, "admin", "192.0.2.8", PASSWORD)).status_code == 200
        assert (await one.client.get("/api/v2/jobs")).status_code == 200


async def test_many_guesses_at_once_are_counted_each(start_rest: Any) -> None:
    how = {"password_attempts": 3, "http_trusted_proxies": "127.0.0.1"}
    async with start_rest(**how) as one, start_rest(**how) as other:
        answers = await asyncio.gather(*(guess(rest, "admin") for rest in (one, other) * 10))
        assert sorted(answer.status_code for answer in answers) == [401] * 3 + [429] * 17


async def test_checks_of_one_user_in_progress_are_bounded(start_rest: Any) -> None:
    async with start_rest() as rest:
        answers = await asyncio.gather(
            *(guess(rest, "admin", password=PASSWORD) for _ in range(30))
        )
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert len(answers) - len(refused) >= 10
        assert (await guess(rest, "admin", password=PASSWORD)).status_code == 200


async def test_a_user_is_guarded_from_many_addresses_and_users_from_one(start_rest: Any) -> None:
    async with start_rest(password_attempts=1, http_trusted_proxies="127.0.0.1") as rest:
        crowd = [f"192.0.2.{number}" for number in range(10)]
        assert await guesses(rest, "admin", crowd) == [401] * 10
        assert await guesses(rest, "admin", ["192.0.2.99"]) == [429]
        spray = [(await guess(rest, f"user-{number}")).status_code for number in range(11)]
        assert spray == [401] * 9 + [429] * 2  # one of the ten was of the crowd
        # The next address of the same IPv6 network is the same client.
        assert await guesses(rest, "bob", ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]) == [
            401,
            429,
            401,
        ]
        # A task of the same machine can use each loopback address.
        assert await guesses(rest, "eve", ["127.0.0.1", "127.9.9.9", "::1"]) == [401, 429, 429]


async def test_a_lock_ends_by_itself(start_rest: Any) -> None:
    async with start_rest(password_attempts=1, http_trusted_proxies="127.0.0.1") as rest:
        assert await guesses(rest, "admin", [STRANGER] * 2) == [401, 429]
        await rest.runtime.pool.execute("UPDATE password_failure SET expires_at = now()")
        assert (await guess(rest, "admin", password=PASSWORD)).status_code == 200


async def test_a_success_forgives_the_user_and_not_the_address(start_rest: Any) -> None:
    async with start_rest(password_attempts=2, http_trusted_proxies="127.0.0.1") as rest:
        for _ in range(3):
            assert (await guess(rest, "admin")).status_code == 401
            assert (await guess(rest, "admin", password=PASSWORD)).status_code == 200
        counts = await rest.runtime.pool.fetch("SELECT failures FROM password_failure")
        # The address has three; the audit log's count has them, too; logins of the test's own none.
        assert sorted(row["failures"] for row in counts) == [0, 3, 3]


async def test_the_old_password_is_guarded_like_a_login(start_rest: Any) -> None:
    async with start_rest(password_attempts=2) as rest:
        wrong = {"oldPassword": WRONG, "newPassword": "another-one"}
        codes = []
        for _ in range(3):
            codes.append((await rest.client.put("/api/v2/users/me", json=wrong)).status_code)
        assert codes == [403, 403, 429]
        assert (await failures(rest))[0] == (
            "admin",
            "user.change.fail",
            "127.0.0.1",
            "wrong password",
        )


async def test_failures_are_in_the_audit_log_as_far_as_it_bears_them(start_rest: Any) -> None:
    how = {"password_failures_audited": 3, "http_trusted_proxies": "127.0.0.1"}
    async with start_rest(password_attempts=1, **how) as rest:
        await guesses(rest, "admin", [STRANGER] * 5)
        await guesses(rest, "a-password-typed-as-name", ["192.0.2.8", "192.0.2.9", "192.0.2.10"])
        assert await failures(rest) == [
            ("admin", "login.fail", STRANGER, "wrong password"),
            ("", "login.fail", "192.0.2.8", "unknown user"),
            ("", "login.fail", "192.0.2.9", "unknown user"),
        ]
        scraped = (await rest.client.get("/metrics")).text
        assert 'muster_rest_password_checks_total{outcome="refused"} 4.0' in scraped
        assert 'muster_rest_password_checks_total{outcome="throttled"} 4.0' in scraped
        assert 'muster_rest_password_checks_total{outcome="accepted"} 1.0' in scraped


async def test_an_attack_leaves_few_rows_and_they_go(start_rest: Any) -> None:
    how = {"password_attempts": 1, "http_trusted_proxies": "127.0.0.1"}
    async with start_rest(maintenance_s=0.05, **how) as rest:
        pool = rest.runtime.pool
        for number in range(30):
            await guess(rest, f"user-{number}")
        # Ten were checked: each has a row for itself and one with its address.
        count = "SELECT count(*) FROM password_failure WHERE failures > 0"
        assert await pool.fetchval(count) == 2 * 10 + 2
        await pool.execute("UPDATE password_failure SET expires_at = now()")

        async def left() -> int:
            found: int = await pool.fetchval("SELECT count(*) FROM password_failure")
            return found

        await rest.eventually(left, 0)


async def test_a_password_that_is_guessed_first_is_refused_wherever_it_is_set(rest: Any) -> None:
    for bad in ("short", "Password1!", "12345678", "ann-smith"):
        new = {"username": "ann-smith", "password": bad}
        own = {"oldPassword": PASSWORD, "newPassword": "Admin-2024"}
        for answer in (
            await rest.client.post("/api/v2/users", json=new),
            await rest.client.put("/api/v2/users", json={"data": new}),
            await rest.client.put("/api/v2/users/me", json=own),
        ):
            assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParametersError")
            assert bad not in answer.text
    wrong = {"oldPassword": WRONG, "newPassword": "short"}
    assert (await rest.client.put("/api/v2/users/me", json=wrong)).status_code == 400
    assert await failures(rest) == []  # the old one was not checked
    assert await rest.log_in("admin", PASSWORD)
