"""The codes that confirm mail addresses, and by which scripts answer."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import combinations

import pytest
from muster.codes import as_code, confirmation_code, script_code
from muster.contracts.confirmations import Confirmation

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Confirmation(id="c1", user="ann", email="ann@example.org", expires_at=UNTIL)


def test_a_code_is_the_same_wherever_it_is_made_and_belongs_to_one_confirmation() -> None:
    others = [
        ONE,
        ONE.model_copy(update={"id": "c2"}),
        ONE.model_copy(update={"user": "bob"}),
        ONE.model_copy(update={"email": "bob@example.org"}),
    ]
    codes = [confirmation_code("key", each) for each in others] + [confirmation_code("other", ONE)]
    assert codes[0] == confirmation_code("key", ONE.model_copy())
    assert all(a != b for a, b in combinations(codes, 2))
    assert [as_code(code) for code in codes] == codes


def test_a_scripts_code_belongs_to_one_action_and_time() -> None:
    code = script_code("key", "a1", UNTIL)
    assert code == script_code("key", "a1", UNTIL.astimezone(timezone(timedelta(hours=2))))
    others = {
        script_code("other", "a1", UNTIL),
        script_code("key", "a2", UNTIL),
        script_code("key", "a1", UNTIL + timedelta(microseconds=1)),
    }
    assert len(others | {code}) == 4
    assert as_code(code) == code
    assert [as_code(text) for text in ("", code.lower(), f"{code}A", code[1:])] == [None] * 4


def test_without_a_key_there_is_no_code() -> None:
    with pytest.raises(ValueError, match="MUSTER_WEBHOOK_KEY"):
        confirmation_code("", ONE)
    with pytest.raises(ValueError, match="MUSTER_WEBHOOK_KEY"):
        script_code("", "a1", UNTIL)
