"""Sends mail by SMTP: plain text and HTML, with ids that keep the mails about one thing together
and let a mail server recognise one that comes twice.
"""

import asyncio
import ssl
from dataclasses import dataclass
from datetime import datetime
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from enum import StrEnum

import aiosmtplib

from alerting.domain.deliveries import Answer, Failed, Sent
from alerting.domain.rendering.mail import Mail

REASON_CHARACTERS = 200


class MailTls(StrEnum):
    """How the connection to the mail server is encrypted: not, after a start in clear, or from
    its first byte.
    """

    NONE = "none"
    STARTTLS = "starttls"
    TLS = "tls"


@dataclass(frozen=True, slots=True, repr=False)
class MailServer:
    """The mail server and how to log in to it. ``timeout_s`` is for one whole mail. Has no repr:
    it holds the password.
    """

    host: str | None
    port: int
    sender: str
    tls: MailTls = MailTls.STARTTLS
    username: str | None = None
    password: str | None = None
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class MailMessage:
    """One attempt to send a mail to one address."""

    id: str
    to: str
    mail: Mail
    at: datetime


class MailReceiver:
    """The way to all mail addresses: one connection for each mail."""

    def __init__(self, server: MailServer, *, tls: ssl.SSLContext | None = None) -> None:
        self._server = server
        self._tls = tls

    async def send(self, message: MailMessage) -> Answer:
        """Try once. Whatever goes wrong is an answer, not an exception."""
        server = self._server
        if server.host is None:
            return Failed("there is no mail server: set MUSTER_SMTP_HOST", can_retry=False)
        try:
            letter = compose(message, server.sender)
        except (ValueError, IndexError, MessageError) as error:
            return Failed(f"the mail address is none: {error}", can_retry=False)
        try:
            async with asyncio.timeout(server.timeout_s):
                await aiosmtplib.send(
                    letter,
                    hostname=server.host,
                    port=server.port,
                    username=server.username,
                    password=server.password,
                    use_tls=server.tls is MailTls.TLS,
                    start_tls=server.tls is MailTls.STARTTLS,
                    tls_context=self._tls,
                    timeout=server.timeout_s,
                )
        except TimeoutError:
            return Failed(f"no answer within {server.timeout_s:g} s")
        except (aiosmtplib.SMTPException, OSError) as error:
            return judge(error)
        return Sent()


def compose(message: MailMessage, sender: str) -> EmailMessage:
    """The mail as it is sent. Raises ValueError, IndexError or MessageError where an address
    is none."""
    written_by = Address(display_name="Muster", addr_spec=sender)
    letter = EmailMessage()
    letter["From"] = written_by
    letter["To"] = Address(addr_spec=message.to)
    letter["Subject"] = message.mail.subject
    letter["Date"] = format_datetime(message.at)
    letter["Message-ID"] = f"<{message.id}@{written_by.domain}>"
    thread = f"<{message.mail.thread}@{written_by.domain}>"
    letter["In-Reply-To"] = thread
    letter["References"] = thread
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(message.mail.text)
    letter.add_alternative(message.mail.html, subtype="html")
    return letter


def judge(error: Exception) -> Answer:
    """What a failure means: a refused mail stays refused (5xx); a server that is away, busy or
    wrongly set up may be fixed.
    """
    reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
    match error:
        case aiosmtplib.SMTPRecipientsRefused():
            is_final = all(refusal.code >= 500 for refusal in error.recipients)
        case aiosmtplib.SMTPDataError():
            is_final = error.code >= 500
        case _:
            is_final = False
    return Failed(reason, can_retry=not is_final)
