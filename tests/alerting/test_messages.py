"""What receivers read."""

import json
from datetime import UTC, datetime

from alerting.domain.events import Event, Severity
from alerting.domain.messages import mail, webhook_body
from muster.contracts.subscriptions import AlertEvent

EVENT = Event(
    key="job-failed/j1",
    name=AlertEvent.JOB_FAILED,
    at=datetime(2026, 1, 1, tzinfo=UTC),
    severity=Severity.WARNING,
    title="Job ada~<b>\nBcc: eve@example.org FAILED",
    text="It ran for 3 s.\n<script>alert(1)</script>",
    thread="job/j1",
    data={"job": "j1", "retries": {"user": 1}},
)


def test_a_webhook_has_type_timestamp_and_data() -> None:
    body = json.loads(webhook_body(EVENT))
    assert body["type"] == "job.failed"
    assert datetime.fromisoformat(body["timestamp"]) == EVENT.at
    assert body["data"]["job"] == "j1"
    assert body["data"]["retries"] == {"user": 1}
    assert body["data"]["severity"] == "warning"


def test_a_mail_carries_what_users_wrote_as_text_only() -> None:
    parts = mail(EVENT)
    assert "\n" not in parts.subject
    assert "<script>" not in parts.html
    assert "<b>" not in parts.html
    assert "<script>alert(1)</script>" in parts.text


def test_mails_about_one_thing_share_a_thread() -> None:
    other = Event("x", AlertEvent.JOB_RETRIED, EVENT.at, Severity.INFO, "t", "x", "job/j1", {})
    assert mail(EVENT).thread == mail(other).thread
