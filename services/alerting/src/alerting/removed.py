"""The nodes that were removed for good: a tombstone replaces their newest report."""

from collections.abc import Collection

from muster.contracts.model import Model
from muster.ids import is_name
from muster.records import Received

REPORTED = "node-reported"


class RemovedNodes:
    """Their names, followed from the bus; a node that reports again is none of them."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a record about a node's state."""
        name = record.key or ""
        if model is not None:
            self._names.discard(name)
        elif is_name(name):
            self._names.add(name)

    def names(self) -> Collection[str]:
        """All of them."""
        return frozenset(self._names)
