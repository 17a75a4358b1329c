"""What an apply would change, from the objects now and after a dry run. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cli.deploy.objects import Json, key_of, name_of, title_of

COUNTED = "deprecated.daemonset.template.generation"
"""An annotation that the server keeps."""
NOT_OURS = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")
MOST_FIELDS = 4


@dataclass(frozen=True)
class Change:
    """One object that an apply makes or changes."""

    body: Json
    fields: tuple[str, ...] = ()
    """The changed fields of an object that exists. Their values may be secret."""


def summary(found: Sequence[Change]) -> Iterator[str]:
    """New objects by kind, and a line for each one that changes."""
    kinds: dict[str, list[str]] = {}
    for each in found:
        if not each.fields:
            kinds.setdefault(each.body["kind"], []).append(name_of(each.body))
    for kind, names in kinds.items():
        yield f"+ {len(names)} {kind}: {', '.join(dict.fromkeys(names))}"
    for each in found:
        if each.fields:
            shown = ", ".join(each.fields[:MOST_FIELDS])
            more = len(each.fields) - MOST_FIELDS
            yield f"~ {title_of(each.body)}: {shown}" + (f" and {more} more" if more > 0 else "")


def changes(before: Sequence[Json], after: Sequence[Json]) -> list[Change]:
    """The objects that differ, in the order in which they are applied."""
    live = {key_of(each): each for each in before}
    found = []
    for each in after:
        old = live.get(key_of(each))
        if old is None:
            found.append(Change(each))
        elif fields := tuple(_differing(_compared(old), _compared(each), "")):
            found.append(Change(each, fields))
    return found


def _compared(body: Json) -> Json:
    kept = {name: part for name, part in body.items() if name != "status"}
    metadata = {k: v for k, v in body["metadata"].items() if k not in NOT_OURS}
    annotations = {k: v for k, v in metadata.pop("annotations", {}).items() if k != COUNTED}
    kept["metadata"] = metadata | {"annotations": annotations}
    return kept


def _differing(old: object, new: object, path: str) -> Iterator[str]:
    """The paths of values that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from _differing(
                old.get(name), new.get(name), f"{path}.{name}" if path else str(name)
            )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            name = new[index].get("name", index) if isinstance(new[index], dict) else index
            yield from _differing(one, other, f"{path}[{name}]")
    elif old != new:
        yield path
