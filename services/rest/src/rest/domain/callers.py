"""Who asks, and what they may do."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.errors import Rejected

USERNAME = r"^[A-Za-z0-9_.-]{1,64}$"
_USERNAME = re.compile(USERNAME)


@dataclass(frozen=True, slots=True)
class Caller:
    """A user who is known by a token. ``token`` is its id; an application token may not make or
    revoke tokens. ``virtual_clusters``: where their jobs may go; an admin's go anywhere.
    ``priority_caps``: the highest priorities that they may ask for, by virtual cluster; `*` is for
    all others.
    ``owned_virtual_clusters``: whose alerts they see.
    ``number``: which of the nodes' uids their tasks run under.
    """

    username: str
    number: int
    is_admin: bool
    is_application: bool
    token: str
    virtual_clusters: frozenset[str] = frozenset()
    priority_caps: Mapping[str, int] = field(default_factory=dict)
    owned_virtual_clusters: frozenset[str] = frozenset()


def is_username(text: str) -> bool:
    """Whether a user can have this name."""
    return _USERNAME.fullmatch(text) is not None


def check_owner(caller: Caller, owner: str, what: str) -> None:
    """Raises Rejected unless the caller owns it or is an admin."""
    if caller.username != owner and not caller.is_admin:
        raise Rejected("ForbiddenUserError", f"{what} belongs to {owner}; only they may change it.")


def check_admin(caller: Caller) -> None:
    """Raises Rejected unless the caller is an admin."""
    if not caller.is_admin:
        raise Rejected("ForbiddenUserError", "Only an admin may do this.")


def check_person(caller: Caller) -> None:
    """Raises Rejected where the caller is known by an application token."""
    if caller.is_application:
        message = "An application token may not do this; log in with a password first."
        raise Rejected("ForbiddenUserError", message)
