"""A node name that two machines have is one alert, from the first notice to some minutes after the
last.
"""

from datetime import UTC, datetime, timedelta

from alerting.domain.clashes import CLASHES, received
from alerting.domain.policy import Policy
from muster.contracts.nodes import NodeNameClashed

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy()


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def a_notice(
    second: float = 0, *, address: str = "10.0.0.2", other: str = "10.0.0.1"
) -> NodeNameClashed:
    return NodeNameClashed(
        node="n1",
        journal="j1",
        address=address,
        other_journal="j2",
        other_address=other,
        since=at(-60),
        at=at(second),
    )


def test_a_repeated_clash_is_one_event_with_both_addresses_until_it_is_over() -> None:
    first = received(None, a_notice(), now=NOW, policy=POLICY)
    (event,), (alert,) = first.events, first.alerts
    assert (event.name, event.at, alert.name) == ("node-name-clash", at(-60), "NodeNameClash")
    assert alert.labels == {"node": "n1", "address": "10.0.0.1", "otherAddress": "10.0.0.2"}
    assert alert.summary == "Two machines report as node n1: 10.0.0.1 and 10.0.0.2"
    assert event.title == alert.summary
    again = received(first.watch, a_notice(60), now=at(60), policy=POLICY)
    assert not again.events + again.alerts
    quiet_at = at(60 + POLICY.clash_over_s)
    early = quiet_at - timedelta(seconds=1)
    assert not CLASHES.time_passed(again.watch, now=early, policy=POLICY).alerts
    over = CLASHES.time_passed(again.watch, now=quiet_at, policy=POLICY)
    assert (over.alerts[0].ends_at, over.alerts[0].fingerprint) == (quiet_at, alert.fingerprint)


def test_which_machine_is_named_first_does_not_matter() -> None:
    first = received(None, a_notice(), now=NOW, policy=POLICY)
    turned = a_notice(60, address="10.0.0.1", other="10.0.0.2")
    again = received(first.watch, turned, now=at(60), policy=POLICY)
    assert again.watch.key == first.watch.key
    assert not again.events + again.alerts
