"""All that the core knows, as text: a question leaves it as it was."""

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from scheduler.domain.core.cycle import Core
from scheduler.domain.core.forest import Cell, Chain, Forest, Quota
from scheduler.domain.core.forest import Slot as FixedSlot
from scheduler.domain.core.journal import Journal
from scheduler.domain.core.node_models import Model, Patterns, Resources, Want
from scheduler.domain.core.nodes import Node, Slot, Workload
from scheduler.domain.core.ordering import Ordering
from scheduler.domain.core.shapes import Part, Shape

FIXED = (
    Cell, Chain, FixedSlot, Forest, Journal, Model, Ordering, Part, Patterns, Quota, Resources,
    Shape, Want,
)  # fmt: skip
"""What never changes, is only worked out, or is the undo itself."""

DERIVED = {
    "_claims", "_ranked", "_ranks", "_ranks_at", "_views", "_wants", "dirty", "dirty_of",
    "dirty_open",
}  # fmt: skip


def digest(core: Core) -> list[str]:
    """Two that are alike decide alike."""
    return list(_facts(core, {}))


def _facts(thing: Any, seen: dict[int, str]) -> Iterator[str]:
    if isinstance(thing, str | int | float | type | None) or callable(thing):
        yield repr(thing) if not callable(thing) else ""
    elif isinstance(thing, Enum):
        yield thing.name
    elif isinstance(thing, FIXED):
        yield type(thing).__name__
    elif id(thing) in seen:
        yield seen[id(thing)]
    elif isinstance(thing, Mapping):
        # A trial that is undone may change the order of keys: no decision depends on it.
        for key, value in sorted(thing.items(), key=lambda item: _name(item[0])):
            if not _is_nothing(value):
                yield _name(key)
                yield from _facts(value, seen)
    elif isinstance(thing, list | tuple | deque):
        yield str(len(thing))
        for each in thing:
            yield from _facts(each, seen)
    else:
        seen[id(thing)] = f"^{_name(thing)}"
        yield _name(thing)
        for name in _fields(thing):
            if name not in DERIVED:
                yield name
                yield from _facts(getattr(thing, name, None), seen)


def _is_nothing(value: Any) -> bool:
    """What was counted, and is not there any more."""
    return value == 0 or (isinstance(value, tuple) and value == (0, 0))


def _name(thing: Any) -> str:
    match thing:
        case Slot():
            return f"slot {thing.node.name} {thing.number}"
        case Node() | Workload():
            return f"{type(thing).__name__} {thing.name}"
        case tuple():
            return " ".join(map(_name, thing))
        case str() | int() | float() | None:
            return str(thing)
        case Want():
            return repr(thing.kind)
        case _:
            name = getattr(thing, "id", None) or getattr(thing, "name", None)
            key = getattr(thing, "key", None)
            return f"{type(thing).__name__} {name} {key and _name(key)}"


def _fields(thing: Any) -> list[str]:
    slots = [name for each in type(thing).__mro__ for name in getattr(each, "__slots__", ())]
    return sorted({*slots, *getattr(thing, "__dict__", {})})
