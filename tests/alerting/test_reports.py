"""The weekly usage report as a mail: once, as text and HTML."""

import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from alerting.domain.messages import message_of
from alerting.domain.rendering.mail import render
from alerting.domain.reports import event_of
from muster.contracts.reports import UsageLine, UsageReported

WEEK = date(2026, 1, 26)
NOW = datetime(2026, 2, 2, tzinfo=UTC)
STATES = "SELECT state, count(*) FROM delivery GROUP BY state ORDER BY state"


def a_line(name: str, held: float = 200.0, used: float = 150.0, **more: float) -> UsageLine:
    rest = {"idle": 5.0, "unknown": 0.0, "refunded": 2.0} | more
    return UsageLine(name=name, held=held, used=used, **rest)


def a_report(**fields: Any) -> UsageReported:
    known = {
        "week": WEEK, "total": a_line("all"), "virtual_clusters": (a_line("vision"),),
        "users": (a_line("ann"),), "jobs": (a_line("ann~<b>" + "x" * 40),), "at": NOW,
    }  # fmt: skip
    return UsageReported(**known | fields)


def test_the_report_is_a_table_in_text_and_html() -> None:
    mail = render(message_of(event_of(a_report(missing=3))), None)
    assert mail.subject == "[Muster] GPU-hours, week of 2026-01-26: 200 held, 75% used"
    lines = mail.text.splitlines()
    assert "ann                                  200.0     150.0       5.0       0.0" in mail.text
    assert max(map(len, lines[4:])) < 100
    assert "3 nodes did not tell" in mail.text
    assert f"muster report --week {WEEK} --csv" in mail.text
    assert mail.html.count("<pre>") == 4  # a gap between tables, as in the text
    assert "ann~&lt;b&gt;" in mail.html


def test_a_small_report_has_a_second_decimal() -> None:
    small = a_line("ann", held=0.04, used=0.04, idle=0.0, refunded=0.0)
    mail = render(message_of(event_of(a_report(total=small, users=(small,)))), None)
    assert "ann                                   0.04      0.04      0.00      0.00" in mail.text


def test_what_is_not_known_is_no_share() -> None:
    unknown = a_line("all", held=100.0, used=0.0, unknown=100.0)
    assert "used" not in event_of(a_report(total=unknown)).title
    assert event_of(a_report(total=a_line("all", held=0.0, used=0.0))).title.endswith(": 0 held")


async def test_a_report_that_is_published_again_is_mailed_once(
    cluster: Any, start_mailbox: Callable[..., Any]
) -> None:
    mailbox = start_mailbox()
    await cluster.subscribe(events=("usage-reported",), email="ops@example.org")
    now = datetime.fromtimestamp(time.time(), UTC)
    reports = [a_report(at=now, week=week) for week in (WEEK, WEEK, date(2026, 2, 2))]
    async with cluster.alerting(smtp_host="127.0.0.1", smtp_port=mailbox.port):
        for each in reports:
            await cluster.publish("usage-reported", str(each.week), each)
        await cluster.until(STATES, [("sent", 2)])
    assert mailbox.recipients == ["ops@example.org"] * 2
    weeks = sorted(str(mail["Subject"]).partition(":")[0] for mail in mailbox.mails)
    assert weeks == [f"[Muster] GPU-hours, week of {it}" for it in (WEEK, "2026-02-02")]
