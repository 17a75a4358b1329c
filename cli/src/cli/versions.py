"""Versions of what administrators set, as people read and write them."""

from collections.abc import Mapping
from typing import Any

from cli.output import milliseconds, print_left, print_table, when


def set_by(newest: Mapping[str, Any] | None) -> list[str]:
    """Who has set what holds, and why; None: nothing was set."""
    if newest is None:
        return ["version 0: nothing was set ever"]
    comment = f": {newest['comment']}" if newest["comment"] else ""
    change = f"{change_of(newest)} by {newest['by']} at {when(milliseconds(newest['at']))} UTC"
    return [" ".join(f"version {newest['version']}, {change}{comment}".split())]


def change_of(version: Mapping[str, Any]) -> str:
    """What was done: a version that was set, removed or rolled back to."""
    if version["action"] == "rollback":
        return f"rollback to {version['rolledBackTo']}"
    return str(version["action"])


def print_versions(found: Mapping[str, Any]) -> None:
    """A page of versions, newest first."""
    rows = [
        (
            each["version"],
            when(milliseconds(each["at"])),
            each["by"],
            change_of(each),
            each["comment"],
        )
        for each in found["versions"]
    ]
    print_table(("VERSION", "MADE (UTC)", "BY", "ACTION", "COMMENT"), rows, ends_in_text=True)
    print_left(found["total"] - len(rows))


def yaml_text(content: object) -> str:
    """As people write it. What is empty has no lines."""
    if content is None:
        return ""
    import yaml  # costs time that other commands need not spend

    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return text
