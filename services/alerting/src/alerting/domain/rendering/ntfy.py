"""ntfy: a JSON message to the server whose topic is the last part of the address."""

from urllib.parse import unquote, urlsplit

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
from alerting.domain.texts import cut

MESSAGE_BYTES, LINE_BYTES, TITLE = 4_096, 1_500, 250
"""The most of each; ntfy makes a file of a longer message."""
PRIORITIES = {Severity.INFO: 3, Severity.WARNING: 4, Severity.CRITICAL: 5}
TAGS = {
    Severity.INFO: "information_source",
    Severity.WARNING: "warning",
    Severity.CRITICAL: "rotating_light",
}
OVER = "white_check_mark"


def render(message: Message, target: Target, sending: Sending) -> Request:
    """Posted to the server's root, as JSON; ``token`` is an access token, where there is one."""
    split = urlsplit(target.url)
    path, _, topic = split.path.rstrip("/").rpartition("/")
    line = f"\n\n{cut_bytes(message.line, LINE_BYTES)}" if message.line else ""
    most = MESSAGE_BYTES - byte_length(line)
    text = "\n".join(lines_within(message, most, size=byte_length))
    body: dict[str, JsonValue] = {
        "topic": unquote(topic),
        "title": cut(message.title, TITLE),
        "message": text + line,
        "priority": 3 if message.is_over else PRIORITIES[message.severity],
        "tags": [OVER if message.is_over else TAGS[message.severity]],
    }
    if sending.link:
        body["click"] = sending.link
    headers = {"authorization": f"Bearer {target.token}"} if target.token else {}
    return post(f"{split.scheme}://{split.netloc}{path}/", body, headers)


def judge(answer: HttpAnswer) -> Answer:
    """A wrong message (400) and a wrong token (401, 403) stay wrong."""
    if answer.status == 400:
        return Failed(reason_of(answer), can_retry=False, is_receivers=False)
    if answer.status in (401, 403):
        return Failed(reason_of(answer), can_retry=False)
    return judge_http(answer)
