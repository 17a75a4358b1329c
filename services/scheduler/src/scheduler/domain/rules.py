"""Times and bounds by which the service decides when resources are free and messages are due."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy
from scheduler.domain.run_times import Bounds


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in seconds.

    ``cycle_gangs``: the most searches for places, and the most published wait reasons, in one part
    of a cycle. ``settle_s``: if the nodes make the cluster, they must not have grown for this long
    before a gang is refused. ``defer_again_s``: the least time between two messages on a wait whose
    numbers changed; ``defer_again_gangs``: the most gangs at a time in these. ``foreign_port_s``: a
    port that an unknown process held is not used for this long. ``port_rest_s``: a freed port is
    used again within this time only if no other is free. ``overdue_s``: a released pod's resources
    are no longer waited for if no report shows them free for this long. ``run_times``: how much is
    learnt. ``policies``: of the order, by name.
    """

    cycle_gangs: int = 500
    settle_s: float = 30.0
    defer_again_s: float = 60.0
    defer_again_gangs: int = 50
    foreign_port_s: float = 600.0
    port_rest_s: float = 60.0
    overdue_s: float = 60.0
    run_times: Bounds = Bounds()  # noqa: RUF009 - frozen
    policies: Mapping[str, OrderPolicy] = field(default_factory=lambda: BUILT_IN)
