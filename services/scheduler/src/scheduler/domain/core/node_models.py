"""What nodes and pods are like, each once: models of nodes, patterns of free leaves, wants of pods.

A decision compares patterns, not nodes: 16,384 nodes of one model have a few dozen patterns.
"""

from collections.abc import Iterable, Mapping

from scheduler.domain.core.config import NodeLimits
from scheduler.domain.core.forest import Chain, Forest
from scheduler.domain.core.model import Kind
from scheduler.domain.core.shapes import Shape

CPUS, MEMORY = "CPUs", "MB of memory"
NEVER = 1 << 30
"""Leaves that no node has: the pod can't be there."""

PORTS = "ports"
OTHERS = "others"
FIRST_PORT, LAST_PORT = 20_000, 65_535
"""The ports of a node for which no range is configured."""

MOST_UNITS = 127
"""The most shares that a key counts; it says no more of a node on which nothing is limited."""
UNIT_BITS = 7

UNITS_WITHOUT_GPUS = 64
"""Shares of a node without GPUs."""

INEXACT = 1 << 40
"""Added to the rank of nodes that have enough beside GPUs, or just not: shares are rounded down."""


class Resources:
    """The resources beside GPUs, in one order: CPU, memory, ports, each counted resource of the
    configuration, and all others together.
    """

    def __init__(self, limits: Iterable[NodeLimits]) -> None:
        self._counted = sorted({name for each in limits for name in each.resources or ()})
        self.names = ("cpu", "memoryMB", PORTS, *self._counted, OTHERS)
        self.ports = self.names.index(PORTS)

    def totals(self, limits: NodeLimits) -> tuple[int | None, ...]:
        """What a node has of each; None: no limit."""
        ports = None if limits.ports is None else limits.ports[1] - limits.ports[0] + 1
        listed: Mapping[str, int] | None = limits.resources
        counted = [None if listed is None else listed.get(name, 0) for name in self._counted]
        others = None if listed is None else 0
        return (limits.cpu, limits.memory_mb, ports, *counted, others)

    def amounts(self, kind: Kind) -> tuple[int, ...]:
        """What a pod wants of each."""
        wanted = dict(kind.resources)
        counted = [wanted.pop(name, 0) for name in self._counted]
        return (kind.cpu, kind.memory_mb, kind.ports, *counted, sum(wanted.values()))

    def named(self, kind: Kind) -> dict[str, int]:
        """What a pod wants, by name: also resources that the configuration does not count."""
        beside = {CPUS: kind.cpu, MEMORY: kind.memory_mb, PORTS: kind.ports}
        return beside | dict(kind.resources)

    def index(self, name: str) -> int:
        """Where a resource is in the order."""
        known = (CPUS, MEMORY, *self.names[2:])
        return known.index(name if name in known else OTHERS)


