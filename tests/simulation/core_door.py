"""The core behind the door that histories go through."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Decision
from scheduler.domain.core.interface import Nodes
from scheduler.domain.core.cycle import Core as OldCore

POLICIES = (
    {},
    {"is_backfilling": True, "assumed_s": 100.0, "max_pass_s": 500.0},
    {"is_backfilling": True, "order_by": ("priority", "fair-share", "age")},
    {"is_strict": True},
)
"""The plain one, with reservations, with the usual order, and where nobody may pass."""

CORE: type[Any] = OldCore
"""The core of every `CoreDoor`; `conftest` runs some suites on both."""

AGE_FIRST = {"is_backfilling": True, "order_by": ("age",)}
"""Priority counts for who has to leave alone. A gang may start and leave in one cycle, which the
oracle does not follow: such histories end there.
"""


class CoreDoor:
    """The core, with its cycle beside its other methods."""

    def __init__(self, config: ClusterConfig) -> None:
        self.core: Any = CORE(config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core.nodes if hasattr(Nodes, name) else self.core, name)

    def change(self, config: ClusterConfig, now: float) -> None:
        """Another configuration. Raises ConfigError, and then nothing has changed."""
        self.core = self.core.changed(config, now)

    def all_tried(self) -> None:
        """All that wait were tried as things are."""
        self.core.note_tried(is_settled=True)

    def decide(self, now: float) -> Sequence[Decision]:
        """One cycle."""
        return self.core.cycle(now)


def door(policy: dict[str, Any]) -> type[CoreDoor]:
    """A core that goes by another policy than its configuration's."""

    def told(config: ClusterConfig) -> ClusterConfig:
        return replace(config, policy=replace(config.policy, **policy))

    class Door(CoreDoor):
        def __init__(self, config: ClusterConfig) -> None:
            super().__init__(told(config))

        def change(self, config: ClusterConfig, now: float) -> None:
            super().change(told(config), now)

    return Door
