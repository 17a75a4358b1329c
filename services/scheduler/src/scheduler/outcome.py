"""The changes of one cycle, until they are written and published."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from scheduler.domain.core.model import Decision
from scheduler.domain.known import Changes
from scheduler.domain.ledger import Ledger
from scheduler.store.nodes import KnownNode


@dataclass(slots=True)
class Outcome:
    """The changes of one cycle, to be written and published. ``topics``: the topic of each gang.
    ``lost``: the gangs of a lost node's pods, by node; ``forgotten``: the same for a node whose
    agent has lost its journal.
    """

    changes: Changes
    topics: dict[str, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    known: list[KnownNode] = field(default_factory=list)
    lost: dict[str, list[str]] = field(default_factory=dict)
    forgotten: dict[str, list[str]] = field(default_factory=dict)
    returned: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.changes or self.topics or self.nodes)

    def rows_of_nodes(
        self, ledger: Ledger, known: Mapping[str, KnownNode], now: datetime
    ) -> list[KnownNode]:
        """The changed rows of nodes; ``known``: the stored rows."""
        rows = []
        for name in self.nodes:
            node = ledger.nodes.get(name)
            if node is None:
                rows.append(replace(known[name], is_removed=True))
            else:
                before = known.get(name)
                since = None if before is None or not before.is_lost else before.lost_since
                since = (since or now) if node.is_lost else None
                rows.append(KnownNode(name, node.lease, node.is_lost, since, size=node.size))
        return rows
