"""The core behind the door that histories go through."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.interface import Drift, Nodes
from scheduler.domain.core.model import Decision, Gang, Role
from scheduler.domain.cores import core_of
from scheduler_audit import audited

POLICIES = (
    {},
    {"is_backfilling": True, "assumed_s": 100.0, "max_pass_s": 500.0},
    {"is_backfilling": True, "order_by": ("priority", "fair-share", "age")},
    {"is_strict": True},
)
"""The plain one, with reservations, with the usual order, and where nobody may pass."""

AGE_FIRST = {"is_backfilling": True, "order_by": ("age",)}
"""Priority counts for who has to leave alone. A gang may start and leave in one cycle, which the
oracle does not follow: such histories end there.
"""


class CoreDoor:
    """The core, with its cycle beside its other methods."""

    def __init__(self, config: ClusterConfig) -> None:
        self.core: Any = core_of(config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core.nodes if hasattr(Nodes, name) else self.core, name)

    def request(self, gang: Gang, told: str | None = None) -> None:
        """A gang wants its pods. ``told``: the code of its last reason, before a restart."""
        self.core.request(gang)
        if told is not None:
            self.core.note_published(gang.id, told)

    def grow(self, gang: str, roles: Sequence[Role], told: str | None = None) -> None:
        """It wants these pods too."""
        self.core.grow(gang, roles)
        if told is not None:
            self.core.note_published(gang, told)

    def withdraw(self, gang: str) -> None:
        """It is not wanted any more."""
        self.core.release(gang)

    def block(
        self,
        name: str,
        gpus: Collection[int] = (),
        amounts: Mapping[str, int] | None = None,
        ports: Collection[int] = (),
        avoided: Collection[int] = (),
    ) -> bool:
        """Foreign pods hold these now."""
        return bool(self.core.nodes.block(name, gpus, amounts or {}, ports, avoided))

    def change(self, config: ClusterConfig, now: float) -> None:
        """Another configuration. Raises ConfigError, and then nothing has changed."""
        self.core = self.core.changed(config, now)

    def all_tried(self) -> None:
        """All that wait were tried as things are."""
        self.core.note_tried(is_settled=True)

    def decide(self, now: float) -> Sequence[Decision]:
        """One cycle."""
        return list(self.core.cycle(now))

    def drifts(self) -> list[Drift]:
        """Differences between accounting and placements."""
        return audited(self.core)


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
