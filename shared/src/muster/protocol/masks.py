"""The job file as it is kept and shown: with a mask in place of each secret, all else as it was
written. The secrets are the values below ``secrets`` and the passwords of images.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from muster.errors import Problem
from muster.protocol.document import Node, read_document
from muster.protocol.escapes import JoinedPairs, has_pairs
from muster.protocol.problems import ProtocolError
from muster.protocol.tree import Path, fields, items, look_up, problem_at
from muster.references import SECRETS, references

MASK = "******"
"""OpenPAI's."""


def check_masks(root: Node) -> Iterator[Problem]:
    """Masks that were read back: what they hide is known to nobody but the job's own nodes."""
    for path in _secret_places(root):
        for place, value in _leaves(path, look_up(root, path)):
            if value == MASK:
                message = f"is the mask `{MASK}` of a file that was read back; write the secret"
                yield problem_at(root, place, message)


def masked(text: str, root: Node) -> str:
    """The file ``text`` without its secrets. Its lines stay, but comments among the secrets go.

    Raises ProtocolError where they are written in a way that leaves a doubt.
    """
    places = _secret_places(root)
    if not places:
        return text
    joined = JoinedPairs(text).text if has_pairs(text) else text
    expected = _masked_value(root.value, places)
    try:
        result = _masked_text(joined, places, expected)
        is_right = repr(read_document(result.encode())[1].value) == repr(expected)
    except ProtocolError:
        is_right = False
    if not is_right:
        message = "can't be masked as it is written; write each `name: value` plainly, no anchors"
        raise ProtocolError([problem_at(root, places[0], message)])
    return result


def _secret_places(root: Node) -> list[Path]:
    places: list[Path] = [(SECRETS,)] if fields(root, SECRETS) else []
    for index, _ in enumerate(items(root, "prerequisites")):
        path: Path = ("prerequisites", index, "auth", "password")
        node = look_up(root, path)
        if node is not None and node.value not in (None, "") and not _is_reference(node.value):
            places.append(path)
    return places


def _is_reference(value: Any) -> bool:
    """A password that names a secret is none itself."""
    if not isinstance(value, str):
        return False
    found = list(references(value))
    return len(found) == 1 and found[0].is_secret and value == value[found[0].start : found[0].end]


def _leaves(path: Path, node: Node | None) -> Iterator[tuple[Path, Any]]:
    children = None if node is None else node.children
    if node is None:
        return
    if isinstance(children, dict):
        for name, child in children.items():
            yield from _leaves((*path, name), child)
    elif isinstance(children, list):
        for index, child in enumerate(children):
            yield from _leaves((*path, index), child)
    else:
        yield path, node.value


def _mask(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mask(below) for name, below in value.items()}
    if isinstance(value, list):
        return [_mask(below) for below in value]
    return MASK


def _masked_value(value: Any, places: Collection[Path]) -> Any:
    """The value with masks; what holds none is not copied."""
    for place in places:
        value = _having_mask(value, place)
    return value


def _having_mask(value: Any, place: Path) -> Any:
    if not place:
        return _mask(value)
    copy: Any = value.copy()
    copy[place[0]] = _having_mask(value[place[0]], place[1:])
    return copy


def _at(value: Any, place: Path) -> Any:
    for step in place:
        value = value[step]
    return value


def _masked_text(text: str, places: Collection[Path], expected: Any) -> str:
    spans = _spans(text, frozenset(places))
    for place, (start, end) in sorted(spans.items(), key=lambda item: -item[1][0]):
        before = text[start:end]
        # A block ends where the next token begins, all else at its own end.
        rest = before[before.rfind("\n") + 1 :]
        indent = rest if "\n" in before and not rest.strip(" ") else ""
        mask = json.dumps(_at(expected, place), ensure_ascii=False)
        lines = "\n" * before.count("\n")
        text = f"{text[:start]}: {mask}{lines}{indent}{text[end:]}"
    return text


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not been read; ``key``: of the value that comes next."""

    path: Path
    is_mapping: bool
    key: str | None = None
    key_end: int = 0
    index: int = 0

    @property
    def below(self) -> Path:
        return (*self.path, (self.key or "") if self.is_mapping else self.index)


def _spans(text: str, places: Collection[Path]) -> dict[Path, tuple[int, int]]:
    """Of each place: where its key ends, and where its value does."""
    found: dict[Path, tuple[int, int]] = {}
    stack: list[_Open] = []
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            path = stack[-1].below if stack else ()
            stack.append(_Open(path, isinstance(event, MappingStartEvent)))
            continue
        if isinstance(event, MappingEndEvent | SequenceEndEvent):
            stack.pop()
        elif not isinstance(event, ScalarEvent | AliasEvent):
            continue
        if not stack:
            continue
        assert event.end_mark is not None
        parent, end = stack[-1], event.end_mark.index
        if parent.is_mapping and parent.key is None:
            parent.key, parent.key_end = getattr(event, "value", ""), end
            continue
        if parent.is_mapping and parent.below in places:
            found[parent.below] = (parent.key_end, end)
        parent.key, parent.index = None, parent.index + 1
    return found
