"""Sends messages over HTTP: to checked addresses, within a bounded time, and reading no more of the
answer than a line for the log.
"""

import asyncio
import re
import ssl
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Self

import aiohttp
from muster.address_guard import Resolve, Resolver
from muster.addresses import Network, is_public_or_within
from yarl import URL

from alerting.domain.deliveries import Answer, Failed
from alerting.domain.messages import Message
from alerting.domain.rendering.forms import HttpAnswer, HttpForm, Request, Sending, Target
from alerting.receivers.connections import Refused, connector, used_here

ANSWER_BYTES = 2_048
REASON_CHARACTERS = 200
REFUSED = (
    "its addresses are private or reserved: subscribe a public one,"
    " or let the operator allow the network in MUSTER_WEBHOOK_ALLOW_NETWORKS"
)
HIDDEN, HIDDEN_FROM = "[hidden]", 8
"""What replaces a secret, and the characters from which a part of an address may be one."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """``timeout_s`` is for everything from the look-up of the name to the answer."""

    timeout_s: float = 15.0
    resolver_threads: int = 64
    allowed: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class HttpMessage:
    """One attempt to send a message to a receiver of one kind. Has no repr: its target must not
    reach logs.
    """

    form: HttpForm
    message: Message
    target: Target
    sending: Sending


class HttpReceiver:
    """The way to all receivers over HTTP. Use as an async context manager."""

    def __init__(
        self,
        limits: HttpLimits,
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._limits = limits
        self._resolver = Resolver(limits.resolver_threads)
        self._resolve = resolve or self._resolver
        self._tls = tls

    async def __aenter__(self) -> Self:
        allowed = self._limits.allowed
        self._client = aiohttp.ClientSession(
            connector=connector(
                self._resolve, lambda address: is_public_or_within(address, allowed), self._tls
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        self._resolver.close()

    async def send(self, sent: HttpMessage) -> Answer:
        """Try once. Every failure is an answer, not an exception."""
        if not is_web_address(sent.target.url):
            return Failed("the address is not an http or https URL", can_retry=False)
        request = sent.form.render(sent.message, sent.target, sent.sending)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                return sent.form.judge(await self._post(request, sent))
        except TimeoutError:
            return Failed(f"no answer within {self._limits.timeout_s:g} s")
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, Refused):
                return Failed(REFUSED, can_retry=False)
            return _failed(sent.target, error)
        except aiohttp.InvalidURL as error:
            return Failed(f"the address can't be used: {error.description}", can_retry=False)
        except aiohttp.ClientError as error:
            return _failed(sent.target, error)

    async def _post(self, request: Request, sent: HttpMessage) -> HttpAnswer:
        """Post it, and again where the receiver has closed a kept connection instead of an answer:
        it may have done so before the message came.
        """
        while True:
            connection = used_here()
            try:
                return await self._post_once(request, sent)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not connection.is_kept:
                    raise

    async def _post_once(self, request: Request, sent: HttpMessage) -> HttpAnswer:
        posted = self._client.post(
            request.url,
            data=request.body.encode(),
            headers=request.headers,
            allow_redirects=False,
        )
        async with posted as response:
            status = response.status
            if 200 <= status < 300:
                return HttpAnswer(status)
            text = _without(sent.target, await _first_line(response))[:REASON_CHARACTERS]
            return HttpAnswer(status, text, _retry_after_s(response, sent.sending.at))


def _failed(target: Target, error: aiohttp.ClientError) -> Failed:
    reason = f"{type(error).__name__}: {error}"
    return Failed(_without(target, reason)[:REASON_CHARACTERS])


def _without(target: Target, text: str) -> str:
    """A text without what opens the receiver: some receivers answer with it."""
    path = URL(target.url).raw_path_qs
    parts = [it for it in re.split("[/?&=]", path) if len(it) >= HIDDEN_FROM]
    for secret in (target.url, *parts, target.token, *target.secrets):
        if secret:
            text = text.replace(secret, HIDDEN)
    return text


def is_web_address(text: str) -> bool:
    """Whether it is an http or https URL with a host."""
    try:
        url = URL(text)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.host)


async def _first_line(response: aiohttp.ClientResponse) -> str:
    """The beginning of an answer, undecoded, for the log; the rest is never read."""
    read = b""
    try:
        while len(read) < ANSWER_BYTES and (chunk := await response.content.read(ANSWER_BYTES)):
            read += chunk
    except aiohttp.ClientError:
        pass  # the status is known; why the rest did not come does not matter
    text = read[:ANSWER_BYTES].decode(errors="replace")
    return "".join(c if c.isprintable() else " " for c in text).strip()


def _retry_after_s(response: aiohttp.ClientResponse, at: datetime) -> float:
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
