"""Conditions of event rules: expressions in CEL (the Common Expression Language), by the library of
its authors. It bounds the depth of an expression and the iterations of an evaluation.
"""

import re
from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel

EVENT = "event"
MOST_CHARACTERS = 1000
MISSING = "NOT_FOUND"
"""How the failure begins where an event has no such field."""
NO_FIELDS = re.compile(r"""('{3}|"{3}).*?\1|'(\\.|[^'\\])*'|"(\\.|[^"\\])*"|//[^\n]*""", re.DOTALL)
"""Texts and comments."""
FIELD = re.compile(rf"(?<![\w.]){EVENT}\s*\.\s*(\w+)\b(?!\s*\()(?:\s*\.\s*(\w+)\b(?!\s*\())?")
"""A field of the event, and one of that; no call."""

_ENVIRONMENT = cel.NewEnv(variables={EVENT: cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})


class Condition:
    """A condition that could be compiled. Raises ValueError where it can't be."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"has more than {MOST_CHARACTERS} characters")
        try:
            self._expression = _ENVIRONMENT.compile(text)
        except RuntimeError as error:
            raise ValueError(f"can't be read: {_said(error)}") from None
        kind = self._expression.return_type()
        if kind not in (cel.Type.BOOL, cel.Type.DYN):
            raise ValueError(_no_condition(kind))

    def holds(self, event: Mapping[str, Any]) -> bool:
        """Whether it holds for an event. Raises ValueError where that can't be evaluated."""
        try:
            found = self._expression.eval(data={EVENT: event})
        except RuntimeError as error:
            raise ValueError(_said(error)) from None
        value, kind = found.plain_value(), found.type()
        if isinstance(value, bool):
            return value
        raise ValueError(_said(value) if kind == cel.Type.ERROR else _no_condition(kind))


def fields_read(text: str) -> list[tuple[str, str]]:
    """The fields of the event that a condition names, each with the field of it that follows."""
    found = FIELD.finditer(NO_FIELDS.sub("''", text))
    return list(dict.fromkeys((it[1], it[2] or "") for it in found))


def _no_condition(kind: cel.Type) -> str:
    name = kind.name().lower()
    article = "an" if name[0] in "aeiou" else "a"
    return f"is no condition: it gives {article} {name}, not true or false"


def _said(error: object) -> str:
    """The library's first line: the rest points at a column of the text."""
    lines = str(error).removeprefix("INVALID_ARGUMENT: ERROR: ").splitlines()
    return (lines[0] if lines else "it gives no value")[:300].removeprefix("<input>:")
