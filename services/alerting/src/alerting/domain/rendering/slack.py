"""Slack's incoming webhooks: ``text`` for the notification, blocks for the channel."""

from pydantic import JsonValue

from alerting.domain.deliveries import Answer, Failed, Gone
from alerting.domain.events import Severity
from alerting.domain.messages import Message
from alerting.domain.rendering.forms import (
    HttpAnswer,
    Request,
    Sending,
    Target,
    cut,
    judge_http,
    post,
    reason_of,
)

HEADER, SECTION = 150, 3_000
"""The most characters of a block of each type."""
SIGNS = {
    Severity.INFO: ":information_source:",
    Severity.WARNING: ":warning:",
    Severity.CRITICAL: ":rotating_light:",
}
OVER = ":white_check_mark:"


def render(message: Message, target: Target, sending: Sending) -> Request:
    """A header, what happened, the telling line, and a link."""
    sign = OVER if message.is_over else SIGNS[message.severity]
    title = f"{sign} {_escaped(message.title)}"
    blocks: list[JsonValue] = [
        {"type": "header", "text": {"type": "plain_text", "text": cut(message.title, HEADER)}},
        _section(_escaped(message.text_without_line)),
    ]
    if message.line:
        blocks.append(_section(f"```{_escaped(message.line)}```"))
    context = f"{sign} {message.severity} · {message.at.isoformat(timespec='seconds')}"
    if sending.link:
        context += f" · <{_escaped(sending.link)}|Open the job>"
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": context}]})
    return post(target.url, {"text": cut(title, SECTION), "blocks": blocks})


def judge(answer: HttpAnswer) -> Answer:
    """Slack refuses a message (400) or the sender (403) for good; its channel may be gone."""
    reason = reason_of(answer)
    if answer.status in (404, 410):  # channel_not_found, no_service; channel_is_archived
        return Gone(reason)
    if answer.status == 400:
        return Failed(reason, can_retry=False, is_receivers=False)
    if answer.status == 403:
        return Failed(reason, can_retry=False)
    return judge_http(answer)


def _section(text: str) -> dict[str, JsonValue]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": cut(text, SECTION) or " "}}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
