"""From bytes to a tree of nodes that know their line, within bounds that no YAML bomb passes.

libyaml's events are read one by one and the limits are checked at each, so a hostile file costs
what was read up to the limit and not what it would have become: libyaml itself has no bound on
depth, and takes quadratic time for it.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from muster.errors import Problem
from muster.protocol.escapes import HALF, JoinedPairs, has_pairs
from muster.protocol.problems import ProtocolError
from muster.protocol.scalars import TAGS, convert, resolve

MAX_BYTES = 1024 * 1024
"""Size of a job file."""

MAX_DEPTH = 50
"""Mappings and lists within one another."""

MAX_NODES = 20_000
"""Keys and values, those that aliases repeat included."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a file may be, in bytes and in keys and values; ``what`` it is, for people."""

    what: str = "a job file"
    max_bytes: int = MAX_BYTES
    max_nodes: int = MAX_NODES


JOB_FILE = Limits()

_MAP = "tag:yaml.org,2002:map"
_SEQ = "tag:yaml.org,2002:seq"
_MERGE = "<<"


@dataclass(slots=True)
class Node:
    """A value and where it stands. ``line`` and ``column`` count from 1.

    ``value`` is plain Python data of the whole subtree. ``text`` is a scalar as it was written.
    ``children`` are the nodes of a mapping (by key) or of a list. ``size`` counts the subtree's
    nodes.
    """

    line: int
    column: int
    value: Any
    text: str | None = None
    children: "dict[str, Node] | list[Node] | None" = None
    size: int = 1


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not been read."""

    node: Node
    anchor: str | None
    key: Node | None = None
    merged: list[Node] = field(default_factory=list)


def read_document(data: bytes, limits: Limits = JOB_FILE) -> tuple[str, Node]:
    """The text of a file and its tree. Raises ProtocolError."""
    text = _decode(data, limits)
    if not has_pairs(text):
        return text, _compose(text, limits)
    joined = JoinedPairs(text)
    try:
        root = _compose(joined.text, limits)
    except ProtocolError as error:
        raise ProtocolError([_as_before(problem, joined) for problem in error.problems]) from None
    below = [root]
    while below:  # JSON has no aliases: each node is met once
        node = below.pop()
        node.column = joined.column_before(node.line, node.column)
        children = node.children or ()
        below.extend(children.values() if isinstance(children, dict) else children)
    return text, root


def _as_before(problem: Problem, joined: JoinedPairs) -> Problem:
    line, column = problem.line or 1, problem.column or 1
    return replace(problem, column=joined.column_before(line, column))


def _compose(text: str, limits: Limits) -> Node:
    try:
        return _Composer(text, limits).compose()
    except yaml.MarkedYAMLError as error:
        raise ProtocolError([_syntax_problem(error, text)]) from None
    except yaml.reader.ReaderError as error:
        line, column = _place(text, text.encode()[: error.position].decode(errors="ignore"))
        message = "YAML does not allow this character; remove it or write it as an escape"
        raise ProtocolError([Problem("", message, line, column)]) from None


def _decode(data: bytes, limits: Limits) -> str:
    if len(data) > limits.max_bytes:
        message = f"The file has {len(data)} bytes; {limits.max_bytes} are the most"
        raise ProtocolError([Problem("", message, 1, 1)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        line, column = _place(text, data[: error.start].decode(errors="ignore"))
        message = "The file is not UTF-8 from here on; save it as UTF-8"
        raise ProtocolError([Problem("", message, line, column)]) from None


def _place(text: str, before: str) -> tuple[int, int]:
    """Line and column of what follows ``before`` in ``text``."""
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    return min(line, max(1, len(text.splitlines()))), column


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = min(mark.line + 1, max(1, len(text.splitlines()))) if mark else 1
    column = mark.column + 1 if mark else 1
    half = HALF.match(text, mark.index - len(r"\u")) if mark else None
    if half is not None:
        message = f"{half[0]} is half a character; write the whole one as itself"
        return Problem("", message, line, column - len(r"\u"))
    reason = ", ".join(part for part in (error.context, error.problem) if part)
    return Problem("", f"This is not YAML: {reason}", line, column)


class _Composer:
    """Builds the tree from libyaml's events, with a stack of its own instead of recursion."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._parser = yaml.CSafeLoader(text)
        self._text = text
        self._limits = limits
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._nodes = 0
        self._root: Node | None = None

    def compose(self) -> Node:
        """Read to the end of the stream."""
        try:
            while True:
                event = self._parser.get_event()
                match event:
                    case ScalarEvent():
                        self._scalar(event)
                    case MappingStartEvent():
                        self._open(event, Node(*_at(event), {}, None, {}), _MAP)
                    case SequenceStartEvent():
                        self._open(event, Node(*_at(event), [], None, []), _SEQ)
                    case MappingEndEvent() | SequenceEndEvent():
                        self._close()
                    case AliasEvent():
                        self._alias(event)
                    case DocumentStartEvent() if self._root is not None:
                        raise _refuse(
                            event, "A second document starts here; one is all that is read"
                        )
                    case StreamEndEvent() | None:
                        return self._root or Node(1, 1, None, "")
                    case _:
                        assert isinstance(
                            event, StreamStartEvent | DocumentStartEvent | DocumentEndEvent
                        )
        finally:
            self._parser.dispose()

    def _count(self, event: yaml.Event, nodes: int) -> None:
        self._nodes += nodes
        most = self._limits.max_nodes
        if self._nodes > most:
            message = f"One value too many: {most} are the most in {self._limits.what}"
            raise _refuse(event, message)

    def _scalar(self, event: ScalarEvent) -> None:
        self._count(event, 1)
        text, tag = event.value, event.tag
        if "\0" in text:
            raise _refuse(event, "No command can carry the NUL character in this text; remove it")
        if tag is None or tag == "!":
            value = resolve(text) if event.implicit[0] else text
        elif tag in TAGS:
            try:
                value = convert(text, tag)
            except ValueError:
                raise _refuse(event, f"This value is not valid for its tag {_short(tag)}") from None
        else:
            raise _refuse(event, f"The tag {_short(tag)} is unknown; remove it")
        node = Node(*_at(event), value, text)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._put(node, event)

    def _open(self, event: MappingStartEvent | SequenceStartEvent, node: Node, tag: str) -> None:
        self._count(event, 1)
        if event.tag not in (None, "!", tag):
            raise _refuse(event, f"The tag {_short(event.tag)} is unknown; remove it")
        if len(self._stack) >= MAX_DEPTH:
            raise _refuse(event, f"This is nested too deeply: {MAX_DEPTH} levels are the most")
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)
        self._stack.append(_Open(node, event.anchor))

    def _close(self) -> None:
        done = self._stack.pop()
        node = done.node
        for source in done.merged:
            _merge(node, source)
        if done.anchor is not None:
            self._anchors[done.anchor] = node
        self._put(node, None)

    def _alias(self, event: AliasEvent) -> None:
        target = self._anchors.get(event.anchor or "")
        if target is None:
            raise _refuse(event, f"*{event.anchor} repeats what is not complete before this line")
        self._count(event, target.size)
        line, column = _at(event)
        node = Node(line, column, target.value, target.text, target.children, target.size)
        self._put(node, event)

    def _put(self, node: Node, event: yaml.Event | None) -> None:
        """Hand a complete node to the collection that it stands in."""
        if not self._stack:
            self._root = node
            return
        parent = self._stack[-1]
        parent.node.size += node.size
        if isinstance(parent.node.children, list):
            parent.node.children.append(node)
            parent.node.value.append(node.value)
        elif parent.key is None:
            parent.key = _check_key(node, event, parent.node)
        else:
            _put_value(parent, parent.key, node)
            parent.key = None


