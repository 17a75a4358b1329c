"""Whether readers and writers of two versions of a schema understand each other.

An old reader must read a new writer's records, and a new reader those of an old writer: topics keep
records for days, and services are replaced one after another.
"""

from collections.abc import Iterator
from typing import Any

from documents.schemas import KNOWN_VALUES, Schema

_BOUNDS = ("minLength", "maxLength", "pattern", "minItems", "maxItems", "minimum", "maximum")


def breaks(old: Schema, new: Schema) -> list[str]:
    """What a change breaks, each with its place; empty where nothing does."""
    return sorted(set(_compare(old, new, _Documents(old, new), "")))


class _Documents:
    """Both documents, to follow references in; and the pairs that are compared already."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old = old
        self._new = new
        self.seen: set[tuple[str, str]] = set()

    def resolve(self, old: Schema, new: Schema) -> tuple[Schema, Schema] | None:
        """The schemas that two references lead to; None where the pair was compared before."""
        pair = (old.get("$ref", ""), new.get("$ref", ""))
        if pair[0] and pair[1]:
            if pair in self.seen:
                return None
            self.seen.add(pair)
        return _follow(self._old, old), _follow(self._new, new)


def _follow(document: Schema, schema: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    found: Any = document
    for step in schema["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return {**found, **{key: value for key, value in schema.items() if key != "$ref"}}


def _compare(old: Schema, new: Schema, documents: _Documents, place: str) -> Iterator[str]:
    resolved = documents.resolve(old, new)
    if resolved is None:
        return
    old, new = resolved
    here = place or "record"
    if old.get("type") != new.get("type") or old.get("format") != new.get("format"):
        yield f"{here}: its type was {_kind(old)} and is {_kind(new)}"
        return
    if "default" in old and "default" in new and old["default"] != new["default"]:
        yield f"{here}: a value that is left out meant {old['default']!r}, now {new['default']!r}"
    for bound in _BOUNDS:
        if old.get(bound) != new.get(bound):
            yield f"{here}: {bound} was {old.get(bound)} and is {new.get(bound)}"
    yield from _compare_values(old, new, here)
    yield from _compare_properties(old, new, documents, place)
    yield from _compare_parts(old, new, documents, place)


def _compare_values(old: Schema, new: Schema, here: str) -> Iterator[str]:
    for key in (KNOWN_VALUES, "enum"):
        for value in old.get(key, ()):
            if value not in new.get(key, ()):
                yield f"{here}: the value {value!r} is gone"
    for value in new.get("enum", ()):
        if "enum" in old and value not in old["enum"]:
            yield f"{here}: the value {value!r} is new, and the list of values is closed"
    if old.get("const") != new.get("const"):
        yield f"{here}: its value was {old.get('const')!r} and is {new.get('const')!r}"


def _compare_properties(
    old: Schema, new: Schema, documents: _Documents, place: str
) -> Iterator[str]:
    was, now = old.get("properties", {}), new.get("properties", {})
    must_old, must_new = set(old.get("required", ())), set(new.get("required", ()))
    for name, field in was.items():
        path = f"{place}.{name}" if place else name
        if name not in now:
            yield f"{path}: the field is gone"
            continue
        if name in must_old and name not in must_new:
            yield f"{path}: old readers need the field, and it may be left out now"
        if name in must_new and name not in must_old:
            yield f"{path}: the field may be missing in old records, and is required now"
        yield from _compare(field, now[name], documents, path)
    for name in sorted(must_new - was.keys()):
        path = f"{place}.{name}" if place else name
        yield f"{path}: a new field is required, and old records don't have it"


def _compare_parts(old: Schema, new: Schema, documents: _Documents, place: str) -> Iterator[str]:
    """Lists, maps and alternatives."""
    here = place or "record"
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        was, now = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _compare(was, now, documents, f"{place}{mark}")
        elif was != now:
            yield f"{here}: its {key} were {was} and are {now}"
    for key in ("anyOf", "prefixItems"):
        was_parts, now_parts = old.get(key, []), new.get(key, [])
        if len(was_parts) != len(now_parts):
            yield f"{here}: its type was {_kind(old)} and is {_kind(new)}"
            continue
        for was, now in zip(was_parts, now_parts, strict=True):
            yield from _compare(was, now, documents, place)


def _kind(schema: Schema) -> str:
    """A type as text, for messages."""
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    text = str(schema.get("type", "anything"))
    return f"{text} ({schema['format']})" if "format" in schema else text
