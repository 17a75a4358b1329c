"""Which passwords people may choose."""

import pytest
from muster.passwords import MAX_CHARACTERS, password_problem


@pytest.mark.parametrize(
    "password", ["correct-horse", "Zwei Wörter", "x7-Lq!92", "ann-of-green-gables"]
)
def test_a_password_that_is_long_and_unusual_is_good(password: str) -> None:
    assert password_problem(password, "ann") is None


@pytest.mark.parametrize(
    ("password", "message"),
    [
        ("seven-7", "8 to 256"),
        ("x" * (MAX_CHARACTERS + 1), "8 to 256"),
        ("password", "common"),
        ("PassWord", "common"),
        ("Dragon2024!", "common"),
        ("iloveyou", "common"),
        ("qwertyuiop", "common"),
        ("20241124", "digits"),
        ("Ann.Smith", "user's name"),
        ("ann.smith1", "user's name"),
    ],
)
def test_one_that_is_guessed_first_is_refused_with_the_fix(password: str, message: str) -> None:
    problem = password_problem(password, "ann.smith")
    assert problem is not None
    assert message in problem
