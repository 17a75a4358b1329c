"""Mail over a real mail server."""

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from alerting.domain.deliveries import Failed, Sent
from alerting.domain.rendering.mail import Mail
from alerting.receivers.mail import MailMessage, MailReceiver, MailServer, MailTls

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PARTS = Mail("[Muster] Job ada~träin FAILED", "It failed.\n", "<p>It failed.</p>", "abc")


def a_message(**fields: Any) -> MailMessage:
    return MailMessage(
        **{"id": "msg_1", "to": "ada@example.org", "mail": PARTS, "at": NOW, **fields}
    )


def a_server(port: int, **how: Any) -> MailServer:
    notice = {"host": "127.0.0.1", "port": port, "sender": "muster@cluster.example"}
    return MailServer(**{**notice, "tls": MailTls.NONE, "timeout_s": 10.0, **how})


async def test_a_mail_arrives_as_text_and_html(start_mailbox: Callable[..., Any]) -> None:
    mailbox = start_mailbox()
    assert await MailReceiver(a_server(mailbox.port)).send(a_message()) == Sent()
    (mail,) = mailbox.mails
    assert mailbox.recipients == ["ada@example.org"]
    assert mail["Subject"] == PARTS.subject
    assert [part.get_content_type() for part in mail.iter_parts()] == ["text/plain", "text/html"]
    assert mail.get_body(("plain",)).get_content().split() == PARTS.text.split()
    assert mail["Auto-Submitted"] == "auto-generated"


async def test_mails_about_one_thing_are_one_thread(start_mailbox: Callable[..., Any]) -> None:
    mailbox = start_mailbox()
    way = MailReceiver(a_server(mailbox.port))
    for ident in ("msg_1", "msg_1", "msg_2"):  # the first comes twice after a crash
        await way.send(a_message(id=ident))
    assert [mail["Message-ID"] for mail in mailbox.mails] == [
        "<msg_1@cluster.example>",
        "<msg_1@cluster.example>",
        "<msg_2@cluster.example>",
    ]
    assert {mail["References"] for mail in mailbox.mails} == {"<abc@cluster.example>"}


async def test_a_mail_is_sent_encrypted_and_with_a_password(
    start_mailbox: Callable[..., Any], trusting: ssl.SSLContext
) -> None:
    mailbox = start_mailbox(starttls=True, password="right")
    trusting.check_hostname = False  # the mail server is addressed by number here
    server = a_server(mailbox.port, tls=MailTls.STARTTLS, username="muster", password="right")
    assert await MailReceiver(server, tls=trusting).send(a_message()) == Sent()
    assert len(mailbox.mails) == 1


async def test_a_mail_is_sent_encrypted_from_the_first_byte(
    start_mailbox: Callable[..., Any], trusting: ssl.SSLContext
) -> None:
    mailbox = start_mailbox(tls=True)
    trusting.check_hostname = False
    server = a_server(mailbox.port, tls=MailTls.TLS)
    assert await MailReceiver(server, tls=trusting).send(a_message()) == Sent()
    assert len(mailbox.mails) == 1


async def test_a_certificate_that_is_not_trusted_stops_the_mail(
    start_mailbox: Callable[..., Any],
) -> None:
    mailbox = start_mailbox(starttls=True)
    answer = await MailReceiver(a_server(mailbox.port, tls=MailTls.STARTTLS)).send(a_message())
    assert isinstance(answer, Failed)
    assert answer.can_retry
    assert not mailbox.mails


async def test_a_server_without_the_encryption_that_is_asked_for_gets_no_mail(
    start_mailbox: Callable[..., Any],
) -> None:
    mailbox = start_mailbox()
    answer = await MailReceiver(a_server(mailbox.port, tls=MailTls.STARTTLS)).send(a_message())
    assert isinstance(answer, Failed)
    assert not mailbox.mails


async def test_a_wrong_password_can_be_retried_and_is_not_shown(
    start_mailbox: Callable[..., Any], trusting: ssl.SSLContext
) -> None:
    mailbox = start_mailbox(starttls=True, password="right")
    trusting.check_hostname = False
    how = {"tls": MailTls.STARTTLS, "username": "muster", "password": "marker-wrong"}
    server = a_server(mailbox.port, **how)
    answer = await MailReceiver(server, tls=trusting).send(a_message())
    assert isinstance(answer, Failed)
    assert answer.can_retry
    assert "marker" not in repr(answer) + repr(server)


@pytest.mark.parametrize(("answer", "can_retry"), [("451 busy", True), ("554 this is spam", False)])
async def test_a_refused_mail_stays_refused(
    start_mailbox: Callable[..., Any], answer: str, can_retry: bool
) -> None:
    mailbox = start_mailbox()
    mailbox.answer = answer
    failed = await MailReceiver(a_server(mailbox.port)).send(a_message())
    assert isinstance(failed, Failed)
    assert failed.can_retry == can_retry


async def test_an_unknown_recipient_is_final(start_mailbox: Callable[..., Any]) -> None:
    mailbox = start_mailbox()
    failed = await MailReceiver(a_server(mailbox.port)).send(a_message(to="nobody@example.org"))
    assert isinstance(failed, Failed)
    assert not failed.can_retry


@pytest.mark.parametrize("to", ["nonsense", "a@", "", "a@b.c\r\nBcc: eve@example.org"])
async def test_what_is_no_mail_address_is_refused(to: str) -> None:
    failed = await MailReceiver(a_server(1)).send(a_message(to=to))
    assert isinstance(failed, Failed)
    assert not failed.can_retry


async def test_a_server_that_is_away_may_be_tried_again() -> None:
    failed = await MailReceiver(a_server(1)).send(a_message())
    assert isinstance(failed, Failed)
    assert failed.can_retry


async def test_without_a_mail_server_the_reason_names_the_setting() -> None:
    failed = await MailReceiver(a_server(1, host=None)).send(a_message())
    assert isinstance(failed, Failed)
    assert "MUSTER_SMTP_HOST" in failed.reason


async def test_a_hanging_server_costs_no_more_than_the_timeout(
    start_receiver: Callable[..., Any],
) -> None:
    silent = await start_receiver(is_hanging=True)
    failed = await MailReceiver(a_server(silent.port, timeout_s=0.3)).send(a_message())
    assert failed == Failed("no answer within 0.3 s")
