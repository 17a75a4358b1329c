"""What one cycle has changed, until it is written and said."""

from dataclasses import dataclass, field

from scheduler.domain.core.model import Decision
from scheduler.domain.known import Changes
from scheduler.store.nodes import KnownNode


@dataclass(slots=True)
class Outcome:
    """What one cycle changed, to be written and said. ``topics``: gang → on which topic."""

    changes: Changes
    topics: dict[str, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    known: list[KnownNode] = field(default_factory=list)
    lost: dict[str, list[str]] = field(default_factory=dict)
    returned: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.changes or self.topics or self.nodes)
