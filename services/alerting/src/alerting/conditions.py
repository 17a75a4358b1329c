"""Conditions of event rules: expressions in CEL (the Common Expression Language), by the library of
its authors. It bounds the depth of an expression and the iterations of an evaluation.
"""

from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel

EVENT = "event"
MOST_CHARACTERS = 1000

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
            raise ValueError(f"is no condition: it gives a {kind.name()}, not true or false")

    def holds(self, event: Mapping[str, Any]) -> bool:
        """Whether it holds for an event. Raises ValueError where that can't be evaluated."""
        try:
            found = self._expression.eval(data={EVENT: event})
        except RuntimeError as error:
            raise ValueError(_said(error)) from None
        value = found.plain_value()
        if found.type() == cel.Type.ERROR or not isinstance(value, bool):
            raise ValueError(_said(value))
        return value


def _said(error: object) -> str:
    """The library's first line: the rest points at a column of the text."""
    lines = str(error).removeprefix("INVALID_ARGUMENT: ERROR: ").splitlines()
    return (lines[0] if lines else "it gives no value")[:300].removeprefix("<input>:")
