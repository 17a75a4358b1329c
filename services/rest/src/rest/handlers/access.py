"""Passwords and tokens: argon2 off the loop and few at a time, tokens stored as digests only,
guessing slowed down.
"""

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict, deque

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from muster.db import Connection, Pool, transaction
from muster.errors import Rejected

from rest.domain.callers import (
    MAX_PASSWORD_CHARACTERS,
    MIN_PASSWORD_CHARACTERS,
    Caller,
    is_username,
)
from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store import accounts, audit

TOKEN_BYTES = 32
MAX_REMEMBERED_TRIES = 10_000
"""Names and addresses whose logins are counted; the oldest are forgotten first."""

# OWASP's first recommendation: 46 MiB, one pass, one lane. It is also above 32 MiB, the size from
# which glibc always gives memory back at once; less would stay with the process for good.
_HASHER = PasswordHasher(time_cost=1, memory_cost=47_104, parallelism=1)


def digest(token: str) -> bytes:
    """What is stored of a token: 256 random bits need no slow hash."""
    return hashlib.sha256(token.encode()).digest()


def invalid_token() -> Rejected:
    """The token is unknown, revoked or expired."""
    return Rejected("UnauthorizedUserError", "Your token is not valid (any more); log in again.")


class Access:
    """Who is who."""

    def __init__(self, pool: Pool, settings: RestSettings, metrics: RestMetrics) -> None:
        self._pool = pool
        self._settings = settings
        self._metrics = metrics
        self._hashing = asyncio.Semaphore(settings.password_hashes)
        self._cache: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        self._changes = 0
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()
        self._nobodys_hash = _HASHER.hash(secrets.token_hex(16))

    async def caller_of(self, token: str) -> Caller:
        """Whose token this is. Raises Rejected."""
        key = digest(token)
        now = time.monotonic()
        cached = self._cache.get(key)
        if cached is not None and cached[0] > now:
            return cached[1]
        changes = self._changes
        caller = await accounts.find_caller(self._pool, key)
        if caller is None:
            self._cache.pop(key, None)
            raise invalid_token()
        if changes != self._changes:  # it may have been revoked since it was read
            return caller
        self._cache[key] = (now + self._settings.token_cache_s, caller)
        self._cache.move_to_end(key)
        while len(self._cache) > self._settings.token_cache_entries:
            self._cache.popitem(last=False)
        return caller

    def forget_cached(self) -> None:
        """Tokens or rights have changed here."""
        self._changes += 1
        self._cache.clear()

    async def log_in(
        self, username: str, password: str, life_s: int | None, address: str
    ) -> tuple[str, bool]:
        """A new token, and whether its user is an admin. Raises Rejected, the same for an unknown
        user and a wrong password.
        """
        tries = self._count_try(username, address)
        found = None
        if is_username(username):
            found = await accounts.find_password(self._pool, username)
        is_right = await self._verify(found[0] if found else self._nobodys_hash, password)
        if found is None or not is_right:
            self._metrics.logins.labels("refused").inc()
            raise Rejected("IncorrectPasswordError", "The user name or the password is wrong.")
        for name in tries:
            self._tries.pop(name, None)
        life = min(life_s or self._settings.token_life_s, self._settings.token_life_s)
        async with transaction(self._pool) as conn:
            token = await self.make_token(conn, username, life)
            await accounts.trim_logins(conn, username, self._settings.logins_per_user)
            entry = audit.Entry(username, "login", username, address)
            await audit.record(conn, [entry])
        self._metrics.logins.labels("accepted").inc()
        return token, found[1]

    async def make_token(self, conn: Connection, username: str, life_s: float | None) -> str:
        """A token, which is stored as a digest only. Without a life it is an application's."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        await accounts.insert_token(conn, digest(token), secrets.token_hex(8), username, life_s)
        return token

    async def hash(self, password: str) -> str:
        """A password's hash. Raises Rejected where it is too short or too long."""
        if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
            raise Rejected(
                "InvalidParametersError",
                f"A password has {MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS}"
                " characters.",
            )
        async with self._hashing:
            return await asyncio.to_thread(_HASHER.hash, password)

    async def check_password(self, username: str, password: str) -> None:
        """Raises Rejected where it is not the user's."""
        found = await accounts.find_password(self._pool, username)
        if found is None or not await self._verify(found[0], password):
            raise Rejected("ForbiddenUserError", "The old password is wrong.")

    async def _verify(self, password_hash: str, password: str) -> bool:
        if len(password) > MAX_PASSWORD_CHARACTERS:
            return False
        async with self._hashing:
            return await asyncio.to_thread(_verify, password_hash, password)

    def _count_try(self, username: str, address: str) -> tuple[str, ...]:
        """Count a try before it is known to fail, so that many at once are counted too.

        Raises Rejected where there were too many. Guessing one user's password from many places,
        or many users' from one, is allowed ten times as much: others must still get in.
        """
        few, many = self._settings.login_attempts, 10 * self._settings.login_attempts
        limits = {f"{username}@{address}": few, f"{username}@": many, f"@{address}": many}
        now = time.monotonic()
        since = now - self._settings.login_window_s
        for name, limit in limits.items():
            tries = self._tries.setdefault(name, deque(maxlen=many))
            self._tries.move_to_end(name)
            while tries and tries[0] < since:
                tries.popleft()
            if len(tries) >= limit:
                self._metrics.logins.labels("slowed").inc()
                raise Rejected(
                    "TooManyRequestsError",
                    f"Too many failed logins; wait {int(tries[0] - since) + 1} seconds.",
                )
            tries.append(now)
        while len(self._tries) > MAX_REMEMBERED_TRIES:
            self._tries.popitem(last=False)
        return tuple(limits)


def _verify(password_hash: str, password: str) -> bool:
    try:
        return _HASHER.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


async def make_admin(pool: Pool, settings: RestSettings) -> str | None:
    """At the first start, make the user admin; returns the password where it was made up here."""
    given = settings.admin_password
    password = given.get_secret_value() if given else secrets.token_urlsafe(12)
    password_hash = await asyncio.to_thread(_HASHER.hash, password)
    async with transaction(pool) as conn:
        if await accounts.has_accounts(conn):
            return None
        now = await conn.fetchval("SELECT now()")
        admin = accounts.Account("admin", "", True, ["default"], {}, now)
        await accounts.insert_account(conn, admin, password_hash)
        await audit.record(conn, [audit.Entry("admin", "user.create", "admin", "")])
    return None if given else password
