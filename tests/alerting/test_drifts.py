"""The Scheduler's wrong books are one alert for each gang, from the first word to some minutes
after the last.
"""

from datetime import UTC, datetime, timedelta

from alerting.domain.drifts import DRIFTS, NOBODY, received
from alerting.domain.policy import Policy
from muster.contracts.notices import AccountingDrifted

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy()


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def a_word(second: float = 0, gang: str = "g1", since: float = 0) -> AccountingDrifted:
    drifts = ("quota of x: accounting has 12, placements have 8",)
    return AccountingDrifted(gang=gang, drifts=drifts, since=at(since), at=at(second))


def test_it_is_told_once_until_nothing_more_is_said() -> None:
    first = received(None, a_word(), now=NOW, policy=POLICY)
    (event,), (alert,) = first.events, first.alerts
    assert (event.name, alert.name, alert.labels) == (
        "accounting-drifted",
        "AccountingDrifted",
        {"gang": "g1"},
    )
    assert "accounting has 12, placements have 8" in event.text
    again = received(first.watch, a_word(60), now=at(60), policy=POLICY)
    assert not again.events + again.alerts
    repeated = received(again.watch, a_word(60), now=at(90), policy=POLICY)
    assert repeated.watch == again.watch
    quiet_at = at(60 + POLICY.drift_over_s)
    early = quiet_at - timedelta(seconds=1)
    assert not DRIFTS.time_passed(again.watch, now=early, policy=POLICY).alerts
    over = DRIFTS.time_passed(again.watch, now=quiet_at, policy=POLICY)
    assert (over.alerts[0].ends_at, over.alerts[0].fingerprint) == (quiet_at, alert.fingerprint)
    assert not DRIFTS.time_passed(over.watch, now=quiet_at, policy=POLICY).alerts
    anew = received(over.watch, a_word(900, since=900), now=at(900), policy=POLICY)
    assert anew.events[0].key != event.key


def test_old_words_read_anew_are_no_news() -> None:
    old = a_word(-POLICY.stale_after_s - 1, since=-POLICY.stale_after_s - 1)
    outcome = received(None, old, now=NOW, policy=POLICY)
    assert not outcome.events + outcome.alerts


def test_where_nobody_can_be_named_the_books_are_wrong_all_the_same() -> None:
    outcome = received(None, a_word(gang=NOBODY), now=NOW, policy=POLICY)
    assert outcome.alerts[0].summary == "The Scheduler's accounting is wrong"
    assert "g1" in received(None, a_word(), now=NOW, policy=POLICY).alerts[0].summary
