"""Which values a setting takes, as its service reads them from the environment. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

Rule = Mapping[str, Any]
"""What a JSON schema says of a value; empty: each text is one."""

KINDS: Mapping[str, Any] = {"integer": int, "number": float, "boolean": bool, "string": str}
NOUNS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
SHOWN = 40
BOUNDS = {
    "exclusiveMinimum": ("gt", "above {}"),
    "minimum": ("ge", "of at least {}"),
    "maximum": ("le", "of at most {}"),
    "minLength": ("min_length", "of at least {} characters"),
    "maxLength": ("max_length", "of at most {} characters"),
    "pattern": ("pattern", "that matches {}"),
}


def is_taken(rule: Rule, text: str) -> bool:
    """Whether the service starts with this text."""
    if not rule:
        return True
    if "enum" in rule:
        return text in rule["enum"]
    bounds = {BOUNDS[name][0]: value for name, value in rule.items() if name in BOUNDS}
    kind: Any = Annotated[KINDS[rule["type"]], Field(**bounds)]
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return False
    return True


def wanted(rule: Rule) -> str:
    """What it takes, in words."""
    if "enum" in rule:
        return f"one of {', '.join(each or 'an empty text' for each in rule['enum'])}"
    noun = NOUNS.get(rule["type"], "a text")
    bounds = [words.format(rule[name]) for name, (_, words) in BOUNDS.items() if name in rule]
    return " ".join([noun, " and ".join(bounds)]).strip()


def shown(rule: Rule, text: str) -> str:
    """The value for people, unless it may have a password: addresses may."""
    if "pattern" in rule:
        return "what it is"
    return f"{text[:SHOWN]}…" if len(text) > SHOWN else text or "empty"
