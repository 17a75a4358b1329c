"""What an apply would change, from the objects now and after a dry run. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cli.deploy.objects import Json, key_of, title_of

NOT_OURS = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")
MOST_FIELDS = 4


@dataclass(frozen=True)
class Change:
    """One object that an apply makes or changes."""

    what: str
    is_new: bool
    fields: tuple[str, ...]
    """The changed fields; the values may be secret."""

    def text(self) -> str:
        """One line."""
        if self.is_new:
            return f"+ {self.what}"
        shown = ", ".join(self.fields[:MOST_FIELDS])
        more = len(self.fields) - MOST_FIELDS
        return f"~ {self.what}: {shown}" + (f" and {more} more" if more > 0 else "")


def changes(before: Sequence[Json], after: Sequence[Json]) -> list[Change]:
    """The objects that differ, in the order in which they are applied."""
    live = {key_of(each): each for each in before}
    found = []
    for each in after:
        old = live.get(key_of(each))
        if old is None:
            found.append(Change(title_of(each), True, ()))
        elif fields := tuple(_differing(_compared(old), _compared(each), "")):
            found.append(Change(title_of(each), False, fields))
    return found


def _compared(body: Json) -> Json:
    kept = {name: part for name, part in body.items() if name != "status"}
    kept["metadata"] = {k: v for k, v in body["metadata"].items() if k not in NOT_OURS}
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
