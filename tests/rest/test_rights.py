"""Every route of REST, asked by every kind of caller, beside one table of rights."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastapi.routing import APIRoute
from muster.codes import script_code
from rest.api.router import PREFIX
from rest.handlers.access import digest
from starlette.routing import Route

PASSWORD = "correct-horse"

NOBODY = frozenset({"no token", "an expired token", "a revoked token"})
"""Callers without a valid token are nobody."""

ANN, BOB, ADMIN = "ann", "bob", "admin"
ANNS_PROGRAM, ADMINS_PROGRAM = "ann's application token", "the admin's application token"
PROGRAMS = frozenset({ANNS_PROGRAM, ADMINS_PROGRAM})

USERS = frozenset({ANN, BOB, ADMIN}) | PROGRAMS
PEOPLE = USERS - PROGRAMS
EVERYBODY = USERS | NOBODY
OWNER = frozenset({ANN, ANNS_PROGRAM})
OWNER_AND_ADMINS = USERS - {BOB}
ADMINS = frozenset({ADMIN, ADMINS_PROGRAM})
"""Groups of callers; what has an owner is ann's."""

NEW = {"username": "new", "password": PASSWORD}
WISH = {"events": ["job-failed"], "email": "ann@example.org"}
ALERTMANAGER = {"Authorization": "Bearer the-token-of-alertmanager"}
UNTIL = datetime(2100, 1, 1, tzinfo=UTC)
SCRIPT = {"Authorization": f"Bearer {script_code('a-key-of-this-test', 'script', UNTIL)}"}
ANSWER = "/api/v2/alerts/actions/script/answer"
LOGS = "/api/v2/jobs/ann~digits/attempts/0/taskRoles/worker/taskIndex/0/attempts"


def changed(**fields: object) -> dict[str, Any]:
    """A body that changes the user eve."""
    return {"data": {"username": "eve"} | fields}


@dataclass(frozen=True)
class Ask:
    """A request and the callers that may make it."""

    who: frozenset[str]
    method: str
    path: str
    json: dict[str, Any] | None = None
    text: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


