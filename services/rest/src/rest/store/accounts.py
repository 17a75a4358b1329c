"""Users and their tokens. Passwords are argon2 hashes, tokens are digests."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from muster.db import Connection, Pool, fetch
from muster.errors import Rejected

from rest.domain.callers import Caller


@dataclass(frozen=True, slots=True)
class Account:
    """A user, without the password. ``number`` is 0 before it is stored. ``virtual_clusters``:
    where their jobs may go; ``owned_virtual_clusters``: whose events they may subscribe to.
    """

    username: str
    email: str
    is_admin: bool
    virtual_clusters: list[str]
    extension: dict[str, Any]
    created_at: datetime
    priority_caps: dict[str, int] = field(default_factory=dict)
    email_confirmed: bool = False
    number: int = 0
    owned_virtual_clusters: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LockedAccount:
    """A user's password and rights, which stay until the end of the transaction.
    ``confirmed_email``: empty where there is none.
    """

    password_hash: str
    is_admin: bool
    confirmed_email: str
    owned_virtual_clusters: list[str]


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token to be written. ``life_s``: None, it does not expire."""

    digest: bytes
    id: str
    username: str
    name: str
    is_application: bool
    life_s: int | None


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A live token, without itself. ``used_at`` is some minutes old at the most."""

    id: str
    name: str
    is_application: bool
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None


ACCOUNT = (
    "username, number, email, email_confirmed, is_admin, virtual_clusters, extension, created_at,"
    " priority_caps, owned_virtual_clusters"
)


async def find_caller(pool: Pool, digest: bytes, use_s: float) -> tuple[Caller, bool] | None:
    """Whose token this is, if it is live; and whether its last use was noted longer ago than
    ``use_s``.
    """
    row = await pool.fetchrow(_CALLER, digest, use_s)
    if row is None:
        return None
    caller = Caller(
        username=row["username"],
        number=row["number"],
        is_admin=row["is_admin"],
        is_application=row["is_application"],
        token=row["id"],
        virtual_clusters=frozenset(row["virtual_clusters"]),
        priority_caps=row["priority_caps"],
        owned_virtual_clusters=frozenset(row["owned_virtual_clusters"]),
    )
    return caller, row["is_use_due"]


async def note_use(pool: Pool, digest: bytes, use_s: float) -> None:
    """A token is used, which was noted longer ago than ``use_s``."""
    await pool.execute(_NOTE_USE, digest, use_s)


async def find_password(pool: Pool, username: str) -> str | None:
    """The password's hash of a user."""
    sql = "SELECT password_hash FROM account WHERE username = $1 AND removed_at IS NULL"
    found: str | None = await pool.fetchval(sql, username)
    return found


async def lock_account(conn: Connection, username: str) -> LockedAccount | None:
    """A user, locked against changes until the end of the transaction."""
    rows = await fetch(LockedAccount, conn, _LOCK, username)
    return next(iter(rows), None)


async def lock_admins(conn: Connection) -> list[str]:
    """All admins. Others who ask meanwhile wait."""
    rows = await conn.fetch(_ADMINS)
    return [row["username"] for row in rows]


async def check_rights(conn: Connection, caller: Caller) -> LockedAccount:
    """The caller's account. Raises Rejected where they were removed or demoted since the request
    came. Else their rights stay until the end of the transaction.
    """
    account = await lock_account(conn, caller.username)
    if account is None:
        raise Rejected("UnauthorizedUserError", f"The user {caller.username} was removed.")
    if caller.is_admin and not account.is_admin:
        raise Rejected("ForbiddenUserError", f"{caller.username} is no admin any more.")
    return account


async def list_accounts(conn: Connection, offset: int, limit: int) -> list[Account]:
    """Users by name, after the first ``offset``."""
    sql = f"SELECT {ACCOUNT} FROM account WHERE removed_at IS NULL"  # noqa: S608 - columns
    sql += " ORDER BY username OFFSET $1 LIMIT $2"
    return await fetch(Account, conn, sql, offset, limit)


async def count_accounts(conn: Connection) -> int:
    """How many users there are."""
    count: int = await conn.fetchval("SELECT count(*) FROM account WHERE removed_at IS NULL")
    return count


async def find_account(conn: Connection, username: str) -> Account | None:
    """One user."""
    sql = f"SELECT {ACCOUNT} FROM account WHERE username = $1 AND removed_at IS NULL"  # noqa: S608 - columns
    return next(iter(await fetch(Account, conn, sql, username)), None)


