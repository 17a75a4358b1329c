"""Strict reading of mappings, field by field. A problem is noted and reading goes on, so that all
problems of a file are reported at once.

For a wrong field a reader returns a value of the right type; its caller checks the findings before
it uses the result.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from typing import TypeVar

from muster.errors import Rejected
from muster.protocol.document import Node
from muster.protocol.problems import join_path

from scheduler.domain.core.config import Finding, UnreadPath

Value = TypeVar("Value")

MAX_FINDINGS = 100
"""The most findings that are listed for a file; the rest is only counted."""

MAX_NAME = 256
"""The most characters of a name."""

MAX_COUNT = 2**31 - 1
"""Highest count of anything but memory."""

MAX_NUMBER = 10**15
"""Highest number: up to here a float has whole numbers and milliseconds exactly."""

LEAST_DURATION_S = 0.001
"""A shorter duration is lost beside the clock's present time, by rounding."""

MAX_PORT = 65_535
"""Highest number of a port."""


class FormatError(Rejected):
    """A file can't be used; ``findings``: its problems, ``more``: how many more there are."""

    def __init__(self, findings: Sequence[Finding], more: int = 0) -> None:
        by_line = sorted(findings, key=lambda finding: finding.line)
        self.findings = tuple(by_line[:MAX_FINDINGS])
        self.more = more + max(0, len(findings) - MAX_FINDINGS)
        first = self.findings[0]
        super().__init__("InvalidFormat", f"Line {first.line}: {first.path} {first.message}")


def finding_text(file: str, finding: Finding, kind: str = "") -> str:
    """A finding as text: ``file:line: field: message``."""
    place = f"{file}:{finding.line}" if finding.line else file
    text = f"{finding.path}: {finding.message}" if finding.path else finding.message
    return f"{place}: {kind}{text}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands. ``node``: in a YAML file, which knows a line for each value below."""

    line: int = 0
    parts: tuple[str | int, ...] = ()
    node: Node | None = None

    def at(self, part: str | int) -> "Place":
        """The place of a value in this one."""
        children = self.node.children if self.node is not None else None
        child: Node | None = None
        if isinstance(children, dict):
            child = children.get(str(part))
        elif isinstance(children, list) and isinstance(part, int):
            child = children[part]
        line = self.line if child is None else child.line
        return Place(line, (*self.parts, part), child)


@dataclass(frozen=True, slots=True)
class Findings:
    """Problems, in the order in which they were found. ``unread``: values that are unreliable for
    that. ``listed``: how many of them are listed; the others are only counted.
    """

    found: list[Finding] = field(default_factory=list)
    unread: set[UnreadPath] = field(default_factory=set)
    listed: int = MAX_FINDINGS

    def add(self, place: Place, message: str) -> None:
        """Note that a value can't be read."""
        self.unread.add(place.parts)
        self.add_surplus(place, message)

    def add_surplus(self, place: Place, message: str) -> None:
        """Note something that only has to be removed: the rest is valid without it."""
        self.found.append(Finding(join_path(place.parts), message, place.line))


