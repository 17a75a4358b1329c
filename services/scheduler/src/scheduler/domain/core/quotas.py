"""Whether virtual clusters can have what a configuration promises them, and what has no effect."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler.domain.core.config import (
    ALL_TYPES,
    Finding,
    PhysicalCell,
    QuotaCells,
    VirtualCluster,
    listed,
)
from scheduler.domain.core.forest import Cell, Chain, Forest, Quota, Slot
from scheduler.domain.core.gaps import Gaps
from scheduler.domain.core.shapes import Part


@dataclass(frozen=True, slots=True)
class _Owned:
    """One entry of a virtual cluster's cells: so many of a level, and where that stands."""

    name: str
    count: int
    path: str
    line: int


Owners = dict[tuple[str, int], list[_Owned]]
"""By chain and level, in the order of the file."""


def check_quotas(
    forest: Forest, tops: Sequence[Cell | None], gaps: Gaps, findings: list[Finding]
) -> None:
    """Resolve quotas and pins into the forest; add what is wrong to ``findings``. What is wrong
    elsewhere hides nothing: trees in which something is wrong are taken for all that they could be.

    ``tops``: the top cell of each tree of the file, None where there is none of it.
    """
    owners = _resolve(forest, gaps, findings)
    _check_pins(forest, gaps, findings)
    if gaps.has_all_trees:
        doubtful = gaps.doubtful_trees(findings)
        for chain in forest.chains.values():
            findings += _check_chain(chain, owners, _there_in(forest, tops, doubtful, chain))


def _resolve(forest: Forest, gaps: Gaps, findings: list[Finding]) -> Owners:
    owners: Owners = {}
    for name, cluster in forest.config.virtual_clusters.items():
        path = f"virtualClusters.{name}"
        counts: dict[str, tuple[Chain, int, int]] = {}
        resolver = _Resolver(forest, gaps, name, findings)
        for number, cells in enumerate(cluster.cells):
            where = f"{path}.cells[{number}]"
            found = resolver.resolve(cells, where)
            if found is not None:
                chain, level = found
                before = counts.get(cells.path, (chain, level, 0))[2]
                counts[cells.path] = (chain, level, before + cells.count)
                owned = _Owned(name, cells.count, f"{where}.count", cells.line)
                owners.setdefault((chain.name, level), []).append(owned)
        forest.quotas[name] = [Quota(p, *what) for p, what in counts.items() if what[2] > 0]
        findings += _check_limits(forest, gaps, path, cluster)
        if not forest.quotas[name] and not cluster.pins:
            message = f"{name} owns nothing: only opportunistic gangs can run in it"
            forest.warnings.append(Finding(path, message, cluster.line))
    return owners


