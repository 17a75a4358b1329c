"""The usage report of a week as REST publishes it, for Alerting to send."""

from datetime import date, datetime

from muster.contracts.model import Model


class UsageLine(Model):
    """GPU-hours under one name. ``unknown``: of ``held``, those of which no agent has figures.
    ``refunded``: lost by the platform's fault.
    """

    name: str
    held: float
    used: float
    idle: float
    unknown: float
    refunded: float


FIGURES = tuple(name for name in UsageLine.model_fields if name != "name")
"""The columns of a report."""
SMALL = 100.0
"""GPU-hours of a cluster below which people are shown a second decimal."""


def decimals(held: float) -> int:
    """How many a report's figures have; ``held``: GPU-hours of the whole cluster."""
    return 1 if held >= SMALL else 2


class UsageReported(Model):
    """A week is over. ``virtual_clusters``, ``users`` and ``jobs``: those that held the most.
    ``missing``: how many nodes did not tell what was used.
    """

    week: date
    total: UsageLine
    virtual_clusters: tuple[UsageLine, ...]
    users: tuple[UsageLine, ...]
    jobs: tuple[UsageLine, ...]
    missing: int = 0
    at: datetime