TABLE = [
    Ask(EVERYBODY, "GET", "/healthz"),
    Ask(EVERYBODY, "GET", "/readyz"),
    Ask(EVERYBODY, "GET", "/metrics"),
    Ask(EVERYBODY, "GET", "/openapi.json"),
    Ask(EVERYBODY, "GET", "/api/v2/info"),
    Ask(EVERYBODY, "GET", "/api/v2/authn/info"),
    Ask(EVERYBODY, "GET", "/api/v2/protocol/schema.json"),
    Ask(EVERYBODY, "POST", "/api/v2/token", {"username": "ann", "password": PASSWORD}),
    Ask(EVERYBODY, "POST", "/api/v2/authn/basic/login", {"username": "ann", "password": PASSWORD}),
    Ask(USERS, "DELETE", "/api/v2/authn/basic/logout"),
    Ask(USERS, "GET", "/api/v2/tokens"),
    Ask(OWNER_AND_ADMINS, "GET", "/api/v2/tokens?username=ann"),
    Ask(USERS, "GET", "/api/v2/tokens/check"),
    Ask(PEOPLE, "POST", "/api/v2/tokens/renew"),
    Ask(PEOPLE, "POST", "/api/v2/tokens/application"),
    Ask(PEOPLE - {BOB}, "DELETE", "/api/v2/tokens/anns-spare-one"),
    Ask(USERS, "GET", "/api/v2/users"),
    Ask(USERS, "GET", "/api/v2/users/eve"),
    Ask(PEOPLE, "PUT", "/api/v2/users/me", {"email": "me@example.org"}),
    Ask(PEOPLE, "POST", "/api/v2/users/me/email/confirm", {"code": "a guess"}),
    Ask(PEOPLE & ADMINS, "POST", "/api/v2/users", NEW),
    Ask(ADMINS, "PUT", "/api/v2/users", changed(email="eve@example.org")),
    Ask(ADMINS, "PUT", "/api/v2/users", changed(virtualCluster=["default"])),
    Ask(PEOPLE & ADMINS, "PUT", "/api/v2/users", changed(password="another-good-one")),
    Ask(PEOPLE & ADMINS, "PUT", "/api/v2/users", changed(admin=True)),
    Ask(PEOPLE & ADMINS, "PUT", "/api/v2/users", changed(admin=False)),
    Ask(ADMINS, "DELETE", "/api/v2/users/eve"),
    Ask(PEOPLE & ADMINS, "DELETE", "/api/v2/users/another-admin"),
    Ask(USERS, "POST", "/api/v2/jobs", text="name: no-job"),
    Ask(ADMINS, "POST", "/api/v2/jobs?node=n1", text="name: no-job"),
    Ask(USERS, "GET", "/api/v2/jobs"),
    Ask(USERS, "GET", "/api/v2/jobs/ann~digits"),
    Ask(USERS, "GET", "/api/v2/jobs/ann~digits/config"),
    Ask(USERS, "GET", "/api/v2/jobs/ann~digits/why"),
    Ask(USERS, "GET", "/api/v2/jobs/ann~digits/attempts/0"),
    Ask(USERS, "GET", "/api/v2/jobs/ann~digits/usage"),
    Ask(USERS, "GET", "/api/v2/jobs/ann~digits/attempts/0/usage"),
    Ask(OWNER_AND_ADMINS, "PUT", "/api/v2/jobs/ann~digits/executionType", {"value": "STOP"}),
    Ask(OWNER_AND_ADMINS, "PUT", "/api/v2/jobs/ann~digits/tag", {"value": "t"}),
    Ask(OWNER_AND_ADMINS, "DELETE", "/api/v2/jobs/ann~digits/tag", {"value": "t"}),
    Ask(USERS, "GET", LOGS),
    Ask(USERS, "GET", f"{LOGS}/0/logs"),
    Ask(USERS, "GET", f"{LOGS}/0/logs/all"),
    Ask(USERS, "GET", f"{LOGS}/0/logs/all/events"),
    Ask(USERS, "GET", "/api/v2/cluster"),
    Ask(USERS, "GET", "/api/v2/queue"),
    Ask(USERS, "GET", "/api/v2/cluster/queue"),
    Ask(USERS, "GET", "/api/v2/cluster/gangs"),
    Ask(USERS, "GET", "/api/v2/cluster/cells"),
    Ask(USERS, "GET", "/api/v2/cluster/nodes"),
    Ask(USERS, "GET", "/api/v2/cluster/nodes/n1"),
    Ask(ADMINS, "PUT", "/api/v2/cluster/nodes/n1/order", {"value": "drain"}),
    Ask(ADMINS, "POST", "/api/v2/cluster/nodes/n1/release", {"rule": "back"}),
    Ask(ADMINS, "GET", "/api/v2/cluster/export?since=0"),
    Ask(ADMINS, "GET", "/api/v2/advice"),
    Ask(ADMINS, "GET", "/api/v2/audit"),
    Ask(ADMINS, "PUT", "/api/v2/storages/home", {"hostPath": "/srv/home", "users": ["*"]}),
    Ask(USERS, "GET", "/api/v2/storages"),
    Ask(USERS, "GET", "/api/v2/storages/home"),
    Ask(ADMINS, "DELETE", "/api/v2/storages/home"),
    Ask(USERS, "GET", "/api/v2/virtual-clusters"),
    Ask(USERS, "GET", "/api/v2/virtual-clusters/default"),
    Ask(ADMINS, "GET", "/api/v2/cluster/config"),
    Ask(ADMINS, "PUT", "/api/v2/cluster/config", text="policy: {}", headers={"If-Match": '"0"'}),
    Ask(ADMINS, "DELETE", "/api/v2/cluster/config", headers={"If-Match": '"0"'}),
    Ask(ADMINS, "GET", "/api/v2/cluster/config/versions"),
    Ask(ADMINS, "GET", "/api/v2/cluster/config/versions/1"),
    Ask(ADMINS, "POST", "/api/v2/cluster/config/what-if", text="policy: {}"),
    Ask(ADMINS, "POST", "/api/v2/cluster/config/removal/what-if"),
    Ask(ADMINS, "POST", "/api/v2/cluster/config/versions/1/what-if"),
    Ask(ADMINS, "POST", "/api/v2/cluster/config/rollback", {"version": 1}),
    Ask(USERS, "GET", "/api/v2/alerts"),
    Ask(EVERYBODY, "POST", "/api/v2/alerts/alertmanager", {"alerts": []}, headers=ALERTMANAGER),
    Ask(USERS, "GET", "/api/v2/alerts/mutes"),
    Ask(USERS, "POST", "/api/v2/alerts/mutes", {"alert": "NodeLost", "until": "2026-01-01T00:00Z"}),
    Ask(OWNER_AND_ADMINS, "DELETE", "/api/v2/alerts/mutes/anns"),
    Ask(ADMINS, "GET", "/api/v2/alerts/rules"),
    Ask(ADMINS, "PUT", "/api/v2/alerts/rules", text="rules: []"),
    Ask(ADMINS, "GET", "/api/v2/alerts/rules/versions"),
    Ask(ADMINS, "POST", "/api/v2/alerts/rules/check", text="rules: []"),
    Ask(ADMINS, "POST", "/api/v2/alerts/rules/rollback", {"version": 1}),
    Ask(ADMINS, "GET", "/api/v2/alerts/actions"),
    Ask(ADMINS, "POST", "/api/v2/alerts/actions/some/undo"),
    Ask(ADMINS, "POST", "/api/v2/alerts/actions/some/answer", {"succeeded": True}),
    Ask(EVERYBODY, "POST", ANSWER, {"succeeded": True}, headers=SCRIPT),
    Ask(USERS, "GET", "/api/v2/reports/usage"),
    Ask(USERS, "GET", "/api/v2/events"),
    Ask(USERS, "GET", "/api/v2/alerts/subscriptions"),
    Ask(USERS, "POST", "/api/v2/alerts/subscriptions", WISH),
    Ask(ADMINS, "POST", "/api/v2/alerts/subscriptions", WISH | {"events": ["node-lost"]}),
    Ask(OWNER_AND_ADMINS, "GET", "/api/v2/alerts/subscriptions/anns"),
    Ask(OWNER_AND_ADMINS, "PUT", "/api/v2/alerts/subscriptions/anns", WISH),
    Ask(OWNER_AND_ADMINS, "DELETE", "/api/v2/alerts/subscriptions/anns"),
    Ask(OWNER, "GET", "/api/v2/alerts/subscriptions/anns/secrets"),
    Ask(OWNER, "POST", "/api/v2/alerts/subscriptions/anns/secrets/rotate"),
    Ask(OWNER_AND_ADMINS, "GET", "/api/v2/alerts/subscriptions/anns/deliveries"),
    Ask(OWNER_AND_ADMINS, "POST", "/api/v2/alerts/subscriptions/anns/test"),
    Ask(
        OWNER_AND_ADMINS,
        "POST",
        "/api/v2/alerts/subscriptions/anns/replay",
        {"since": "2026-01-01T00:00:00Z"},
    ),
]
"""What each may do. A route that is not here fails the test."""


