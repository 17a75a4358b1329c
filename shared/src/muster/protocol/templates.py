"""References in commands: ``<% $parameters.x.y[0] %>`` becomes the value as it is written.

Plain look-ups, no logic. ``$secrets`` stays as it is, for the node to fill in; its values are
looked up all the same. A name that can't be looked up is a problem with its line. Rendering a
rendered text changes nothing: where a value would form a new reference, the job is rejected.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from muster.protocol.document import Node
from muster.protocol.problems import MAX_PROBLEMS
from muster.references import CLOSE, OPEN, SECRETS, Reference, references

SCOPES = ("parameters", "script", "output", "data", SECRETS)

MAX_RENDERED_CHARACTERS = 256 * 1024
"""The script of one task role after rendering."""

_REFERENCE = re.compile(r"\$(?P<scope>[A-Za-z_]\w*)(?P<steps>(?:\.[^.\[\]\s]+|\[[0-9]{1,9}\])*)")
_STEP = re.compile(r"\.([^.\[\]\s]+)|\[([0-9]+)\]")


class RenderError(Exception):
    """A text can't be rendered; ``reference`` is the piece of it that is to blame."""

    def __init__(self, reference: str, message: str) -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text with its references filled in, and those that could not be."""

    text: str
    errors: tuple[RenderError, ...] = ()


def render(text: str, scopes: Mapping[str, Node | None]) -> Rendered:
    """Fill in the references of ``text``. A scope that is None has nothing here.

    Reads on after an error, up to MAX_PROBLEMS of them.
    """
    if OPEN not in text:
        return Rendered(text)
    pieces: list[str] = []
    errors: list[RenderError] = []
    room = MAX_RENDERED_CHARACTERS
    position = 0
    for found in _rendered_here(text):
        raw = text[found.start : found.end]
        room -= found.start - position
        try:
            value = _look_up(raw, scopes, room)
        except RenderError as error:
            errors.append(error)
            if len(errors) >= MAX_PROBLEMS:
                return Rendered(text, tuple(errors))
            continue
        room -= len(value)
        if room < 0:
            errors.append(_too_long(raw))
            return Rendered(text, tuple(errors))
        pieces += (text[position : found.start], value)
        position = found.end
    pieces.append(text[position:])
    result = "".join(pieces)
    if pieces[1:] and not errors:
        errors.extend(_new_references(result))
    return Rendered(result, tuple(errors))


def _too_long(raw: str) -> RenderError:
    message = f"makes the commands longer than {MAX_RENDERED_CHARACTERS} characters"
    return RenderError(raw, f"{message}; use shorter ones")


@dataclass(frozen=True, slots=True)
class FoundSecrets:
    """The secrets of a text by their references. ``longer``: the characters that they add to it."""

    values: Mapping[str, str]
    longer: int = 0
    errors: tuple[RenderError, ...] = ()


def secrets_in(text: str, secrets: Node | None) -> FoundSecrets:
    """Look up the secrets of a rendered text; it stays as it is."""
    values: dict[str, str] = {}
    errors: dict[str, RenderError] = {}
    longer = 0
    for found in references(text) if OPEN in text else ():
        if not found.is_secret or found.inner in errors:
            continue
        raw = text[found.start : found.end]
        try:
            if found.inner not in values:
                values[found.inner] = _look_up(raw, {SECRETS: secrets}, MAX_RENDERED_CHARACTERS)
        except RenderError as error:
            errors[found.inner] = error
            if len(errors) >= MAX_PROBLEMS:
                break
        else:
            longer += max(0, len(values[found.inner]) - len(raw))
    return FoundSecrets(values, longer, tuple(errors.values()))


def _rendered_here(text: str) -> Iterator[Reference]:
    return (found for found in references(text) if not found.is_secret)


def _new_references(result: str) -> list[RenderError]:
    return [
        RenderError(
            result[found.start : found.end], "is made up by a value; write it out in the commands"
        )
        for found in islice(_rendered_here(result), MAX_PROBLEMS)
    ]


def _look_up(raw: str, scopes: Mapping[str, Node | None], room: int) -> str:
    match = _REFERENCE.fullmatch(raw[len(OPEN) : -len(CLOSE)].strip())
    if match is None:
        raise RenderError(raw, "can't be read; write `<% $parameters.name %>` or `...name[0]`")
    scope = match["scope"]
    if scope not in scopes:
        raise RenderError(raw, f"is unknown; references start with ${', $'.join(SCOPES)}")
    node = scopes[scope]
    if node is None:
        raise RenderError(raw, _no_scope(scope))
    done = f"${scope}"
    for name, index in _STEP.findall(match["steps"]):
        step = name or index
        below = _child(node, step)
        if below is None:
            raise RenderError(raw, f"is not defined: {done} has no `{step[:80]}`")
        node, done = below, f"{done}.{name}" if name else f"{done}[{index}]"
    return _text(raw, node, room)


def _no_scope(scope: str) -> str:
    if scope in ("parameters", SECRETS):
        return f"is not defined: the file has no `{scope}`"
    return f"is not defined: the task role names no `{scope}` prerequisite"


def _child(node: Node, step: str) -> Node | None:
    if isinstance(node.children, dict):
        return node.children.get(step)
    if isinstance(node.children, list) and step.isascii() and step.isdigit():
        index = int(step[:9])
        return node.children[index] if index < len(node.children) else None
    return None


def _text(raw: str, node: Node, room: int) -> str:
    """A value as it is written; a list of plain values as OpenPAI writes it, with commas. Aliases
    make long lists of long texts from a small file, so no more than ``room`` is put together.
    """
    if isinstance(node.children, list) and node.children:
        parts: list[str] = []
        for child in node.children:
            parts.append(_text(raw, child, room))
            room -= len(parts[-1]) + 1
            if room < 0:
                raise _too_long(raw)
        return ",".join(parts)
    if node.children is not None:
        raise RenderError(raw, "has fields of its own; name one of them")
    if node.value is None or node.text is None:
        raise RenderError(raw, "is defined, but empty; give it a value")
    return node.text
