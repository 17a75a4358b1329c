"""Who is who: tokens, which are stored as digests only, and logins."""

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

import structlog
from muster.db import Connection, Pool, is_transient, transaction
from muster.errors import Rejected
from muster.passwords import ADMIN

from rest.domain.callers import Caller
from rest.handlers.passwords import Passwords, hash_of
from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store import accounts, audit

TOKEN_BYTES = 32

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A new token, which is shown this once. ``expires_at``: None, it does not."""

    token: str
    id: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Cached:
    """A caller as read before the change of this number; valid until ``until_s`` (monotonic) or
    the next change, and known from then on.
    """

    caller: Caller
    until_s: float
    changes: int


def digest(token: str) -> bytes:
    """What is stored of a token: 256 random bits need no slow hash."""
    return hashlib.sha256(token.encode()).digest()


def invalid_token() -> Rejected:
    """The token is unknown, revoked or expired."""
    return Rejected("UnauthorizedUserError", "Your token is not valid (any more); log in again.")


class Access:
    """Who is who."""

    def __init__(
        self, pool: Pool, settings: RestSettings, metrics: RestMetrics, passwords: Passwords
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._metrics = metrics
        self._passwords = passwords
        self._cache: OrderedDict[bytes, _Cached] = OrderedDict()
        self._changes = 0

    def user_of(self, token: str) -> str | None:
        """Whose token it was when it was last presented here, without asking the database; None:
        it is not known.
        """
        cached = self._cache.get(digest(token))
        return None if cached is None else cached.caller.username

    async def caller_of(self, token: str) -> Caller:
        """Whose token this is. Raises Rejected."""
        try:
            caller = await self._find_caller(digest(token))
        except Rejected:
            self._metrics.tokens.labels("refused").inc()
            raise
        self._metrics.tokens.labels("application" if caller.is_application else "login").inc()
        return caller

    async def _find_caller(self, key: bytes) -> Caller:
        now = time.monotonic()
        cached = self._cache.get(key)
        changes = self._changes
        if cached is not None and cached.until_s > now and cached.changes == changes:
            return cached.caller
        found = await accounts.find_caller(self._pool, key, self._settings.token_use_s)
        if found is None:
            self._cache.pop(key, None)
            raise invalid_token()
        caller, is_use_due = found
        if is_use_due:
            await self._note_use(key)
        self._cache[key] = _Cached(caller, now + self._settings.token_cache_s, changes)
        self._cache.move_to_end(key)
        while len(self._cache) > self._settings.token_cache_entries:
            self._cache.popitem(last=False)
        return caller

    async def _note_use(self, key: bytes) -> None:
        """A database that takes no writes now (a failover) still answers questions."""
        try:
            await accounts.note_use(self._pool, key, self._settings.token_use_s)
        except Exception as error:
            if not is_transient(error):
                raise
            _log.warning("the use of a token was not noted", error=str(error))

    def forget_cached(self) -> None:
        """Tokens or rights have changed here: cached callers are read again."""
        self._changes += 1

    async def log_in(
        self, username: str, password: str, life_s: int | None, address: str
    ) -> tuple[MadeToken, bool]:
        """A new token, and whether its user is an admin. Raises Rejected, the same for an unknown
        user and a wrong password.
        """
        fitting = await self._passwords.check(username, password, address, "login.fail")
        if fitting is None:
            raise wrong_login()
        life = min(life_s or self._settings.token_life_s, self._settings.token_life_s)
        async with transaction(self._pool) as conn:
            account = await accounts.lock_account(conn, username)
            if account is None or account.password_hash != fitting:  # changed since it was checked
                raise wrong_login()
            made = await self.make_token(conn, username, life_s=life)
            await accounts.trim_logins(conn, username, self._settings.logins_per_user)
            entry = audit.Entry(username, "login", username, address, {"token": made.id})
            await audit.record(conn, [entry])
        return made, account.is_admin

    async def make_token(
        self,
        conn: Connection,
        username: str,
        *,
        life_s: int | None,
        name: str = "",
        is_application: bool = False,
    ) -> MadeToken:
        """A token, which is stored as a digest only."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        new = accounts.NewToken(
            digest=digest(token),
            id=secrets.token_hex(8),
            username=username,
            name=name,
            is_application=is_application,
            life_s=life_s,
        )
        return MadeToken(token, new.id, await accounts.insert_token(conn, new))


def wrong_login() -> Rejected:
    """The user is unknown or the password wrong."""
    return Rejected("IncorrectPasswordError", "The user name or the password is wrong.")


async def make_admin(pool: Pool, settings: RestSettings) -> str | None:
    """Where no user is an admin, as at the first start, make the user admin; returns the password
    where it was made up here. Where that name is in use, or was removed, its user becomes an admin
    with this password: an operator has no other way back.
    """
    given = settings.admin_password
    password = given.get_secret_value() if given else secrets.token_urlsafe(12)
    password_hash = await asyncio.to_thread(hash_of, password)
    async with transaction(pool) as conn:
        if await accounts.has_admin(conn):
            return None
        now = await conn.fetchval("SELECT now()")
        admin = accounts.Account(ADMIN, "", True, ["default"], {}, now)
        action = "user.create"
        if not await accounts.insert_account(conn, admin, password_hash):
            action = "user.recover"
            await accounts.recover_admin(conn, ADMIN, password_hash)
        await audit.record(conn, [audit.Entry(ADMIN, action, ADMIN, "", {"admin": True})])
    return None if given else password