def _at(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    assert mark is not None
    return mark.line + 1, mark.column + 1


def _check_key(key: Node, event: yaml.Event | None, mapping: Node) -> Node:
    if key.text is None or (isinstance(event, ScalarEvent) and key.value is None):
        raise _refuse_node(key, "This can't be a key; keys are words")
    assert isinstance(mapping.children, dict)
    if key.text in mapping.children and key.text != _MERGE:
        first = mapping.children[key.text].line
        raise _refuse_node(
            key, f"The key `{key.text[:80]}` was there in line {first}; keep one of them"
        )
    return key


def _put_value(parent: _Open, key: Node, value: Node) -> None:
    name = key.text
    assert name is not None
    assert isinstance(parent.node.children, dict)
    if name == _MERGE and isinstance(value.children, dict):
        parent.merged.append(value)
    elif name == _MERGE and isinstance(value.children, list):
        if not all(isinstance(item.children, dict) for item in value.children):
            raise _refuse_node(value, "Only mappings can be merged")
        parent.merged.extend(value.children)
    else:
        value.line, value.column = key.line, key.column  # the key is what people look for
        parent.node.children[name] = value
        parent.node.value[name] = value.value


def _merge(node: Node, source: Node) -> None:
    """Take the fields of ``source`` that ``node`` does not have itself (YAML's merge key)."""
    assert isinstance(node.children, dict)
    assert isinstance(source.children, dict)
    for name, child in source.children.items():
        if name not in node.children:
            node.children[name] = child
            node.value[name] = child.value


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")[:60]


def _refuse(event: yaml.Event, message: str) -> ProtocolError:
    line, column = _at(event)
    return ProtocolError([Problem("", message, line, column)])


def _refuse_node(node: Node, message: str) -> ProtocolError:
    return ProtocolError([Problem("", message, node.line, node.column)])
