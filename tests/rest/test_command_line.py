"""`muster login`, `users` and `tokens` against the real REST."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

from cli.home import read_credentials
from muster.codes import confirmation_code
from muster.contracts.confirmations import Confirmation
from muster.receiver_secrets import open_receiver
from rest_double import Ran, run_cli

PASSWORD = "correct-horse"


class People:
    """Commands of several people, each with a folder of their own."""

    def __init__(self, rest: Any, folder: Path) -> None:
        self.rest = rest
        self.folder = folder

    def home(self, who: str) -> Path:
        return self.folder / who

    async def run(self, who: str, *words: str, text: str = "") -> Ran:
        home = self.home(who)
        return await asyncio.to_thread(run_cli, home, *words, text=text, MUSTER_URL=self.rest.url)

    async def json(self, who: str, *words: str) -> Any:
        ran = await self.run(who, *words, "-o", "json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)


async def test_a_login_lives_for_days_and_is_given_back(rest: Any, tmp_path: Path) -> None:
    people = People(rest, tmp_path)
    ran = await people.run("admin", "login", "admin", text=f"{PASSWORD}\n")
    assert (ran.code, PASSWORD in ran.out + ran.err) == (0, False)
    file = people.home("admin") / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = read_credentials(people.home("admin"), {})
    assert (await people.run("admin", "login", "admin", text=f"{PASSWORD}\n")).code == 0
    kept = await people.json("admin", "tokens")
    # The test's own login and the newest one: the one before was revoked.
    assert [(each["application"], each["expiresAt"] is None) for each in kept] == [
        (False, False)
    ] * 2
    second = read_credentials(people.home("admin"), {})
    assert second.token != first.token
    pool = rest.runtime.pool
    await pool.execute("UPDATE token SET expires_at = now() + interval '1 hour'")
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"renewAt": 1}))
    assert (await people.run("admin", "jobs")).code == 0
    renewed = read_credentials(people.home("admin"), {})
    assert (renewed.token, renewed.renew_at > second.renew_at - 60) == (second.token, True)
    lives = "SELECT count(*) FROM token WHERE expires_at > now() + interval '6 days'"
    assert await pool.fetchval(lives) == 1
    assert (await people.run("admin", "logout")).code == 0
    assert await pool.fetchval(lives) == 0
    assert "Nobody is logged in" in (await people.run("admin", "logout")).err


async def test_an_expired_login_is_an_error_and_can_be_forgotten(rest: Any, tmp_path: Path) -> None:
    people = People(rest, tmp_path)
    await people.run("admin", "login", "admin", text=f"{PASSWORD}\n")
    await rest.runtime.pool.execute("UPDATE token SET expires_at = now()")
    file = people.home("admin") / "credentials.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"renewAt": 1}))
    ran = await people.run("admin", "jobs")
    assert (ran.code, "muster login" in ran.err) == (5, True)
    assert (await people.run("admin", "logout")).code == 0
    assert read_credentials(people.home("admin"), {}).token == ""


async def test_secrets_of_a_receiver_are_asked_for_and_not_shown(rest: Any, tmp_path: Path) -> None:
    people = People(rest, tmp_path)
    await people.run("admin", "login", "admin", text=f"{PASSWORD}\n")
    routing, topic, token = "R0123456789ABCDEF", "https://ntfy.example.org/ops-7", "tk_secret"

    async def add(*words: str, text: str = "") -> Ran:
        return await people.run("admin", "subscriptions", "add", "node-lost", *words, text=text)

    async def added(*words: str, text: str) -> tuple[str, str, str]:
        """The kind of the receiver that was made, its address, and its token."""
        ran = await add(*words, text=text)
        assert ran.code == 0, ran.err
        assert not [it for it in text.split() if it in ran.out + ran.err]
        ident = ran.out.strip()
        content = await rest.runtime.pool.fetchval(
            "SELECT content FROM subscription WHERE id = $1", ident
        )
        sealed = content["receiver"]
        opened = open_receiver("a-key-of-this-test", ident, sealed["sealed"])
        return sealed["kind"], opened.url, opened.token

    eu = "https://events.eu.pagerduty.com/v2/enqueue"
    us = eu.replace(".eu.", ".")
    pagerduty = ("--to", "pagerduty")
    assert await added(*pagerduty, text=f"{routing}\n") == ("pagerduty", us, routing)
    there = await added(*pagerduty, "--region", "eu", text=f"{routing}\n")
    assert there == ("pagerduty", eu, routing)
    assert await added("--to", "ntfy", text=f"{topic}\n") == ("ntfy", topic, "")
    with_token = await added("--to", "ntfy", "--token", text=f"{topic}\n{token}\n")
    assert with_token == ("ntfy", topic, token)

    wrong = {
        (): "Name one receiver",
        (*pagerduty, "--email", "a@example.org"): "Name one receiver",
        ("--to", "ntfy", "--region", "eu"): "--region needs --to pagerduty",
        (*pagerduty, "--token"): "--token needs --to ntfy",
        ("--to", "ntfy", "--token"): "The access token of ntfy is missing",
    }
    for words, error in wrong.items():
        ran = await add(*words, text=f"{topic}\n")
        assert (ran.code, error in ran.err, topic in ran.err) == (2, True, False), ran.err
    inside = "http://chat.internal/hooks/secret"
    assert await added("--to", "slack", text=f"{inside}\n") == ("slack", inside, "")
    ran = await add("--to", "teams", text=f"{inside}\n")
    error = "`teams.url` is no address with TLS, which it needs: write it like https://host/path"
    assert (ran.code, error in ran.err, inside in ran.err) == (4, True, False), ran.err
    ran = await add(*pagerduty, text="a key with spaces\n")
    error = "`pagerduty.routingKey` is no integration key: it has 16 to 64 letters and digits"
    assert (ran.code, error in ran.err, "a key with" in ran.err) == (4, True, False), ran.err
    for words, error in {
        ("--email", "nobody"): "`email` is no mail address: write it like ann@example.org",
        ("--webhook", "here"): "`webhookUrl` is no address: write it like https://host/path",
        ("--email", "a@b", "--digest", "8"): "`digest.at` is no time of a day: write it like 22:00",
    }.items():
        ran = await add(*words)
        assert (ran.code, error in ran.err) == (4, True), ran.err
    assert len(await people.json("admin", "subscriptions")) == 5


async def test_a_list_of_subscriptions_says_what_each_takes_and_when(
    rest: Any, tmp_path: Path
) -> None:
    people = People(rest, tmp_path)
    await people.run("admin", "login", "admin", text=f"{PASSWORD}\n")
    zone = "@Europe/Berlin"
    for words in (
        (),
        ("--digest", "hour"),
        ("--job", "train-*", "--virtual-cluster", "default", "--severity", "warning"),
        ("--user", "ann", "--user", "bob"),
        ("--quiet", f"22:00-07:00{zone}", "--digest", f"08:00{zone}"),
    ):
        made = await people.run(
            "admin", "subscriptions", "add", "job-failed", "--email", "a@example.org", *words
        )
        assert made.code == 0, made.err
    listed = (await people.run("admin", "subscriptions")).out.splitlines()[1:]
    assert {it.split("a@example.org  ")[1] for it in listed} == {
        "job-failed",
        "job-failed (digest hour)",
        "job-failed (jobs train-*, in default, from warning)",
        "job-failed (of ann bob)",
        f"job-failed (quiet 22:00-07:00{zone}, digest 08:00{zone})",
    }


async def test_an_admin_keeps_users(rest: Any, tmp_path: Path) -> None:
    people = People(rest, tmp_path)
    await people.run("admin", "login", "admin", text=f"{PASSWORD}\n")
    options = ("--email", "ann@example.org", "--virtual-cluster", "default")
    ran = await people.run("admin", "users", "add", "ann", *options, text="blue-kettle-9\n")
    assert (ran.code, ran.out) == (0, "The user ann is made.\n")
    assert "blue-kettle-9" not in ran.out + ran.err
    weak = await people.run("admin", "users", "add", "bob", text="password1\n")
    assert (weak.code, "common" in weak.err) == (4, True)
    shown = await people.json("admin", "users", "show", "ann")
    assert (shown["email"], shown["admin"], shown["virtualCluster"]) == (
        "ann@example.org",
        False,
        ["default"],
    )
    listed = (await people.run("admin", "users")).out.splitlines()
    assert listed[0].split() == ["USER", "NUMBER", "ADMIN", "E-MAIL", "VIRTUAL", "CLUSTERS"]
    assert listed[1].split() == ["admin", "1", "yes", "default"]
    assert listed[2].split() == ["ann", "2", "ann@example.org", "default"]
    assert (await people.run("admin", "users", "set", "ann", "--admin")).code == 0
    assert (await people.json("admin", "users", "show", "ann"))["admin"] is True
    assert (await people.run("admin", "users", "set", "ann", "--no-admin")).code == 0
    assert (await people.json("admin", "users", "show", "ann"))["admin"] is False
    last = await people.run("admin", "users", "set", "admin", "--no-admin")
    assert (last.code, "last admin" in last.err) == (4, True)
    nothing = await people.run("admin", "users", "set", "ann")
    assert (nothing.code, "Say what to change" in nothing.err) == (2, True)
    # A user who changes their own password stays logged in here.
    own = await people.run("admin", "users", "set", "admin", "--password", text="green-kettle-9\n")
    assert (own.code, own.err) == (0, "")
    assert (await people.run("admin", "users", "remove", "ann")).code == 0
    gone = await people.run("admin", "users", "show", "ann")
    assert (gone.code, "no user ann" in gone.err) == (4, True)


async def test_users_change_their_own_password_with_the_old_one(rest: Any, tmp_path: Path) -> None:
    people = People(rest, tmp_path)
    await rest.make_user("ann")
    await people.run("ann", "login", "ann", text=f"{PASSWORD}\n")
    words = ("users", "set", "ann", "--password", "--email", "ann@example.org")
    wrong = await people.run("ann", *words, text="blue-kettle-8\nblue-kettle-9\n")
    assert (wrong.code, "old password" in wrong.err) == (5, True)
    right = await people.run("ann", *words, text=f"{PASSWORD}\nblue-kettle-9\n")
    assert (right.code, right.err) == (0, "")
    assert (await people.json("ann", "users", "show", "ann"))["email"] == "ann@example.org"
    refused = await people.run("ann", "users", "set", "ann", "--admin")
    assert (refused.code, "Only an admin" in refused.err) == (5, True)


async def test_users_confirm_their_own_address(rest: Any, tmp_path: Path) -> None:
    people = People(rest, tmp_path)
    await rest.make_user("ann")
    await people.run("ann", "login", "ann", text=f"{PASSWORD}\n")
    changed = await people.run("ann", "users", "set", "ann", "--email", "ann@example.org")
    assert (changed.code, "muster users confirm CODE" in changed.out) == (0, True)
    assert "ann@example.org (unconfirmed)" in (await people.run("ann", "users", "show", "ann")).out
    wrong = await people.run("ann", "users", "confirm", "a-guess")
    assert (wrong.code, "set your address again" in wrong.err) == (4, True)
    row = await rest.runtime.pool.fetchrow(
        'SELECT id, username AS "user", email, expires_at FROM confirmation'
    )
    code = confirmation_code("a-key-of-this-test", Confirmation(**dict(row)))
    right = await people.run("ann", "users", "confirm", code)
    assert (right.code, right.out) == (0, "The address ann@example.org is confirmed.\n")
    assert "unconfirmed" not in (await people.run("ann", "users", "show", "ann")).out


async def test_an_admin_sets_priority_caps(rest: Any, tmp_path: Path) -> None:
    people = People(rest, tmp_path)
    await people.run("admin", "login", "admin", text=f"{PASSWORD}\n")

    async def caps() -> Any:
        return (await people.json("admin", "users", "show", "ann"))["maxPriority"]

    option = "--max-priority=research=120,*=10"
    ran = await people.run("admin", "users", "add", "ann", option, text="blue-kettle-9\n")
    assert (ran.code, await caps()) == (0, {"research": 120, "*": 10})
    shown = (await people.run("admin", "users", "show", "ann")).out
    assert "*=10, research=120" in shown
    for text in ("research", "research=high", "=", "a=1;b=2"):
        wrong = await people.run("admin", "users", "set", "ann", "--max-priority", text)
        assert (wrong.code, "research=120,*=10" in wrong.err) == (2, True)
    assert (await people.run("admin", "users", "set", "ann", "--max-priority=*=-1")).code == 0
    assert await caps() == {"*": -1}
    too_high = await people.run("admin", "users", "set", "ann", "--max-priority=*=1001")
    assert (too_high.code, await caps()) == (4, {"*": -1})
    assert (await people.run("admin", "users", "set", "ann", "--max-priority=")).code == 0
    assert await caps() == {}


async def test_tokens_are_made_shown_and_revoked(rest: Any, tmp_path: Path) -> None:
    people = People(rest, tmp_path)
    await rest.make_user("ann")
    await people.run("ann", "login", "ann", text=f"{PASSWORD}\n")
    await people.run("admin", "login", "admin", text=f"{PASSWORD}\n")
    ran = await people.run("ann", "tokens", "create", "nightly", "--expires", "30d")
    token = ran.out.strip()
    async with rest.with_token(token) as program:
        assert (await program.get("/api/v2/jobs")).status_code == 200
        rows = (await people.run("admin", "tokens", "--user", "ann")).out.splitlines()
        assert rows[0].split() == ["ID", "KIND", "AGE", "USED", "EXPIRES", "NAME"]
        [row] = [each for each in rows if each.endswith("nightly")]
        assert (" application " in row, " in 29d" in row, token in "".join(rows)) == (
            True,
            True,
            False,
        )
        assert f"revoke {row.split()[0]}" in ran.err
        theirs = await people.run("ann", "tokens", "--user", "admin")
        assert (theirs.code, "Only an admin" in theirs.err) == (5, True)
        assert (await people.run("admin", "tokens", "revoke", row.split()[0])).code == 0
        assert (await program.get("/api/v2/jobs")).status_code == 401
    unknown = await people.run("ann", "tokens", "revoke", "nothing")
    assert (unknown.code, "no such token" in unknown.err) == (4, True)
    when = await people.run("ann", "tokens", "create", "x", "--expires", "soon")
    assert (when.code, "12h or 30d" in when.err) == (2, True)
    made = await people.json("ann", "tokens", "create", "y")
    assert (made["name"], made["expiresAt"]) == ("y", None)