class Model:
    """Nodes that are alike, by their GPUs in one tree. ``chain`` None: without GPUs.

    ``units``: the shares into which all beside GPUs is divided: the node's GPUs in all its trees.
    ``limited``: indices of the resources with a limit.
    """

    def __init__(
        self,
        number: int,
        chain: Chain | None,
        shape: Shape,
        gpus: int,
        totals: tuple[int | None, ...],
    ) -> None:
        self.number = number
        self.chain = chain
        self.shape = shape
        self.gpus = gpus
        self.units = gpus or UNITS_WITHOUT_GPUS
        self.totals = totals
        self.limited = tuple(i for i, total in enumerate(totals) if total is not None)
        self.patterns: dict[int, int] = {}

    def share(self, leaves: int) -> tuple[int, ...]:
        """Of each limited resource, what comes with these leaves."""
        count = leaves.bit_count()
        return tuple(-(-(total or 0) * count // self.units) for total in self.totals)

    def goes_with_leaf(self, amounts: tuple[int, ...]) -> bool:
        """One leaf's share has so much of each limited resource."""
        return all(amounts[i] * self.units <= (self.totals[i] or 0) for i in self.limited)

    def is_leaf_full(self, amounts: tuple[int, ...]) -> bool:
        """So much leaves nothing of one leaf's share of some limited resource."""
        totals = ((amounts[i], self.totals[i]) for i in self.limited)
        return any(total and amount * self.units >= total for amount, total in totals)

    def units_left(self, left: tuple[int, ...]) -> int:
        """Shares that are left of the scarcest resource."""
        least = MOST_UNITS
        for i in self.limited:
            total = self.totals[i]
            if total:
                least = min(least, left[i] * self.units // total)
        return max(least, 0)


class Pattern:
    """Free leaves of a model's nodes, up to symmetry. ``mask``: of one of them."""

    __slots__ = ("form", "free", "is_whole", "mask", "model")

    def __init__(self, model: Model, mask: int, form: tuple[object, ...]) -> None:
        self.model = model
        self.mask = mask
        self.form = form
        self.free = mask.bit_count()
        self.is_whole = mask == model.shape.full and mask > 0


class Patterns:
    """All patterns by number. A node's *key* is its pattern and its shares left, in one int."""

    def __init__(self) -> None:
        self.all: list[Pattern] = []
        self._by_form: dict[tuple[Model, tuple[object, ...]], int] = {}

    def key(self, model: Model, mask: int, units: int) -> int:
        """The key of a node with these leaves and shares left."""
        number = model.patterns.get(mask)
        if number is None:
            form = model.shape.free(mask).form
            number = self._by_form.get((model, form))
            if number is None:
                number = self._by_form[model, form] = len(self.all)
                self.all.append(Pattern(model, mask, form))
            model.patterns[mask] = number
        return number << UNIT_BITS | units

    def order(self, key: int) -> tuple[tuple[object, ...], int, int]:
        """Of two keys of one rank the lower is better: whatever was seen before."""
        pattern = self.of(key)
        return pattern.form, pattern.model.number, key & MOST_UNITS

    def of(self, key: int) -> Pattern:
        """The pattern in a key."""
        return self.all[key >> UNIT_BITS]


class Want:
    """What each pod of a kind wants, as its gang holds GPUs: charged for its share or not.

    ``bare``: the same as if only leaves counted.
    """

    def __init__(
        self,
        kind: Kind,
        resources: Resources,
        patterns: Patterns,
        *,
        is_charged: bool,
        is_bare: bool = False,
    ) -> None:
        self.kind = kind
        self.gpus = kind.gpus
        self.gpu_types = kind.gpu_types
        self.is_charged = is_charged
        self.amounts = resources.amounts(kind)
        self.bare = (
            self
            if is_bare
            else Want(kind, resources, patterns, is_charged=is_charged, is_bare=True)
        )
        self._is_bare = is_bare
        self._patterns = patterns
        self._ports = resources.ports
        self._needs: dict[Model, tuple[int, int]] = {}
        self._ranks: dict[int, int | None] = {}
        self._nearest: dict[Shape, int] = {}
        self._least: dict[tuple[Model, ...], int] = {}

    def need(self, model: Model) -> tuple[int, int]:
        """Leaves that a pod takes on such a node, and shares of all else; `NEVER` leaves where the
        node has not enough.
        """
        found = self._needs.get(model)
        if found is None:
            found = self._needs[model] = self._work_out(model)
        return found

    def _work_out(self, model: Model) -> tuple[int, int]:
        units = 0
        if model.totals[self._ports] is None and self.kind.ports > LAST_PORT - FIRST_PORT + 1:
            return NEVER, NEVER
        for i in model.limited:
            amount, total = self.amounts[i], model.totals[i] or 0
            if amount > total:
                return NEVER, NEVER
            if amount:
                units = max(units, -(-amount * model.units // total))
        leaves = max(self.gpus, units) if self.is_charged and model.gpus else self.gpus
        return leaves, 0 if self._is_bare else units

    def rank(self, key: int) -> int | None:
        """How well a pod fits on nodes with a key: low is better, None: it does not.

        Level of the leaves' lowest common cell, then the block that they break, then free leaves.
        """
        found = self._ranks.get(key, -1)
        if found == -1:
            found = self._ranks[key] = self._rank(key)
        return found

    def _rank(self, key: int) -> int | None:
        pattern = self._patterns.of(key)
        model = pattern.model
        if self.gpu_types and (model.chain is None or model.chain.gpu_type not in self.gpu_types):
            return None
        leaves, units = self.need(model)
        left = key & MOST_UNITS
        if pattern.free < leaves or left + 1 < units:
            return None
        pick = model.shape.pick(pattern.mask, leaves)
        if pick is None:
            return None
        rank = (pick.level << 24) + (pick.block << 12) + pattern.free
        return rank if left >= units else rank + INEXACT

    def room(self, key: int) -> int:
        """Pods that a node with a key has room for, by counts."""
        pattern = self._patterns.of(key)
        leaves, units = self.need(pattern.model)
        room = pattern.free // leaves if leaves else NEVER
        return min(room, (key & MOST_UNITS) // units) if units else room

    def least(self, models: tuple[Model, ...]) -> int:
        """Leaves that a pod takes where it takes fewest; `NEVER` if no node takes it."""
        found = self._least.get(models)
        if found is None:
            types = self.gpu_types
            found = self._least[models] = min(
                (
                    self.need(model)[0]
                    for model in models
                    if not types or (model.chain is not None and model.chain.gpu_type in types)
                ),
                default=NEVER,
            )
        return found

    def may_share(self, model: Model) -> bool:
        """A pod is charged one leaf on such a node, which others may share."""
        return not self.gpus and self.kind.pin is None and self.need(model)[0] == 1

    def most_in_leaf(self, models: tuple[Model, ...]) -> int:
        """Pods that may share a leaf, where these are most; they take one leaf each at least."""
        found = 1
        for model in models:
            if self.may_share(model):
                most = (
                    (model.totals[i] or 0) // (model.units * self.amounts[i])
                    for i in model.limited
                    if self.amounts[i]
                )
                found = max(found, min(most, default=1))
        return found

    def costs_no_leaves(self, models: tuple[Model, ...]) -> bool:
        """A pod takes no leaf on any of these."""
        return not self.gpus and all(self.need(model)[0] in (0, NEVER) for model in models)

    def nearest(self, shape: Shape) -> int:
        """The lowest level at which so many leaves have a common cell: no place is nearer."""
        found = self._nearest.get(shape)
        if found is None:
            level, leaves = 0, 1
            while leaves < self.gpus and level < shape.levels:
                level += 1
                leaves *= shape.counts[level]
            found = self._nearest[shape] = level
        return found


def distinct_limits(forest: Forest) -> list[NodeLimits]:
    """The limits of a forest's nodes, each once, in the order of the nodes."""
    found: dict[int, NodeLimits] = {}
    for name in forest.machines:
        limits = forest.limits(name)
        found[id(limits)] = limits
    return list(found.values())
