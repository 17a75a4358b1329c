"""Webhooks as Standard Webhooks 1.0 has them: ``type``, ``timestamp`` and ``data``, signed."""

import base64
import hashlib
import hmac

from muster.webhook_secrets import PREFIX
from pydantic import JsonValue

from alerting.domain.messages import Message
from alerting.domain.rendering.forms import Request, Sending, Target, judge_http, post

judge = judge_http


def render(message: Message, target: Target, sending: Sending) -> Request:
    """The body, with one signature for each secret."""
    data: dict[str, JsonValue] = {
        **message.data,
        "severity": message.severity.value,
        "title": message.title,
        "text": message.text,
    }
    body: dict[str, JsonValue] = {
        "type": message.type,
        "timestamp": message.at.isoformat(),
        "data": data,
    }
    unsigned = post(target.url, body)
    at_s = int(sending.at.timestamp())
    signatures = [sign(it, sending.id, at_s, unsigned.body) for it in target.secrets]
    headers = {
        **unsigned.headers,
        "webhook-id": sending.id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(signatures),
    }
    return Request(target.url, unsigned.body, headers)


def sign(secret: str, message_id: str, timestamp_s: int, body: str) -> str:
    """One signature: ``v1,`` and the HMAC-SHA256 in base64 (Standard Webhooks 1.0)."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp_s}.{body}".encode()
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
