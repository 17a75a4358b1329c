"""Random small clusters and gangs: everything that a configuration may have, in a few machines."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from oracle.hardware import Hardware
from oracle.state import is_honoured
from scenes import FREE
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind, Role

GRACE_S = 30.0

PLAIN = ("plain", "bare", "idle")
"""Machines without GPUs, as files have them."""


@dataclass(frozen=True)
class Traits:
    """What a random history may have. ``restarts``: how likely one is after a cycle.
    ``changes``: how many of a hundred events are changes of the configuration. ``without_gpus``:
    how likely pods want none. ``judges``: as the follower has it.
    """

    has_limits: bool = True
    has_ports: bool = True
    has_pins: bool = True
    has_two_trees: bool = True
    is_irregular: bool = True
    has_growth: bool = True
    has_faults: bool = True
    is_large: bool = False
    restarts: float = 0.1
    changes: int = 2
    without_gpus: float = 0.08
    judges: str = "all"


EVERYTHING = Traits()


def a_cluster(random: Random, traits: Traits = EVERYTHING) -> ClusterConfig:
    """A configuration that can be honoured."""
    types = _large_cell_types() if traits.is_large else _cell_types(random)
    trees = _trees(random, types, traits)
    nodes = limits(random, trees, types, traits)
    min_run_s = random.choice((0.0, 0.0, 0.0, 25.0))
    policy = replace(FREE, is_lazy=random.random() < 0.4, grace_s=GRACE_S, min_run_s=min_run_s)
    config = ClusterConfig(types, trees, nodes, {}, policy)
    return replace(config, virtual_clusters=virtual_clusters(random, config))


def _cell_types(random: Random) -> dict[str, CellType]:
    per_rack = random.choice((2, 2, 3, 4))
    return {
        "a-switch": CellType("a", 2),
        "a-node": CellType("a-switch", random.choice((1, 2, 2)), is_node=True),
        "a-rack": CellType("a-node", per_rack),
        "a-row": CellType("a-rack", 2),
        "a-box": CellType("a", random.choice((2, 3, 4)), is_node=True),
        "b-node": CellType("b", random.choice((1, 2, 4)), is_node=True),
        "b-rack": CellType("b-node", 2),
    }


def _large_cell_types() -> dict[str, CellType]:
    return {
        "a-switch": CellType("a", 2),
        "a-socket": CellType("a-switch", 2),
        "a-node": CellType("a-socket", 2, is_node=True),
        "a-rack": CellType("a-node", 4),
        "a-row": CellType("a-rack", 2),
        "a-box": CellType("a", 4, is_node=True),
        "b-node": CellType("b", 4, is_node=True),
        "b-rack": CellType("b-node", 3),
    }


LARGE = (
    ["a-rack"] * 6,
    ["a-row"] * 3,
    ["a-rack"] * 4 + ["a-box"] * 4,
    ["a-row"] * 2 + ["b-rack"] * 3,
)


def _trees(random: Random, types: dict[str, CellType], traits: Traits) -> tuple[PhysicalCell, ...]:
    tops = random.choice(
        LARGE
        if traits.is_large
        else (
            ["a-rack"] * 2,
            ["a-rack"] * 3,
            ["a-rack", "a-rack", "b-node", "b-node"],
            ["a-node"] * 3,
            ["a-row"],
            ["a-row", "a-row"],
            ["a-rack", "a-rack", "a-box", "a-box"],
            ["b-rack", "b-rack", "a-box", "a-node"],
            ["b-rack", "a-rack"],
        )
    )
    names = iter(range(1000))
    built = []
    pins = iter(("lab", "den")) if traits.has_pins and random.random() < 0.4 else iter(())
    spells = traits.is_irregular and random.random() < 0.4
    for number, top in enumerate(tops):
        tree = _spelled(random, types, top, names, spells)
        built.append(replace(tree, name=tree.name or f"top{number}"))
    if traits.has_two_trees and random.random() < 0.25:
        built.append(_second_tree(built, types))
    pinned = []
    for tree in built:
        pin = next(pins, None) if random.random() < 0.5 else None
        pinned.append(tree if pin is None else _with_pin(random, tree, types, pin))
    return tuple(pinned)


def _spelled(
    random: Random, types: dict[str, CellType], name: str, names: "object", spells: bool
) -> PhysicalCell:
    """A tree down to its leaves; now and then a child is left out."""
    known = types.get(name)
    if known is None:
        return PhysicalCell(name)
    count = known.count
    if spells and count > 1 and random.random() < 0.25:
        count -= 1
    children = tuple(_spelled(random, types, known.child, names, spells) for _ in range(count))
    own = f"n{next(names)}" if known.is_node else None  # type: ignore[call-overload]
    return PhysicalCell(name, name=own, children=children)


def _second_tree(built: list[PhysicalCell], types: dict[str, CellType]) -> PhysicalCell:
    """GPUs of another type in the first machine."""
    node = built[0]
    while not types[node.type].is_node:
        assert node.children is not None
        node = node.children[0]
    used = types["b-node"].count
    children = tuple(PhysicalCell("b", index=16 + number) for number in range(used))
    if node.type == "b-node":
        types["c-node"] = CellType("c", 1, is_node=True)
        return PhysicalCell("c-node", name=node.name, children=(PhysicalCell("c", index=20),))
    return PhysicalCell("b-node", name=node.name, children=children)


def _with_pin(
    random: Random, tree: PhysicalCell, types: dict[str, CellType], pin: str
) -> PhysicalCell:
    """The tree with a pin on one of its cells."""
    is_full = len(tree.children or ()) == (types[tree.type].count if tree.type in types else 0)
    if not tree.children or (random.random() < 0.3 and is_full and _is_full(tree, types)):
        return replace(tree, pin=pin)
    at = random.randrange(len(tree.children))
    children = list(tree.children)
    children[at] = _with_pin(random, children[at], types, pin)
    return replace(tree, children=tuple(children))


def _is_full(tree: PhysicalCell, types: dict[str, CellType]) -> bool:
    if tree.type not in types:
        return True
    children = tree.children or ()
    return len(children) == types[tree.type].count and all(_is_full(c, types) for c in children)


def limits(
    random: Random, trees: tuple[PhysicalCell, ...], types: Mapping[str, CellType], traits: Traits
) -> dict[str, NodeLimits]:
    """What machines have beside GPUs; now and then there are some without GPUs, not by name."""
    hardware = Hardware(ClusterConfig(types, trees))
    if not traits.has_limits or random.random() < 0.5:
        return {}
    is_even = random.random() < 0.6
    nodes = {}
    for machine in hardware.machines:
        gpus = hardware.gpus_on[machine]
        per_gpu = 4 if is_even else random.choice((2, 4, 8))
        ports = (20000, 20000 + 2 * gpus - 1) if traits.has_ports else None
        nodes[machine] = NodeLimits(
            cpu=per_gpu * gpus,
            memory_mb=None if is_even else 1000 * gpus,
            ports=ports if random.random() < 0.3 else None,
            resources={"rdma": 2} if not is_even and random.random() < 0.5 else None,
        )
    if random.random() < 0.4:
        count = random.choice((1, 2, 3))
        nodes |= {name: NodeLimits(cpu=random.choice((4, 8))) for name in PLAIN[:count]}
    return nodes


def virtual_clusters(random: Random, config: ClusterConfig) -> dict[str, VirtualCluster]:
    """Quotas by any type of any chain that can be honoured; every pin has an owner."""
    names = ["x", "y", "z"][: random.choice((1, 2, 2, 3))]
    cells: dict[str, list[QuotaCells]] = {name: [] for name in names}
    pins: dict[str, list[str]] = {name: [] for name in names}
    hardware = Hardware(config)
    for pin in hardware.pins:
        pins[random.choice(names)].append(str(pin))
    made: dict[str, VirtualCluster] = {
        name: VirtualCluster((), tuple(pins[name])) for name in names
    }
    for _ in range(random.randrange(2, 9)):
        name = random.choice(names)
        chain = random.choice(hardware.chains())
        types = hardware.types_of(chain)
        path = "/".join(types[: random.randrange(len(types)) + 1])
        if any(owned.path == path for owned in cells[name]):
            continue
        wished = QuotaCells(path, random.choice((1, 1, 2, 2, 3, 4)))
        trial = made | {name: VirtualCluster((*cells[name], wished), tuple(pins[name]))}
        if is_honoured(Hardware(replace(config, virtual_clusters=trial))):
            cells[name].append(wished)
            made = trial
    return made


def a_gang(
    random: Random, hardware: Hardware, name: str, at: float, without_gpus: float = 0.08
) -> Gang:
    """What one of its users may ask for; mostly what could be had. ``without_gpus``: as `Traits`
    has it.
    """
    config = hardware.config
    priority = random.choice((OPPORTUNISTIC, OPPORTUNISTIC, 0, 1, 1, 2, 3))
    owners = [vc for vc, owned in config.virtual_clusters.items() if owned.cells or owned.pins]
    vc = random.choice(owners if owners and random.random() < 0.95 else [*config.virtual_clusters])
    room = _leaves_of(hardware, vc, priority)
    roles: list[Role] = []
    for number in range(2 if random.random() < 0.25 else 1):
        kind = _kind(random, hardware, vc, priority, without_gpus)
        pods = random.choice((1, 1, 1, 2, 2, 3, 4)) if kind.gpus <= 2 else random.choice((1, 1, 2))
        if random.random() < 0.9:
            most = max(room.values(), default=0) // max(1, kind.gpus) if kind.gpus else pods
            pods = max(1, min(pods, most))
        names = tuple(f"r{number}-{pod}" for pod in range(pods))
        roles.append(Role(kind, names, name=f"r{number}"))
    machines = hardware.machines
    allowed = None
    if random.random() < 0.06:
        allowed = frozenset(random.sample(machines, max(1, len(machines) // 2)))
    has_group = random.random() < 0.2
    return Gang(
        name,
        vc,
        "user",
        priority,
        tuple(roles),
        job=random.choice(("j1", "j2")) if has_group or random.random() < 0.2 else name,
        submitted_at=at,
        group="g" if has_group else None,
        is_lazy=random.choice((None, None, True, False)),
        allowed_nodes=allowed,
        min_run_s=random.choice((None, None, None, 15.0, 40.0)),
        checkpoint_s=random.choice((None, None, 15.0, 40.0)),
    )


def _leaves_of(hardware: Hardware, vc: str, priority: int) -> Counter[str]:
    """How many GPUs of each type a gang of this priority can ever have."""
    if priority == OPPORTUNISTIC:
        return Counter(hardware.leaf_type(leaf) for leaf in hardware.leaf_at.values())
    room: Counter[str] = Counter()
    for path, count in hardware.quotas(vc).items():
        types = path.split("/")
        gpus = hardware.leaves_per(types[0], types[-1])
        room[hardware.types_of(types[0])[-1]] += count * gpus
    return room


def _kind(random: Random, hardware: Hardware, vc: str, priority: int, without_gpus: float) -> Kind:
    config = hardware.config
    room = _leaves_of(hardware, vc, priority)
    some = random.choice(sorted(room) or hardware.gpu_types())
    nodes = [at for at in hardware.node_cells() if hardware.leaf_type(at) == some]
    biggest = max(len(hardware.leaves(at)) for at in nodes)
    sizes = (1, 1, 2, 2, 4, 8, 8) if biggest >= 8 else (1, 1, 1, 2, 2, 3, 4, 4)
    gpus = random.choice([g for g in sizes if g <= biggest] or [1])
    if random.random() < without_gpus:
        gpus = 0
    types = hardware.gpu_types()
    chosen: tuple[str, ...] = ()
    if gpus and random.random() < 0.35:
        chosen = tuple(random.sample(types, random.randrange(1, len(types) + 1)))
        chosen = chosen if some in chosen else (*chosen, some)
    pin = None
    pins = config.virtual_clusters[vc].pins
    if pins and priority > OPPORTUNISTIC and gpus and random.random() < 0.4:
        pin, chosen = random.choice(pins), ()
        gpus = min(gpus, len(hardware.leaves(hardware.pins[pin])))
    if not config.nodes:
        return Kind(gpus, chosen, pin, cpu=random.choice((0, 1)))
    with_gpus = (0, gpus, gpus * 2, gpus * 2, gpus * 4, gpus * 4 + 3, 6)
    cpu = random.choice(with_gpus if gpus else (0, 1, 1, 2, 2, 3, 6))
    ports = random.choice((0, 0, 0, 1, 2))
    resources = (("rdma", 1),) if random.random() < 0.15 else ()
    memory = random.choice((0, 0, 500 * gpus, 1500))
    return Kind(gpus, chosen, pin, cpu, memory, ports, resources)
