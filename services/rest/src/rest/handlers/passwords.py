"""Passwords: argon2 off the loop and few at a time; failed ones are counted in the database and
slowed down at all replicas.
"""

import asyncio
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from muster.db import Pool, transaction
from muster.errors import Rejected
from muster.passwords import MAX_CHARACTERS, password_problem

from rest.domain.callers import is_username
from rest.domain.throttle import Attempt, TooManyRequests, attempt
from rest.handlers.limit import RequestLimits
from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store import accounts, audit, password_failures

# OWASP's first recommendation: 46 MiB, one pass, one lane. It is also above 32 MiB, the size from
# which glibc always gives memory back at once; less would stay with the process for good.
HASHER = PasswordHasher(time_cost=1, memory_cost=47_104, parallelism=1)

CHECKS_OF_USER = 10
"""Of one user at a time: a check waits for its turn to be hashed, and others wait behind it."""

AUDITED = b"audited"
"""The subject under which failures are counted that the audit log has."""


def hash_of(password: str) -> str:
    """It takes a tenth of a second: not on the loop."""
    return HASHER.hash(password)


class Passwords:
    """Hashes new passwords and checks given ones."""

    def __init__(
        self, pool: Pool, settings: RestSettings, metrics: RestMetrics, limits: RequestLimits
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._settings = settings
        self._metrics = metrics
        self._hashing = asyncio.Semaphore(settings.password_hashes)
        self._nobodys_hash = hash_of(secrets.token_hex(16))

    async def hash(self, password: str, username: str) -> str:
        """A new password's hash. Raises Rejected where the user can't have it."""
        check_new_password(password, username)
        async with self._hashing:
            return await asyncio.to_thread(hash_of, password)

    async def check(self, username: str, password: str, address: str, action: str) -> str | None:
        """The hash that a given password fits; None where there is no such user or it fits not,
        which look and cost the same. A failure is in the audit log as ``action``.

        Raises TooManyRequests where too many have failed, or are in progress.
        """
        with self._limits.place("password checks of this user", username, CHECKS_OF_USER):
            return await self._check(username, password, address, action)

    async def _check(self, username: str, password: str, address: str, action: str) -> str | None:
        tried = attempt(username, address)
        await self._refuse_throttled(tried)
        known = (
            await accounts.find_password(self._pool, username) if is_username(username) else None
        )
        async with self._hashing:
            # A check counts before its outcome is known, or many at once would be free; and only
            # once it is its turn, so that hashing bounds the rows.
            await self._count(tried)
            is_right = await asyncio.to_thread(_verify, known or self._nobodys_hash, password)
        if known is not None and is_right:
            async with transaction(self._pool) as conn:
                await password_failures.forgive(conn, [tried.pair, tried.user], tried.address)
            self._metrics.password_checks.labels("accepted").inc()
            return known
        self._metrics.password_checks.labels("refused").inc()
        await self._note_failure(username if known else None, address, action)
        return None

    async def _refuse_throttled(self, tried: Attempt) -> None:
        """Refuse without a write and without a turn."""
        limits = tried.limits(self._settings.password_attempts)
        async with self._pool.acquire() as conn:
            wait_s = await password_failures.wait_s(conn, limits)
        if wait_s is not None:
            raise self._throttled(wait_s)

    async def _count(self, tried: Attempt) -> None:
        """Count it as a failure. What is refused here counts nowhere: it is rolled back."""
        limits = tried.limits(self._settings.password_attempts)
        window_s = self._settings.password_window_s
        async with transaction(self._pool) as conn:
            if not await password_failures.count(conn, limits, window_s):
                raise self._throttled(await password_failures.wait_s(conn, limits) or 1)

    def _throttled(self, wait_s: int) -> TooManyRequests:
        self._metrics.password_checks.labels("throttled").inc()
        message = f"Too many wrong passwords; wait {wait_s} seconds. Tokens work meanwhile."
        return TooManyRequests(message, wait_s)

    async def _note_failure(self, username: str | None, address: str, action: str) -> None:
        """The name of an unknown user is not written: people also type passwords there."""
        limits = {AUDITED: self._settings.password_failures_audited}
        async with transaction(self._pool) as conn:
            cause = "unknown user" if username is None else "wrong password"
            if await password_failures.count(conn, limits, self._settings.password_window_s):
                who = username or ""
                entry = audit.Entry(who, action, who, address, {"cause": cause})
                await audit.record(conn, [entry])


def check_new_password(password: str, username: str) -> None:
    """Raises Rejected where the user can't have this password."""
    problem = password_problem(password, username)
    if problem is not None:
        raise Rejected("InvalidParametersError", problem)


def _verify(password_hash: str, password: str) -> bool:
    if len(password) > MAX_CHARACTERS:
        return False
    try:
        return HASHER.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False
