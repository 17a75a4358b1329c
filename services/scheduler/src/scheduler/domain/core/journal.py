"""The one undo: every change of the state goes through the journal, which notes its inverse.

Example: ``with journal.trial(): …`` evicts three gangs and asks whether a fourth fits. At the
block's end the three run as before.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MISSING: Any = object()
"""As a value: the key is not in the dict."""


class Journal:
    """Inverses of all changes since the outermost open trial began; none are noted without one.
    ``depth``: how many trials are open.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Any, Any, Any, int]] = []
        self.depth = 0

    def set(self, owner: object, name: str, value: object) -> None:
        """Change an attribute."""
        if self.depth:
            self.entries.append((owner, name, getattr(owner, name), _ATTRIBUTE))
        setattr(owner, name, value)

    def put(self, where: dict[K, V], key: K, value: V) -> None:
        """Change a dict's item; `MISSING` removes it."""
        if self.depth:
            self.entries.append((where, key, where.get(key, MISSING), _ITEM))
        if value is MISSING:
            where.pop(key, None)
        else:
            where[key] = value

    def put_at(self, where: list[V], index: int, value: V) -> None:
        """Change a list's element."""
        if self.depth:
            self.entries.append((where, index, where[index], _ELEMENT))
        where[index] = value

    def note(self, inverse: Callable[[Any], None], argument: object) -> None:
        """The caller has changed something; ``inverse(argument)`` undoes it."""
        if self.depth:
            self.entries.append((inverse, argument, None, _CALL))

    def trial(self) -> "Trial":
        """What is changed inside the ``with`` block is undone, unless `Trial.commit` was called."""
        return Trial(self)

    def close(self, mark: int, *, is_kept: bool) -> None:
        """End the innermost trial. For `Trial`."""
        self.depth -= 1
        if not is_kept:
            self._roll_back(mark)
        elif not self.depth:
            self.entries.clear()

    def _roll_back(self, mark: int) -> None:
        entries, depth, self.depth = self.entries, self.depth, 0  # inverses have none
        while len(entries) > mark:
            where, key, old, how = entries.pop()
            if how == _ATTRIBUTE:
                setattr(where, key, old)
            elif how == _CALL:
                where(key)
            elif old is MISSING:
                where.pop(key, None)
            else:
                where[key] = old
        self.depth = depth


_ATTRIBUTE, _ITEM, _ELEMENT, _CALL = range(4)


class Trial:
    """One what-if. Trials nest: an inner one that is committed is undone with the outer one."""

    __slots__ = ("_is_kept", "_journal", "_mark")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._is_kept = False
        self._mark = 0

    def __enter__(self) -> "Trial":
        journal = self._journal
        journal.depth += 1
        self._mark = len(journal.entries)
        return self

    def commit(self) -> None:
        """Keep what is done until the block's end."""
        self._is_kept = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._journal.close(self._mark, is_kept=self._is_kept and error is None)
