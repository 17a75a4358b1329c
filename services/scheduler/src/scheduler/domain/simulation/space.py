"""Which GPUs are free, and how many of them in whole nodes and whole racks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.domain.core.forest import Forest, Slot
from scheduler.domain.core.fragmentation import FreeCells
from scheduler.domain.core.model import PodPlace


@dataclass(slots=True)
class _Node:
    """A node's cells, and their used leaves. ``free``: of each cell."""

    slots: list[Slot]
    free: list[int]
    used: set[int] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    blocked: frozenset[int] = frozenset()
    is_healthy: bool = True
    is_open: bool = True


@dataclass(slots=True)
class Room:
    """GPUs by number: all, used ones, free ones, and the free ones in wholly free nodes, and in
    wholly free racks. Free: unused and usable.
    """

    all: int = 0
    used: int = 0
    free: int = 0
    in_free_nodes: int = 0
    in_free_racks: int = 0


class Space:
    """Free and used GPUs, updated with each pod. ``cells``: those of whole cells."""

    def __init__(self, forest: Forest) -> None:
        self.room = Room()
        self._nodes: dict[str, _Node] = {}
        self._forest = forest
        self._free_slots: dict[int, int] = {}
        self.cells = FreeCells(forest)
        self.change(forest)

    def change(self, forest: Forest) -> None:
        """Another configuration; running gangs continue. Unhealthy hardware that remains stays
        unhealthy. Hardware that returns later is healthy and open, as for the core.
        """
        before, self._nodes = self._nodes, {}
        self._forest = forest
        self._free_slots = {}
        self.cells = FreeCells(forest)
        used = sum(len(node.used) for node in before.values())
        self.room = Room(all=sum(len(slot.gpus) for slot in forest.slots), used=used)
        for name, slots in forest.machines.items():
            self._nodes[name] = node = before.pop(name, _Node([], []))
            node.slots, node.free = list(slots), [0] * len(slots)
            node.bad.intersection_update(gpu for slot in slots for gpu in slot.gpus)
            self._refresh(node)
        for name, node in before.items():  # its node is gone; its pods may continue
            self._nodes[name] = _Node([], [], used=node.used)

    def take(self, places: Iterable[PodPlace]) -> None:
        """Pods have started."""
        for place in places:
            node = self._nodes.setdefault(place.node, _Node([], []))
            node.used.update(place.gpus)
            self.room.used += len(place.gpus)
            self._refresh(node)

    def give(self, places: Iterable[PodPlace]) -> None:
        """Pods are over."""
        for place in places:
            node = self._nodes[place.node]
            node.used.difference_update(place.gpus)
            self.room.used -= len(place.gpus)
            self._refresh(node)

    def is_used(self, place: PodPlace) -> bool:
        """Whether one of a place's GPUs is used already."""
        node = self._nodes.get(place.node)
        return node is not None and not node.used.isdisjoint(place.gpus)

    def has(self, name: str, gpu: int | None = None) -> bool:
        """Whether there is such a node, and such a GPU on it."""
        slots = self._forest.machines.get(name)
        return slots is not None and (gpu is None or any(gpu in slot.gpus for slot in slots))

    def set_node_health(self, name: str, is_healthy: bool) -> None:
        """A node is healthy, or not."""
        self._nodes[name].is_healthy = is_healthy
        self._refresh(self._nodes[name])

    def set_gpu_health(self, name: str, gpu: int, is_healthy: bool) -> None:
        """A GPU is healthy, or not."""
        bad = self._nodes[name].bad
        if is_healthy:
            bad.discard(gpu)
        else:
            bad.add(gpu)
        self._refresh(self._nodes[name])

    def block(self, name: str, gpus: Iterable[int]) -> None:
        """Foreign pods hold these GPUs, and no others."""
        self._nodes[name].blocked = frozenset(gpus)
        self._refresh(self._nodes[name])

    def set_open(self, name: str, is_open: bool) -> None:
        """A node takes new pods, or not."""
        self._nodes[name].is_open = is_open
        self._refresh(self._nodes[name])

    def _refresh(self, node: _Node) -> None:
        """Count the free GPUs of a node again."""
        is_usable = node.is_healthy and node.is_open
        for number, slot in enumerate(node.slots):
            taken = sum(
                gpu in node.used or gpu in node.bad or gpu in node.blocked for gpu in slot.gpus
            )
            free = len(slot.gpus) - taken if is_usable else 0
            self.cells.set(slot, _mask(node, slot) if free else 0)
            if free != node.free[number]:
                self._set_free(slot, node.free[number], free)
                node.free[number] = free

    def _set_free(self, slot: Slot, before: int, free: int) -> None:
        size = len(slot.gpus)
        self.room.free += free - before
        if size not in (before, free):
            return
        step = 1 if free == size else -1
        rack = self._forest.rack_of[slot.number]
        self.room.in_free_nodes += step * size
        first = rack.slots[0].number  # racks are numbered per GPU type, slots are not
        free_slots = self._free_slots.get(first, 0)
        if len(rack.slots) in (free_slots, free_slots + step):
            self.room.in_free_racks += step * sum(len(each.gpus) for each in rack.slots)
        self._free_slots[first] = free_slots + step


def _mask(node: _Node, slot: Slot) -> int:
    """The free leaves of an open, healthy node."""
    away = node.used | node.bad | node.blocked
    return slot.shape.full & ~slot.mask_of(tuple(away))
