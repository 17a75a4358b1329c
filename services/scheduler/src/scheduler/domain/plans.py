"""What a cluster is to be made of: it is taken in one moment, and made in any thread."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.config import ClusterConfig, Policy
from scheduler.domain.derived import completed, derived
from scheduler.domain.given import changed_line
from scheduler.domain.nodes import Size


@dataclass(frozen=True, slots=True)
class Plan:
    """``file``: the configuration, None: the nodes make it. ``version``: the ledger's, of these
    sizes.
    """

    file: ClusterConfig | None
    sizes: Mapping[str, Size]
    policy: Policy
    version: int

    def config(self) -> ClusterConfig:
        """The whole configuration."""
        if self.file is None:
            return derived(self.sizes, self.policy)
        return completed(self.file, self.sizes)


def made(cluster: Cluster, plan: Plan, at: float) -> Cluster:
    """The cluster as it would be by the plan. It takes long, and the one that is given is only
    read: another thread may do it while reports are heard, as long as nothing is decided. Raises
    ConfigError.
    """
    return cluster.changed(plan.config(), at)


def made_with_line(cluster: Cluster, plan: Plan, at: float) -> tuple[Cluster, str]:
    """The same, and the event of it, which takes long too."""
    fresh = made(cluster, plan, at)
    return fresh, changed_line(fresh.hardware.forest.config)