def _check_limits(
    forest: Forest, gaps: Gaps, path: str, cluster: VirtualCluster
) -> Iterator[Finding]:
    """A limit for what is no GPU type would limit nothing."""
    known = forest.config.all_types - forest.config.cell_types.keys()
    limits = (("lendingLimit", cluster.lending_limit), ("borrowingLimit", cluster.borrowing_limit))
    for field, limit in limits:
        for name in limit:
            if name != ALL_TYPES and name not in known and gaps.has_all_types:
                message = f"{name} is no GPU type; there are {listed(known)}"
                yield Finding(f"{path}.{field}.{name}", message, cluster.line)


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Finds the level that a virtual cluster owns cells of."""

    forest: Forest
    gaps: Gaps
    name: str
    findings: list[Finding]

    def resolve(self, cells: QuotaCells, path: str) -> tuple[Chain, int] | None:
        """The chain and the level; None where there is none, which is told."""
        forest, line = self.forest, cells.line
        if not cells.path or not self._is_known(cells, path):
            return None
        types = cells.path.split("/")
        if cells.count < 0:
            self.findings.append(Finding(f"{path}.count", "must be at least 0", line))
            return None
        chain = forest.chains.get(types[0])
        if chain is None:
            within = [each for each in forest.chains.values() if types[0] in each.types]
            ways = ", ".join(f"{each.name}/{cells.path}" for each in within)
            message = (
                f"{self.name} can never use its {cells.count} {types[-1]}: no chain has {types[0]}"
                f" as its top; the chains are {listed(forest.chains)}"
                + (f". Is it {ways}?" if within else "")
            )
            forest.warnings.append(Finding(f"{path}.type", message, line))
            return None
        order = [chain.types.index(found) for found in types if found in chain.types]
        if len(order) < len(types) or order != sorted(set(order), reverse=True):
            ways = "/".join(reversed(chain.types))
            message = f"{cells.path} is no way down the chain {chain.name}, which is {ways}"
            self.findings.append(Finding(f"{path}.type", message, line))
            return None
        if cells.count == 0:
            message = f"0 cells of {cells.path} have no effect"
            forest.warnings.append(Finding(f"{path}.count", message, line))
        return chain, order[-1]

    def _is_known(self, cells: QuotaCells, path: str) -> bool:
        known = self.forest.config.all_types
        for found in cells.path.split("/"):
            if found not in known:
                if self.gaps.has_all_types:
                    message = (
                        f"{found} is no cell type; there are {listed(known)}. A type below the top"
                        " of its chain is written from the top: `rack/node`"
                    )
                    self.findings.append(Finding(f"{path}.type", message, cells.line))
                return False
        return True


# Pins.


def _check_pins(forest: Forest, gaps: Gaps, findings: list[Finding]) -> None:
    declared = frozenset(_pins(forest.config.physical_cells))
    for name, cluster in forest.config.virtual_clusters.items():
        for number, pin in enumerate(cluster.pins):
            message = ""
            if pin in forest.pin_owners:
                other = forest.pin_owners[pin]
                twice = "it is listed twice" if other == name else f"{other} owns it already"
                message = f"{name} can't own the pin {pin}: {twice}"
            elif pin in declared:
                forest.pin_owners[pin] = name
            elif gaps.has_all_pins:
                message = f"no cell has the pin {pin}; there are {listed(declared)}"
            if message:
                path = f"virtualClusters.{name}.pins[{number}]"
                findings.append(Finding(path, message))
    findings += _check_places(forest)


def _pins(cells: Iterable[PhysicalCell]) -> Iterator[str]:
    """Every pin of the configuration."""
    for cell in cells:
        if cell.pin is not None:
            yield cell.pin
        yield from _pins(cell.children or ())


def _check_places(forest: Forest) -> Iterator[Finding]:
    for pin, (place, part) in sorted(forest.pins.items()):
        above = place.cell if isinstance(place, Slot) else place.parent
        while above is not None:
            if above.pin is not None:
                message = f"the cell of {pin} lies in that of {above.pin}; pin one of them"
                yield _about(forest, pin, message)
            above = above.parent
        if isinstance(place, Slot) and part is not None:
            for other, inner in place.pins:
                if inner is not part and inner.mask & part.mask == inner.mask:
                    message = f"the cell of {other} lies in that of {pin}; pin one of them"
                    yield _about(forest, other, message)
        if pin not in forest.pin_owners:
            message = f"no virtual cluster owns the pin {pin}: nobody can use its cell as their own"
            forest.warnings.append(_about(forest, pin, message))


def _about(forest: Forest, pin: str, message: str) -> Finding:
    path, line = forest.pin_lines[pin]
    return Finding(path, message, line)


# What is there of a chain, and what of it is owned.


@dataclass(slots=True)
class _There:
    """``free``: by level, complete cells without any pin in them whose parent is not such a cell.
    ``incomplete``: cells that are not counted for it. ``unsure``: trees that count as all that they
    could be.
    """

    free: list[int]
    incomplete: list[Cell]
    unsure: int


def _check_chain(
    chain: Chain, owners: Mapping[tuple[str, int], Sequence[_Owned]], found: _There
) -> Iterator[Finding]:
    """Top down: what is owned must be there, the rest can be split. A level of which too much is
    owned is told at the entry with which it is too much.
    """
    spare = 0
    for level in range(chain.top, -1, -1):
        have = found.free[level] + spare * (chain.counts[level + 1] if level < chain.top else 1)
        those = owners.get((chain.name, level), ())
        owned = sum(each.count for each in those)
        spare = max(0, have - owned)
        if have >= owned:
            continue
        left, entry = have, those[0]
        for entry in those:
            left -= entry.count
            if left < 0:
                break
        names = {each.name: 0 for each in those}
        for each in those:
            names[each.name] += each.count
        who = listed([f"{name} {count}" for name, count in names.items()])
        there = f"{'at most ' if found.unsure else ''}{have} {'is' if have == 1 else 'are'} there"
        message = (
            f"{owned} {chain.types[level]} of the chain {chain.name} are owned ({who}), but"
            f" {there} beside pinned cells and what is owned above them"
            f"{_without(found.incomplete, max(level, chain.node_level))}"
        )
        yield Finding(entry.path, message, entry.line)


def _without(incomplete: Iterable[Cell], level: int) -> str:
    """The cells of this level that don't count because something in them is missing."""
    lacks = [_lack(cell) for cell in incomplete if cell.level == level]
    return f"; incomplete cells don't count: {listed(lacks)}" if lacks else ""


def _lack(cell: Cell) -> str:
    """The first cell in an incomplete one that has too few parts."""
    chain, level = cell.chain, cell.level
    if cell.slot is not None:
        has, count, part = len(cell.slot.gpus), chain.leaves(level), chain.types[0]
    else:
        has, count, part = len(cell.children), chain.counts[level], chain.types[level - 1]
        if has == count:
            return _lack(next(child for child in cell.children if not child.is_complete))
    return f"{cell.address} has {has} of {count} {part}"


def _there_in(
    forest: Forest, tops: Sequence[Cell | None], doubtful: Container[int], chain: Chain
) -> _There:
    """Doubtful trees count as all that they could be."""
    found, types = _There([0] * len(chain.types), [], 0), forest.config.cell_types
    trees = zip(forest.config.physical_cells, tops, strict=True)
    for number, (spec, top) in enumerate(trees):
        if number not in doubtful:
            if top is not None and top.chain is chain:
                _count(top, found)
        elif spec.type == chain.name or spec.type not in types:
            found.unsure += 1
    found.free[chain.top] += found.unsure
    return found


def _count(cell: Cell, found: _There) -> None:
    if cell.pin is not None:
        return
    if cell.is_complete and not _has_pin(cell):
        found.free[cell.level] += 1
        return
    if not cell.is_complete:
        found.incomplete.append(cell)
    if cell.slot is not None:
        for part in parts_without_pins(cell.slot):
            found.free[part.level] += 1
    for child in cell.children:
        _count(child, found)


def _has_pin(cell: Cell) -> bool:
    if cell.pin is not None or (cell.slot is not None and cell.slot.pins):
        return True
    return any(_has_pin(child) for child in cell.children)


def parts_without_pins(slot: Slot) -> tuple[Part, ...]:
    """The largest complete cells inside a node that hold no pinned one."""
    mask = slot.shape.full
    for _, part in slot.pins:
        mask &= ~part.mask
    return slot.shape.whole(mask)
