"""Times and bounds by which the service decides what is free, what is said, and when."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy
from scheduler.domain.run_times import Bounds


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in seconds.

    ``cycle_gangs``: in so many ways, at the most, places for gangs are sought, and so many gangs
    told why they wait, before a cycle is left to be gone on with. ``settle_s``: the nodes must not
    have grown for this long before a gang is refused where they make the cluster.
    ``defer_again_s``: a wait whose numbers changed is said again this often at the most;
    ``defer_again_gangs``: for so many gangs at a time at the most. ``foreign_port_s``: a port that
    a stranger held is not used for this long. ``port_rest_s``: a port that was freed is used again
    within this time only if no other is free. ``overdue_s``: what a released pod holds is no longer
    waited for when no report shows it free for this long. ``run_times``: how much is learnt.
    ``policies``: of the order, by name.
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
