"""`muster login` and `muster logout`."""

import getpass
import os
import sys
from typing import Annotated

from cyclopts import Parameter

from cli.client import API, Client, CommandError, Exit
from cli.home import Credentials, find_home, read_credentials, write_credentials
from cli.jobs import log_in


def login(
    user: str,
    *,
    url: Annotated[str | None, Parameter(help="The server; by default the last one.")] = None,
) -> Exit:
    """Log in. The password is asked for, or read from the standard input where that is a pipe."""
    home = find_home()
    client = Client((url or read_credentials(home, _without_token()).url).rstrip("/"))
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    token = log_in(client, user, password)
    write_credentials(home, Credentials(client.url, token, user))
    sys.stdout.write(f"Logged in at {client.url} as {user}.\n")
    return Exit.OK


def logout() -> Exit:
    """Give the token back and forget it."""
    home = find_home()
    stored = read_credentials(home, _without_token())
    if not stored.token:
        raise CommandError(Exit.USAGE, "Nobody is logged in here.")
    Client(stored.url, stored.token).call("DELETE", f"{API}/authn/basic/logout")
    write_credentials(home, Credentials(stored.url, "", ""))
    return Exit.OK


def _without_token() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "MUSTER_TOKEN"}
