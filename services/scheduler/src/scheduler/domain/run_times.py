"""How long similar gangs held their places: learnt from ended gangs alone.

The result is a pure function of the ended runs: the newest ones of each user, job name pattern and
shape. Groups of several keys are computed from them on demand.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, islice
from math import ceil
from typing import NamedTuple

from muster.contracts.gangs import PodAsk

NAME_LENGTH = 64
"""The length of a pattern: seeds and serials end a name, and its start shows the program."""

SHAPE_LENGTH = 64
LONGEST_S = 2**31 - 1
"""The largest integer of the database."""

HIGH = 0.9
VARIES = "#"
"""Stands for a part that differs between jobs of a kind."""

_UUID = re.compile(r"[0-9a-f]{8}([-_]?)[0-9a-f]{4}(?:\1[0-9a-f]{4}){2}\1[0-9a-f]{12}")
_TIME = re.compile(r"[0-9]{8}t[0-9]{4,6}z?")
_WORD = re.compile(r"[a-z0-9]+")
_HEX = re.compile(r"(?=.*[0-9])(?=.*[a-f])[0-9a-f]{7,}")
_MIXED = re.compile(r"(?:[a-z]{1,2}[0-9]+){2,}[a-z]{0,2}|(?:[0-9]+[a-z]{1,2}){2,}[0-9]*")
_MIXED_LENGTH = 5
_DIGITS = re.compile(r"[0-9]+")
_AGAIN = re.compile(r"#(?:[-_.]*#)+")


class Key(NamedTuple):
    """A run's user, its pattern of names, its shape."""

    user: str
    name: str
    shape: str


class History(NamedTuple):
    """The newest runs of a key, by when they ended (seconds since 1970); each in whole seconds."""

    ended_at: tuple[float, ...]
    seconds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A gang that ended by itself or by its user. ``expected_s``: its expected run time, if any;
    ``is_learnt``: that was learnt here.
    """

    key: Key
    ended_at: float
    seconds: int
    expected_s: float | None = None
    is_learnt: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """What runs must have in common beside the user, and how many runs are needed."""

    name: str
    is_same_name: bool
    is_same_shape: bool
    least: int


LEVELS = (
    Level("name and shape", True, True, 2),
    Level("name", True, False, 3),
    Level("shape", False, True, 5),
    Level("user", False, False, 10),
)
"""The first level with enough runs answers. The less runs have in common, the more are needed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Nine tenths of the ``runs`` took no longer than ``high_s`` seconds."""

    high_s: int
    runs: int
    level: Level


@dataclass(frozen=True, slots=True)
class Bounds:
    """``runs`` of a key, the newest; ``keys`` of all users and ``user_keys`` of each: the oldest
    go first. A key without a run for ``kept_s`` is forgotten.
    """

    runs: int = 16
    keys: int = 10_000
    user_keys: int = 500
    kept_s: float = 90 * 86_400.0


class RunTimes:
    """The histories of all keys. Time goes on from one `note` to the next. ``groups``: results for
    runs with something in common.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._histories: dict[Key, History] = {}  # the oldest first, as in _users
        self._users: dict[str, dict[Key, None]] = {}
        self.groups: dict[tuple[str, str | None, str | None], list[int]] = {}

    def __len__(self) -> int:
        return len(self._histories)

    @property
    def histories(self) -> Mapping[Key, History]:
        """All histories."""
        return self._histories

    def note(self, runs: Iterable[Run]) -> dict[Key, History | None]:
        """These runs have ended. Returns the history of each key that changed; None: it has none
        any more.
        """
        changed: dict[Key, History | None] = {}
        for run in sorted(runs, key=_in_order):
            before = self._histories.get(run.key, _NONE)
            entries = sorted((*zip(*before, strict=True), (run.ended_at, run.seconds)))
            history = _history(entries[-self.bounds.runs :])
            self._put(run.key, history)
            changed[run.key] = history
            for key in self._excess(run):
                self._drop(key)
                changed[key] = None
        return changed

    def restore(self, histories: Mapping[Key, History], gone: Collection[Key] = ()) -> None:
        """The stored histories of these keys; those of ``gone`` keys are removed."""
        for key in gone:
            if key in self._histories:
                self._drop(key)
        for key in sorted(histories, key=lambda key: (histories[key].ended_at[-1], key)):
            self._put(key, histories[key])

    def estimate(self, key: Key) -> Estimate | None:
        """The expected run time of this key; None if too few runs are known."""
        for level in LEVELS:
            window = self.window(key, level)
            if len(window) >= level.least:
                return Estimate(quantile(window, HIGH), len(window), level)
        return None

    def window(self, key: Key, level: Level) -> list[int]:
        """The newest runs that have this in common with ``key``, the shortest first."""
        name = key.name if level.is_same_name else None
        group = key.user, name, key.shape if level.is_same_shape else None
        window = self.groups.get(group)
        if window is None:
            window = self._worked_out(*group)
            if window:  # else there would be no bound to what is asked for
                self.groups[group] = window
        return window

    def _worked_out(self, user: str, name: str | None, shape: str | None) -> list[int]:
        if name is not None and shape is not None:
            history = self._histories.get(Key(user, name, shape), _NONE)
            return sorted(history.seconds[-self.bounds.runs :])
        found = [
            self._histories[key]
            for key in self._users.get(user, ())
            if name in (None, key.name) and shape in (None, key.shape)
        ]
        # No run of the newest is of a key beyond this many with a newer one.
        newest = nlargest(self.bounds.runs, found, key=lambda h: (h.ended_at[-1], h.seconds[-1]))
        entries = chain.from_iterable(zip(*history, strict=True) for history in newest)
        return sorted(seconds for _, seconds in nlargest(self.bounds.runs, entries))

    def _put(self, key: Key, history: History) -> None:
        self._drop(key)
        self._histories[key] = history
        self._users.setdefault(key.user, {})[key] = None

    def _drop(self, key: Key) -> None:
        for name in (None, key.name):
            for shape in (None, key.shape):
                self.groups.pop((key.user, name, shape), None)
        if self._histories.pop(key, None) is None:
            return
        keys = self._users[key.user]
        del keys[key]
        if not keys:
            del self._users[key.user]

    def _excess(self, run: Run) -> list[Key]:
        """Keys beyond the bounds, now that there is this run."""
        oldest = run.ended_at - self.bounds.kept_s
        keys = self._users[run.key.user]
        found = list(islice(keys, max(len(keys) - self.bounds.user_keys, 0)))
        for key, history in self._histories.items():
            is_over = len(self._histories) - len(found) > self.bounds.keys
            if not is_over and history.ended_at[-1] >= oldest:
                break
            if key not in found:
                found.append(key)
        return found


