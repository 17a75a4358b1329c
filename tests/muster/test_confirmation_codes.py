"""The codes that confirm mail addresses."""

from datetime import UTC, datetime
from itertools import combinations

import pytest
from muster.confirmation_codes import confirmation_code
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
    assert {len(code) for code in codes} == {32}


def test_without_a_key_there_is_no_code() -> None:
    with pytest.raises(ValueError, match="MUSTER_WEBHOOK_KEY"):
        confirmation_code("", ONE)
