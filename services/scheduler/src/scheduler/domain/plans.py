"""The plan of a cluster: taken in one moment, and built in any thread."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.domain.configured import Setting
from scheduler.domain.core.config import ClusterConfig, Policy
from scheduler.domain.core.interface import Core
from scheduler.domain.derived import completed, derived
from scheduler.domain.given import changed_line
from scheduler.domain.nodes import Size


@dataclass(frozen=True, slots=True)
class Plan:
    """``file``: the configuration, None: the nodes make it. ``version``: the ledger's, of these
    sizes. ``setting``: the administrators' setting, None: there was never one; it is left out
    unless ``is_honoured``, as it is invalid.
    """

    file: ClusterConfig | None
    sizes: Mapping[str, Size]
    policy: Policy
    version: int
    setting: Setting | None = None
    is_honoured: bool = True

    def config(self) -> ClusterConfig:
        """The whole configuration. Raises ConfigError if the setting can't be read."""
        if self.file is None:
            base = derived(self.sizes, self.policy)
        else:
            base = completed(self.file, self.sizes)
        if self.setting is None or not self.is_honoured:
            return base
        return self.setting.of(base)


def made(core: Core, plan: Plan, at: float) -> Core:
    """The core by the plan. It takes long and only reads the given core. Another thread may
    run it while reports arrive, as long as nothing is decided. Raises ConfigError.
    """
    return core.changed(plan.config(), at)


def made_with_line(core: Core, plan: Plan, at: float) -> tuple[Core, str]:
    """The same, and the event of it, which takes long too."""
    fresh = made(core, plan, at)
    return fresh, changed_line(fresh.forest.config)
