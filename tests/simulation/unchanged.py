"""Everything that a cluster knows, as one text: what a question must leave as it was."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from scheduler.domain.core.cluster import Cluster

REMEMBERED = {
    "ahead",
    "blank",
    "can_hold",
    "fits_unwell",
    "forecast",
    "prices",
    "steps",
    "ways",
    "index",
    "other",
    "demands",
    "forest",
    "shape",
    "ordering",
    "cost",
    "changed_nodes",
    "sizes",
}
"""What is only worked out, or counts work: no decision depends on it
(`test_what_the_core_remembers_changes_no_decision`).
"""


def fingerprint(cluster: Cluster) -> list[str]:
    """Two that are alike decide alike."""
    return list(_told(cluster, {}))


def changed(before: list[str], after: list[str]) -> str:
    """What comes before the first difference, and both sides of it."""
    for number, (one, other) in enumerate(zip_longest(before, after)):
        if one != other:
            return f"{before[max(0, number - 12) : number]}: {one} is {other}"
    return ""


def _told(thing: Any, seen: dict[int, int]) -> Iterator[str]:
    if isinstance(thing, str | int | float | bytes | type | None):
        yield repr(thing)
        return
    if id(thing) in seen:
        yield f"^{seen[id(thing)]}"
        return
    seen[id(thing)] = len(seen)
    yield type(thing).__name__
    if isinstance(thing, Mapping):
        is_plain = all(isinstance(key, str | int | tuple) for key in thing)
        for key, value in sorted(thing.items(), key=_key) if is_plain else thing.items():
            values = value.values() if isinstance(value, Mapping) else (value,)
            is_nothing = all(v == set() or (isinstance(v, int) and v == 0) for v in values)
            if not is_nothing:  # a place in a book that was looked at, or is empty again
                yield from _told(key, seen)
                yield from _told(value, seen)
    elif isinstance(thing, set | frozenset):
        yield repr(sorted(repr(each) for each in thing))
    elif isinstance(thing, list | tuple):
        are_masked = all(isinstance(each, tuple) and isinstance(each[0], int) for each in thing)
        for each in sorted(thing, key=_mask) if are_masked else thing:
            yield from _told(each, seen)
    elif type(thing).__module__.startswith("scheduler."):
        for name in _names(thing):
            if name not in REMEMBERED and not name.startswith("_"):
                yield name
                yield from _told(getattr(thing, name, None), seen)


def _key(item: tuple[Any, Any]) -> str:
    """Who was put in first makes no difference."""
    return repr(item[0])


def _mask(pair: tuple[Any, ...]) -> int:
    """The cells in a node are apart: which of them was bound first makes no difference."""
    return int(pair[0])


def _names(thing: Any) -> list[str]:
    slots = [name for each in type(thing).__mro__ for name in getattr(each, "__slots__", ())]
    return sorted({*slots, *getattr(thing, "__dict__", {})})
