"""Who would have to move so that a cell is free as a whole, or what else is in the way of that."""

from collections.abc import Iterator
from typing import NamedTuple

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.extras import lives_of
from scheduler.domain.core.forest import Cell, Chain
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import REMNANT, Live
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.names import wrong_name
from scheduler.domain.core.shapes import Part

UNWELL, PINNED, KEPT, UNSETTLED, BOUND = "unwell", "pinned", "kept", "unsettled", "bound"
"""Why a cell can't be freed: it is not well or not open; pinned; kept for a gang that waits; its
gangs wait for something, or leave; it is a part of a larger bound cell, in which others stay.
"""


class Spot(NamedTuple):
    """A cell; inside a node: the ``part`` of it."""

    cell: Cell
    part: Part | None = None

    @property
    def address(self) -> str:
        """The cell's full address."""
        if self.part is None:
            return self.cell.address
        assert self.cell.slot is not None
        return self.cell.slot.address(self.part)

    def leaves(self, hardware: Hardware) -> Iterator[tuple[SlotState, int]]:
        """Nodes that are in it or around it, with the leaves that are in it."""
        for slot in self.cell.slots():
            mask = slot.shape.full if self.part is None else self.part.mask
            yield hardware.states[slot.number], mask

    def is_free(self, hardware: Hardware) -> bool:
        """No cell in it, above it or itself is bound."""
        cells = hardware.cells[self.cell.chain.name]
        if self.part is None:
            return cells.is_free(self.cell)
        assert self.cell.slot is not None
        return not self.part.mask & ~cells.space[self.cell.slot.number]


def spots_of(chain: Chain, level: int) -> Iterator[Spot]:
    """The complete cells of a level, in order."""
    if level >= chain.node_level:
        yield from (Spot(cell) for cell in chain.cells[level] if cell.is_complete)
        return
    for cell in chain.cells[chain.node_level]:
        assert cell.slot is not None
        for part in cell.slot.shape.parts[level]:
            if part.is_complete:
                yield Spot(cell, part)


def occupants(cluster: Cluster, spot: Spot) -> dict[str, Live] | str:
    """Gangs of which something is there, and pods that others have grown by; or why it can't be
    freed.
    """
    found, users = set[str](), set[str]()
    masks = {state.slot.number: mask for state, mask in spot.leaves(cluster.hardware)}
    for state, mask in spot.leaves(cluster.hardware):
        obstacle = _obstacle(state, mask, users)
        if obstacle is not None:
            return obstacle
        for by_gang in (state.holders, state.chargers):
            found.update(gang for gang, leaves in by_gang.items() if leaves & mask)
        if is_within(state, masks):
            found.update(state.machine.pods)
    if any(gang in cluster.reservations.by_gang for gang in found):
        return KEPT
    lives = {gang: cluster.gangs[gang] for gang in sorted(found)}
    if not all(can_move(cluster, live) for live in lives.values()):
        return UNSETTLED
    leaving = {extra for gang in lives for extra in cluster.extras.get(gang, {}).values()}
    if not users <= leaving | lives.keys():
        return BOUND
    return {gang: live for gang, live in lives.items() if gang not in leaving}


def _obstacle(state: SlotState, mask: int, users: set[str]) -> str | None:
    """What is in the way on one node, whoever is there; and who uses bound cells around it."""
    if mask & ~state.usable:
        return UNWELL
    if mask & state.reserved:
        return UNSETTLED
    for of_owner in state.bindings.values():
        for leaves, binding in of_owner:
            if leaves & mask and binding.quota is None:
                return PINNED
            if leaves & mask:
                users.update(binding.users)
    return None


def can_move(cluster: Cluster, live: Live) -> bool:
    """It runs whole, with all that it has known, and nothing of it waits or leaves."""
    if live.extra_of is not None:
        return live.started_at is not None and not live.is_leaving and not live.reserved
    is_settled = live.started_at is not None and not live.is_leaving and not live.waiting
    return (
        is_settled
        and not live.reserved
        and not live.strangers
        and not any(REMNANT in name for name in live.pods)
        and wrong_name(cluster.hardware, live) is None
        and not any(each.is_leaving or each.reserved for each in lives_of(cluster, live.id))
    )


def is_within(state: SlotState, masks: dict[int, int]) -> bool:
    """All of a machine is in the cells with these leaves, by node's number."""
    return all(
        masks.get(each.slot.number, 0) == each.slot.shape.full for each in state.machine.slots
    )
