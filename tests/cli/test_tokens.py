"""Tables of users and tokens on a terminal, and passwords that come by the standard input."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rest_double import Rest, muster, on_a_terminal, rest_double


def token(**more: Any) -> dict[str, Any]:
    now = datetime.fromtimestamp(time.time(), UTC)
    return {
        "id": "0123456789abcdef",
        "name": "",
        "application": True,
        "createdAt": (now - timedelta(days=80)).isoformat(),
        "expiresAt": (now + timedelta(days=900)).isoformat(),
        "usedAt": None,
    } | more


def test_tokens_fit_a_terminal_with_their_whole_ids(rest: Rest, tmp_path: Path) -> None:
    long_ago = token()["createdAt"]
    found = [token(name="x" * 64), token(application=False, usedAt=long_ago)]
    rest.answer("GET /api/v2/tokens", {"tokens": found})
    lines = on_a_terminal(rest, tmp_path, "tokens")
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("0123456789abcdef") for line in lines[1:])


def test_users_fit_a_terminal(rest: Rest, tmp_path: Path) -> None:
    user = {
        "username": "u" * 64,
        "number": 7,
        "admin": True,
        "email": f"{'e' * 60}@example.org",
        "virtualCluster": [f"cluster-{number}" for number in range(20)],
    }
    rest.answer("GET /api/v2/users", {"users": [user], "total": 1})
    assert max(map(len, on_a_terminal(rest, tmp_path, "users"))) <= 80


def test_a_password_is_never_an_argument(rest: Rest, tmp_path: Path) -> None:
    me = {"username": "admin", "admin": True, "application": False}
    rest.answer("GET /api/v2/tokens/check", me)
    rest.answer("PUT /api/v2/users", {"message": "Done."}, 201)
    ran = muster(rest, tmp_path, "users", "set", "ann", "--password", "secret-word", text="x\n")
    assert (ran.code, rest.asked) == (2, [])
    ran = muster(rest, tmp_path, "users", "set", "ann", "--password", text="blue-kettle-9\n")
    assert ran.code == 0
    sent = json.loads(rest.asked[-1][2])
    assert sent == {"data": {"username": "ann", "password": "blue-kettle-9"}}
    ran = muster(rest, tmp_path, "users", "add", "bob")
    assert (ran.code, "No password was given" in ran.err) == (2, True)


def test_a_login_at_another_server_revokes_the_earlier_one(rest: Rest, tmp_path: Path) -> None:
    with rest_double() as other:
        for server, token in ((rest, "first"), (other, "second")):
            login = {"token": token, "expiresAt": "2100-01-01T00:00:00Z"}
            server.answer("POST /api/v2/authn/basic/login", login)
            server.answer("DELETE /api/v2/authn/basic/logout", {"message": "Done."})
            assert muster(server, tmp_path, "login", "ada", text="secret\n").code == 0
        assert [method for method, _, _, _ in other.asked] == ["POST"]
    _, revoked = rest.asked
    assert (revoked[0], revoked[3]["Authorization"]) == ("DELETE", "Bearer first")


def test_a_token_of_the_environment_is_left_as_it_is(rest: Rest, tmp_path: Path) -> None:
    rest.answer("GET /api/v2/tokens", {"tokens": []})
    (tmp_path / "credentials.json").write_text(
        json.dumps({"url": rest.url, "token": "mine", "user": "ada", "renewAt": 1})
    )
    assert muster(rest, tmp_path, "tokens").code == 0
    assert [path for _, path, _, _ in rest.asked] == ["/api/v2/tokens"]
