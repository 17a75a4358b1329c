"""Users. Groups come later; their fields are there and empty."""

from typing import Annotated, Any

from fastapi import Path
from muster.counted import counted
from muster.db import Connection, transaction
from muster.errors import Rejected
from muster.passwords import MAX_CHARACTERS
from muster.protocol import HIGHEST_PRIORITY, LOWEST_PRIORITY
from pydantic import BaseModel, ConfigDict, Field

from rest.api.context import Address, Admin, Context, Here, Person, User
from rest.api.paging import Paging
from rest.api.router import new_router
from rest.api.texts import MAIL_OR_NONE
from rest.api.tokens import Done
from rest.domain.callers import USERNAME, Caller, check_person
from rest.domain.virtual_clusters import DEFAULT
from rest.handlers.passwords import check_new_password
from rest.store import accounts, audit, confirmations, subscriptions
from rest.store.accounts import Account, Change

router = new_router("/users", tag="users")

Username = Annotated[str, Path(max_length=64, description="The user.", examples=["ann"])]
Password = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Email = Annotated[str, Field(max_length=320, pattern=MAIL_OR_NONE)]
"""Empty: none."""

VirtualClusterNames = Annotated[
    list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,255}$")]], Field(max_length=1000)
]


AUDITED = {"admin", "email", "maxPriority", "ownsVirtualCluster", "virtualCluster"}
"""The audit log has the values of these. A password is secret, an extension large."""

PriorityCaps = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^([A-Za-z0-9_-]{1,255}|\*)$")],
        Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)],
    ],
    Field(max_length=1000),
]
"""By virtual cluster, the highest priority that a user may ask for; `*`: in all others."""


class Body(BaseModel):
    """A request about users, in OpenPAI's names."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class ShownUser(BaseModel):
    """A user, without the password. Number, e-mail address and extension are shown to the user
    themself and to admins; for others they are empty. ``number``: the uid of the user's tasks is
    the agents' MUSTER_TASK_UID_FIRST plus this. ``emailConfirmed``: the user's subscriptions may
    name the address. ``virtualCluster``: where the user's jobs may go. ``ownsVirtualCluster``:
    where the user may subscribe to everybody's jobs.
    """

    username: str
    number: int | None
    grouplist: list[str] = []
    email: str
    emailConfirmed: bool
    extension: dict[str, Any]
    admin: bool
    virtualCluster: list[str]
    ownsVirtualCluster: list[str]
    maxPriority: dict[str, int]
    storageConfig: list[str] = []


class UserPage(BaseModel):
    """A page of the users, by name, and how many there are on all pages."""

    users: list[ShownUser]
    total: int


class NewUser(Body):
    """A user to be made. ``virtualCluster``: where the user's jobs may go; left out: `default`.
    ``maxPriority``: by virtual cluster, or `*` for all others, the highest priority that the user
    may ask for; what is not named is as MUSTER_PRIORITY_CAP. ``ownsVirtualCluster``: where the user
    may subscribe to everybody's jobs.
    """

    username: Annotated[str, Field(pattern=USERNAME)]
    password: Password
    email: Email = ""
    admin: bool = False
    virtualCluster: VirtualClusterNames | None = None
    ownsVirtualCluster: VirtualClusterNames = []
    maxPriority: PriorityCaps = {}
    extension: dict[str, Any] = {}


class OwnChange(Body):
    """What users may change of themselves. A new password needs the old one, a new address the code
    that Muster mails to it: see `/users/me/email/confirm`.
    """

    email: Email | None = None
    extension: dict[str, Any] | None = None
    oldPassword: Password | None = None
    newPassword: Password | None = None


class UserData(Body):
    """What an admin changes of a user. ``virtualCluster``: where the user's jobs may go. ``admin``:
    whether they are one. ``maxPriority``: all their priority caps. ``ownsVirtualCluster``: where
    they may subscribe to everybody's jobs; their subscriptions to those elsewhere end.
    """

    username: Annotated[str, Field(pattern=USERNAME)]
    password: Password | None = None
    email: Email | None = None
    extension: dict[str, Any] | None = None
    virtualCluster: VirtualClusterNames | None = None
    ownsVirtualCluster: VirtualClusterNames | None = None
    maxPriority: PriorityCaps | None = None
    admin: bool | None = None


class EmailCode(Body):
    """The code that Muster has mailed to an address."""

    code: Annotated[str, Field(max_length=200)]


class UserChange(Body):
    """An admin's change; what is left out stays."""

    data: UserData
    patch: bool = True


def _shown(account: Account, caller: Caller) -> ShownUser:
    is_whole = caller.is_admin or caller.username == account.username
    return ShownUser(
        username=account.username,
        number=account.number if is_whole else None,
        email=account.email if is_whole else "",
        emailConfirmed=account.email_confirmed and is_whole,
        extension=account.extension if is_whole else {},
        admin=account.is_admin,
        virtualCluster=account.virtual_clusters,
        ownsVirtualCluster=account.owned_virtual_clusters,
        maxPriority=account.priority_caps,
    )


