"""Confirms mail addresses: Alerting mails a code to an address, its user gives the code back."""

import secrets
import time

from muster.codes import confirmation_code
from muster.db import Connection
from muster.errors import Rejected
from muster.ids import new_id

from rest.domain.throttle import TooManyRequests
from rest.metrics import RestMetrics
from rest.settings import RestSettings
from rest.store import confirmations


class EmailConfirmations:
    """Codes for addresses that users set for themselves."""

    def __init__(self, settings: RestSettings, metrics: RestMetrics) -> None:
        self._settings = settings
        self._key = settings.webhook_key.get_secret_value()
        self._outcomes = metrics.email_confirmations

    async def start(self, conn: Connection, username: str, email: str) -> None:
        """Ask Alerting to mail a code; the settings are then to be published. Raises Rejected where
        codes can't be made here, TooManyRequests where too many were mailed in this hour.
        """
        if not self._key:
            message = (
                "Addresses can't be confirmed here: MUSTER_WEBHOOK_KEY is not set. Ask an admin to"
                " set your address."
            )
            raise Rejected("NotConfiguredError", message)
        most = self._settings.confirmation_mails_per_hour
        wait_s = await confirmations.wait_s(conn, username, email, most)
        if wait_s is not None:
            self._outcomes.labels("throttled").inc()
            message = (
                f"In an hour {most} codes are mailed for one user, and to one address; wait"
                f" {wait_s} seconds, or ask an admin to set your address."
            )
            raise TooManyRequests(message, wait_s)
        ident = new_id(time.time_ns() // 1_000_000, secrets.randbits(80))
        life_s = self._settings.confirmation_life_s
        await confirmations.insert(conn, ident, username, email, life_s)
        self._outcomes.labels("started").inc()

    async def finish(self, conn: Connection, username: str, code: str) -> str:
        """Take a code, which is then used; returns the address that it confirms. Raises Rejected
        where it is wrong, expired, replaced or used.
        """
        valid = await confirmations.find_open(conn, username)
        if (
            valid is None
            or not self._key
            or not secrets.compare_digest(
                confirmation_code(self._key, valid).encode(), code.strip().encode()
            )
        ):
            self._outcomes.labels("refused").inc()
            message = (
                "The code is wrong, expired, replaced or used; set your address again to get a new"
                " one."
            )
            raise Rejected("WrongCodeError", message)
        await confirmations.end_of_user(conn, username)
        self._outcomes.labels("confirmed").inc()
        return valid.email
