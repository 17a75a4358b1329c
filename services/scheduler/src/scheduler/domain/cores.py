"""Which core the service runs. Nothing else knows one."""

from collections.abc import Mapping

from scheduler.domain.core import interface
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy


def core_of(
    config: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
) -> interface.Core:
    """An empty core. Raises ConfigError if the configuration can't be honoured."""
    return Core(config, policies)