def all_routes(app: Any) -> Iterator[tuple[str, Route]]:
    """Every method and route of the application, also those that its document leaves out."""
    for route in app.routes:
        assert isinstance(route, Route | APIRoute), f"{route} is no route that this test knows"
        for method in (route.methods or set()) - {"HEAD"}:
            yield method, route


def route_of(ask: Ask, routes: list[tuple[str, Route]]) -> str | None:
    """The first route that takes this request, as the application would choose it."""
    path = ask.path.partition("?")[0]
    for method, route in routes:
        if method == ask.method and route.path_regex.match(path):
            return f"{method} {route.path}"
    return None


class World:
    """The callers with their tokens, and what they ask about, as they were after each request."""

    def __init__(self, rest: Any) -> None:
        self.rest = rest
        self.tokens = {name: f"token-of-{name}" for name in USERS}
        self.tokens |= {"no token": "", "an expired token": "old", "a revoked token": ""}

    async def make(self) -> None:
        pool = self.rest.runtime.pool
        for name in ("ann", "bob", "eve", "another-admin"):
            body = {"username": name, "password": PASSWORD}
            assert (await self.rest.client.post("/api/v2/users", json=body)).status_code == 201
        await self.restore()
        ann = self.rest.with_token(await self.rest.log_in("ann", PASSWORD))
        async with ann:
            content = self.rest.job_file("digits")
            assert (await ann.post("/api/v2/jobs", content=content)).status_code == 202
            made = (await ann.post("/api/v2/alerts/subscriptions", json=WISH)).json()
            await pool.execute("UPDATE subscription SET id = 'anns' WHERE id = $1", made["id"])
            until = datetime.fromtimestamp(time.time() + 86_400, UTC).isoformat()
            wish = {"alert": "NodeLost", "until": until}
            made = (await ann.post("/api/v2/alerts/mutes", json=wish)).json()
            await pool.execute("UPDATE mute SET id = 'anns' WHERE id = $1", made["id"])
        revoked = await self.rest.log_in("admin", PASSWORD)
        async with self.rest.with_token(revoked) as client:
            assert (await client.delete("/api/v2/authn/basic/logout")).status_code == 200
        self.tokens["a revoked token"] = revoked

    async def restore(self) -> None:
        """Bring back what the last request may have taken away."""
        pool = self.rest.runtime.pool
        await pool.execute(
            "UPDATE account SET removed_at = NULL, is_admin = username LIKE '%admin',"
            " email = username || '@example.org', email_confirmed = true"
            " WHERE username IN ('ann', 'bob', 'eve', 'admin', 'another-admin')"
        )
        await pool.execute("DELETE FROM account WHERE username = 'new'")
        await pool.execute("UPDATE subscription SET removed_at = NULL")
        await pool.execute("UPDATE mute SET removed_at = NULL")
        await pool.execute(
            'INSERT INTO alert_action (action, "do", target, outcome, reason, rule, ends_by)'
            " VALUES ('script', 'remediate', 'n1', 'running', '', 'r', $1)"
            " ON CONFLICT (action) DO UPDATE SET outcome = excluded.outcome",
            UNTIL,
        )
        for ident, token in [*self.tokens.items(), ("anns-spare-one", "spare")]:
            if token and ident != "a revoked token":
                await pool.execute(
                    "INSERT INTO token (digest, id, username, is_application, life_s, expires_at)"
                    " VALUES ($1, $2, $3, $4, 60, now() + $5 * interval '1 s')"
                    " ON CONFLICT DO NOTHING",
                    digest(token),
                    ident,
                    "ann" if ident.startswith("ann") else "bob" if ident == "bob" else "admin",
                    ident in PROGRAMS or ident == "anns-spare-one",
                    -1 if ident == "an expired token" else 3600,
                )

    async def ask(self, ask: Ask, caller: str) -> tuple[int, str]:
        """The status and the code of the answer."""
        await self.restore()
        async with self.rest.with_token(self.tokens[caller]) as client:
            given = {"json": ask.json} if ask.text is None else {"content": ask.text}
            answer = await client.request(ask.method, ask.path, headers=ask.headers, **given)
        is_json = answer.headers.get("content-type") == "application/json"
        content = answer.json() if is_json else None
        return answer.status_code, content.get("code", "") if isinstance(content, dict) else ""


