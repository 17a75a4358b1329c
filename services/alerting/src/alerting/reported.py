"""The nodes as their agents report them, and those that were removed for good: a tombstone replaces
their newest report.
"""

import asyncio
from collections.abc import Collection, Mapping
from itertools import islice

from muster.contracts.model import Model
from muster.contracts.nodes import NodeReport
from muster.ids import is_name
from muster.records import Received

REPORTED = "node-reported"


class ReportedNodes:
    """Followed from the bus; a node that reports again is not removed. ``changed`` is set when the
    health of a node may have changed; it is unseen until alerts about it follow its newest report.
    """

    def __init__(self) -> None:
        self._reports: dict[str, NodeReport] = {}
        self._removed: set[str] = set()
        self._unseen: dict[str, NodeReport | None] = {}
        self.changed = asyncio.Event()

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a record about a node's state."""
        name = record.key or ""
        if not is_name(name):
            return
        if not isinstance(model, NodeReport):
            self._reports.pop(name, None)
            self._removed.add(name)
            self._unseen[name] = None
            self.changed.set()
            return
        self._removed.discard(name)
        before = self._reports.get(name)
        is_same_journal = before is not None and before.journal == model.journal
        if before is None or not is_same_journal or model.revision >= before.revision:
            self._reports[name] = model
            if before is None or _health(before) != _health(model):
                self._unseen[name] = model
                self.changed.set()

    def removed(self) -> Collection[str]:
        """The names of the nodes that were removed."""
        return frozenset(self._removed)

    def reports(self) -> Mapping[str, NodeReport]:
        """The newest report of each other node."""
        return self._reports

    def unseen(self, limit: int) -> dict[str, NodeReport | None]:
        """Up to so many unseen nodes with the reports that count; None: the node was removed."""
        return dict(islice(self._unseen.items(), limit))

    def see(self, seen: Mapping[str, NodeReport | None]) -> bool:
        """Alerts follow these reports; whether more are unseen."""
        for name, report in seen.items():
            if self._unseen.get(name) is report:
                self._unseen.pop(name, None)
        return bool(self._unseen)

    def doubt(self) -> None:
        """Let every node be unseen: the database may be an older one by now."""
        self._unseen |= self._reports | dict.fromkeys(self._removed)


def _health(report: NodeReport) -> object:
    return report.problem, [gpu.problem for gpu in report.gpus]
