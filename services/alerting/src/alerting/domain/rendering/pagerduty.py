"""PagerDuty's Events API v2: an alert triggers an incident under its identity, and its end
resolves it.
"""

import hashlib

from pydantic import JsonValue

from alerting.domain.deliveries import Answer, Failed
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

URL = "https://events.pagerduty.com/v2/enqueue"
SUMMARY, DEDUP_KEY, SOURCE = 1_024, 255, 255
"""The most characters of each field."""
TEXT, LINE = 16_000, 4_000


def render(message: Message, target: Target, sending: Sending) -> Request:
    """The token is the routing key: the same for an alert's begin and end."""
    event: dict[str, JsonValue] = {
        "routing_key": target.token,
        "event_action": "resolve" if message.is_over else "trigger",
        "dedup_key": _dedup_key(message),
    }
    details: dict[str, JsonValue] = {"text": cut(message.text, TEXT), "event": message.name}
    if message.line:
        details["line"] = cut(message.line, LINE)
    event["payload"] = {
        "summary": cut(message.title, SUMMARY),
        "source": cut(message.thread, SOURCE),
        "severity": message.severity.value,
        "timestamp": message.at.isoformat(),
        "class": message.name,
        "custom_details": details,
    }
    if sending.link:
        event["links"] = [{"href": sending.link, "text": "Open the job"}]
    return post(target.url, event)


def judge(answer: HttpAnswer) -> Answer:
    """400 is a wrong event or routing key, for good; 429 and 5xx pass."""
    if answer.status == 400:
        return Failed(reason_of(answer), can_retry=False)
    return judge_http(answer)


def _dedup_key(message: Message) -> str:
    """The incident of alerts that come together, or an alert's fingerprint; an event without an
    alert is an incident of its own.
    """
    key = str(message.data.get("incident") or message.alert or message.key)
    return key if len(key) <= DEDUP_KEY else hashlib.sha256(key.encode()).hexdigest()