async def without_account(pool: Pool, usernames: Collection[str]) -> list[str]:
    """Those who are no users."""
    sql = (
        "SELECT name FROM unnest($1::text[]) AS name WHERE NOT EXISTS"
        " (SELECT FROM account WHERE username = name AND removed_at IS NULL)"
    )
    return [row["name"] for row in await pool.fetch(sql, list(usernames))]


async def lock_to_change(conn: Connection, username: str) -> Account | None:
    """One user, locked so that only this transaction changes it."""
    sql = f"SELECT {ACCOUNT} FROM account WHERE username = $1 AND removed_at IS NULL FOR UPDATE"  # noqa: S608 - columns
    return next(iter(await fetch(Account, conn, sql, username)), None)


async def insert_account(conn: Connection, account: Account, password_hash: str) -> bool:
    """Make a user; False where the name is taken, or was by a user who is removed."""
    done = await conn.execute(
        "INSERT INTO account (username, password_hash, email, email_confirmed, is_admin,"
        " virtual_clusters, extension, priority_caps, owned_virtual_clusters)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        " ON CONFLICT DO NOTHING",
        account.username,
        password_hash,
        account.email,
        account.email_confirmed,
        account.is_admin,
        account.virtual_clusters,
        account.extension,
        account.priority_caps,
        account.owned_virtual_clusters,
    )
    return bool(done == "INSERT 0 1")


async def was_removed(conn: Connection, username: str) -> bool:
    """Whether a user of this name was removed."""
    sql = "SELECT EXISTS (SELECT FROM account WHERE username = $1 AND removed_at IS NOT NULL)"
    return bool(await conn.fetchval(sql, username))


@dataclass(frozen=True, slots=True)
class Change:
    """What is to change of a user; None stays."""

    email: str | None = None
    extension: dict[str, Any] | None = None
    virtual_clusters: list[str] | None = None
    is_admin: bool | None = None
    email_confirmed: bool | None = None
    priority_caps: dict[str, int] | None = None
    owned_virtual_clusters: list[str] | None = None


async def update_account(conn: Connection, username: str, change: Change) -> None:
    """Change what is given."""
    await conn.execute(
        "UPDATE account SET email = coalesce($2, email), extension = coalesce($3, extension),"
        " address_revision = address_revision + ((coalesce($2, email),"
        " coalesce($6, email_confirmed)) IS DISTINCT FROM (email, email_confirmed))::int,"
        " virtual_clusters = coalesce($4, virtual_clusters), is_admin = coalesce($5, is_admin),"
        " email_confirmed = coalesce($6, email_confirmed),"
        " priority_caps = coalesce($7, priority_caps),"
        " owned_virtual_clusters = coalesce($8, owned_virtual_clusters)"
        " WHERE username = $1 AND removed_at IS NULL",
        username,
        change.email,
        change.extension,
        change.virtual_clusters,
        change.is_admin,
        change.email_confirmed,
        change.priority_caps,
        change.owned_virtual_clusters,
    )


async def update_password(conn: Connection, username: str, password_hash: str) -> None:
    """Set a password; the tokens of earlier logins are revoked, those of applications stay."""
    await conn.execute(
        "UPDATE account SET password_hash = $2 WHERE username = $1", username, password_hash
    )
    await conn.execute("DELETE FROM token WHERE username = $1 AND NOT is_application", username)


async def recover_admin(conn: Connection, username: str, password_hash: str) -> None:
    """Make a user an admin with this password, also a removed one."""
    await conn.execute(
        "UPDATE account SET is_admin = true, removed_at = NULL WHERE username = $1", username
    )
    await update_password(conn, username, password_hash)


async def remove_account(conn: Connection, username: str) -> None:
    """Remove a user and their tokens. Their jobs stay, and nobody gets the name again."""
    await conn.execute(_REMOVE, username)
    await conn.execute("DELETE FROM token WHERE username = $1", username)


async def has_admin(conn: Connection) -> bool:
    """Whether any user is an admin. It locks the table, so a second caller waits."""
    await conn.execute("LOCK TABLE account IN SHARE ROW EXCLUSIVE MODE")
    return bool(await conn.fetchval("SELECT EXISTS (SELECT FROM account WHERE is_admin)"))


async def insert_token(conn: Connection, token: NewToken) -> datetime | None:
    """Make a token; returns when it expires."""
    expires_at: datetime | None = await conn.fetchval(
        _INSERT,
        token.digest,
        token.id,
        token.username,
        token.name,
        token.is_application,
        token.life_s,
    )
    return expires_at


@dataclass(frozen=True, slots=True)
class Renewal:
    """When a login expires; ``is_new``: that was written now."""

    expires_at: datetime
    is_new: bool


