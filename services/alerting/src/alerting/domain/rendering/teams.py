"""Microsoft Teams: a workflow that posts the adaptive card of each request to a channel."""

from pydantic import JsonValue

from alerting.domain.deliveries import Answer, Failed
from alerting.domain.events import Severity
from alerting.domain.messages import Message
from alerting.domain.rendering.forms import (
    HttpAnswer,
    Request,
    Sending,
    Target,
    byte_length,
    cut_bytes,
    judge_http,
    lines_within,
    post,
    reason_of,
)

CARD = "application/vnd.microsoft.card.adaptive"
SCHEMA = "http://adaptivecards.io/schemas/adaptive-card.json"
VERSION = "1.2"
TITLE_BYTES, TEXT_BYTES, LINE_BYTES = 1_000, 9_000, 4_000
"""The most of each: a message of Teams has 28 KB at the most."""
COLOURS = {Severity.INFO: "Default", Severity.WARNING: "Warning", Severity.CRITICAL: "Attention"}


def render(message: Message, target: Target, sending: Sending) -> Request:
    """A card with the title, what happened, the telling line, and a button for the link."""
    colour = "Good" if message.is_over else COLOURS[message.severity]
    body: list[JsonValue] = [
        _text(cut_bytes(message.title, TITLE_BYTES), weight="Bolder", size="Medium", color=colour),
    ]
    if lines := lines_within(message, TEXT_BYTES, size=byte_length):
        body.append(_text("\n\n".join(lines)))
    if message.line:
        body.append(_text(cut_bytes(message.line, LINE_BYTES), fontType="Monospace"))
    at = message.at.isoformat(timespec="seconds")
    body.append(_text(f"{message.severity} · {at}", isSubtle=True, size="Small"))
    card: dict[str, JsonValue] = {
        "$schema": SCHEMA,
        "type": "AdaptiveCard",
        "version": VERSION,
        "body": body,
    }
    if sending.link:
        action: JsonValue = {"type": "Action.OpenUrl", "title": "Open the job", "url": sending.link}
        card["actions"] = [action]
    attachment: JsonValue = {"contentType": CARD, "contentUrl": None, "content": card}
    return post(target.url, {"type": "message", "attachments": [attachment]})


def judge(answer: HttpAnswer) -> Answer:
    """A card that the workflow refuses (400) is refused for good."""
    if answer.status == 400:
        return Failed(reason_of(answer), can_retry=False, is_receivers=False)
    return judge_http(answer)


def _text(text: str, **style: JsonValue) -> dict[str, JsonValue]:
    return {"type": "TextBlock", "text": text, "wrap": True, **style}
