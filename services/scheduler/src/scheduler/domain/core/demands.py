"""What pods need on each sort of node: leaves."""

from collections.abc import Iterable, Mapping, Sequence

from scheduler.domain.core.machines import NEVER, Machine, SlotState, Sort
from scheduler.domain.core.model import Kind
from scheduler.domain.core.ranks import Needs, Wish

WISHES_REMEMBERED = 100_000


class Demands:
    """``samples``: of each sort of node one, in order. ``pins``: the nodes of each pinned cell.
    ``has_open_ports``: some node has no range of ports.
    """

    def __init__(
        self,
        sorts: Sequence[Sort],
        machines: Iterable[Machine],
        samples: Sequence[SlotState],
        pins: Mapping[str, Iterable[SlotState]],
    ) -> None:
        self.sorts = sorts
        self.machines = list(machines)
        self.samples = samples
        self.is_limited = any(machine.sort.names for machine in self.machines)
        self.has_open_ports = any(m.sort.limits.ports is None for m in self.machines)
        self._wishes: dict[tuple[Kind, bool], Wish] = {}
        self._levels: dict[Needs, int] = {}
        self._least: dict[Kind, int] = {}
        self._least_of: dict[tuple[Needs, str], int] = {}
        self._pinned = {pin: {state.sort for state in states} for pin, states in pins.items()}

    def wish(self, kind: Kind, *, is_guest: bool) -> Wish:
        """What a pod needs, by the sort of node: leaves (what it is charged, else its GPUs)."""
        key = (kind, is_guest)
        found = self._wishes.get(key)
        if found is None:
            if len(self._wishes) >= WISHES_REMEMBERED:
                self._wishes.clear()
            takes = [sort.take(kind) for sort in self.sorts]
            needs = tuple(
                NEVER if take is None else kind.gpus if is_guest else take.leaves for take in takes
            )
            found = self._wishes[key] = (needs, is_guest)
        return found

    def least_leaves(self, kind: Kind) -> int:
        """Leaves that a pod is charged on the node where that is least, of those with GPUs of its
        types or in its pin; `NEVER` where none of them takes it.
        """
        found = self._least.get(kind)
        if found is None:
            if len(self._least) >= WISHES_REMEMBERED:
                self._least.clear()
            found = self._least[kind] = 0 if self._may_be_free(kind) else self._fewest(kind)
        return found

    def is_loose(self, kind: Kind) -> bool:
        """Such pods may be charged leaves that they don't use, and guests may."""
        return any(need not in (kind.gpus, NEVER) for need in self.wish(kind, is_guest=False)[0])

    def least_of(self, needs: Needs, gpu_type: str) -> int:
        """The least of what a pod needs on nodes with GPUs of a type; `NEVER` if there is none."""
        found = self._least_of.get((needs, gpu_type))
        if found is None:
            if len(self._least_of) >= WISHES_REMEMBERED:
                self._least_of.clear()
            pairs = zip(needs, self.samples, strict=True)
            some = (need for need, each in pairs if each.gpu_type == gpu_type)
            found = self._least_of[needs, gpu_type] = min(some, default=NEVER)
        return found

    def _may_be_free(self, kind: Kind) -> bool:
        return kind.costs_nothing and any(
            (take := machine.sort.take(kind)) is not None
            and not (machine.slots and any(take.amounts))
            for machine in self.machines
        )

    def _fewest(self, kind: Kind) -> int:
        needs, types = self.wish(kind, is_guest=False)[0], kind.gpu_types
        if kind.pin is not None:
            some = [needs[sort] for sort in self._pinned.get(kind.pin, ())]
        else:
            some = [self.least_of(needs, each) for each in types] or [*needs]
        return min(some, default=NEVER)

    def least_level(self, needs: Needs) -> int:
        """The smallest cell that such a pod's leaves can have in common, on any empty node."""
        found = self._levels.get(needs)
        if found is None:
            found = min(
                (
                    pick.level
                    for state in self.samples
                    if 0 < needs[state.sort] <= state.slot.shape.leaves
                    and (pick := state.slot.shape.pick(state.slot.shape.full, needs[state.sort]))
                ),
                default=0,
            )
            if len(self._levels) >= WISHES_REMEMBERED:
                self._levels.clear()
            self._levels[needs] = found
        return found
