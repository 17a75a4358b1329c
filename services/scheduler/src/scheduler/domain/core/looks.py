"""What nodes look like, up to symmetry: of those that are as good as one another a search in every
way tries one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scheduler.domain.core.forest import Cell
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.shapes import Part

if TYPE_CHECKING:
    from scheduler.domain.core.seeking import Seeker


class Look(NamedTuple):
    """``of``: by node, what it looks like with all above it. ``all``: everything together."""

    of: dict[int, object]
    all: object


class Looks:
    """What the nodes in question look like, up to symmetry."""

    def __init__(
        self,
        seeker: "Seeker",
        numbers: Sequence[int],
        owners: Sequence[str],
        *,
        wants_ports: bool,
    ) -> None:
        self.seeker = seeker
        self.hardware = seeker.hardware
        self.owners = owners
        self.wants_ports = wants_ports
        self.names: dict[object, int] = {}
        self.forms: dict[object, int] = {}
        self.parts: dict[object, tuple[object, ...]] = {}
        self.tops: list[Cell] = []
        self.inside: dict[int, list[Cell]] = {}
        for number in numbers:
            cell = self.hardware.states[number].slot.cell
            while cell.parent is not None:
                known = self.inside.setdefault(id(cell.parent), [])
                known.append(cell)
                cell = cell.parent
                if len(known) > 1:
                    break
            else:
                self.tops.append(cell)
        self.whole = {
            parent
            for parent, cells in self.inside.items()
            if (above := cells[0].parent) is not None
            and above.is_complete
            and len(cells) == len(above.children)
        }

    def some_of_each(self, most: int) -> set[int]:
        """Nodes that are enough for so many pods: of cells that look the same, beside one another,
        so many. The others are left out from now on.
        """
        looks: dict[int, int] = {}
        for top in self.tops:
            self._look(top, looks)
        self.tops = _first_of_each(self.tops, looks, most)
        found, cells = set[int](), list(self.tops)
        while cells:
            cell = cells.pop()
            if cell.slot is not None:
                found.add(cell.slot.number)
            elif id(cell) in self.inside:
                some = _first_of_each(self.inside[id(cell)], looks, most)
                self.inside[id(cell)] = some
                cells += some
        return found

    def now(self) -> Look:
        """At this moment."""
        of = dict[int, object]()
        looks: dict[int, int] = {}
        tops = sorted(self._look(top, looks) for top in self.tops)
        for top in self.tops:
            self._name(top, (looks[id(top)],), looks, of)
        return Look(of, tuple(tops))

    def _name(
        self, cell: Cell, path: tuple[int, ...], looks: dict[int, int], of: dict[int, object]
    ) -> None:
        if cell.slot is not None:
            of[cell.slot.number] = path
        for child in self.inside.get(id(cell), ()):
            self._name(child, (*path, looks[id(child)]), looks, of)

    def _look(self, cell: Cell, looks: dict[int, int]) -> int:
        look: object
        if cell.slot is not None:
            look = self._node(self.hardware.states[cell.slot.number])
        else:
            below = tuple(sorted(self._look(child, looks) for child in self.inside[id(cell)]))
            look = cell.chain.name, cell.level, id(cell) in self.whole, below
        found = looks[id(cell)] = self.names.setdefault(look, len(self.names))
        return found

    def of_part(self, state: SlotState, part: Part) -> tuple[object, ...]:
        """What a cell inside a node looks like, with those above it."""
        masks, at = self._masks(state), state.slot.shape.root
        key = state.sort, masks, part.mask
        if (known := self.parts.get(key)) is not None:
            return known
        path = [_form(at, masks)]
        while at is not part:
            at = next(child for child in at.children if child.mask & part.mask == part.mask)
            path.append(_form(at, masks))
        self.parts[key] = tuple(path)
        return self.parts[key]

    def _masks(self, state: SlotState) -> tuple[int, ...]:
        slot = state.slot
        return (
            state.usable & ~state.charged,
            state.usable & ~self.hardware.used(state),
            self.hardware.cells[slot.chain.name].space[slot.number],
            *(state.bound.get(owner, 0) for owner in self.owners),
        )

    def _node(self, state: SlotState) -> object:
        machine, slot, masks = state.machine, state.slot, self._masks(state)
        key = state.sort, masks
        form = self.forms.get(key)
        if form is None:
            form = self.names.setdefault(_form(slot.shape.root, masks), len(self.names))
            self.forms[key] = form
        name = machine.name if len(machine.slots) > 1 else ""
        may = self.seeker.may_use(state)
        left = tuple(self.hardware.left(machine))
        ports = len(machine.ports) if self.wants_ports else 0
        return state.sort, form, name, may, left, ports


def _first_of_each(cells: Iterable[Cell], looks: Mapping[int, int], most: int) -> list[Cell]:
    """So many of the cells with one look, in order."""
    found, counts = list[Cell](), dict[int, int]()
    for cell in cells:
        count = counts[looks[id(cell)]] = counts.get(looks[id(cell)], 0) + 1
        if count <= most:
            found.append(cell)
    return found


def _form(part: Part, masks: Sequence[int]) -> object:
    if not part.children:
        return tuple(bool(mask & part.mask) for mask in masks)
    return part.is_complete, tuple(
        sorted((_form(child, masks) for child in part.children), key=repr)
    )
