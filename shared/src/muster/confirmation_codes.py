"""The codes that confirm mail addresses are derived, never stored or sent on the bus: Alerting
mails one, REST checks the one that comes back, and both make it from the same key.
"""

import base64
import hashlib
import hmac

from muster.contracts.confirmations import Confirmation

CODE_BYTES = 20
"""160 bits: nobody guesses a code while it is valid."""


def confirmation_code(key: str, confirmation: Confirmation) -> str:
    """The code of a confirmation: 32 characters in base 32.

    ``key`` is MUSTER_WEBHOOK_KEY. Raises ValueError where it is empty: such a code is no secret.
    """
    if not key:
        raise ValueError("the webhook key is empty: set MUSTER_WEBHOOK_KEY")
    # Neither an id nor a user's name has a slash in it, so each message has one reading.
    message = f"confirmation/{confirmation.id}/{confirmation.user}/{confirmation.email}".encode()
    digest = hmac.new(key.encode(), message, hashlib.sha256).digest()
    return base64.b32encode(digest[:CODE_BYTES]).decode("ascii")
