"""What a gang may use, under terms: who is thought gone, who downgraded, which GPUs alone."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind

from oracle.hardware import Hardware, Path
from oracle.state import Bound, Record, State, free_cells, kinds_of

Spot = int | str
"""Where a pod may be: a node cell by number, or a machine without GPUs by name."""


@dataclass(frozen=True)
class Terms:
    """``gone``: gangs that are thought to have left. ``downgraded``: gangs that are thought to run
    on without their cells. ``only``: no other GPUs than these. ``has_shape_alone``: as if machines
    had no end of all but GPUs. ``as_opportunistic``: whatever its priority is.
    """

    gone: frozenset[str] = frozenset()
    downgraded: frozenset[str] = frozenset()
    only: frozenset[int] | None = None
    has_shape_alone: bool = False
    as_opportunistic: bool = False


@dataclass
class View:
    """One state as one gang sees it. ``idle``: GPUs that it may use. ``charged``: GPUs that others
    are charged; ``chargeable``: those that it may use, but for these.
    """

    hardware: Hardware
    gang: Gang
    terms: Terms
    is_guaranteed: bool
    idle: set[int]
    chargeable: set[int]
    charged: set[int]
    bound: Bound
    left: dict[str, dict[str, int]]
    usable: set[str]
    quota_left: Counter[Path] = field(default_factory=Counter)

    def pools(self, bindings: list[tuple[int, Path]]) -> dict[int, str]:
        """Leaves that may be used without binding more: "" or the name of the pin they are in."""
        hardware, vc = self.hardware, self.gang.virtual_cluster
        pools: dict[int, str] = {}
        mine = [cell for cell, (owner, _) in self.bound.items() if owner == vc]
        for cell in [*mine, *(cell for cell, _ in bindings)]:
            pools.update(dict.fromkeys(hardware.leaves(cell), ""))
        for pin, cell in hardware.pins.items():
            if hardware.pin_owner.get(pin) == vc:
                pools.update(dict.fromkeys(hardware.leaves(cell), pin))
        return pools

    def with_bound(self, bindings: list[tuple[int, Path]]) -> Bound:
        """All that is bound with these."""
        vc = self.gang.virtual_cluster
        return self.bound | {cell: (vc, path) for cell, path in bindings}

    def free(self, bindings: list[tuple[int, Path]]) -> set[int]:
        """The cells that can still be bound."""
        return free_cells(self.hardware, self.with_bound(bindings))

    def needed(self, kind: Kind, machine: str) -> int | None:
        """Leaves that a pod takes there."""
        if not self.is_guaranteed or self.terms.has_shape_alone:
            return kind.gpus
        return self.hardware.leaves_needed(kind, machine)

    def has_room(self, kind: Kind, machine: str | None) -> bool:
        """Whether a machine has CPU, memory and so on left for one such pod."""
        left = self.left.get(machine or "", {})
        return all(not count or count <= left.get(name, count) for name, count in demands(kind))


def demands(kind: Kind) -> Iterator[tuple[str, int]]:
    """What a pod wants beside GPUs, by name."""
    yield from (("cpu", kind.cpu), ("memory", kind.memory_mb), ("ports", kind.ports))
    for name, count in kind.resources:
        yield f"resource {name}", count


def look(state: State, gang: Gang, terms: Terms) -> View:
    """See the state as the gang does."""
    hardware = state.hardware
    staying = [r for r in state.records.values() if r.gang.id not in terms.gone]
    held = {leaf for record in staying for leaf in state.leaves_of(record)}
    cells = [r for r in staying if r.is_guaranteed and r.gang.id not in terms.downgraded]
    charged = {leaf for record in cells for leaf in state.charged_by(record)}
    usable = {
        machine
        for machine in hardware.machines
        if state.is_machine_usable(machine)
        and (gang.allowed_nodes is None or machine in gang.allowed_nodes)
    }
    leaves = {
        leaf
        for (node, _), leaf in hardware.leaf_at.items()
        if node in usable and state.is_usable(leaf)
    }
    near = leaves if terms.only is None else leaves & terms.only
    view = View(
        hardware,
        gang,
        terms,
        gang.priority > OPPORTUNISTIC and not terms.as_opportunistic,
        idle=near - held,
        chargeable=near - charged,
        charged=charged,
        bound=state.bound(terms.downgraded | terms.gone),
        left=_left(state, gang, staying, terms),
        usable=usable,
    )
    view.quota_left.update(hardware.quotas(gang.virtual_cluster))
    view.quota_left.subtract(
        path for owner, path in view.bound.values() if owner == gang.virtual_cluster
    )
    return view


def _left(
    state: State, gang: Gang, staying: list[Record], terms: Terms
) -> dict[str, dict[str, int]]:
    """What is left of what is limited, by machine; a name that is missing has no limit."""
    left: dict[str, dict[str, int]] = {machine: {} for machine in state.hardware.machines}
    if terms.has_shape_alone or not state.hardware.config.nodes:
        return left
    everybody = (gang, *(record.gang for record in staying))
    names = {name for one in everybody for name in _resources(one)}
    for machine, mine in left.items():
        limits = state.hardware.limits(machine)
        ports = None if limits.ports is None else limits.ports[1] - limits.ports[0] + 1
        has = {"cpu": limits.cpu, "memory": limits.memory_mb, "ports": ports}
        mine.update((name, count) for name, count in has.items() if count is not None)
        if limits.resources is not None:
            mine.update((f"resource {name}", limits.resources.get(name, 0)) for name in names)
    for record in staying:
        kinds = kinds_of(record.gang.roles)
        for pod, place in record.places.items():
            mine = left.get(place.node, {})
            for name, count in demands(kinds[pod]):
                if name in mine:
                    mine[name] -= count
    return left


def _resources(gang: Gang) -> Iterator[str]:
    for role in gang.roles:
        yield from (name for name, _ in role.kind.resources)
