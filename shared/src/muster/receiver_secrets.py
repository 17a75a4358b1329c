"""What opens a receiver that is no plain webhook: the address of a chat, a routing key, a token.

REST seals it before it stores or publishes it; Alerting opens it for each message. Both make the
keys from MUSTER_WEBHOOK_KEY. The sealed text names its subscription, so it opens no other one.
"""

import base64
import hmac

from muster.contracts.model import Model
from muster.sealing import public_key_of, seal, unseal


class ReceiverSecret(Model):
    """An address and a token of a subscription's receiver. A record or a row never has it in
    clear.
    """

    subscription: str
    url: str
    token: str = ""


def seal_receiver(key: str, secret: ReceiverSecret) -> str:
    """The sealed text. ``key`` is MUSTER_WEBHOOK_KEY; raises ValueError where it is empty."""
    return seal(secret.model_dump_json(), public_key_of(_private_key(key)))


def open_receiver(key: str, subscription: str, sealed: str) -> ReceiverSecret:
    """What was sealed. Raises ValueError where it is of another key or subscription."""
    secret = ReceiverSecret.model_validate_json(unseal(sealed, [_private_key(key)]))
    if secret.subscription != subscription:
        raise ValueError("the receiver's address is sealed for another subscription")
    return secret


def _private_key(key: str) -> str:
    if not key:
        raise ValueError("the webhook key is empty: set MUSTER_WEBHOOK_KEY")
    return base64.b64encode(hmac.digest(key.encode(), b"receivers of alerts", "sha256")).decode()
