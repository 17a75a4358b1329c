"""`muster login` and `muster logout`."""

import contextlib
import os
from typing import Annotated

from cyclopts import Parameter

from cli.client import Client, CommandError, Exit
from cli.commands.session import ask_password
from cli.home import Credentials, find_home, read_credentials, write_credentials
from cli.logins import log_in, revoke
from cli.output import print_line


def login(
    user: str,
    *,
    url: Annotated[str | None, Parameter(help="The server; by default the last one.")] = None,
) -> Exit:
    """Log in. The password is asked for, or read from the standard input where that is a pipe. An
    earlier login here is revoked.
    """
    home = find_home()
    before = read_credentials(home, {})
    client = Client((url or read_credentials(home).url).rstrip("/"))
    write_credentials(home, log_in(client, user, ask_password("Password")))
    if before.renew_at:  # not the token of `muster up`
        with contextlib.suppress(CommandError):  # its server may be gone
            revoke(before)
    print_line(f"Logged in at {client.url} as {user}.")
    return Exit.OK


def logout() -> Exit:
    """Revoke the login and forget it."""
    home = find_home()
    stored = read_credentials(home, _without_token())
    if not stored.token:
        raise CommandError(Exit.USAGE, "Nobody is logged in here.")
    if stored.renew_at:  # not the token of `muster up`
        revoke(stored)
    write_credentials(home, Credentials(stored.url, "", ""))
    print_line(f"Logged out at {stored.url}.")
    return Exit.OK


def _without_token() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "MUSTER_TOKEN"}
