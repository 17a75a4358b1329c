"""Whether a virtual cluster has too little for a gang, and of what: the code `quota`."""

from collections import Counter
from typing import NamedTuple

from scheduler.domain.core.model import Gang, Kind

from oracle.hardware import Hardware
from oracle.state import State

Pool = tuple[str, str]
"""GPU type and pin (empty: in none)."""


class Shortage(NamedTuple):
    """More leaves are wanted than are left: of a pin, or of GPU types (none: of all)."""

    wanted: int
    left: int
    pin: str = ""
    types: frozenset[str] = frozenset()


def shortage(state: State, gang: Gang) -> Shortage | None:
    """Of the pin or the GPU types of one of its roles, in their order, else of all types."""
    left, known = leaves_left(state, gang), frozenset(state.hardware.gpu_types())
    wants = [
        (role.kind.pin or "", _types(role.kind, known), _fewest(state, role.kind) * len(role.pods))
        for role in gang.roles
    ]
    pools = list(dict.fromkeys((pin, frozenset() if pin else types) for pin, types, _ in wants))
    if any(not pin for pin, _ in pools):
        pools.append(("", known))
    for pin, types in pools:
        wanted = sum(
            count for named, some, count in wants if named == pin and (pin or some <= types)
        )
        there = sum(
            count for (leaf, held), count in left.items() if held == pin and (pin or leaf in types)
        )
        if wanted > there:
            return Shortage(wanted, there, pin, frozenset() if types == known else types)
    return None


def leaves_left(state: State, gang: Gang) -> Counter[Pool]:
    """What its virtual cluster owns and gangs of its priority or higher are not charged."""
    hardware, vc = state.hardware, gang.virtual_cluster
    left: Counter[Pool] = Counter()
    for path, count in hardware.quotas(vc).items():
        types = path.split("/")
        leaves = count * hardware.leaves_per(types[0], types[-1])
        left[hardware.types_of(types[0])[-1], ""] += leaves
    pin_of = {}
    for pin, cell in hardware.pins.items():
        if hardware.pin_owner.get(pin) == vc:
            pin_of.update(dict.fromkeys(hardware.leaves(cell), pin))
            left[hardware.leaf_type(cell), pin] += len(hardware.leaves(cell))
    for record in state.records.values():
        other = record.gang
        if not record.is_guaranteed or other.virtual_cluster != vc:
            continue
        if other.priority >= gang.priority:
            left.subtract(
                (hardware.leaf_type(leaf), pin_of.get(leaf, ""))
                for leaf in state.charged_by(record)
            )
    return left


def _types(kind: Kind, known: frozenset[str]) -> frozenset[str]:
    return known & frozenset(kind.gpu_types) if kind.gpus and kind.gpu_types else known


def _fewest(state: State, kind: Kind) -> int:
    """Leaves that a pod takes where that are fewest; its GPUs, where nothing takes it."""
    hardware = state.hardware
    needed = {hardware.leaves_needed(kind, machine) for machine in _machines(hardware, kind)}
    return min(needed - {None}, default=kind.gpus)


def _machines(hardware: Hardware, kind: Kind) -> set[str]:
    if kind.pin is not None:
        return {str(hardware.cells[leaf].node) for leaf in hardware.leaves(hardware.pins[kind.pin])}
    if not kind.gpus:
        return set(hardware.machines)
    types = _types(kind, frozenset(hardware.gpu_types()))
    return {
        node for (node, _), leaf in hardware.leaf_at.items() if hardware.leaf_type(leaf) in types
    }


def numbers_of(short: Shortage | None) -> dict[str, object]:
    """What a gang is told of it."""
    if short is None:
        return {}
    told: dict[str, object] = {"cellsWanted": short.wanted, "cellsLeft": short.left}
    if short.pin:
        told["pin"] = short.pin
    elif short.types:
        told["gpuType"] = ", ".join(sorted(short.types))
    return told
