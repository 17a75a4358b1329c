"""`muster tokens`: a user's tokens, which authenticate requests."""

import time
from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from cli.client import API, CommandError, Exit
from cli.commands.session import Output, client, seconds
from cli.output import Format, length, milliseconds, print_json, print_line, print_note, print_table

app = App(
    name="tokens",
    help="Tokens of logins and of programs: list, create, revoke.",
    default_parameter=Parameter(negative=()),
)

OfUser = Annotated[str | None, Parameter(name="--user", help="Of another user: for admins.")]


@app.default
def tokens(*, user: OfUser = None, output: Output = Format.TABLE) -> None:
    """The same as list."""
    list_(user=user, output=output)


@app.command(name="list")
def list_(*, user: OfUser = None, output: Output = Format.TABLE) -> None:
    """The live tokens of a user, by their ids: the server does not keep the tokens themselves. USED
    is at most some minutes old.
    """
    found = client().get("/tokens", {"username": user}).json()["tokens"]
    if output is Format.JSON:
        print_json(found)
        return
    now_ms = int(time.time() * 1000)
    print_table(
        ("ID", "KIND", "AGE", "USED", "EXPIRES", "NAME"),
        [
            (
                each["id"],
                "application" if each["application"] else "login",
                length(milliseconds(each["createdAt"]), now_ms),
                f"{length(milliseconds(each['usedAt']), now_ms)} ago"
                if each["usedAt"]
                else "never",
                f"in {length(now_ms, milliseconds(each['expiresAt']))}"
                if each["expiresAt"]
                else "never",
                each["name"],
            )
            for each in found
        ],
    )


@app.command
def create(
    name: Annotated[str, Parameter(help="What the token is for: letters, digits, _ . : @ / + -")],
    *,
    expires: Annotated[
        str | None,
        Parameter(help="Its life, like 12h or 30d; by default it lives until it is revoked."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Create a token of one's own for a program. It is shown only now. It can't create admins, set
    passwords or create tokens.
    """
    wanted = {"name": name, "expiration": None if expires is None else _life_s(expires)}
    made = client().send("POST", "/tokens/application", wanted).json()
    if output is Format.JSON:
        print_json(made)
        return
    print_line(made["token"])
    print_note(f"Its id is {made['id']}: muster tokens revoke {made['id']}")


@app.command
def revoke(
    token: Annotated[str, Parameter(help="A token's id, as `muster tokens` has it.")],
) -> None:
    """Revoke a token at once: one's own, or, for admins, any user's."""
    answer = client().call("DELETE", f"{API}/tokens/{quote(token, safe='')}").json()
    print_line(answer["message"])


def _life_s(text: str) -> int:
    life_s = seconds(text)
    if life_s is None:
        raise CommandError(Exit.USAGE, f"--expires {text} is no time: write it like 12h or 30d.")
    return life_s
