"""Another name for a job file's job, with all else as it was written: comments, order, lines."""

import json
import re

from muster.errors import Problem
from muster.protocol.document import read_document
from muster.protocol.problems import ProtocolError
from muster.protocol.tree import look_up

_KEY = re.compile(r"""(["']?)name\1\s*:\s*""")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""")


def renamed(text: str, name: str) -> str:
    """The file with another name. Raises ProtocolError where it can't be read, or has no plain
    name of its own.
    """
    text, root = read_document(text.encode())
    node = look_up(root, ("name",))
    if node is None or node.text is None:
        message = "is missing; start the file with `protocolVersion: 2` and `name: …`"
        raise ProtocolError([Problem("name", message, 1, 1)])
    lines = text.splitlines(keepends=True)
    key = _KEY.match(text, sum(map(len, lines[: node.line - 1])) + node.column - 1)
    if key is not None:
        quoted = _QUOTED.match(text, key.end())
        if quoted or text.startswith(node.text, key.end()):
            end = quoted.end() if quoted else key.end() + len(node.text)
            return text[: key.end()] + json.dumps(name) + text[end:]  # also `2024` is a name
    message = "is not written plainly, so it can't be replaced; write `name: …` in one line"
    raise ProtocolError([Problem("name", message, node.line, node.column)])
