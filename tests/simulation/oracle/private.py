"""Safety's yardstick: whether a gang fits in its virtual cluster as if that were hardware alone.

The cells that are bound count with what gangs of its priority or higher leave of them; each cell
of the quota that is not bound counts as one that is fresh. Where machines differ, or some are not
usable, or gangs of its own virtual cluster run without cells that it may not preempt, nothing is
promised here.
"""

from collections import Counter

from scheduler.domain.core.model import OPPORTUNISTIC, Gang
from scheduler.domain.core.nodes import FIRST_PORT, LAST_PORT

from oracle.choices import is_spared, type_choices
from oracle.hardware import Hardware
from oracle.state import State

Room = tuple[str, str, int]
"""GPU type (empty: any), pin (empty: none), leaves on one machine."""


def fits_in_private(state: State, gang: Gang) -> bool:
    """Whether the gang must not wait."""
    if gang.priority == OPPORTUNISTIC or gang.allowed_nodes is not None or not _is_even(state):
        return False
    if _may_lack_ports(state, gang) or any(is_spared(r, gang) for r in state.records.values()):
        return False
    rooms = _rooms(state, gang)
    machine = str(state.hardware.cells[state.hardware.node_cells()[0]].node)
    for types in type_choices(state.hardware, gang.roles):
        pods: list[Room] = []
        for role, gpu_type in zip(gang.roles, types, strict=True):
            needed = state.hardware.leaves_needed(role.kind, machine)
            if needed is None:
                return False
            if needed:
                pods += [(gpu_type or "", role.kind.pin or "", needed)] * len(role.pods)
        if _pack(sorted(pods, key=lambda pod: -pod[2]), rooms, set()):
            return True
    return False


def _is_even(state: State) -> bool:
    hardware = state.hardware
    nodes = [hardware.cells[number] for number in hardware.node_cells()]
    shapes = {(str(hardware.limits(str(at.node))), hardware.gpus_on[at.node]) for at in nodes}
    out_of_use = state.bad_nodes | state.cordoned | state.drained | {n for n, _ in state.bad_gpus}
    return len(shapes) == 1 and len({at.node for at in nodes}) == len(nodes) and not out_of_use


def _may_lack_ports(state: State, gang: Gang) -> bool:
    """Ports of machines without a range of their own are promised to nobody."""
    held = (len(at.ports) for record in state.records.values() for at in record.places.values())
    wanted = sum(role.kind.ports * len(role.pods) for role in gang.roles)
    return sum(held) + wanted > LAST_PORT - FIRST_PORT + 1


def _rooms(state: State, gang: Gang) -> Counter[Room]:
    hardware, vc = state.hardware, gang.virtual_cluster
    charged: set[int] = set()
    for record in state.records.values():
        if not record.is_guaranteed or record.gang.virtual_cluster != vc:
            continue
        if record.gang.priority >= gang.priority or state.is_protected(record):
            charged.update(state.charged_by(record))
    rooms: Counter[Room] = Counter()
    bound = {cell: path for cell, (owner, path) in state.bound().items() if owner == vc}
    pins = [cell for pin, cell in hardware.pins.items() if hardware.pin_owner.get(pin) == vc]
    for cell in [*bound, *pins]:
        per_node = Counter(
            hardware.cells[leaf].node for leaf in hardware.leaves(cell) if leaf not in charged
        )
        for count in per_node.values():
            rooms[hardware.leaf_type(cell), hardware.cells[cell].pin or "", count] += 1
    unbound = hardware.quotas(vc)
    unbound.subtract(bound.values())
    for path, count in unbound.items():
        chain, cell_type = path.split("/")[0], path.split("/")[-1]
        nodes, leaves = _nodes_in(hardware, chain, cell_type)
        rooms[hardware.types_of(chain)[-1], "", leaves] += nodes * max(count, 0)
    return rooms


def _nodes_in(hardware: Hardware, chain: str, cell_type: str) -> tuple[int, int]:
    """How many machines a complete cell has (1 if it is in one), and the leaves it has of each."""
    types = hardware.types_of(chain)
    node = next(name for name in types if hardware.is_node_type(name))
    of_cell = hardware.leaves_per(chain, cell_type)
    of_node = hardware.leaves_per(chain, node)
    return max(1, of_cell // of_node), min(of_cell, of_node)


def _pack(pods: list[Room], rooms: Counter[Room], failed: set[object]) -> bool:
    if not pods:
        return True
    key = (len(pods), tuple(sorted((+rooms).items())))
    if key in failed:
        return False
    gpu_type, pin, needed = pods[0]
    for room in sorted(+rooms):
        if gpu_type in ("", room[0]) and room[1] == pin and room[2] >= needed:
            less = rooms.copy()
            less[room] -= 1
            less[room[0], pin, room[2] - needed] += 1
            if _pack(pods[1:], less, failed):
                return True
    failed.add(key)
    return False
