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


def has(root: Node, path: Sequence[str | int]) -> bool:
    """Whether there is a node at a path."""
    node: Node | None = root
    for part in path:
        node = None if node is None else _child(node, part)
    return node is not None


def _child(node: Node, part: str | int) -> Node | None:
    if isinstance(node.children, dict) and isinstance(part, str):
        return node.children.get(part)
    if isinstance(node.children, list) and isinstance(part, int) and part < len(node.children):
        return node.children[part]
    return None


def fields(root: Node, *path: str | int) -> dict[str, Node]:
    """The fields of the mapping at a path."""
    children = find(root, path).children if has(root, path) else None
    return children if isinstance(children, dict) else {}


def items(root: Node, *path: str | int) -> list[Node]:
    """The entries of the list at a path."""
    children = find(root, path).children if has(root, path) else None
    return children if isinstance(children, list) else []


def string(root: Node, *path: str | int) -> str:
    """The string at a path."""
    value = find(root, path).value if has(root, path) else None
    return value if isinstance(value, str) else ""


def problem_at(root: Node, path: Sequence[str | int], message: str) -> Problem:
    """A problem with the place of the node at a path."""
    node = find(root, path)
    return Problem(join_path(path), message, node.line, node.column)
