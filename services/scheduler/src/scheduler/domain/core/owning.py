"""Who owns how much by the configuration: quotas, pins, and what they are in leaves."""

from collections.abc import Sequence

from scheduler.domain.core.forest import Cell, Forest, Quota


def owner_of(virtual_cluster: str) -> str:
    """The owner of a virtual cluster's bound cells."""
    return f"vc {virtual_cluster}"


def pin_owner(pin: str) -> str:
    """The owner of a pinned cell."""
    return f"pin {pin}"


class Owning:
    """``quotas``: by owner. ``splitters``: owners of cells inside nodes. ``pins_of``: pin → owner.
    ``owned[owner, GPU type]`` and ``pin_leaves[pin]``: leaves. ``pin_types``: pin → GPU type.
    ``is_regular``: every cell is complete. ``in_several``: GPU types that several chains have.
    """

    def __init__(self, forest: Forest) -> None:
        self.quotas = {owner_of(vc): quotas for vc, quotas in forest.quotas.items()}
        self.splitters = {
            owner
            for owner, quotas in self.quotas.items()
            if any(quota.level < quota.chain.node_level for quota in quotas)
        }
        self._uneven = {
            owner for owner, quotas in self.quotas.items() if not _are_nodes_of_one_level(quotas)
        }
        self.pins_of = {pin: owner_of(vc) for pin, vc in forest.pin_owners.items()}
        self.owned: dict[tuple[str, str], int] = {}
        for owner, quotas in self.quotas.items():
            for quota in quotas:
                key = (owner, quota.chain.leaf)
                leaves = quota.count * quota.chain.leaves(quota.level)
                self.owned[key] = self.owned.get(key, 0) + leaves
        self.pin_leaves = {
            pin: sum(len(slot.gpus) for slot in place.slots())
            if isinstance(place, Cell)
            else part.mask.bit_count()
            if part is not None
            else len(place.gpus)
            for pin, (place, part) in forest.pins.items()
        }
        self.pin_types = {pin: forest.pin_type(pin) for pin in forest.pins}
        self.in_several = {
            leaf
            for leaf, racks in forest.racks.items()
            if len({rack.cell.chain.name for rack in racks}) > 1
        }
        self.is_regular = all(
            cell.is_complete
            for chain in forest.chains.values()
            for cells in chain.cells
            for cell in cells
        )

    def is_plain(self, owner: str | None) -> bool:
        """All cells are complete, and the owner's quota of a GPU type is nodes or more, of one
        level.
        """
        return self.is_regular and owner not in self._uneven


def _are_nodes_of_one_level(quotas: Sequence[Quota]) -> bool:
    levels = {(quota.chain.leaf, quota.level) for quota in quotas}
    is_one = len(levels) == len({leaf for leaf, _ in levels})
    return is_one and all(quota.level >= quota.chain.node_level for quota in quotas)
