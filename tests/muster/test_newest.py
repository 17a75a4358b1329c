"""Which of two records about a key counts."""

import pytest
from muster.contracts.notices import SettingChanged
from muster.newest import Newest
from muster.records import Received

KEY = "node/n0"


def is_news(newest: Newest, revision: int, *, removed: bool = False, event_id: str = "") -> bool:
    """Whether a record counts; ``event_id``: where it is not REST's."""
    headers = {"ce_id": event_id or f"rest/setting/{KEY}/{revision}"}
    value = None if removed else SettingChanged(setting=KEY, revision=revision, value={})
    return newest.is_news(Received("settings-changed", 0, 0, KEY, headers, None), value)


def test_what_is_older_or_was_removed_with_the_same_revision_is_no_news() -> None:
    newest = Newest()
    assert is_news(newest, 5)
    assert is_news(newest, 5), "it is repeated"
    assert not is_news(newest, 4)
    assert not is_news(newest, 4, removed=True)
    assert is_news(newest, 5, removed=True)
    assert not is_news(newest, 5)
    assert is_news(newest, 6)


@pytest.mark.parametrize(
    "event_id", ["x", f"rest/setting/{KEY}", f"rest/setting/{KEY}/", "cli/other/9", f"a/{KEY}/٩"]
)
def test_a_removal_without_a_revision_counts_and_whatever_comes_after_it(event_id: str) -> None:
    newest = Newest()
    assert is_news(newest, 5)
    assert is_news(newest, 0, removed=True, event_id=event_id)
    assert is_news(newest, 1)
    assert not is_news(newest, 0)
