"""What a receiver gets to read: the body of a webhook, the parts of a mail."""

import hashlib
import json
from dataclasses import dataclass
from html import escape

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
    subject = " ".join(f"[Muster] {event.title}".split())
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in event.text.splitlines())
    html = (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{escape(subject)}</title></head>'
        f"<body><h2>{escape(event.title)}</h2>{paragraphs}</body></html>"
    )
    text = f"{event.title}\n\n{event.text}\n\n{event.at.isoformat(timespec='seconds')}\n"
    return Mail(subject[:200], text, html, hashlib.sha256(event.thread.encode()).hexdigest()[:24])