@router.get("", response_model=UserPage)
async def list_users(here: Here, caller: User, page: Paging) -> UserPage:
    """The users, by name."""
    async with here.pool.acquire() as conn:
        found = await accounts.list_accounts(conn, page.offset, page.limit)
        total = await accounts.count_accounts(conn)
    return UserPage(users=[_shown(account, caller) for account in found], total=total)


@router.get("/{username}", response_model=ShownUser)
async def get_user(username: Username, here: Here, caller: User) -> ShownUser:
    """One user."""
    async with here.pool.acquire() as conn:
        return _shown(await _find(conn, username), caller)


@router.post("", status_code=201, response_model=Done)
async def create_user(new: NewUser, here: Here, caller: Admin, address: Address) -> Done:
    """Make a user. An application token may not, as it may set no password."""
    check_person(caller)
    await here.virtual_clusters.check(_named(new))
    password_hash = await here.passwords.hash(new.password, new.username)
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        now = await conn.fetchval("SELECT now()")
        clusters = [DEFAULT] if new.virtualCluster is None else new.virtualCluster
        account = Account(
            username=new.username,
            email=new.email,
            email_confirmed=new.email != "",
            is_admin=new.admin,
            virtual_clusters=clusters,
            extension=new.extension,
            created_at=now,
            priority_caps=new.maxPriority,
            owned_virtual_clusters=new.ownsVirtualCluster,
        )
        if not await accounts.insert_account(conn, account, password_hash):
            raise await _taken(conn, new.username)
        detail = _audited(new) | {"virtualCluster": clusters}
        entry = audit.Entry(caller.username, "user.create", new.username, address, detail)
        await audit.record(conn, [entry])
    here.publisher.wake()
    return Done(message=f"The user {new.username} is made.")


@router.put("/me", status_code=201, response_model=Done)
async def change_myself(change: OwnChange, here: Here, caller: Person, address: Address) -> Done:
    """Change one's own e-mail address, extension or password. A new password revokes the tokens of
    earlier logins. A new address is unconfirmed: Muster mails a code to it. The subscriptions that
    mail to the old one end at once; the answer says how many.
    """
    if change.newPassword is not None:
        check_new_password(change.newPassword, caller.username)
        old = change.oldPassword or ""
        action = "user.change.fail"
        if await here.passwords.check(caller.username, old, address, action) is None:
            raise Rejected("ForbiddenUserError", "The old password is wrong.")
    is_code_sent, ended = await _change(
        here,
        caller,
        address,
        UserData(
            username=caller.username,
            password=change.newPassword,
            email=change.email,
            extension=change.extension,
        ),
        is_own=True,
    )
    if not is_code_sent:
        return Done(message=f"It is changed.{ended}")
    minutes = here.settings.confirmation_life_s // 60
    message = (
        f"It is changed.{ended} Muster mails a code to {change.email}, valid for {minutes} minutes;"
        " confirm the address with `muster users confirm CODE` or POST"
        " /users/me/email/confirm."
    )
    return Done(message=message)


@router.post("/me/email/confirm", response_model=Done)
async def confirm_email(given: EmailCode, here: Here, caller: Person, address: Address) -> Done:
    """Confirm one's own e-mail address with the code that was mailed to it. A code works once."""
    async with transaction(here.pool) as conn:
        await _lock(conn, caller.username)
        email = await here.confirmations.finish(conn, caller.username, given.code)
        change = Change(email=email, email_confirmed=True)
        await accounts.update_account(conn, caller.username, change)
        await _note(conn, caller.username, "user.email.confirm", caller.username, address)
    here.publisher.wake()
    return Done(message=f"The address {email} is confirmed.")


@router.put("", status_code=201, response_model=Done)
async def change_user(change: UserChange, here: Here, caller: Admin, address: Address) -> Done:
    """Change a user, as an admin. An application token may not set a password, nor make or demote
    an admin. A demoted admin loses their subscriptions, which covered all users' jobs. An address
    that an admin sets is confirmed; the user's subscriptions that mail to another one end. The
    answer says how many subscriptions ended.
    """
    if change.data.password is not None or change.data.admin is not None:
        check_person(caller)
    await here.virtual_clusters.check(_named(change.data))
    _, ended = await _change(here, caller, address, change.data)
    return Done(message=f"The user {change.data.username} is changed.{ended}")


