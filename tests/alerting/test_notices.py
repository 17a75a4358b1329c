"""Which alerts are one event: one cause, and one job."""

from datetime import UTC, datetime

from alerting.domain.deliveries import deliveries
from alerting.domain.events import Alert, Event, JobLabels, Severity
from alerting.domain.notices import events_of
from muster.contracts.subscriptions import Subscription, SubscriptionFilter

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def an_alert(ident: str, **labels: str) -> Alert:
    return Alert("GpuHot", Severity.WARNING, f"GPU {ident} is hot", labels, NOW, ident=ident)


def named(event: Event) -> list[str]:
    alerts = event.data["alerts"]
    assert isinstance(alerts, list)
    return sorted(str(it["alert"]) for it in alerts if isinstance(it, dict))


def test_users_get_their_own_alerts_of_a_group_of_several_users() -> None:
    alerts = [
        an_alert("a", username="ada", job_name="train"),
        an_alert("b", username="bob", job_name="train"),
        an_alert("c", user="ada", jobName="ada~train"),
        an_alert("d", node="n1"),
    ]
    events = events_of(alerts, "group/g")
    of_ada = Subscription(
        id="s1",
        owner="ada",
        events=("alert-raised",),
        email="ada@example.org",
        filter=SubscriptionFilter(users=("ada",)),
    )
    got = [it.event for event in events for it in deliveries([of_ada], event, now=NOW)]
    assert [(named(it), it.job) for it in got] == [(["a", "c"], JobLabels("ada", "", "train"))]
    assert sorted(map(named, events)) == [["a", "c"], ["b"], ["d"]]
    assert len({it.key for it in events}) == 3


def test_the_end_of_a_group_names_the_alert_that_its_begin_named() -> None:
    alerts = [an_alert(ident, node="n1") for ident in "abc"]
    (begun,) = events_of(alerts)
    (ended,) = events_of([it.resolved(NOW) for it in reversed(alerts)])
    assert ended.data["alert"] == begun.data["alert"]
    assert ended.text == begun.text