async def test_every_route_is_for_the_callers_in_the_table(start_rest: Any) -> None:
    async with start_rest(
        token_cache_s=0.001, alertmanager_token=ALERTMANAGER["Authorization"].split()[1]
    ) as rest:
        routes = list(all_routes(rest.runtime.asgi._app))
        wanted = {f"{method} {route.path}" for method, route in routes}
        assert {route_of(ask, routes) for ask in TABLE} == wanted
        world = World(rest)
        await world.make()
        wrong = []
        for ask in TABLE:
            for caller in sorted(EVERYBODY):
                status, code = await world.ask(ask, caller)
                if caller in ask.who:
                    is_right = status not in (401, 403, 405, 429, 500) and code != "NoApiError"
                else:
                    is_right = status == (401 if caller in NOBODY else 403)
                if not is_right:
                    wrong.append(f"{ask.method} {ask.path} as {caller}: {status} {code}")
        assert wrong == []


async def test_the_document_names_the_paths_that_need_no_token(rest: Any) -> None:
    document = (await rest.client.get("/openapi.json")).json()
    free = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation.get("security") == []
    }
    named = {
        f"{ask.method} {ask.path}" for ask in TABLE if ask.who == EVERYBODY and not ask.headers
    }
    assert free == {each for each in named if PREFIX in each}