@router.delete("/{username}", response_model=Done)
async def delete_user(username: Username, here: Here, caller: Admin, address: Address) -> Done:
    """Remove a user, their tokens and subscriptions. Their jobs stay, so nobody gets the name
    again. The last admin can't be removed, and no admin by an application token.
    """
    async with transaction(here.pool) as conn:
        if await _is_admin_but_not_the_last(conn, username):
            check_person(caller)
        await accounts.check_rights(conn, caller)
        await _find(conn, username)
        await accounts.remove_account(conn, username)
        await subscriptions.remove_of_owner(conn, username)
        await confirmations.end_of_user(conn, username)
        await _note(conn, caller.username, "user.delete", username, address)
    here.access.forget_cached()
    here.publisher.wake()
    return Done(
        message=f"The user {username} is removed. Their jobs go on until they end or are stopped."
    )


async def _is_admin_but_not_the_last(conn: Connection, username: str) -> bool:
    """Whether a user is an admin and another one is too, until the end of the transaction. Raises
    Rejected where there is no other one.
    """
    admins = await accounts.lock_admins(conn)
    if admins == [username]:
        message = f"{username} is the last admin; make another user one first."
        raise Rejected("LastAdminError", message)
    return username in admins


async def _taken(conn: Connection, username: str) -> Rejected:
    if not await accounts.was_removed(conn, username):
        return Rejected("ConflictUserError", f"There is a user {username} already.")
    message = (
        f"A user {username} was removed, and jobs and the audit log still name them so; choose"
        " another name."
    )
    return Rejected("ConflictUserError", message)


def _named(user: NewUser | UserData) -> list[str]:
    """The virtual clusters that a request names."""
    own = (*(user.virtualCluster or ()), *(user.ownsVirtualCluster or ()))
    return [*own, *((user.maxPriority or {}).keys() - {"*"})]


async def _find(conn: Connection, username: str) -> Account:
    account = await accounts.find_account(conn, username)
    if account is None:
        raise _no_user(username)
    return account


def _no_user(username: str) -> Rejected:
    return Rejected("NoUserError", f"There is no user {username[:64]}.")


async def _lock(conn: Connection, username: str) -> Account:
    account = await accounts.lock_to_change(conn, username)
    if account is None:
        raise _no_user(username)
    return account


async def _change(
    here: Context, caller: Caller, address: str, data: UserData, *, is_own: bool = False
) -> tuple[bool, str]:
    """Whether a code is mailed to a new address, and the sentence on subscriptions that ended."""
    is_code_sent, ended = False, 0
    password_hash = None
    if data.password is not None:
        password_hash = await here.passwords.hash(data.password, data.username)
    change = Change(
        extension=data.extension,
        virtual_clusters=data.virtualCluster,
        is_admin=data.admin,
        priority_caps=data.maxPriority,
        owned_virtual_clusters=data.ownsVirtualCluster,
    )
    async with transaction(here.pool) as conn:
        is_demoted = data.admin is False and await _is_admin_but_not_the_last(conn, data.username)
        before = await _lock(conn, data.username)
        await accounts.check_rights(conn, caller)
        await accounts.update_account(conn, data.username, change)
        if data.email is not None:
            is_code_sent, ended = await _set_email(here, conn, before, data.email, is_own=is_own)
        if is_demoted:
            ended += await subscriptions.remove_of_owner(conn, data.username)
        elif data.ownsVirtualCluster is not None and not before.is_admin:
            owned = data.ownsVirtualCluster
            ended += await subscriptions.remove_not_owned(conn, data.username, owned)
        if password_hash is not None:
            await accounts.update_password(conn, data.username, password_hash)
        changed = sorted(data.model_dump(exclude_none=True).keys() - {"username"})
        detail = {"changed": changed} | _audited(data)
        if ended:
            detail["endedSubscriptions"] = ended
        entry = audit.Entry(caller.username, "user.change", data.username, address, detail)
        await audit.record(conn, [entry])
    here.access.forget_cached()
    if is_demoted or data.email is not None or data.ownsVirtualCluster is not None:
        here.publisher.wake()
    return is_code_sent, f" {counted(ended, 'subscription')} ended." if ended else ""


def _audited(data: NewUser | UserData) -> dict[str, Any]:
    """The given values that the audit log keeps."""
    return data.model_dump(include=AUDITED, exclude_none=True)


async def _set_email(
    here: Context, conn: Connection, before: Account, email: str, *, is_own: bool
) -> tuple[bool, int]:
    """Set the address of a user; whether a code is mailed to it, and how many subscriptions end."""
    username = before.username
    is_known = before.email_confirmed and before.email == email
    is_confirmed = email != "" and (is_known or not is_own)
    await accounts.update_account(conn, username, Change(email=email, email_confirmed=is_confirmed))
    ended = 0
    if not before.is_admin:
        kept = email if is_confirmed else ""
        ended = await subscriptions.remove_other_mails(conn, username, kept)
    await confirmations.end_of_user(conn, username)
    if is_confirmed or not email:
        return False, ended
    await here.confirmations.start(conn, username, email)
    return True, ended


async def _note(conn: Connection, who: str, action: str, what: str, address: str) -> None:
    await audit.record(conn, [audit.Entry(who, action, what, address)])
