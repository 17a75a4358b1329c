"""The Scheduler's wrong accounting is one alert for each gang, from the first notice to some
minutes after the last.
"""

from datetime import UTC, datetime, timedelta

from alerting.domain.drifts import DRIFTS, NOBODY, received
from alerting.domain.policy import Policy
from muster.contracts.notices import AccountingDrifted

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy()


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def a_notice(second: float = 0, gang: str = "g1", since: float = 0) -> AccountingDrifted:
    drifts = ("quota of x: accounting has 12, placements have 8",)
    return AccountingDrifted(gang=gang, drifts=drifts, since=at(since), at=at(second))


def test_a_repeated_drift_is_one_event_until_it_is_over() -> None:
    first = received(None, a_notice(), now=NOW, policy=POLICY)
    (event,), (alert,) = first.events, first.alerts
    assert (event.name, alert.name, alert.labels) == (
        "accounting-drifted",
        "AccountingDrifted",
        {"gang": "g1"},
    )
    assert "accounting has 12, placements have 8" in event.text
    again = received(first.watch, a_notice(60), now=at(60), policy=POLICY)
    assert not again.events + again.alerts
    repeated = received(again.watch, a_notice(60), now=at(90), policy=POLICY)
    assert repeated.watch == again.watch
    quiet_at = at(60 + POLICY.drift_over_s)
    early = quiet_at - timedelta(seconds=1)
    assert not DRIFTS.time_passed(again.watch, now=early, policy=POLICY).alerts
    over = DRIFTS.time_passed(again.watch, now=quiet_at, policy=POLICY)
    assert (over.alerts[0].ends_at, over.alerts[0].fingerprint) == (quiet_at, alert.fingerprint)
    assert not DRIFTS.time_passed(over.watch, now=quiet_at, policy=POLICY).alerts
    anew = received(over.watch, a_notice(900, since=900), now=at(900), policy=POLICY)
    assert anew.events[0].key != event.key


def test_an_old_notice_read_again_is_no_event() -> None:
    old = a_notice(-POLICY.stale_after_s - 1, since=-POLICY.stale_after_s - 1)
    outcome = received(None, old, now=NOW, policy=POLICY)
    assert not outcome.events + outcome.alerts


def test_a_drift_without_a_gang_is_an_alert_too() -> None:
    outcome = received(None, a_notice(gang=NOBODY), now=NOW, policy=POLICY)
    assert outcome.alerts[0].summary == "The Scheduler's accounting is wrong"
    assert "g1" in received(None, a_notice(), now=NOW, policy=POLICY).alerts[0].summary