class Table:
    """A mapping that is read field by field. Unknown fields are refused when it is opened.

    ``null`` counts as left out, for every field that may be left out.
    """

    __slots__ = ("_findings", "_is_mapping", "_values", "place")

    def __init__(
        self, value: object, known: frozenset[str], place: Place, findings: Findings
    ) -> None:
        self.place = place
        self._findings = findings
        self._values: Mapping[str, object] = {}
        self._is_mapping = isinstance(value, dict)
        if not isinstance(value, dict):
            findings.add(place, _no_mapping(value, known, place))
            return
        self._values = value
        if not value.keys() <= known:
            self._refuse_unknown(known)

    def _refuse_unknown(self, known: frozenset[str]) -> None:
        for name in self._values:
            if name in known:
                continue
            is_listed = len(self._findings.found) < self._findings.listed
            near = nearest(str(name), known) if is_listed else None  # it takes time
            problem = f"is unknown; {fix_of(near, known)}"
            self._findings.add_surplus(self.place.at(str(name)), problem)
            if not is_listed or (near is not None and near not in self._values):
                self._findings.unread.add(self.place.at(near or str(name)).parts)

    def wrong(self, name: str | int, message: str) -> None:
        """Note something about a field."""
        self._findings.add(self.place.at(name), message)

    def has(self, name: str) -> bool:
        """Whether a field is there, ``null`` included."""
        return name in self._values

    def has_value(self, name: str) -> bool:
        """Whether a field is there, and not ``null``."""
        return self._values.get(name) is not None

    def needs(self, *names: str) -> None:
        """Note each of these fields that is left out."""
        for name in names:
            if self._is_mapping and self._values.get(name) is None:
                self.wrong(name, "is missing; add it")

    def name(self, name: str) -> str | None:
        """A name: text that can be printed, and is not empty or too long."""
        value = self._values.get(name)
        if value is None:
            return None
        problem = name_problem(value)
        if problem is not None:
            self.wrong(name, problem)
            return None
        assert isinstance(value, str)
        return value

    def flag(self, name: str) -> bool | None:
        """True or false."""
        value = self._values.get(name)
        if value is None or isinstance(value, bool):
            return value
        self.wrong(name, f"must be true or false, not {_shown(value)}")
        return None

    def count(self, name: str, least: int = 0, most: int = MAX_COUNT) -> int | None:
        """A whole number."""
        value = self._values.get(name)
        if value is None:
            return None
        problem = count_problem(value, least, most)
        if problem is not None:
            self.wrong(name, problem)
            return None
        assert isinstance(value, int)
        return value

    def number(self, name: str, most: int) -> Fraction | None:
        """A number above 0, integer or float, as written."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(name, f"must be a number, not {_shown(value)}")
        elif not 0 < value <= most:  # NaN is in no range
            self.wrong(name, f"must be above 0, up to {most}, not {_shown(value)}")
        else:
            return Fraction(str(value))
        return None

    def seconds(self, name: str, least: float = 0.0, most: float = MAX_NUMBER) -> float | None:
        """Seconds, whole or not."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(name, f"must be a number of seconds, not {_shown(value)}")
        elif not -MAX_NUMBER <= value <= most:  # NaN is in no range
            self.wrong(name, f"must be a number of seconds up to {most}")
        elif value < least:
            self.wrong(name, f"must be at least {least:g}, not {_shown(value)}")
        else:
            return float(value)
        return None

    def duration(self, name: str, most: float = MAX_NUMBER) -> float | None:
        """A duration in seconds, above 0."""
        return self.seconds(name, LEAST_DURATION_S, most)

    def has_mapping(self, name: str) -> bool:
        """Whether a field is there and is a mapping."""
        return isinstance(self._values.get(name), dict)

    def table(self, name: str, known: frozenset[str]) -> "Table | None":
        """A mapping in this one."""
        value = self._values.get(name)
        if value is None:
            return None
        return Table(value, known, self.place.at(name), self._findings)

    def table_of(self, name: str, key: str, known: frozenset[str]) -> "Table | None":
        """A mapping in this one; a plain text stands for one that has it as ``key``."""
        value = self._values.get(name)
        if isinstance(value, str):
            value = {key: value}
        elif value is not None and not isinstance(value, dict):
            self.wrong(name, f"must be a {key} or a mapping, not {_shown(value)}")
            return None
        return None if value is None else Table(value, known, self.place.at(name), self._findings)

    def tables(self, name: str, known: frozenset[str]) -> "list[Table] | None":
        """A list of mappings."""
        items = self.items(name)
        if items is None:
            return None
        place = self.place.at(name)
        return [
            Table(item, known, place.at(number), self._findings)
            for number, item in enumerate(items)
        ]

    def by_name(self, name: str) -> "Iterator[tuple[str, object, Place]]":
        """The entries of a mapping whose keys are names; nothing where it is left out."""
        value = self._values.get(name)
        if value is None:
            return
        place = self.place.at(name)
        if not isinstance(value, dict):
            self._findings.add(place, f"must be a mapping, not {_shown(value)}")
            return
        for key, entry in value.items():
            problem = name_problem(key)
            if problem is not None:
                self._findings.add(place.at(key), f"as a name {problem}")
            else:
                yield key, entry, place.at(key)

    def tables_by_name(self, name: str, known: frozenset[str]) -> "Iterator[tuple[str, Table]]":
        """The entries of a mapping of mappings."""
        for key, entry, place in self.by_name(name):
            yield key, Table({} if entry is None else entry, known, place, self._findings)

    def read_by_name(
        self, name: str, read: "Callable[[Table, str], Value | None]"
    ) -> "dict[str, Value]":
        """The entries of a mapping whose keys are names, each read as a field of a table."""
        entries = {key: entry for key, entry, _ in self.by_name(name)}
        table = Table(entries, frozenset(entries), self.place.at(name), self._findings)
        table.needs(*entries)
        found = {key: read(table, key) for key in entries}
        return {key: value for key, value in found.items() if value is not None}

    def counts(self, name: str) -> dict[str, int]:
        """A mapping of names to counts."""
        counts: dict[str, int] = {}
        for key, entry, place in self.by_name(name):
            problem = count_problem(entry, 0, MAX_NUMBER)
            if problem is not None:
                self._findings.add(place, problem)
            else:
                assert isinstance(entry, int)
                counts[key] = entry
        return counts

    def items(self, name: str) -> Sequence[object] | None:
        """A list."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            self.wrong(name, f"must be a list, not {_shown(value)}")
            return None
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        """A list of names, none twice."""
        items = self.items(name)
        if items is None:
            return None
        kept: dict[str, None] = {}
        for number, item in enumerate(items):
            problem = name_problem(item)
            if problem is None and item in kept:
                problem = f"is {_shown(item)} once more; keep one"
            if problem is not None:
                self._findings.add(self.place.at(name).at(number), problem)
            else:
                kept[str(item)] = None
        return tuple(kept)

    def text(self, name: str) -> str | None:
        """Text, or a number as written."""
        value = self._values.get(name)
        if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
            return None if value is None else str(value)
        self.wrong(name, f"must be text or a number, not {_shown(value)}")
        return None

    def choice(self, name: str, *choices: str) -> str | None:
        """One of some names."""
        value = self._values.get(name)
        if value is None or value in choices:
            return None if value is None else str(value)
        self.wrong(name, f"must be {' or '.join(choices)}, not {_shown(value)}")
        return None

    def texts(self, name: str) -> frozenset[str]:
        """A list of texts, empty ones and whole numbers too; none where it is left out."""
        kept: set[str] = set()
        for number, item in enumerate(self.items(name) or ()):
            if isinstance(item, str | int) and not isinstance(item, bool):
                kept.add(str(item))
            else:
                problem = f"must be text, not {_shown(item)}; write it in quotes"
                self._findings.add(self.place.at(name).at(number), problem)
        return frozenset(kept)

    def numbers(self, name: str, least: int = 0, most: int = MAX_COUNT) -> tuple[int, ...] | None:
        """A list of whole numbers, none twice."""
        items = self.items(name)
        if items is None:
            return None
        kept: dict[int, None] = {}
        for number, item in enumerate(items):
            problem = count_problem(item, least, most)
            if problem is None and item in kept:
                problem = f"is {_shown(item)} once more; keep one"
            if problem is not None:
                self._findings.add(self.place.at(name).at(number), problem)
            else:
                assert isinstance(item, int)
                kept[item] = None
        return tuple(kept)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is meant, if one is much like this one."""
    return next(iter(get_close_matches(name, sorted(known), 1)), None)


