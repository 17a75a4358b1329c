"""Each kind of receiver gets the form that its maker documents, and its answers are understood.

REQUIREMENTS has what the makers' documents say, as recorded in November 2026: the fields of a
request, and the most of each.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from alerting.domain.deliveries import Failed, Gone, Sent
from alerting.domain.events import Alert, Severity
from alerting.domain.messages import LINES, Message, digest_message, message_of
from alerting.domain.notices import events_of
from alerting.domain.rendering import FORMS
from alerting.domain.rendering.alertmanager import posted
from alerting.domain.rendering.forms import HttpAnswer, Sending, Target
from jsonschema import Draft202012Validator
from muster.contracts.subscriptions import ReceiverKind

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
LINK = "https://muster.example/jobs/ada~train"
SENDING = Sending("msg_1", AT, LINK)
FAILED = Message(
    key="job-failed/j1",
    name="job-failed",
    at=AT,
    severity=Severity.WARNING,
    title="Job ada~train FAILED",
    text="It ran for 3 s.\nEvidence: <oom> & more",
    thread="job/j1",
    data={"job": "j1"},
    job="ada~train",
    line="<oom> & more",
)
LOST = replace(FAILED, name="node-lost", severity=Severity.CRITICAL, alert="0123abcd", line=None)
BACK = replace(LOST, name="node-returned", severity=Severity.INFO, is_over=True)
HUGE = replace(FAILED, title="t€" * 9_000, text="x€\n" * 200_000, line="l€" * 90_000, key="k" * 900)
MARKED = replace(HUGE, title="\\" * 9_000, text="\\" * 99 + "\\\n" * 90_000, line="\\" * 9_000)
SLACK, TEAMS, PAGERDUTY, NTFY = (
    ReceiverKind.SLACK,
    ReceiverKind.TEAMS,
    ReceiverKind.PAGERDUTY,
    ReceiverKind.NTFY,
)
TARGETS = {
    ReceiverKind.WEBHOOK: Target("https://hooks.example/x"),
    SLACK: Target("https://hooks.slack.example/services/T0/B0/secret"),
    TEAMS: Target("https://flows.example/workflows/1?sig=secret"),
    PAGERDUTY: Target("https://events.pagerduty.com/v2/enqueue", "routing-key"),
    NTFY: Target("https://ntfy.example/base/my%20topic", "tk_secret"),
}


@dataclass(frozen=True)
class Requirement:
    """``schema``: of the body; ``most_bytes``: of all of it."""

    schema: Mapping[str, Any]
    most_bytes: int


def text(most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


def plain(kind: str, most: int) -> dict[str, Any]:
    fields = {"type": {"const": kind}, "text": text(most)}
    return {"type": "object", "properties": fields, "required": ["type", "text"]}


def of_type(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "properties": {"type": {"const": name}, **fields},
        "required": ["type", *fields],
    }


REQUIREMENTS = {
    SLACK: Requirement(
        {
            "required": ["text", "blocks"],
            "properties": {
                "text": text(40_000),
                "blocks": {
                    "maxItems": 50,
                    "items": {
                        "anyOf": [
                            of_type("header", text=plain("plain_text", 150)),
                            of_type("section", text=plain("mrkdwn", 3_000)),
                            of_type(
                                "context", elements={"maxItems": 10, "items": plain("mrkdwn", 3000)}
                            ),
                        ]
                    },
                },
            },
        },
        most_bytes=1_000_000,
    ),
    TEAMS: Requirement(
        {
            "required": ["type", "attachments"],
            "properties": {
                "type": {"const": "message"},
                "attachments": {
                    "minItems": 1,
                    "items": {
                        "required": ["contentType", "contentUrl", "content"],
                        "properties": {
                            "contentType": {"const": "application/vnd.microsoft.card.adaptive"},
                            "contentUrl": {"type": "null"},
                            "content": {
                                "required": ["$schema", "type", "version", "body"],
                                "properties": {
                                    "type": {"const": "AdaptiveCard"},
                                    "version": {"const": "1.2"},
                                    "body": {"items": of_type("TextBlock", text=text(28_000))},
                                    "actions": {
                                        "items": of_type("Action.OpenUrl", url=text(2_048))
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
        most_bytes=28 * 1024,
    ),
    PAGERDUTY: Requirement(
        {
            "required": ["routing_key", "event_action", "dedup_key", "payload"],
            "properties": {
                "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
                "dedup_key": text(255),
                "payload": {
                    "required": ["summary", "source", "severity"],
                    "properties": {
                        "summary": text(1_024),
                        "severity": {"enum": ["critical", "error", "warning", "info"]},
                    },
                },
            },
        },
        most_bytes=512 * 1024,
    ),
    NTFY: Requirement(
        {
            "required": ["topic", "message"],
            "properties": {
                "topic": {"const": "my topic"},
                "priority": {"enum": [1, 2, 3, 4, 5]},
                "tags": {"type": "array"},
                "click": text(2_048),
            },
        },
        most_bytes=16_384,
    ),
}


def rendered(kind: ReceiverKind, message: Message) -> Any:
    return json.loads(FORMS[kind].render(message, TARGETS[kind], SENDING).body)


@pytest.mark.parametrize(
    "message", [FAILED, LOST, BACK, HUGE, MARKED, replace(FAILED, text="", line=None)]
)
@pytest.mark.parametrize("kind", REQUIREMENTS)
def test_each_kind_gets_what_its_maker_requires(kind: ReceiverKind, message: Message) -> None:
    request = FORMS[kind].render(message, TARGETS[kind], SENDING)
    Draft202012Validator(REQUIREMENTS[kind].schema).validate(json.loads(request.body))
    assert len(request.body.encode()) <= REQUIREMENTS[kind].most_bytes
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize("kind", [SLACK, TEAMS, PAGERDUTY, NTFY])
def test_each_kind_shows_title_link_and_the_line_once(kind: ReceiverKind) -> None:
    body = FORMS[kind].render(FAILED, TARGETS[kind], SENDING).body
    for part in ("Job ada~train FAILED", "It ran for 3 s.", LINK):
        assert part in body
    assert body.count("oom") == 1


def test_slack_gets_what_users_wrote_escaped() -> None:
    body = json.dumps(rendered(SLACK, FAILED))
    assert "&lt;oom&gt; &amp; more" in body
    assert "<oom>" not in body


MANY = [
    replace(
        FAILED,
        key=f"job-failed/j{number}",
        title=f"Job ada~train-{number:02} FAILED",
        verdict="container OOM killed (code -220): the memory was too small",
        line=f"<oom> & more of job {number}" + "e" * 200,
    )
    for number in range(60)
]
DIGEST = digest_message("digest/s1/1", "s1", MANY, AT)
GROUP = events_of(
    Alert("GpuHot", Severity.WARNING, f"GPU {it} " + "is hot " * 60, {"node": "n1"}, AT, ident=it)
    for it in (f"g{number:03}" for number in range(60))
)[0]


def texts(value: Any) -> list[str]:
    """All texts of a request's body, in their order."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [it for part in parts for it in texts(part)]


