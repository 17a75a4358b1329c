"""A subject's row: which revision a message gets."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from muster.contracts.gangs import GangRequest
from muster.contracts.topics import Kind
from muster.decisions import Publish
from muster.exchange import Exchange
from muster.subject import Subject

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FLOOR = 1000


def ending(name: str, **how: bool) -> Publish:
    message = GangRequest(
        gang="j-0", job="j", name=name, user="u", virtual_cluster="", priority=0, submitted_at=NOW
    )
    return Publish(Kind.GANG, "j-0", "gang-released", "j-0", message, is_open=False, **how)


def closed_at(revision: int) -> Subject:
    """A closed subject whose latest message is the ending of `old`."""
    row = Subject(Kind.GANG, "j-0").published(ending("old"), None, NOW)
    return replace(row, exchange=Exchange(revision=revision, acknowledged=revision))


@pytest.mark.parametrize("name", ["old", "new"])
def test_a_message_on_a_restored_row_goes_above_the_floor(name: str) -> None:
    row = closed_at(7).published(ending(name), None, NOW, FLOOR)
    assert row.exchange.revision == FLOOR + 1
    assert row.exchange.repeat_at is not None
    assert row.published(ending(name), None, NOW, FLOOR) is row


def test_an_equal_message_without_a_restore_changes_nothing() -> None:
    row = closed_at(7)
    assert row.published(ending("old"), None, NOW) is row


def test_the_first_message_on_a_forgotten_subject_goes_above_the_floor() -> None:
    row = Subject(Kind.GANG, "j-0", is_open=False).published(ending("new"), None, NOW, FLOOR)
    assert row.exchange.revision == FLOOR + 1


def test_a_message_that_was_kept_back_is_not_published_until_it_shall_go_out() -> None:
    quiet = closed_at(7).published(ending("new", only_if_missed=True), None, NOW)
    assert (quiet.exchange.revision, quiet.exchange.repeat_at) == (8, None)
    assert quiet.published(ending("new", only_if_missed=True), None, NOW) is quiet
    out = quiet.published(ending("new"), None, NOW)
    assert out.exchange.revision == 9
    assert out.exchange.repeat_at is not None
    assert out.published(ending("new", only_if_missed=True), None, NOW) is out
