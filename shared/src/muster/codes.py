"""Codes that prove that a message of Alerting's was received. They are derived, never stored or
sent on the bus: Alerting gives one out, REST checks the one that comes back, and both make it from
the same key, MUSTER_WEBHOOK_KEY.
"""

import base64
import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import NewType

from muster.contracts.alerts import Do
from muster.contracts.confirmations import Confirmation

Code = NewType("Code", str)

CODE_BYTES = 20
"""160 bits: nobody guesses a code while it is valid."""


_FORM = re.compile("[A-Z2-7]{32}")


def as_code(text: str) -> Code | None:
    """A text that has the form of a code; None: it has not."""
    return Code(text) if _FORM.fullmatch(text) else None


def confirmation_code(key: str, confirmation: Confirmation) -> Code:
    """The code that confirms a mail address. Raises ValueError where the key is empty."""
    # Neither an id nor a user's name has a slash in it, so each message has one reading.
    return _code(key, f"confirmation/{confirmation.id}/{confirmation.user}/{confirmation.email}")


def script_code(key: str, action: str, until: datetime) -> Code:
    """The code with which the script of an action ``remediate`` answers, up to a time. Raises
    ValueError where the key is empty.
    """
    at = until.astimezone(UTC).isoformat()
    return _code(key, f"action/{action}/{Do.REMEDIATE.value}/{at}")


def _code(key: str, message: str) -> Code:
    """32 characters in base 32."""
    if not key:
        raise ValueError("the webhook key is empty: set MUSTER_WEBHOOK_KEY")
    digest = hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()
    return Code(base64.b32encode(digest[:CODE_BYTES]).decode("ascii"))
