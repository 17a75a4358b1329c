"""Who could be downgraded or leave comes by size, and by how long it has run."""

from scheduler.domain.core.charges import CHANGES_KEPT
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    PhysicalCell,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.cycle import run_cycle
from scheduler.domain.core.model import Gang, Kind, Role
from scheduler.domain.core.owning import owner_of

GANGS = CHANGES_KEPT + 50


def test_who_has_run_least_comes_first_however_many_began_meanwhile() -> None:
    nodes = tuple(PhysicalCell("node", name=f"n{number}") for number in range(GANGS))
    owner = VirtualCluster((QuotaCells("node", GANGS),))
    cluster = Cluster(
        ClusterConfig({"node": CellType("t", 1, is_node=True)}, nodes, {}, {"x": owner})
    )
    for name in cluster.hardware.machines:
        cluster.nodes.set_node_health(name, True)
    assert not list(cluster.charges.smallest_below(owner_of("x"), 5))
    for number in range(GANGS):
        role = Role(Kind(1), ("p",))
        cluster.request(Gang(f"g{number:04}", "x", "u", 0, (role,), submitted_at=float(number)))
        run_cycle(cluster, 100.0 + number)
    found = [live.id for live in cluster.charges.smallest_below(owner_of("x"), 5)]
    assert found == [f"g{number:04}" for number in reversed(range(GANGS))]
