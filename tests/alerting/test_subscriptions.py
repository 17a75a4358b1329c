"""Subscriptions from the bus: the newest counts, removed ones are gone."""

from typing import Any

from alerting.metrics import AlertingMetrics
from alerting.subscriptions import Subscriptions
from muster.contracts.notices import SettingChanged
from muster.records import Received
from muster.webhook_secrets import signing_secret
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

SETTING = "subscription/s1"


def some_subscriptions(key: str = "key") -> Subscriptions:
    return Subscriptions(SecretStr(key), AlertingMetrics(CollectorRegistry()))


def remove(subscriptions: Subscriptions, revision: int) -> None:
    """A tombstone: the event's id names its revision."""
    headers = {"ce_id": f"rest/setting/{SETTING}/{revision}"}
    subscriptions.on_record(Received("receivers-changed", 1, 0, SETTING, headers, None), None)


def publish(subscriptions: Subscriptions, revision: int | None, **fields: Any) -> None:
    record = Received("receivers-changed", 0, 0, SETTING, {}, None)
    value = {"id": "s1", "owner": "ada", "events": ["job-failed"], "email": "a@b.c", **fields}
    model = SettingChanged(setting=SETTING, revision=revision or 0, value=value)
    subscriptions.on_record(record, model if revision else None)


def emails(subscriptions: Subscriptions) -> list[str | None]:
    return [entry.subscription.email for entry in subscriptions.entries()]


def test_the_newest_counts_whatever_the_order() -> None:
    subscriptions = some_subscriptions()
    publish(subscriptions, 2, email="new@b.c")
    publish(subscriptions, 1, email="old@b.c")
    assert emails(subscriptions) == ["new@b.c"]
    assert list(subscriptions.take_changes()) == [SETTING]
    assert not subscriptions.changed.is_set()


def test_the_same_at_a_higher_revision_keeps_its_version() -> None:
    subscriptions = some_subscriptions()
    for revision, email in ((1, "a@b.c"), (9, "a@b.c"), (10, "new@b.c"), (11, "a@b.c")):
        publish(subscriptions, revision, email=email)
        (entry,) = subscriptions.entries()
        assert entry.version == {9: "1"}.get(revision, str(revision))
    publish(subscriptions, 20)
    remove(subscriptions, 19)
    assert emails(subscriptions) == ["a@b.c"]


def test_a_removed_subscription_is_gone() -> None:
    subscriptions = some_subscriptions()
    publish(subscriptions, 1)
    publish(subscriptions, None)
    assert emails(subscriptions) == []
    assert subscriptions.take_changes() == {SETTING: None}


def test_the_newest_counts_also_of_a_removal_and_a_change_in_whatever_order() -> None:
    """After a change of the topic's partitions the older may be read last."""
    subscriptions = some_subscriptions()
    remove(subscriptions, 3)
    publish(subscriptions, 2)
    assert emails(subscriptions) == []
    publish(subscriptions, 5)
    remove(subscriptions, 3)
    assert emails(subscriptions) == ["a@b.c"]
    remove(subscriptions, 5)
    publish(subscriptions, 5)
    assert emails(subscriptions) == []


def test_a_removal_from_before_what_is_kept_removes_nothing() -> None:
    subscriptions = some_subscriptions()
    value = {"id": "s1", "owner": "ada", "events": ["job-failed"], "email": "a@b.c"}
    assert subscriptions.learn(SettingChanged(setting=SETTING, revision=4, value=value))
    remove(subscriptions, 3)
    assert emails(subscriptions) == ["a@b.c"]


def test_what_is_no_subscription_is_left_alone() -> None:
    subscriptions = some_subscriptions()
    publish(subscriptions, 1, email=None)
    record = Received("receivers-changed", 0, 0, "virtual-cluster/a", {}, None)
    subscriptions.on_record(
        record, SettingChanged(setting="virtual-cluster/a", revision=1, value={})
    )
    assert emails(subscriptions) == []


def test_what_the_database_would_not_take_is_left_alone() -> None:
    subscriptions = some_subscriptions()
    publish(subscriptions, 1, owner="a\x00")
    publish(subscriptions, 1, id="s2")
    assert emails(subscriptions) == []
    assert not subscriptions.changed.is_set()


def test_what_could_not_be_kept_is_kept_later_unless_there_is_something_newer() -> None:
    subscriptions = some_subscriptions()
    publish(subscriptions, 1)
    first = subscriptions.take_changes()
    publish(subscriptions, 2, email="new@b.c")
    subscriptions.put_back(first)
    (kept,) = subscriptions.take_changes().values()
    assert kept is not None
    assert kept.revision == 2


def test_each_version_of_a_secret_signs() -> None:
    subscriptions = some_subscriptions()
    publish(subscriptions, 1, secretVersions=[2, 1])
    entry = subscriptions.entry("s1")
    assert entry is not None
    assert subscriptions.target(entry).secrets == (
        signing_secret("key", "s1", 2),
        signing_secret("key", "s1", 1),
    )
