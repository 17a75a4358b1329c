"""Microsoft Teams: a workflow that posts the adaptive card of each request to a channel."""

import re

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
from alerting.domain.texts import RUNBOOK

CARD = "application/vnd.microsoft.card.adaptive"
SCHEMA = "http://adaptivecards.io/schemas/adaptive-card.json"
VERSION = "1.2"
TITLE_BYTES, TEXT_BYTES, LINE_BYTES = 500, 9_000, 1_500
"""The most of each: a message of Teams has 28 KB at the most, and escapes count."""
MARKDOWN = re.compile(r"[\\`*_\[\]<>]|^\s*#|^\s*[-+](?=\s)|(?<=\d)[.)](?=\s)")
"""What a text block would read as formatting, a link or an item of a list."""
COLOURS = {Severity.INFO: "Default", Severity.WARNING: "Warning", Severity.CRITICAL: "Attention"}


def render(message: Message, target: Target, sending: Sending) -> Request:
    """A card with the title, what happened, the telling line, and a button for the link."""
    colour = "Good" if message.is_over else COLOURS[message.severity]
    body: list[JsonValue] = [
        _text(
            _escaped(cut_bytes(message.title, TITLE_BYTES)),
            weight="Bolder",
            size="Medium",
            color=colour,
        ),
    ]
    if lines := lines_within(message, TEXT_BYTES, form=_line, size=byte_length):
        body.append(_text("\n\n".join(lines)))
    if message.line:
        body.append(_text(_escaped(cut_bytes(message.line, LINE_BYTES)), fontType="Monospace"))
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


def _line(line: str) -> str:
    """One line of what happened; the address of a runbook at its end is a link."""
    found = RUNBOOK.search(line)
    if found is None:
        return _escaped(line)
    address = found[0].replace("(", "%28").replace(")", "%29")
    return f"{_escaped(line[: found.start()])}[{_escaped(found[0])}]({address})"


def _escaped(text: str) -> str:
    """The same to a reader of Markdown."""
    return "\n".join(MARKDOWN.sub(_marked, it) for it in text.splitlines())


def _marked(found: re.Match[str]) -> str:
    return f"{found[0][:-1]}\\{found[0][-1]}"


def _text(text: str, **style: JsonValue) -> dict[str, JsonValue]:
    return {"type": "TextBlock", "text": text, "wrap": True, **style}
