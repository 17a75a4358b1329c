"""What a cluster is to be made of: it is taken in one moment, and made in any thread."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.domain.core.config import ClusterConfig, Policy
from scheduler.domain.derived import completed, derived
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
