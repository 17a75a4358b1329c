"""What a receiver gets to read: the body of a webhook, the parts of a mail."""

import hashlib
import json
from dataclasses import dataclass
from html import escape

from muster.contracts.confirmations import Confirmation

from alerting.domain.events import Event


@dataclass(frozen=True, slots=True)
class Mail:
    """The parts of a mail. ``thread`` groups the mails about one thing in a reader's list."""

    subject: str
    text: str
    html: str
    thread: str


def webhook_body(event: Event) -> str:
    """The JSON body of a webhook: ``type``, ``timestamp`` and ``data`` (Standard Webhooks 1.0).

    The type is the event's name with a full stop: ``job.failed``.
    """
    body = {
        "type": event.name.replace("-", ".", 1),
        "timestamp": event.at.isoformat(),
        "data": {
            **event.data,
            "severity": event.severity.value,
            "title": event.title,
            "text": event.text,
        },
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def mail(event: Event) -> Mail:
    """A mail's parts: plain text, and the same as HTML with everything escaped."""
    at = event.at.isoformat(timespec="seconds")
    return _mail(event.title, event.text, f"\n{at}\n", event.thread)


def confirmation_mail(confirmation: Confirmation, code: str) -> Mail:
    """The mail that brings a code to the address that it confirms."""
    until = confirmation.expires_at.isoformat(timespec="seconds")
    text = (
        f"The user {confirmation.user} of Muster wants notifications at this address.\n"
        f"To confirm the address, the user runs: muster users confirm {code}\n"
        f"The code is valid until {until} and works once.\n"
        "If you are not this user, ignore this mail: without the code you get no notifications."
    )
    return _mail("Confirm your mail address", text, "", confirmation.id)


def _mail(title: str, text: str, end: str, thread: str) -> Mail:
    subject = " ".join(f"[Muster] {title}".split())
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in text.splitlines())
    html = (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{escape(subject)}</title></head>'
        f"<body><h2>{escape(title)}</h2>{paragraphs}</body></html>"
    )
    plain = f"{title}\n\n{text}\n{end}"
    return Mail(subject[:200], plain, html, hashlib.sha256(thread.encode()).hexdigest()[:24])
