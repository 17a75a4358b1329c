"""Sends webhooks as Standard Webhooks 1.0 has them: signed, to checked addresses, within a bounded
time, and reading no more of the answer than a line for the log.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import ssl
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Self

import httpx2
from muster.address_guard import AddressRefused, GuardedTransport, Resolve, Resolver
from muster.addresses import Network, is_public_or_within
from muster.webhook_secrets import PREFIX

from alerting.domain.deliveries import Answer, Failed, Gone, Sent

ANSWER_BYTES = 2_048
REASON_CHARACTERS = 200
USER_AGENT = "Muster"
SECRET_BYTES = (24, 64)
"""The least and the most that Standard Webhooks 1.0 takes."""
REFUSED = (
    "its addresses are private or reserved: subscribe a public one,"
    " or let the operator allow the network in MUSTER_WEBHOOK_ALLOW_NETWORKS"
)
TALKATIVE = ("httpx2", "httpcore2")
"""Loggers that write whole addresses, which may hold a secret of the receiver's."""


@dataclass(frozen=True, slots=True)
class WebhookLimits:
    """``timeout_s`` is for everything from the look-up of the name to the answer."""

    timeout_s: float = 15.0
    resolver_threads: int = 16
    allowed: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class WebhookMessage:
    """One attempt. ``secrets``: newest first, each signs. Has no repr: url and secrets must not
    reach logs.
    """

    id: str
    url: str
    body: str
    secrets: tuple[str, ...]
    at: datetime


class WebhookReceiver:
    """The way to all webhooks. Use as an async context manager."""

    def __init__(
        self,
        limits: WebhookLimits,
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._limits = limits
        self._resolver = Resolver(limits.resolver_threads)
        self._client = httpx2.AsyncClient(
            transport=GuardedTransport(
                resolve or self._resolver,
                lambda address: is_public_or_within(address, limits.allowed),
                tls,
            ),
            timeout=limits.timeout_s,
            follow_redirects=False,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        self._resolver.close()

    async def send(self, message: WebhookMessage) -> Answer:
        """Try once. Every failure is an answer, not an exception."""
        if not _is_web_address(message.url):
            return Failed("the address is not an http or https URL", can_retry=False)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                return await self._post(message)
        except TimeoutError:
            return Failed(f"no answer within {self._limits.timeout_s:g} s")
        except AddressRefused:
            return Failed(REFUSED, can_retry=False)
        except httpx2.TimeoutException:
            return Failed(f"no answer within {self._limits.timeout_s:g} s")
        except httpx2.HTTPError as error:
            return Failed(f"{type(error).__name__}: {error}"[:REASON_CHARACTERS])

    async def _post(self, message: WebhookMessage) -> Answer:
        body = message.body.encode()
        sent = self._client.stream("POST", message.url, content=body, headers=_headers(message))
        async with sent as response:
            if response.is_success:
                return Sent()
            return _judge(response, await _first_line(response), message.at)


def sign(secret: str, message_id: str, timestamp_s: int, body: str) -> str:
    """One signature: ``v1,`` and the HMAC-SHA256 in base64 (Standard Webhooks 1.0)."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp_s}.{body}".encode()
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def is_signing_secret(secret: str) -> bool:
    """Whether a text is a secret as Standard Webhooks 1.0 has them: 24 to 64 bytes in base64."""
    if not secret.startswith(PREFIX):
        return False
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:
        return False
    return SECRET_BYTES[0] <= len(key) <= SECRET_BYTES[1]


def _is_web_address(text: str) -> bool:
    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, UnicodeError):
        return False
    return url.scheme in ("http", "https") and bool(url.host)


def _headers(message: WebhookMessage) -> dict[str, str]:
    timestamp_s = int(message.at.timestamp())
    signatures = [sign(it, message.id, timestamp_s, message.body) for it in message.secrets]
    return {
        "content-type": "application/json",
        "user-agent": USER_AGENT,
        "webhook-id": message.id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(signatures),
    }


async def _first_line(response: httpx2.Response) -> str:
    """The beginning of an answer, undecoded, for the log; the rest is never read."""
    read = b""
    try:
        async for chunk in response.aiter_raw():
            read += chunk
            if len(read) >= ANSWER_BYTES:
                break
    except httpx2.HTTPError:
        pass  # the status is known; why the rest did not come does not matter
    text = read[:ANSWER_BYTES].decode(errors="replace")
    return "".join(c if c.isprintable() else " " for c in text).strip()[:REASON_CHARACTERS]


def _judge(response: httpx2.Response, text: str, at: datetime) -> Answer:
    status = response.status_code
    reason = f"HTTP {status}: {text}" if text else f"HTTP {status}"
    if status == 410:
        return Gone(reason)
    if status == 413:
        return Failed(reason, can_retry=False, is_receivers=False)
    if response.is_redirect:
        return Failed(f"HTTP {status}: redirects are not followed, subscribe the final address")
    return Failed(reason, retry_after_s=_retry_after_s(response, at))


def _retry_after_s(response: httpx2.Response, at: datetime) -> float:
    """What ``Retry-After`` asks for, in seconds; 0 where it asks for nothing."""
    asked = response.headers.get("retry-after", "").strip()
    if asked.isdecimal():
        return float(asked[:9])
    try:
        return max(0.0, (parsedate_to_datetime(asked) - at).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def private_authority(ca_file: Path | None) -> ssl.SSLContext | None:
    """TLS that trusts the system's authorities and those of a file; None: the client's own."""
    if ca_file is None:
        return None
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return context
