"""Users and their tokens. Passwords are argon2 hashes, tokens are digests."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from muster.db import Connection, Pool, fetch

from rest.domain.callers import Caller


@dataclass(frozen=True, slots=True)
class Account:
    """A user, without the password."""

    username: str
    email: str
    is_admin: bool
    virtual_clusters: list[str]
    extension: dict[str, Any]
    created_at: datetime
    priority_caps: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A live token, without itself."""

    id: str
    is_application: bool
    created_at: datetime
    expires_at: datetime | None


ACCOUNT = "username, email, is_admin, virtual_clusters, extension, created_at, priority_caps"


async def find_caller(pool: Pool, digest: bytes) -> Caller | None:
    """Whose token this is, if it is live."""
    row = await pool.fetchrow(_CALLER, digest)
    if row is None:
        return None
    return Caller(
        username=row["username"],
        number=row["number"],
        is_admin=row["is_admin"],
        is_application=row["is_application"],
        token=row["id"],
        virtual_clusters=frozenset(row["virtual_clusters"]),
        priority_caps=row["priority_caps"],
    )


async def find_password(pool: Pool, username: str) -> tuple[str, bool] | None:
    """The password's hash of a user, and whether they are an admin."""
    row = await pool.fetchrow(
        "SELECT password_hash, is_admin FROM account WHERE username = $1", username
    )
    return None if row is None else (row["password_hash"], row["is_admin"])


async def list_accounts(conn: Connection) -> list[Account]:
    """All users."""
    return await fetch(Account, conn, f"SELECT {ACCOUNT} FROM account ORDER BY username")  # noqa: S608 - columns


async def find_account(conn: Connection, username: str) -> Account | None:
    """One user."""
    sql = f"SELECT {ACCOUNT} FROM account WHERE username = $1"  # noqa: S608 - columns
    return next(iter(await fetch(Account, conn, sql, username)), None)


async def insert_account(conn: Connection, account: Account, password_hash: str) -> bool:
    """Make a user; False where the name is taken."""
    done = await conn.execute(
        "INSERT INTO account (username, password_hash, email, is_admin, virtual_clusters,"
        " extension, priority_caps) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        account.username,
        password_hash,
        account.email,
        account.is_admin,
        account.virtual_clusters,
        account.extension,
        account.priority_caps,
    )
    return bool(done == "INSERT 0 1")


async def update_account(
    conn: Connection,
    username: str,
    email: str | None,
    extension: dict[str, Any] | None,
    virtual_clusters: list[str] | None,
) -> None:
    """Change what is given."""
    await conn.execute(
        "UPDATE account SET email = coalesce($2, email), extension = coalesce($3, extension),"
        " virtual_clusters = coalesce($4, virtual_clusters) WHERE username = $1",
        username,
        email,
        extension,
        virtual_clusters,
    )


async def set_priority_caps(conn: Connection, username: str, caps: dict[str, int]) -> None:
    """Set all priority caps of a user."""
    await conn.execute("UPDATE account SET priority_caps = $2 WHERE username = $1", username, caps)


async def update_password(conn: Connection, username: str, password_hash: str) -> None:
    """Set a password; the tokens of earlier logins are revoked, those of applications stay."""
    await conn.execute(
        "UPDATE account SET password_hash = $2 WHERE username = $1", username, password_hash
    )
    await conn.execute("DELETE FROM token WHERE username = $1 AND NOT is_application", username)


async def delete_account(conn: Connection, username: str) -> None:
    """Remove a user and their tokens; their jobs stay."""
    await conn.execute("DELETE FROM account WHERE username = $1", username)


async def has_accounts(conn: Connection) -> bool:
    """Whether there is any user; whoever asks first makes others wait."""
    await conn.execute("LOCK TABLE account IN SHARE ROW EXCLUSIVE MODE")
    return bool(await conn.fetchval("SELECT EXISTS (SELECT FROM account)"))


async def insert_token(
    conn: Connection, digest: bytes, ident: str, username: str, life_s: float | None
) -> None:
    """Make a token; without a life it is an application's."""
    await conn.execute(_INSERT, digest, ident, username, life_s)


async def count_application_tokens(conn: Connection, username: str) -> int:
    """How many tokens a user has that do not expire. Others who count meanwhile wait."""
    await conn.execute("SELECT FROM account WHERE username = $1 FOR UPDATE", username)
    count: int = await conn.fetchval(
        "SELECT count(*) FROM token WHERE username = $1 AND is_application", username
    )
    return count


async def trim_logins(conn: Connection, username: str, kept: int) -> None:
    """Keep only a user's newest logins."""
    await conn.execute(_TRIM, username, kept)


async def list_tokens(conn: Connection, username: str) -> list[TokenRow]:
    """The live tokens of a user; expired ones are removed."""
    await conn.execute("DELETE FROM token WHERE username = $1 AND expires_at <= now()", username)
    return await fetch(TokenRow, conn, _TOKENS, username)


async def find_token_owner(conn: Connection, digest: bytes, ident: str) -> str | None:
    """Whose token this is, by itself or by its id."""
    owner: str | None = await conn.fetchval(
        "SELECT username FROM token WHERE digest = $1 OR id = $2", digest, ident
    )
    return owner


async def delete_token(conn: Connection, digest: bytes, ident: str) -> None:
    """Revoke a token, by itself or by its id."""
    await conn.execute("DELETE FROM token WHERE digest = $1 OR id = $2", digest, ident)


async def purge_tokens(conn: Connection) -> None:
    """Remove expired tokens."""
    await conn.execute("DELETE FROM token WHERE expires_at <= now()")


_CALLER = """
    SELECT username, number, is_admin, is_application, token.id, virtual_clusters,
           priority_caps
    FROM token JOIN account USING (username)
    WHERE digest = $1 AND (expires_at IS NULL OR expires_at > now())
"""
_INSERT = """
    INSERT INTO token (digest, id, username, is_application, expires_at)
    VALUES ($1, $2, $3, $4::float8 IS NULL, now() + $4 * interval '1 s')
"""
_TRIM = """
    DELETE FROM token WHERE digest IN (
        SELECT digest FROM token WHERE username = $1 AND NOT is_application
        ORDER BY created_at DESC, digest OFFSET $2
    )
"""
_TOKENS = """
    SELECT id, is_application, created_at, expires_at FROM token WHERE username = $1
    ORDER BY created_at
"""