def test_slack_shows_all_that_a_digest_tells() -> None:
    shown = "\n".join(it["text"]["text"] for it in rendered(SLACK, DIGEST)["blocks"][1:-1])
    assert shown.count("warning: Job ada~train-") == LINES
    assert shown.endswith("\n10 more: `muster subscriptions deliveries s1`")


@pytest.mark.parametrize(
    ("kind", "message", "command"),
    [
        (TEAMS, DIGEST, "muster subscriptions deliveries s1"),
        (NTFY, DIGEST, "muster subscriptions deliveries s1"),
        (NTFY, message_of(GROUP), "muster alerts"),
        (NTFY, replace(FAILED, text="x\n" * 3_000, line=None), "muster job ada~train"),
        *(
            (kind, replace(DIGEST, text="<& *\n" * 40_000), "muster subscriptions deliveries s1")
            for kind in (SLACK, PAGERDUTY)
        ),
    ],
)
def test_a_form_that_cuts_does_so_between_lines_and_says_where_all_is(
    kind: ReceiverKind, message: Message, command: str
) -> None:
    got = [
        line.replace("\\", "")  # Teams' escapes
        for it in texts(rendered(kind, message))
        for line in it.splitlines()
        if line
    ]
    (note,) = [it for it in got if "left out" in it]
    place = got.index(note)
    whole = {it.replace("&", "&amp;").replace("<", "&lt;") for it in message.text.splitlines()}
    whole |= set(message.text.splitlines())
    assert got[place - 1] in whole
    number = int(note.split()[1])
    assert note == f"… {number} lines left out: `{command}` has all."
    kept = sum(it in whole for it in got[:place])
    assert kept + number <= len(message.text.splitlines())


@pytest.mark.parametrize("text", ["&" * 4_000, "&amp;" * 4_000, "x<" * 4_000])
def test_slack_gets_whole_entities(text: str) -> None:
    message = replace(FAILED, title=text, text=text, line=text)
    for it in texts(rendered(SLACK, message)):
        assert not re.search(r"&(?!(amp|lt|gt);)", it) or it == text[:149] + "…"
    shown = rendered(SLACK, message)["blocks"][2]["text"]["text"]
    assert shown.endswith("…```")


def test_teams_shows_what_users_wrote_as_they_wrote_it() -> None:
    line = "[see docs](http://evil.example) *args **kwargs __init__"
    lines = [line, "- no item", "1. no item", "# no heading", r"C:\*", "<http://evil.example>"]
    message = replace(FAILED, title=line, text="\n".join(lines), line=line)
    shown = [it["text"] for it in rendered(TEAMS, message)["attachments"][0]["content"]["body"]]
    escaped = r"\[see docs\](http://evil.example) \*args \*\*kwargs \_\_init\_\_"
    assert (shown[0], shown[2]) == (escaped, escaped)
    assert shown[1].split("\n\n") == [
        escaped,
        r"\- no item",
        r"1\. no item",
        r"\# no heading",
        r"C:\\\*",
        r"\<http://evil.example\>",
    ]