def fix_of(near: str | None, known: Iterable[str]) -> str:
    """The fix of a name that is not known. ``near``: the one that is meant, if one is."""
    return f"known are {', '.join(sorted(known))}" if near is None else f"is it `{near}`?"


def name_problem(value: object) -> str | None:
    """The problem of a name; None: it is valid."""
    if not isinstance(value, str):
        fix = "; write it in quotes" if isinstance(value, int | float) else ""
        return f"must be text, not {_shown(value)}{fix}"
    if not value:
        return "must not be empty"
    if len(value) > MAX_NAME:
        return f"has {len(value)} characters; {MAX_NAME} are the most"
    if not value.isprintable():
        return "has a character that can't be printed; remove it"
    return None


def count_problem(value: object, least: int, most: int) -> str | None:
    """The problem of an integer; None: it is valid."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"must be a whole number, not {_shown(value)}"
    if least <= value <= most:
        return None
    return f"must be from {least} to {most}, not {_shown(value)}"


def _no_mapping(value: object, known: frozenset[str], place: Place) -> str:
    if value is None and not place.parts:
        return f"is empty; its fields are {', '.join(sorted(known))}"
    return f"must be a mapping, not {_shown(value)}"


def _shown(value: object) -> str:
    """A value in a message, short and printable."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case float() if not math.isfinite(value):
            return "a number that is infinite or none"
        case int() if abs(value) > MAX_NUMBER:
            return "a number of so many digits"
        case str():
            return ascii(value if len(value) <= 40 else value[:40] + "…")
        case _:
            return str(value)
