"""Logins: made with a password, renewed while they are used, revoked."""

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from cli.client import API, Client, CommandError, Exit
from cli.home import Credentials, read_credentials, write_credentials
from cli.output import milliseconds

AGAIN_S = 60.0
"""The wait after a renewal that failed."""


def log_in(client: Client, user: str, password: str) -> Credentials:
    """A login of the user; CommandError where it is refused."""
    body = {"username": user, "password": password}
    answer = client.send("POST", "/authn/basic/login", body).json()
    return Credentials(client.url, answer["token"], user, _half_way(answer["expiresAt"]))


def revoke(credentials: Credentials) -> None:
    """Revoke a token. An expired one is no error; CommandError where the server is away."""
    try:
        Client(credentials.url, credentials.token).call("DELETE", f"{API}/authn/basic/logout")
    except CommandError as error:
        if error.code is not Exit.UNAUTHORISED:
            raise


@dataclass
class Renewal:
    """Renews the login that commands use when less than half of its life is left."""

    home: Path
    login: Credentials

    def __call__(self) -> None:
        """Renew it when due. Where that fails, the command's own request gets the reason."""
        if not 0 < self.login.renew_at <= time.time():
            return
        self.login = replace(self.login, renew_at=time.time() + AGAIN_S)
        with contextlib.suppress(CommandError, OSError):
            client = Client(self.login.url, self.login.token)
            expires_at = client.send("POST", "/tokens/renew", {}).json()["expiresAt"]
            self.login = replace(self.login, renew_at=_half_way(expires_at))
            if read_credentials(self.home, {}).token == self.login.token:  # no other login since
                write_credentials(self.home, self.login)


def _half_way(expires_at: str) -> float:
    """The middle of the time until then."""
    return (time.time() + milliseconds(expires_at) / 1000) / 2