async def renew_login(conn: Connection, ident: str, life_s: int, longest_s: int) -> Renewal | None:
    """Give a login its life anew, ``life_s`` at the most, until ``longest_s`` after the password
    was given. Nothing is written for less than a minute, or a tenth of a short life. None: it is no
    login, or over.
    """
    return next(iter(await fetch(Renewal, conn, _RENEW, ident, life_s, longest_s)), None)


async def count_application_tokens(conn: Connection, username: str) -> int:
    """How many live application tokens a user has. Others who count meanwhile wait."""
    await lock_to_change(conn, username)
    count: int = await conn.fetchval(
        "SELECT count(*) FROM token WHERE username = $1 AND is_application"
        " AND (expires_at IS NULL OR expires_at > now())",
        username,
    )
    return count


async def trim_logins(conn: Connection, username: str, kept: int) -> None:
    """Keep only a user's newest logins."""
    await conn.execute(_TRIM, username, kept)


async def list_tokens(conn: Connection, username: str) -> list[TokenRow]:
    """The live tokens of a user; expired ones are removed."""
    await conn.execute("DELETE FROM token WHERE username = $1 AND expires_at <= now()", username)
    return await fetch(TokenRow, conn, _TOKENS, username)


async def find_token(conn: Connection, digest: bytes, ident: str) -> tuple[str, str] | None:
    """The id and the owner of a token, by itself or by its id."""
    row = await conn.fetchrow(
        "SELECT id, username FROM token WHERE digest = $1 OR id = $2", digest, ident
    )
    return None if row is None else (row["id"], row["username"])


async def delete_token(conn: Connection, ident: str) -> None:
    """Revoke a token."""
    await conn.execute("DELETE FROM token WHERE id = $1", ident)


async def purge_tokens(conn: Connection, most: int) -> int:
    """Remove expired tokens, at most so many; how many."""
    done: str = await conn.execute(
        "DELETE FROM token WHERE digest IN (SELECT digest FROM token WHERE expires_at <= now()"
        " ORDER BY expires_at LIMIT $1)",
        most,
    )
    return int(done.split()[-1])


_CALLER = """
    SELECT username, number, is_admin, is_application, token.id, virtual_clusters,
           priority_caps, owned_virtual_clusters,
           used_at IS NULL OR used_at < now() - $2 * interval '1 s' AS is_use_due
    FROM token JOIN account USING (username)
    WHERE digest = $1 AND (expires_at IS NULL OR expires_at > now()) AND removed_at IS NULL
"""
_NOTE_USE = """
    UPDATE token SET used_at = now()
    WHERE digest = $1 AND (used_at IS NULL OR used_at < now() - $2 * interval '1 s')
"""
_LOCK = """
    SELECT password_hash, is_admin,
           CASE WHEN email_confirmed THEN email ELSE '' END AS confirmed_email,
           owned_virtual_clusters
    FROM account WHERE username = $1 AND removed_at IS NULL FOR SHARE
"""
_ADMINS = "SELECT username FROM account WHERE is_admin ORDER BY username FOR UPDATE"
_REMOVE = """
    UPDATE account SET removed_at = now(), password_hash = '', email = '', email_confirmed = false,
                       address_revision = address_revision + 1, extension = '{}', is_admin = false,
                       owned_virtual_clusters = '{}'
    WHERE username = $1
"""
_INSERT = """
    INSERT INTO token (digest, id, username, name, is_application, life_s, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6::integer, now() + $6::integer * interval '1 s')
    RETURNING expires_at
"""
_RENEW = """
    WITH login AS (
        SELECT id, expires_at, least(60, least(life_s, $2) / 10) * interval '1 s' AS least_gain,
               least(now() + least(life_s, $2) * interval '1 s',
                     created_at + $3 * interval '1 s') AS renewed_to
        FROM token WHERE id = $1 AND NOT is_application AND expires_at > now() FOR UPDATE
    ), renewed AS (
        UPDATE token SET expires_at = login.renewed_to FROM login
        WHERE token.id = login.id AND login.renewed_to >= login.expires_at + login.least_gain
        RETURNING token.expires_at
    )
    SELECT coalesce(renewed.expires_at, login.expires_at) AS expires_at,
           renewed.expires_at IS NOT NULL AS is_new
    FROM login LEFT JOIN renewed ON true
"""
_TRIM = """
    DELETE FROM token WHERE digest IN (
        SELECT digest FROM token WHERE username = $1 AND NOT is_application
        ORDER BY created_at DESC, digest OFFSET $2
    )
"""
_TOKENS = """
    SELECT id, name, is_application, created_at, expires_at, used_at FROM token
    WHERE username = $1 ORDER BY created_at
"""
