"""Slack's incoming webhooks: ``text`` for the notification, blocks for the channel."""

import re
from collections.abc import Iterable, Iterator

from pydantic import JsonValue

from alerting.domain.deliveries import Answer, Failed, Gone
from alerting.domain.events import Severity
from alerting.domain.messages import Message
from alerting.domain.rendering.forms import (
    HttpAnswer,
    Request,
    Sending,
    Target,
    judge_http,
    lines_within,
    post,
    reason_of,
)
from alerting.domain.texts import cut

HEADER, SECTION = 150, 3_000
"""The most characters of a block of each type."""
TEXT = 40_000
"""The most characters of what happened: less than 30 sections of the 50 blocks."""
SPLIT_ENTITY = re.compile(r"&[a-z]*$")
SIGNS = {
    Severity.INFO: ":information_source:",
    Severity.WARNING: ":warning:",
    Severity.CRITICAL: ":rotating_light:",
}
OVER = ":white_check_mark:"


def render(message: Message, target: Target, sending: Sending) -> Request:
    """A header, what happened, the telling line, and a link."""
    sign = OVER if message.is_over else SIGNS[message.severity]
    title = _escaped(f"{sign} {message.title}")
    blocks: list[JsonValue] = [
        {"type": "header", "text": {"type": "plain_text", "text": cut(message.title, HEADER)}},
        *map(_section, _sections(lines_within(message, TEXT, form=_escaped))),
    ]
    if message.line:
        blocks.append(_section(f"```{_escaped(message.line, SECTION - len('``````'))}```"))
    context = f"{sign} {message.severity} · {message.at.isoformat(timespec='seconds')}"
    if sending.link:
        context += f" · <{_escaped(sending.link)}|Open the job>"
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": context}]})
    return post(target.url, {"text": title, "blocks": blocks})


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
    return {"type": "section", "text": {"type": "mrkdwn", "text": text or " "}}


def _sections(lines: Iterable[str]) -> Iterator[str]:
    """As many lines in each as fit, none of which is longer than a section."""
    section = ""
    for line in lines:
        if len(section) + len("\n") + len(line) > SECTION:
            yield section
            section = line
        else:
            section = f"{section}\n{line}" if section else line
    yield section


def _escaped(text: str, most: int = SECTION) -> str:
    """At most so many characters, with whole entities."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    whole = cut(escaped, most)
    return whole if whole == escaped else SPLIT_ENTITY.sub("", whole[:-1]) + "…"
