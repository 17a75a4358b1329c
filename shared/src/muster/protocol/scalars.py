"""What a plain scalar means: the core schema of YAML 1.2, so that ``no``, ``12:30:00`` and ``0777``
are what they look like.
"""

import re

Scalar = str | int | float | bool | None

_CONSTANTS: dict[str, Scalar] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_MAY_BE_NUMBER = frozenset("0123456789+-.")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NOT_A_NUMBER = frozenset((".nan", ".NaN", ".NAN"))

MAX_INTEGER_CHARACTERS = 40
"""Longer digits become a float, as in JavaScript: nobody means an integer, and reading one of a
million digits takes minutes."""

TAGS = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:null": type(None),
}
"""The tags that a scalar may carry, and the Python type of each."""


def resolve(text: str) -> Scalar:
    """The value of a plain scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _MAY_BE_NUMBER:
        return text
    if _INTEGER.fullmatch(text) and len(text) <= MAX_INTEGER_CHARACTERS:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _HEXADECIMAL.fullmatch(text) and len(text) <= MAX_INTEGER_CHARACTERS:
        return int(text, 16)
    if _OCTAL.fullmatch(text) and len(text) <= MAX_INTEGER_CHARACTERS:
        return int(text, 8)
    if _INFINITE.fullmatch(text):
        return float("-inf" if text.startswith("-") else "inf")
    return float("nan") if text in _NOT_A_NUMBER else text


def convert(text: str, tag: str) -> Scalar:
    """The value of a scalar with an explicit tag. Raises ValueError where they don't fit."""
    wanted = TAGS[tag]
    if wanted is str:
        return text
    value = resolve(text)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ValueError(tag)
    return value
