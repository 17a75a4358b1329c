"""Whether virtual clusters can have what a configuration promises them, and what has no effect."""

from collections.abc import Iterable, Iterator

from scheduler.domain.core.config import Finding, PhysicalCell, QuotaCells, listed
from scheduler.domain.core.forest import Cell, Chain, Forest, Quota, Slot
from scheduler.domain.core.shapes import Part

Owners = dict[tuple[str, int], list[tuple[str, int]]]
"""By chain and level: virtual clusters, and how many cells they own."""


def check_quotas(forest: Forest, findings: list[Finding]) -> None:
    """Resolve quotas and pins into the forest; add what is wrong to ``findings``. Where something
    is wrong with cells already, all is still checked that can be without them.
    """
    declared = frozenset(_pins(forest.config.physical_cells))
    for name, cluster in forest.config.virtual_clusters.items():
        path = f"virtualClusters.{name}"
        counts: dict[str, tuple[Chain, int, int]] = {}
        for number, cells in enumerate(cluster.cells):
            where = f"{path}.cells[{number}]"
            found = _resolve(forest, name, cells, where, findings)
            if found is not None:
                chain, level = found
                before = counts.get(cells.path, (chain, level, 0))[2]
                counts[cells.path] = (chain, level, before + cells.count)
        forest.quotas[name] = [Quota(p, *what) for p, what in counts.items() if what[2] > 0]
        for number, pin in enumerate(cluster.pins):
            where = f"{path}.pins[{number}]"
            if pin not in declared:
                message = f"no cell has the pin {pin}; there are {listed(declared)}"
                findings.append(Finding(where, message, cluster.line))
            else:
                _own_pin(forest, name, pin, where, cluster.line, findings)
        if not forest.quotas[name] and not cluster.pins:
            message = f"{name} owns nothing: only opportunistic gangs can run in it"
            forest.warnings.append(Finding(path, message, cluster.line))
    _check_pins(forest, findings)
    if not findings:
        owners: Owners = {}
        for name, quotas in forest.quotas.items():
            for quota in quotas:
                owners.setdefault((quota.chain.name, quota.level), []).append((name, quota.count))
        for chain in forest.chains.values():
            _check_chain(chain, owners, findings)


def _resolve(
    forest: Forest, name: str, cells: QuotaCells, path: str, findings: list[Finding]
) -> tuple[Chain, int] | None:
    types, known = cells.path.split("/"), forest.config.all_types
    for found in types:
        if found not in known:
            message = f"{found} is no cell type; there are {listed(known)}"
            findings.append(Finding(f"{path}.type", message, cells.line))
            return None
    if cells.count < 0:
        findings.append(Finding(f"{path}.count", "must be at least 0", cells.line))
        return None
    chain = forest.chains.get(types[0])
    if chain is None:
        message = (
            f"{name} can never use its {cells.count} {types[-1]}: no chain has {types[0]} as its"
            f" top; the chains are {listed(forest.chains)}"
        )
        forest.warnings.append(Finding(f"{path}.type", message, cells.line))
        return None
    order = [chain.types.index(found) for found in types if found in chain.types]
    if len(order) < len(types) or order != sorted(set(order), reverse=True):
        ways = "/".join(reversed(chain.types))
        message = f"{cells.path} is no way down the chain {chain.name}, which is {ways}"
        findings.append(Finding(f"{path}.type", message, cells.line))
        return None
    if cells.count == 0:
        message = f"0 cells of {cells.path} have no effect"
        forest.warnings.append(Finding(f"{path}.count", message, cells.line))
    return chain, order[-1]


def _pins(cells: Iterable[PhysicalCell]) -> Iterator[str]:
    """Every pin of the configuration."""
    for cell in cells:
        if cell.pin is not None:
            yield cell.pin
        yield from _pins(cell.children or ())


def _own_pin(
    forest: Forest, name: str, pin: str, path: str, line: int, findings: list[Finding]
) -> None:
    if pin in forest.pin_owners:
        other = forest.pin_owners[pin]
        twice = "it is listed twice" if other == name else f"{other} owns it already"
        findings.append(Finding(path, f"{name} can't own the pin {pin}: {twice}", line))
    else:
        forest.pin_owners[pin] = name


def _check_pins(forest: Forest, findings: list[Finding]) -> None:
    for pin, (place, part) in sorted(forest.pins.items()):
        above = place.cell if isinstance(place, Slot) else place.parent
        while above is not None:
            if above.pin is not None:
                message = f"the cell of {pin} lies in that of {above.pin}; pin one of them"
                findings.append(_about(forest, pin, message))
            above = above.parent
        if isinstance(place, Slot) and part is not None:
            for other, inner in place.pins:
                if inner is not part and inner.mask & part.mask == inner.mask:
                    message = f"the cell of {other} lies in that of {pin}; pin one of them"
                    findings.append(_about(forest, other, message))
        if pin not in forest.pin_owners:
            message = f"no virtual cluster owns the pin {pin}: nobody can use its cell as their own"
            forest.warnings.append(_about(forest, pin, message))


def _about(forest: Forest, pin: str, message: str) -> Finding:
    path, line = forest.pin_lines[pin]
    return Finding(path, message, line)


def _check_chain(chain: Chain, owners: Owners, findings: list[Finding]) -> None:
    """Top down: what is owned must be there, the rest can be split."""
    free = initially_free(chain)
    spare = 0
    for level in range(chain.top, -1, -1):
        have = free[level] + spare * (chain.counts[level + 1] if level < chain.top else 1)
        those = owners.get((chain.name, level), [])
        owned = sum(count for _, count in those)
        spare = max(0, have - owned)
        if have < owned:
            who = listed([f"{name} {count}" for name, count in those])
            message = (
                f"{owned} {chain.types[level]} of the chain {chain.name} are owned ({who}), but"
                f" {have} are there beside pinned cells and what is owned above them"
            )
            findings.append(Finding("virtualClusters", message))


def initially_free(chain: Chain) -> list[int]:
    """By level: complete cells without any pin in them whose parent is not such a cell."""
    free = [0] * len(chain.types)

    def has_pin(cell: Cell) -> bool:
        if cell.pin is not None or (cell.slot is not None and cell.slot.pins):
            return True
        return any(has_pin(child) for child in cell.children)

    def count(cell: Cell) -> None:
        if cell.pin is not None:
            return
        if cell.is_complete and not has_pin(cell):
            free[cell.level] += 1
        elif cell.slot is not None:
            for part in parts_without_pins(cell.slot):
                free[part.level] += 1
        else:
            for child in cell.children:
                count(child)

    for cell in chain.cells[chain.top]:
        count(cell)
    return free


def parts_without_pins(slot: Slot) -> tuple[Part, ...]:
    """The largest complete cells inside a node that hold no pinned one."""
    mask = slot.shape.full
    for _, part in slot.pins:
        mask &= ~part.mask
    return slot.shape.whole(mask)
