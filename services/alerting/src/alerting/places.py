"""Where in a YAML file something is wrong."""

from typing import Any

from muster.errors import Problem
from muster.protocol.document import Node


def problem_at(root: Node, path: tuple[str | int, ...], message: str) -> Problem:
    """The problem with the line of the innermost field on its path that the file has."""
    node = root
    for step in path:
        children: Any = node.children
        try:
            node = children[step]
        except (KeyError, IndexError, TypeError):
            break
    named = ".".join(str(step) for step in path)
    text = message.removeprefix("Value error, ").replace("a valid tuple", "a list")
    return Problem(named, text, node.line, node.column)
