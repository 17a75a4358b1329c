"""`muster users`: the users of the cluster and their rights."""

from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from cli.client import Client, CommandError, Exit
from cli.commands.session import Output, ask_new_password, ask_password, client
from cli.home import find_home, read_credentials, write_credentials
from cli.logins import log_in
from cli.output import Format, print_facts, print_json, print_line, print_table

UserName = Annotated[str, Parameter(help="A user's name, as `muster users` has it.")]
Email = Annotated[str | None, Parameter(help="The user's e-mail address.")]
VirtualClusters = Annotated[
    list[str] | None,
    Parameter(
        name="--virtual-cluster",
        help="Where the user's jobs may go; once for each. They replace those from before.",
        negative=(),
    ),
]
Owns = Annotated[
    list[str] | None,
    Parameter(
        help="A virtual cluster that the user owns: they may subscribe to everybody's jobs there;"
        " once for each. They replace those from before.",
        negative=(),
    ),
]
MaxPriority = Annotated[
    str | None,
    Parameter(
        help="The highest priority that the user may ask for, by virtual cluster, `*` for all"
        " others: `research=120,*=10`. It replaces all caps from before; an empty text removes"
        " them."
    ),
]

app = App(
    name="users",
    help="The users: list, add, show, set, remove, confirm.",
    default_parameter=Parameter(negative=()),
)


@app.default
def users(*, output: Output = Format.TABLE) -> None:
    """The same as list."""
    list_(output=output)


@app.command(name="list")
def list_(*, output: Output = Format.TABLE) -> None:
    """All users. Others' numbers and e-mail addresses are shown to admins only."""
    found = client().get_pages("/users", "users")
    if output is Format.JSON:
        print_json(found)
        return
    print_table(
        ("USER", "NUMBER", "ADMIN", "E-MAIL", "VIRTUAL CLUSTERS"),
        [
            (each["username"], each["number"], _admin(each), each["email"], _clusters(each))
            for each in found
        ],
    )


@app.command
def show(user: UserName, *, output: Output = Format.TABLE) -> None:
    """One user."""
    found = client().get(_path(user)).json()
    if output is Format.JSON:
        print_json(found)
        return
    print_facts(
        {
            "User": found["username"],
            "Number": found["number"],
            "Admin": _admin(found) or "no",
            "E-mail": _email(found),
            "Virtual clusters": _clusters(found) or "none",
            "Owns": ", ".join(found["ownsVirtualCluster"]) or "none",
            "Priority caps": _caps(found) or "none of their own",
        }
    )


@app.command
def add(  # noqa: PLR0913 - these are the command's options
    user: Annotated[str, Parameter(help="The new user's name.")],
    *,
    email: Email = None,
    virtual_cluster: VirtualClusters = None,
    owns: Owns = None,
    max_priority: MaxPriority = None,
    admin: Annotated[bool, Parameter(help="The user is an admin.")] = False,
) -> None:
    """Make a user (for admins). The password is asked for, or read from the standard input where
    that is a pipe. Without --virtual-cluster the user's jobs may go to `default`.
    """
    caps = _read_caps(max_priority)
    server = client()
    if server.get("/tokens/check").json()["application"]:  # before a password is asked for
        raise CommandError(Exit.UNAUTHORISED, "Users are made with a login: run `muster login`.")
    wanted = {
        "username": user,
        "password": ask_new_password(),
        "email": email or "",
        "admin": admin,
        "virtualCluster": virtual_cluster,
        "ownsVirtualCluster": owns or [],
        "maxPriority": caps or {},
    }
    _print_message(server.send("POST", "/users", wanted).json())


@app.command(name="set")
def set_(  # noqa: PLR0913 - these are the command's options
    user: UserName,
    *,
    password: Annotated[
        bool,
        Parameter(
            help="Set a new password: it is asked for, or read from the standard input where that"
            " is a pipe. For one's own the old one is asked first, except from an admin."
        ),
    ] = False,
    email: Email = None,
    virtual_cluster: VirtualClusters = None,
    owns: Owns = None,
    max_priority: MaxPriority = None,
    admin: Annotated[
        bool | None,
        Parameter(help="The user is an admin, or none any more.", negative="--no-admin"),
    ] = None,
) -> None:
    """Change a user (for admins; one's own password and e-mail address for all). A new password
    ends the user's logins. Your own new e-mail address gets a code; see `muster users confirm`.
    """
    wanted = {
        "email": email,
        "virtualCluster": virtual_cluster,
        "ownsVirtualCluster": owns,
        "maxPriority": _read_caps(max_priority),
        "admin": admin,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    if not given and not password:
        options = (
            "--password, --email, --virtual-cluster, --owns, --max-priority, --admin, --no-admin"
        )
        raise CommandError(Exit.USAGE, f"Say what to change: {options}.")
    server = client()
    me = server.get("/tokens/check").json()
    is_own = me["username"] == user and not me["admin"] and given.keys() <= {"email"}
    old = ask_password("Old password") if password and is_own else None
    new = ask_new_password() if password else None
    if is_own:
        secret = {} if new is None else {"oldPassword": old, "newPassword": new}
        answer = server.send("PUT", "/users/me", given | secret).json()
    else:
        secret = {} if new is None else {"password": new}
        answer = server.send("PUT", "/users", {"data": {"username": user} | given | secret}).json()
    _print_message(answer)
    if new is not None:
        _stay_logged_in(server, user, new)


@app.command
def confirm(
    code: Annotated[str, Parameter(help="The code that Muster mailed to your new address.")],
) -> None:
    """Confirm your own e-mail address. Subscriptions mail to a confirmed address only."""
    _print_message(client().send("POST", "/users/me/email/confirm", {"code": code}).json())


@app.command
def remove(user: UserName) -> None:
    """Remove a user with their tokens and subscriptions (for admins). Their jobs stay, so the name
    can't be used again.
    """
    _print_message(client().call("DELETE", f"/api/v2{_path(user)}").json())


def _stay_logged_in(server: Client, user: str, password: str) -> None:
    """A new password has ended all logins of its user, also the one that has set it."""
    home = find_home()
    stored = read_credentials(home)
    if (stored.token, stored.user) == (server.token, user) and stored.renew_at:
        write_credentials(home, log_in(Client(server.url), user, password))


def _print_message(answer: dict[str, Any]) -> None:
    print_line(answer["message"])


def _path(user: str) -> str:
    return f"/users/{quote(user, safe='')}"


def _admin(user: dict[str, Any]) -> str:
    return "yes" if user["admin"] else ""


def _email(user: dict[str, Any]) -> str:
    is_open = user["email"] and not user["emailConfirmed"]
    return f"{user['email']} (unconfirmed)" if is_open else user["email"]


def _caps(user: dict[str, Any]) -> str:
    return ", ".join(f"{cluster}={cap}" for cluster, cap in sorted(user["maxPriority"].items()))


def _read_caps(text: str | None) -> dict[str, int] | None:
    """Caps as they are typed. Raises CommandError where they can't be read."""
    if text is None:
        return None
    caps = {}
    for part in filter(None, text.split(",")):
        cluster, _, cap = part.partition("=")
        try:
            caps[cluster.strip()] = int(cap)
        except ValueError:
            raise CommandError(
                Exit.USAGE,
                f"--max-priority: {part!r} is no cap; give a virtual cluster and a whole number, as"
                " in research=120,*=10.",
            ) from None
    return caps


def _clusters(user: dict[str, Any]) -> str:
    return ", ".join(user["virtualCluster"])