_NONE = History((), ())


def _in_order(run: Run) -> tuple[float, Key, int]:
    return run.ended_at, run.key, run.seconds


def _history(entries: Iterable[tuple[float, int]]) -> History:
    ended_at, seconds = zip(*entries, strict=True)
    return History(ended_at, seconds)


def quantile(window: list[int], share: float) -> int:
    """The least value that this share of the sorted window is not above."""
    return window[max(ceil(share * len(window)), 1) - 1]


def pattern_of(name: str) -> str:
    """The common pattern of names of a kind of jobs. Numbers, dates, hashes, uuids and random
    strings become one sign each, and several of them in a row too.
    """
    text = _UUID.sub(VARIES, name.lower())
    text = _WORD.sub(_pattern_of_word, text)
    return _AGAIN.sub(VARIES, text)[:NAME_LENGTH]


def _pattern_of_word(found: re.Match[str]) -> str:
    word = found[0]
    is_random = len(word) >= _MIXED_LENGTH and _MIXED.fullmatch(word)
    if is_random or _HEX.fullmatch(word) or _TIME.fullmatch(word):
        return VARIES
    return _DIGITS.sub(VARIES, word)


def shape_of(pods: Collection[PodAsk]) -> str:
    """What pods want together, coarsely: GPUs, rounded up to a power of two, and their types."""
    gpus = sum(max(pod.gpus, 0) for pod in pods)
    types = sorted({pod.gpu_types[0] for pod in pods if pod.gpus > 0 and pod.gpu_types})
    size = 1 << (gpus - 1).bit_length() if gpus else 0
    return f"{size} {'+'.join(types)}".strip()[:SHAPE_LENGTH]
