"""Of each key's records the newest counts, in whatever order they are read.

Where the number of a topic's partitions has changed, an older record may be read after a newer one.
A tombstone carries no revision: it is in the event's id.
"""

from muster.contracts.model import Model
from muster.records import REVISION_DIGITS, Received


class Newest:
    """The newest revision of each key that was read, and whether it removes the key."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, bool]] = {}

    def is_news(self, record: Received, model: Model | None) -> bool:
        """Whether nothing newer was read before; then it is the newest from now on.

        A tombstone whose id names no revision is foreign: it counts, and so does any later record.
        """
        key = record.key or ""
        revision = revision_of(record, model)
        if revision is None:
            self._known.pop(key, None)
            return True
        return self.note(key, revision, is_removed=model is None)

    def note(self, key: str, revision: int, *, is_removed: bool = False) -> bool:
        """The same for a revision that is known from elsewhere."""
        found = (revision, is_removed)
        if found < self._known.get(key, (0, False)):
            return False
        self._known[key] = found
        return True


def revision_of(record: Received, model: Model | None) -> int | None:
    """A record's own revision; of a tombstone the one in the event's id, which ends with the key
    and its revision. None where it names none.
    """
    if model is not None:
        named = getattr(model, "revision", None)
        return named if isinstance(named, int) else None
    head, _, revision = record.event_id.rpartition("/")
    is_revision = revision.isascii() and revision.isdecimal() and len(revision) <= REVISION_DIGITS
    return int(revision) if is_revision and head.endswith(f"/{record.key}") else None