def test_teams_links_the_runbook() -> None:
    address = "https://git.example/docs/alert_rules.md#a(b)"
    message = replace(FAILED, text=f"warning: it is hot. Runbook: {address}", line=None)
    shown = rendered(TEAMS, message)["attachments"][0]["content"]["body"][1]["text"]
    assert shown == (
        r"warning: it is hot. Runbook: [https://git.example/docs/alert\_rules.md#a(b)]"
        "(https://git.example/docs/alert_rules.md#a%28b%29)"
    )


def test_pagerduty_resolves_what_the_same_alert_triggered() -> None:
    begun, ended = (rendered(PAGERDUTY, message) for message in (LOST, BACK))
    assert (begun["event_action"], ended["event_action"]) == ("trigger", "resolve")
    assert begun["dedup_key"] == ended["dedup_key"] == "0123abcd"
    assert begun["routing_key"] == ended["routing_key"] == "routing-key"
    assert begun["payload"]["severity"] == "critical"
    assert rendered(PAGERDUTY, FAILED)["dedup_key"] == "job-failed/j1"


@pytest.mark.parametrize(
    ("labels", "page"),
    [
        ({"job": "0f3a", "user": "ada", "jobName": "train"}, "/ada~train"),
        ({"job": "0f3a", "node": "n1"}, None),
    ],
)
def test_alertmanager_gets_the_page_of_the_job(labels: dict[str, str], page: str | None) -> None:
    alert = Alert("JobWaitsLong", Severity.WARNING, "It waits", labels, AT)
    found = posted(alert, AT, 60.0, lambda job: job and f"/{job}")
    assert found.get("generatorURL") == page


def test_ntfy_gets_its_topic_in_the_body_and_the_token_in_a_header() -> None:
    request = FORMS[NTFY].render(LOST, TARGETS[NTFY], SENDING)
    assert request.url == "https://ntfy.example/base/"
    assert request.headers["authorization"] == "Bearer tk_secret"
    assert json.loads(request.body)["priority"] == 5
    assert len(rendered(NTFY, HUGE)["message"].encode()) <= 4_096


def test_a_webhook_has_type_timestamp_and_data() -> None:
    body = rendered(ReceiverKind.WEBHOOK, FAILED)
    assert body["type"] == "job.failed"
    assert datetime.fromisoformat(body["timestamp"]) == AT
    assert body["data"] == {
        "job": "j1",
        "severity": "warning",
        "title": FAILED.title,
        "text": FAILED.text,
    }


GONE, REFUSED, NOT_THIS, AGAIN = "gone", "refused", "refused, not the receiver's fault", "again"


@pytest.mark.parametrize(
    ("kind", "status", "answer", "meaning"),
    [
        (SLACK, 200, "ok", "sent"),
        (SLACK, 400, "invalid_payload", NOT_THIS),
        (SLACK, 403, "action_prohibited", REFUSED),
        (SLACK, 404, "channel_not_found", GONE),
        (SLACK, 410, "channel_is_archived", GONE),
        (SLACK, 429, "", AGAIN),
        (SLACK, 500, "rollup_error", AGAIN),
        (TEAMS, 200, "", "sent"),
        (TEAMS, 202, "", "sent"),
        (TEAMS, 400, "TriggerInputSchemaMismatch", NOT_THIS),
        (TEAMS, 429, "", AGAIN),
        (TEAMS, 502, "NoResponse", AGAIN),
        (PAGERDUTY, 202, "Event processed", "sent"),
        (PAGERDUTY, 400, "Invalid routing key", REFUSED),
        (PAGERDUTY, 429, "", AGAIN),
        (PAGERDUTY, 503, "", AGAIN),
        (NTFY, 200, "", "sent"),
        (NTFY, 400, "topic invalid", NOT_THIS),
        (NTFY, 401, "unauthorized", REFUSED),
        (NTFY, 403, "forbidden", REFUSED),
        (NTFY, 413, "", NOT_THIS),
        (NTFY, 429, "limit reached", AGAIN),
        (NTFY, 507, "", AGAIN),
        *((kind, 301, "", AGAIN) for kind in (SLACK, TEAMS, PAGERDUTY, NTFY)),
        *((kind, 410, "", GONE) for kind in (ReceiverKind.WEBHOOK, TEAMS, NTFY)),
    ],
)
def test_each_answer_means_what_its_maker_says(
    kind: ReceiverKind, status: int, answer: str, meaning: str
) -> None:
    judged = FORMS[kind].judge(HttpAnswer(status, answer, 7.0))
    match judged:
        case Sent():
            found = "sent"
        case Gone():
            found = GONE
        case Failed(can_retry=True, retry_after_s=wait_s):
            found = AGAIN
            assert wait_s == (0.0 if status == 301 else 7.0)
        case Failed(is_receivers=True):
            found = REFUSED
        case _:
            found = NOT_THIS
    assert found == meaning
