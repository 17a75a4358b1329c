"""Receivers of the tests' own: a real HTTP server that does as it is told, and a real mail
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

TLS = Path(__file__).parent / "tls"
DEADLINE_S = 20.0


@dataclass(frozen=True)
class Request:
    """A request as it came in."""

    path: str
    headers: dict[str, str]
    body: str


@dataclass
class HttpReceiver:
    """Answers with ``status`` and ``extra`` headers; hangs while ``is_hanging``; never ends its
    answer where ``is_endless``.
    """

    port: int = 0
    status: int = 204
    extra: str = ""
    body: bytes = b""
    is_hanging: bool = False
    is_endless: bool = False
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    sent_bytes: int = 0
    server_names: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(Request(first.split(" ")[1], headers, body.decode()))
        self.arrived.set()
        if self.is_hanging:
            await reader.read()  # until the other side hangs up
            return
        length = "" if self.is_endless else f"content-length: {len(self.body)}\r\n"
        writer.write(f"HTTP/1.1 {self.status} X\r\n{length}{self.extra}\r\n".encode() + self.body)
        while self.is_endless:
            writer.write(b"x" * 1024)
            self.sent_bytes += 1024
            await writer.drain()
        await writer.drain()

    async def wait_for(self, count: int) -> list[Request]:
        """The requests, when there are so many."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.requests) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.requests


@pytest.fixture
async def start_receiver() -> AsyncIterator[Callable[..., object]]:
    """Starts a receiver: ``receiver = await start_receiver(status=500)``."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*, tls: bool = False, **how: object) -> HttpReceiver:
            receiver = HttpReceiver(**how)  # type: ignore[arg-type]
            context = _server_tls(receiver) if tls else None
            server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
            stack.callback(server.close)
            receiver.port = server.sockets[0].getsockname()[1]
            return receiver

        yield start


def _server_tls(receiver: HttpReceiver) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    def note_name(_: object, name: str | None, __: object) -> None:
        receiver.server_names.append(name or "")

    context.sni_callback = note_name
    return context


@pytest.fixture
def trusting() -> ssl.SSLContext:
    """TLS that trusts the tests' certificate."""
    return ssl.create_default_context(cafile=str(TLS / "cert.pem"))


@dataclass
class Mailbox:
    """A mail server: the mails that it took, and how it is set up."""

    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    answer: str = "250 OK"
    port: int = 0

    async def handle_DATA(self, _: SMTP, __: Session, envelope: Envelope) -> str:
        if self.answer.startswith("250"):
            assert isinstance(envelope.content, bytes)
            self.recipients += envelope.rcpt_tos
            mail = message_from_bytes(envelope.content, policy=policy.default)
            assert isinstance(mail, EmailMessage)
            self.mails.append(mail)
        return self.answer

    async def handle_RCPT(
        self, _: SMTP, __: Session, envelope: Envelope, address: str, ___: list[str]
    ) -> str:
        if address.startswith("nobody@"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"


@pytest.fixture
def start_mailbox() -> Iterator[Callable[..., Mailbox]]:
    """Starts a mail server: ``mailbox = start_mailbox(starttls=True, password="…")``."""
    with contextlib.ExitStack() as stack:

        def start(
            *, tls: bool = False, starttls: bool = False, password: str | None = None
        ) -> Mailbox:
            mailbox = Mailbox()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

            def check(*call: object) -> AuthResult:
                login = call[-1]
                assert isinstance(login, LoginPassword)
                is_right = login.password == (password or "").encode()
                return AuthResult(success=is_right, handled=False)

            controller = Controller(
                mailbox,
                hostname="127.0.0.1",
                port=0,
                ready_timeout=DEADLINE_S,
                ssl_context=context if tls else None,
                tls_context=context if starttls else None,
                require_starttls=starttls,
                authenticator=check if password else None,
                auth_required=password is not None,
                auth_require_tls=starttls,
            )
            controller.port = _free_port()
            controller.start()
            stack.callback(controller.stop)
            mailbox.port = controller.port
            return mailbox

        yield start


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
