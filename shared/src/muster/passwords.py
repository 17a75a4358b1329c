"""Which passwords people may choose: long enough, and none of those that are guessed first."""

import string
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import AfterValidator, SecretStr

ADMIN = "admin"
"""The administrator that the first start creates."""

MIN_CHARACTERS = 8
MAX_CHARACTERS = 256
"""Hashing takes time with length; longer ones are refused."""


def password_problem(password: str, username: str) -> str | None:
    """Why this user can't have this password, and the fix; None where they can."""
    if not MIN_CHARACTERS <= len(password) <= MAX_CHARACTERS:
        return f"A password has {MIN_CHARACTERS} to {MAX_CHARACTERS} characters."
    if password.isdigit():
        return "A password of digits alone is guessed soon; add letters."
    whole = password.casefold()
    stem = whole.rstrip(string.digits + string.punctuation)
    if username.casefold() in (whole, stem):
        return "The password is the user's name; choose another one."
    if not _common().isdisjoint((whole, stem)):
        return "The password is a common one, which is guessed first; choose several words."
    return None


@cache
def _common() -> frozenset[str]:
    text = (files(__package__) / "common_passwords.txt").read_text()
    return frozenset(line for line in text.splitlines() if not line.startswith("# "))


def _good_for_admin(password: SecretStr) -> SecretStr:
    problem = password_problem(password.get_secret_value(), ADMIN)
    if problem is not None:
        raise ValueError(problem)
    return password


AdminPassword = Annotated[SecretStr, AfterValidator(_good_for_admin)]
"""A setting: the password of the first administrator."""
