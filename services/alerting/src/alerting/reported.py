"""The nodes as their agents report them, and those that were removed for good: a tombstone replaces
their newest report.
"""

import asyncio
from collections.abc import Collection, Mapping

from muster.contracts.model import Model
from muster.contracts.nodes import NodeReport
from muster.ids import is_name
from muster.records import Received

REPORTED = "node-reported"


class ReportedNodes:
    """Followed from the bus; a node that reports again is not removed. ``changed`` is set when the
    health of a node may have changed.
    """

    def __init__(self) -> None:
        self._reports: dict[str, NodeReport] = {}
        self._removed: set[str] = set()
        self.changed = asyncio.Event()

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a record about a node's state."""
        name = record.key or ""
        if not is_name(name):
            return
        if not isinstance(model, NodeReport):
            self._reports.pop(name, None)
            self._removed.add(name)
            self.changed.set()
            return
        self._removed.discard(name)
        before = self._reports.get(name)
        is_same_journal = before is not None and before.journal == model.journal
        if before is None or not is_same_journal or model.revision >= before.revision:
            self._reports[name] = model
            if before is None or _health(before) != _health(model):
                self.changed.set()

    def removed(self) -> Collection[str]:
        """The names of the nodes that were removed."""
        return frozenset(self._removed)

    def reports(self) -> Mapping[str, NodeReport]:
        """The newest report of each other node."""
        return self._reports


def _health(report: NodeReport) -> object:
    return report.problem, [gpu.problem for gpu in report.gpus]
