"""Small clusters and gangs told in a line each, and a core to which things happen one by one."""

from collections.abc import Sequence

from core_door import CoreDoor
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Gang,
    Kind,
    Placed,
    PodPlace,
    Preempted,
    Role,
)

FREE = Policy(order_by=("priority", "age"), is_backfilling=False)
"""Any gang that fits may pass one that doesn't, and nobody's share counts."""

TYPES = {
    "switch": CellType("v100", 2),
    "node": CellType("switch", 2, is_node=True),
    "rack": CellType("node", 2),
    "old-node": CellType("v100", 2, is_node=True),
    "k80-node": CellType("k80", 2, is_node=True),
}


def racks(count: int) -> list[PhysicalCell]:
    """Racks of two machines each."""
    return [
        PhysicalCell("rack", name=f"r{n}", nodes=(f"n{2 * n}", f"n{2 * n + 1}"))
        for n in range(count)
    ]


RACKS = tuple(racks(2))


def owning(*cells: tuple[str, int], pins: tuple[str, ...] = ()) -> VirtualCluster:
    """A virtual cluster by what it owns."""
    return VirtualCluster(tuple(QuotaCells(path, count) for path, count in cells), pins)


def config(
    cells: Sequence[PhysicalCell] = RACKS,
    nodes: dict[str, NodeLimits] | None = None,
    policy: Policy = FREE,
    **virtual_clusters: VirtualCluster,
) -> ClusterConfig:
    """Two racks of two machines with two switches of two GPUs, unless said otherwise."""
    return ClusterConfig(TYPES, tuple(cells), nodes or {}, virtual_clusters, policy)


def gang(name: str, vc: str, gpus: int, pods: int = 1, **more: object) -> Gang:
    """Equal pods named p0, p1, …; ``more``: fields of the gang or of its pods' kind."""
    kind_fields = {key: more.pop(key) for key in list(more) if key in Kind.__dataclass_fields__}
    kind = Kind(gpus, **kind_fields)  # type: ignore[arg-type]
    roles = (Role(kind, tuple(f"p{number}" for number in range(pods))),)
    fields: dict[str, object] = {"priority": 0, **more}
    return Gang(name, vc, "user", roles=roles, **fields)  # type: ignore[arg-type]


class Scene:
    """A core whose machines are healthy, and the time."""

    def __init__(self, configuration: ClusterConfig, healthy: bool = True) -> None:
        self.core = CoreDoor(configuration)
        self.now = 0.0
        for machine in ("n0", "n1", "n2", "n3", "m0", "m1"):
            self.core.set_node_health(machine, healthy)

    def cycle(self, after_s: float = 1.0) -> list[Decision]:
        """What the next cycle decides."""
        self.now += after_s
        return list(self.core.decide(self.now))

    def asks(self, *gangs: Gang) -> list[Decision]:
        """What is decided in the cycle that sees these."""
        for one in gangs:
            self.core.request(one)
        return self.cycle()

    def places(self, one: Gang) -> tuple[PodPlace, ...]:
        """Where a gang is put at once."""
        (placed,) = self.asks(one)
        assert isinstance(placed, Placed), placed
        return placed.pods

    def leave(self, *names: str) -> None:
        """Gangs end."""
        for name in names:
            self.core.release(name)


def nodes_of(pods: Sequence[PodPlace]) -> set[str]:
    """The machines of these pods."""
    return {pod.node for pod in pods}


def code_of(decisions: Sequence[Decision], name: str) -> str:
    """Why a gang is told to wait."""
    (told,) = [d for d in decisions if isinstance(d, Deferred) and d.gang == name]
    return told.reason.code


def reserved_place() -> Scene:
    """``late`` waits for ``guest`` to leave n0 to n3."""
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("guest", "x", 4, pods=4, priority=-1))
    decided = scene.asks(gang("late", "x", 4, priority=1))
    (victim,) = [d for d in decided if isinstance(d, Preempted)]
    assert (victim.for_gang, victim.until) == ("late", scene.now + 30)
    assert scene.cycle() == []
    return scene
