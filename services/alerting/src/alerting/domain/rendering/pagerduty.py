"""PagerDuty's Events API v2: an alert triggers an incident under its identity, and its end
resolves it.
"""

import hashlib

from muster.contracts.subscriptions import Subscription
from pydantic import JsonValue

from alerting.domain.deliveries import Answer, Failed, least_rank
from alerting.domain.events import BEGINS, ENDS, RANKS, Severity
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
    text = "\n".join(lines_within(message, TEXT))
    details: dict[str, JsonValue] = {"text": text, "event": message.name}
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


def incident_of(message: Message) -> str | None:
    """What a message opens or resolves: the incident of alerts that come together, or an alert's
    fingerprint. None: nothing resolves it.
    """
    return _incident(message) if message.name in BEGINS | ENDS else None


def _incident(message: Message) -> str | None:
    incident = message.data.get("incident") or message.alert
    return incident if isinstance(incident, str) else None


def why_late(message: Message, firing: Severity | None, subscription: Subscription) -> str | None:
    """Why a message must not be sent any more: its incident would be open without an alert that
    fires, or the reverse. ``firing``: the most severe alert of the incident that fires now.
    """
    fires = firing is not None and RANKS[firing] >= least_rank(subscription)
    if message.is_over:
        return "its alerts fire again" if fires else None
    return None if fires else "its alerts are over"


def _dedup_key(message: Message) -> str:
    """An event without an alert is an incident of its own."""
    key = _incident(message) or message.key
    return key if len(key) <= DEDUP_KEY else hashlib.sha256(key.encode()).hexdigest()
