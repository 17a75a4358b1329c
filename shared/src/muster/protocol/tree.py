"""Looking around in a file's tree, whatever it is made of: what is not there, or is of another
kind, is simply empty. So names are checked also in a file whose shape is wrong.
"""

from collections.abc import Sequence

from muster.errors import Problem
from muster.protocol.document import Node
from muster.protocol.problems import join_path

Path = tuple[str | int, ...]


def find(root: Node, path: Sequence[str | int]) -> Node:
    """The node at a path, or the nearest one above it that is there."""
    node = root
    for part in path:
        below = _child(node, part)
        if below is None:
            break
        node = below
    return node


def look_up(root: Node, path: Sequence[str | int]) -> Node | None:
    """The node at a path, if there is one."""
    node: Node | None = root
    for part in path:
        if node is None:
            return None
        node = _child(node, part)
    return node


def _child(node: Node, part: str | int) -> Node | None:
    children = node.children
    if isinstance(children, dict):
        return children.get(part) if isinstance(part, str) else None
    if isinstance(children, list) and isinstance(part, int) and part < len(children):
        return children[part]
    return None


def fields(root: Node, *path: str | int) -> dict[str, Node]:
    """The fields of the mapping at a path."""
    node = look_up(root, path)
    return node.children if node is not None and isinstance(node.children, dict) else {}


def items(root: Node, *path: str | int) -> list[Node]:
    """The entries of the list at a path."""
    node = look_up(root, path)
    return node.children if node is not None and isinstance(node.children, list) else []


def string(root: Node, *path: str | int) -> str:
    """The string at a path."""
    node = look_up(root, path)
    return node.value if node is not None and isinstance(node.value, str) else ""


def problem_at(root: Node, path: Sequence[str | int], message: str) -> Problem:
    """A problem with the place of the node at a path."""
    node = find(root, path)
    return Problem(join_path(path), message, node.line, node.column)
