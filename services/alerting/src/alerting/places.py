"""Where in a YAML file something is wrong."""

import re
from typing import Any

from muster.errors import Problem
from muster.protocol.document import Node

PLAIN = {
    "a valid tuple": "a list",
    r"a valid dictionary( or instance of \w+)?": "a mapping",
    "Extra inputs are not permitted": "there is no such field",
}
"""Words of Python, and what they are to readers of YAML."""


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
    text = message.removeprefix("Value error, ")
    for pattern, plain in PLAIN.items():
        text = re.sub(pattern, plain, text)
    return Problem(named, text, node.line, node.column)
