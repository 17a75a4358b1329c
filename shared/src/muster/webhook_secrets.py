"""The secrets that sign webhooks are derived, never stored or sent: REST shows one to its owner,
Alerting signs with it, and both make it from the same key.
"""

import base64
import hashlib
import hmac

PREFIX = "whsec_"
"""How Standard Webhooks 1.0 marks a symmetric secret."""


def signing_secret(key: str, subscription: str, version: int) -> str:
    """The secret of a subscription: ``whsec_`` and 32 bytes in base64.

    ``key`` is MUSTER_WEBHOOK_KEY. Raises ValueError where it is empty: such a secret is no secret.
    """
    if not key:
        raise ValueError("the webhook key is empty: set MUSTER_WEBHOOK_KEY")
    message = f"webhook/{subscription}/{version}".encode()
    digest = hmac.new(key.encode(), message, hashlib.sha256).digest()
    return PREFIX + base64.b64encode(digest).decode("ascii")
