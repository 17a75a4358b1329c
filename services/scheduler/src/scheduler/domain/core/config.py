"""A cluster's configuration as values: cell types, physical cells, nodes, virtual clusters, policy.

Nothing is checked here: `forest.build` says everything that is wrong with a configuration at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

ALL_TYPES = ""
"""In limits by GPU type: of all types together."""

PRIORITY, FAIR_SHARE = "priority", "fair-share"
"""The policy that goes by what users have had."""

USUAL_ORDER = (PRIORITY, FAIR_SHARE, "age")
"""What order goes by, where nobody says."""

REQUEUE_S = 60.0
"""So long the cells of an attempt that the platform failed are kept for its job's next attempt."""

UnreadPath = tuple[str | int, ...]
"""The keys and numbers that lead to a value of the file."""


@dataclass(frozen=True, slots=True)
class CellType:
    """A kind of cell: ``count`` children of the type ``child``. ``is_node``: it is one machine.

    A type that is the child of another and is not defined itself is a leaf: one GPU of that type.
    """

    child: str
    count: int
    is_node: bool = False


@dataclass(frozen=True, slots=True)
class PhysicalCell:
    """One cell of the hardware. ``children`` None: as the type says it.

    ``name``: its name among its siblings; for a cell that is a node the node's name, None: the
    number among its siblings. ``nodes``: names of the nodes below, in order. ``index``: a leaf's
    GPU index on its node, None: counted from 0 on each node. ``pin``: what virtual clusters call
    it that own exactly this cell. ``line``: where it stands in its file, 0 if in none.
    """

    type: str
    name: str | None = None
    nodes: tuple[str, ...] | None = None
    children: "tuple[PhysicalCell, ...] | None" = None
    index: int | None = None
    pin: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What a node has beside GPUs; None: no limit.

    ``ports``: first and last port number. ``resources``: counted resources by name; a node that
    names any has none of those that it does not name.
    """

    cpu: int | None = None
    memory_mb: int | None = None
    ports: tuple[int, int] | None = None
    resources: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class QuotaCells:
    """``count`` cells of the type that ``path`` ends in: the type of a top cell, which names the
    chain, then types down to the one that is owned, with ``/`` between them.
    """

    path: str
    count: int
    line: int = 0


@dataclass(frozen=True, slots=True)
class VirtualCluster:
    """What a virtual cluster owns: cells by type and number, and pinned ones.

    ``lending_limit``: so many leaves of its quota others may have at a time, by GPU type, and
    `ALL_TYPES` together; ``borrowing_limit``: its gangs of others' quota. None for a type: any
    number.
    """

    cells: tuple[QuotaCells, ...] = ()
    pins: tuple[str, ...] = ()
    line: int = 0
    lending_limit: Mapping[str, int] = field(default_factory=dict)
    borrowing_limit: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """How the core decides. ``grace_s``: seconds from a preemption to the victim's end at the
    latest. ``is_lazy``: victims of their own virtual cluster are downgraded before they are
    killed, where their gang does not say. ``is_requeued``: the simulator hands victims in again.
    ``is_enforced``: it ends them when their grace is over, else events do.

    ``order_by``: policies of the order, by name, one after another. ``half_life_s``: how fast fair
    share forgets; ``weights``: of users for whom it is not 1. ``is_strict``: no gang passes another
    of its virtual cluster. ``is_backfilling``: one passes only where that does not delay what is
    kept for the first that can't start. ``assumed_s``: how long a gang runs that does not say.
    ``max_pass_s``: so long gangs may pass on cells that are kept for another. ``min_run_s``: so
    long gangs are protected that don't say. ``preemptions_per_hour``: inside a virtual cluster, at
    the most; None: any number.
    """

    is_lazy: bool = False
    grace_s: float = 30.0
    is_requeued: bool = True
    is_enforced: bool = True
    order_by: tuple[str, ...] = USUAL_ORDER
    half_life_s: float = 604_800.0
    weights: Mapping[str, float] = field(default_factory=dict)
    is_strict: bool = False
    is_backfilling: bool = True
    assumed_s: float = 86_400.0
    max_pass_s: float = 604_800.0
    min_run_s: float = 0.0
    preemptions_per_hour: int | None = None

    @property
    def is_keeping(self) -> bool:
        """Cells are kept for who can't start."""
        return self.is_backfilling and not self.is_strict


@dataclass(frozen=True)
class ClusterConfig:
    """The whole of it. ``unread``: of a file that is refused, what has something else here than in
    the file, or nothing, because it could not be read.
    """

    cell_types: Mapping[str, CellType] = field(default_factory=dict)
    physical_cells: tuple[PhysicalCell, ...] = ()
    nodes: Mapping[str, NodeLimits] = field(default_factory=dict)
    virtual_clusters: Mapping[str, VirtualCluster] = field(default_factory=dict)
    policy: Policy = Policy()
    unread: frozenset[UnreadPath] = frozenset()

    @cached_property
    def all_types(self) -> frozenset[str]:
        """Cell types that are defined, and leaves."""
        return frozenset(self.cell_types) | {each.child for each in self.cell_types.values()}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about a configuration: ``path`` is the key in question, like
    ``virtualClusters.vision.cells[0].type``; ``line`` 0 where it is not known.
    """

    path: str
    message: str
    line: int = 0


NAMES_TOLD = 10
"""Of what there is, in a message about what is not."""


def listed(names: Collection[str]) -> str:
    """Names in a message: in order, and of many only the first."""
    first = ", ".join(sorted(names)[:NAMES_TOLD])
    more = len(names) - NAMES_TOLD
    return f"{first} and {more} more" if more > 0 else first or "none"
