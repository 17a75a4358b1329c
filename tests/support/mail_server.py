"""A real mail server that keeps what it takes."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session
from cli.embedded.process import free_port

READY_S = 60.0


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


@contextlib.contextmanager
def running_mailbox(**how: Any) -> Iterator[Mailbox]:
    """A mail server while the block runs; ``how``: the options of aiosmtpd's Controller."""
    mailbox = Mailbox()
    mailbox.port = free_port()
    address = {"hostname": "127.0.0.1", "port": mailbox.port}
    controller = Controller(mailbox, ready_timeout=READY_S, **address, **how)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()
