"""What receivers read."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from alerting.domain.events import Alert, Event, JobLabels, Severity
from alerting.domain.messages import LINES, Message, digest_message, message_of
from alerting.domain.notices import events_of
from alerting.domain.rendering.mail import render
from muster.contracts.subscriptions import AlertEvent

EVENT = Event(
    key="job-failed/j1",
    name=AlertEvent.JOB_FAILED,
    at=datetime(2026, 1, 1, tzinfo=UTC),
    severity=Severity.WARNING,
    title="Job ada~<b>\nBcc: eve@example.org FAILED",
    text="It ran for 3 s.\n<script>alert(1)</script>",
    thread="job/j1",
    data={
        "job": "j1",
        "retries": {"user": 1},
        "verdict": {
            "code": 1,
            "phrase": "UserCode",
            "cause": "it failed",
            "evidence": "<i>Oom</i>",
        },
    },
    job=JobLabels("ada", "research", "train"),
)


def test_a_message_is_kept_as_it_is() -> None:
    message = message_of(EVENT)
    assert Message.from_json(json.loads(json.dumps(message.to_json()))) == message


def test_a_mail_carries_what_users_wrote_as_text_only() -> None:
    parts = render(message_of(EVENT), 'https://muster.example/jobs/ada~train?a="b"')
    assert "\n" not in parts.subject
    for tag in ("<script>", "<b>", "<i>"):
        assert tag not in parts.html
    assert 'a="b"' not in parts.html
    assert "<script>alert(1)</script>" in parts.text


def test_a_mail_of_a_failed_job_has_verdict_telling_line_and_link_in_both_parts() -> None:
    parts = render(message_of(EVENT), "https://muster.example/jobs/ada~train")
    assert "https://muster.example/jobs/ada~train" in parts.text
    assert '<a href="https://muster.example/jobs/ada~train">' in parts.html
    assert "UserCode (code 1): it failed" in parts.html
    assert "&lt;i&gt;Oom&lt;/i&gt;" in parts.html
    assert "muster job ada~train" in parts.text


def test_a_mail_links_an_alerts_runbook() -> None:
    place = 'https://wiki.example.org/gpu?a=1&b="2"'
    alert = Alert(
        "GpuXid", Severity.CRITICAL, "GPU 3 is bad", {"node": "n1"}, EVENT.at, runbook=place
    )
    parts = render(message_of(events_of([alert])[0]), None)
    assert f"Runbook: {place}" in parts.text
    href = "https://wiki.example.org/gpu?a=1&amp;b=&quot;2&quot;"
    assert f'Runbook: <a href="{href}">{href}</a></p>' in parts.html
    (kept,) = events_of([replace(alert, runbook="docs/runbook.md#nodes")])
    assert "<a " not in render(message_of(kept), None).html


def test_mails_about_one_thing_share_a_thread() -> None:
    other = Event("x", AlertEvent.JOB_RETRIED, EVENT.at, Severity.INFO, "t", "x", "job/j1", {})
    threads = {render(message_of(it), None).thread for it in (EVENT, other)}
    assert len(threads) == 1


def test_a_digest_that_nobody_asked_for_names_its_jobs_and_how_to_end_it() -> None:
    waits = [
        replace(message_of(EVENT), key=name, name="alert-raised", title=f"Job {name} waits")
        for name in ("a~b", "a~c")
    ]
    titles = [
        digest_message("digest/1", "account/a", some, EVENT.at).title for some in (waits, waits[:1])
    ]
    assert titles == ["Job a~b waits (and 1 more)", "Job a~b waits"]
    text = digest_message("digest/1", "account/a", waits * LINES, EVENT.at).text
    assert f"{LINES} more: `muster subscriptions deliveries account`" in text
    assert "`muster why JOB`" in text
    assert "`muster alerts mute --alert JobWaitsLong --for 90d`" in text
    asked = digest_message("digest/1", "s1", waits, EVENT.at)
    assert "mute" not in asked.text


def test_a_digest_counts_its_events_and_shows_the_most_severe_first() -> None:
    ends = [
        replace(EVENT, key=f"job-finished/j{it}", name=AlertEvent.JOB_FINISHED, data={})
        for it in range(LINES + 1)
    ]
    infos = [replace(message_of(it), severity=Severity.INFO, title="Job a~b") for it in ends]
    digest = digest_message("digest/s1/1", "s1", [*infos, message_of(EVENT)], EVENT.at)
    assert digest.title == f"{LINES + 2} events: {LINES + 1} job-finished, 1 job-failed"
    assert digest.severity is Severity.WARNING
    lines = digest.text.splitlines()
    assert lines[:2] == [f"{LINES + 1} job-finished", "1 job-failed"]
    assert lines[3].startswith("2026-01-01 00:00 UTC warning: Job ada")
    assert "  <i>Oom</i>" in lines, "the line of the log that shows it"
    assert lines[-1] == "2 more: `muster subscriptions deliveries s1`"
    assert digest.data["counts"] == {"job-finished": LINES + 1, "job-failed": 1}
    assert Message.from_json(json.loads(json.dumps(digest.to_json()))) == digest


def test_a_digest_has_one_line_for_an_alert_that_began_and_ended() -> None:
    labels = {"node": "n1"}
    alerts = [
        Alert(name, Severity.WARNING, f"{name} of n1", labels, EVENT.at, ident=name)
        for name in ("GpuSetup", "NodeDiskFull")
    ]
    at = EVENT.at + timedelta(minutes=90)
    begins = [message_of(it) for it in events_of(alerts)]
    ends = [message_of(it) for it in events_of([it.resolved(at) for it in alerts])]
    digest = digest_message("digest/s1/1", "s1", [*ends, *begins], at)
    assert digest.title == "NodeDiskFull of n1 (and 1 more)"
    (line,) = [it for it in digest.text.splitlines() if "n1" in it]
    assert line == (
        "began 2026-01-01 00:00 UTC, ended 2026-01-01 01:30 UTC,"
        " warning: NodeDiskFull of n1 (and 1 more)"
    )
    assert digest.data["count"] == 2
    (first_end,) = [message_of(it) for it in events_of([alerts[0].resolved(at)])]
    apart = digest_message("digest/s1/2", "s1", [first_end, *begins], at)
    assert len([it for it in apart.text.splitlines() if "n1" in it]) == 2, "one fires still"
