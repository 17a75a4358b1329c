"""Subscriptions from the bus: the newest counts, removed ones are gone."""

from typing import Any

from alerting.book import Book
from alerting.metrics import AlertingMetrics
from muster.contracts.notices import SettingChanged
from muster.records import Received
from muster.webhook_secrets import signing_secret
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

SETTING = "subscription/s1"


def a_book(key: str = "key") -> Book:
    return Book(SecretStr(key), AlertingMetrics(CollectorRegistry()))


def remove(book: Book, revision: int) -> None:
    """A null record: the event's id names its revision."""
    headers = {"ce_id": f"rest/setting/{SETTING}/{revision}"}
    book.on_record(Received("settings-changed", 1, 0, SETTING, headers, None), None)


def say(book: Book, revision: int | None, **fields: Any) -> None:
    record = Received("settings-changed", 0, 0, SETTING, {}, None)
    value = {"id": "s1", "owner": "ada", "events": ["job-failed"], "email": "a@b.c", **fields}
    model = SettingChanged(setting=SETTING, revision=revision or 0, value=value)
    book.on_record(record, model if revision else None)


def emails(book: Book) -> list[str | None]:
    return [entry.subscription.email for entry in book.entries()]


def test_the_newest_counts_whatever_the_order() -> None:
    book = a_book()
    say(book, 2, email="new@b.c")
    say(book, 1, email="old@b.c")
    assert emails(book) == ["new@b.c"]
    assert list(book.take_changes()) == [SETTING]
    assert not book.changed.is_set()


def test_a_removed_subscription_is_gone() -> None:
    book = a_book()
    say(book, 1)
    say(book, None)
    assert emails(book) == []
    assert book.take_changes() == {SETTING: None}


def test_the_newest_counts_also_of_a_removal_and_a_change_in_whatever_order() -> None:
    """After a change of the topic's partitions the older may be read last."""
    book = a_book()
    remove(book, 3)
    say(book, 2)
    assert emails(book) == []
    say(book, 5)
    remove(book, 3)
    assert emails(book) == ["a@b.c"]
    remove(book, 5)
    say(book, 5)
    assert emails(book) == []


def test_a_removal_from_before_what_is_kept_removes_nothing() -> None:
    book = a_book()
    value = {"id": "s1", "owner": "ada", "events": ["job-failed"], "email": "a@b.c"}
    assert book.learn(SettingChanged(setting=SETTING, revision=4, value=value))
    remove(book, 3)
    assert emails(book) == ["a@b.c"]


def test_what_is_no_subscription_is_left_alone() -> None:
    book = a_book()
    say(book, 1, email=None)
    record = Received("settings-changed", 0, 0, "virtual-cluster/a", {}, None)
    book.on_record(record, SettingChanged(setting="virtual-cluster/a", revision=1, value={}))
    assert emails(book) == []


def test_what_the_database_would_not_take_is_left_alone() -> None:
    book = a_book()
    say(book, 1, owner="a\x00")
    say(book, 1, id="s2")
    assert emails(book) == []
    assert not book.changed.is_set()


def test_what_could_not_be_kept_is_kept_later_unless_there_is_something_newer() -> None:
    book = a_book()
    say(book, 1)
    first = book.take_changes()
    say(book, 2, email="new@b.c")
    book.put_back(first)
    (kept,) = book.take_changes().values()
    assert kept is not None
    assert kept.revision == 2


def test_each_version_of_a_secret_signs() -> None:
    book = a_book()
    say(book, 1, secretVersions=[2, 1])
    entry = book.entry("s1")
    assert entry is not None
    assert book.secrets(entry) == (signing_secret("key", "s1", 2), signing_secret("key", "s1", 1))
