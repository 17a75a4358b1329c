"""Which alerts are one event: one cause, and one job."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from alerting.domain.deliveries import deliveries
from alerting.domain.events import Alert, Event, JobLabels, Severity
from alerting.domain.notices import events_of, incident_of
from muster.contracts.alerts import AlertSubject, subject_of
from muster.contracts.subscriptions import Subscription, SubscriptionFilter

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def an_alert(ident: str, **labels: str) -> Alert:
    return Alert("GpuHot", Severity.WARNING, f"GPU {ident} is hot", labels, NOW, ident=ident)


def of_group(alerts: Iterable[Alert]) -> list[Alert]:
    return [replace(it, cause="group/g") for it in alerts]


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
    events = events_of(of_group(alerts))
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
    assert begun.title == "GPU c is hot (and 2 more)"


@pytest.mark.parametrize("summary", ["GPU 3 is hot", "GPU 3 is hot."])
def test_a_line_ends_with_the_address_of_the_runbook(summary: str) -> None:
    alert = replace(an_alert("a", node="n1"), summary=summary)
    bare, with_runbook = (
        event.text
        for it in (None, "../wiki#gpu-hot")
        for event in events_of([replace(alert, runbook=it)])
    )
    assert bare == "warning: GPU 3 is hot."
    assert with_runbook == "warning: GPU 3 is hot. Runbook: ../wiki#gpu-hot"


def test_an_end_has_the_cause_of_its_begin() -> None:
    """One of a group of Alertmanager's that it repeats no more, or that ends with others."""
    first, second, third = of_group(an_alert(ident, node="n1") for ident in "abc")
    (begun,) = events_of([first, second])
    (ended,) = events_of([first.resolved(NOW)])
    (other,) = events_of([second.resolved(NOW), third.resolved(NOW)])
    found = {(it.thread, it.data["incident"]) for it in (begun, ended, other)}
    assert found == {("group/g", incident_of(first))}


@pytest.mark.parametrize(
    ("labels", "subject"),
    [
        ({"user": "ada", "jobName": "ada~train", "node": "n1"}, ("ada", "", "train", "n1")),
        ({"username": "ada", "job_name": "train", "node_name": "n1"}, ("ada", "", "train", "n1")),
        ({"job_name": "ada~train", "virtual_cluster": "vip"}, ("ada", "vip", "train", "")),
        ({"user": "", "username": "ada", "virtualCluster": "vip"}, ("ada", "vip", "", "")),
        ({"job": "j1"}, ("", "", "", "")),
    ],
)
def test_whose_an_alert_is_by_its_labels(labels: dict[str, str], subject: tuple[str, ...]) -> None:
    assert subject_of(labels) == AlertSubject(*subject)


def test_alerts_of_a_virtual_cluster_without_a_user_reach_its_owners_only() -> None:
    (event,) = events_of([an_alert("a", virtual_cluster="vip")])
    found = [
        Subscription(
            id=owner,
            owner=owner,
            events=("alert-raised",),
            email="ada@example.org",
            filter=filter_,
        )
        for owner, filter_ in (
            ("user", SubscriptionFilter(users=("user",))),
            ("owner", SubscriptionFilter(virtual_clusters=("vip",))),
            ("other", SubscriptionFilter(virtual_clusters=("lab",))),
            ("operator", SubscriptionFilter()),
        )
    ]
    got = [it.subscription for it in deliveries(found, event, now=NOW)]
    assert got == ["owner", "operator"]
