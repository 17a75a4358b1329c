"""Physical cells by address: health, use and owner of each.

A virtual cluster has only the cells that are bound to it, so one view serves both. Long answers
are computed in steps.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from muster.counted import counted

from scheduler.api.answers import Answer
from scheduler.api.why import named
from scheduler.domain.core.forest import Cell, Forest, Slot
from scheduler.domain.core.interface import BoundCell, Core, ReservedLeaves
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core.shapes import Part
from scheduler.domain.moments import time_of
from scheduler.domain.state import State

STEP = 100
"""Nodes of one step: some 3 ms, and with 1,000 reservations 8 ms more."""

WALKED = 2000
"""Cells that are skipped at once."""


Spot = tuple[Cell, Part | None]
"""A cell: a node's or above, or a part inside of that node."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Without an address: nodes and the cells above them; else the cell there with all in it. With
    a virtual cluster: only cells that are bound to it, also inside nodes. At most ``limit`` cells
    after the first ``offset``.
    """

    address: str | None
    virtual_cluster: str | None
    offset: int
    limit: int


async def cells(state: State, wanted: Wanted) -> Answer | None:
    """The cells in the order of the file; None for an unknown name. Each is as of its step. After
    a rebuild of the cluster the rest is as before it.
    """
    looking = _Looking(state)
    as_of, core = state.core.cycles, state.core
    found = _found(core.forest, wanted.address)
    name = wanted.virtual_cluster
    is_there = bool(found) or wanted.address is None
    if not is_there or (name is not None and name not in core.forest.quotas):
        return None
    spots = _spots(found, is_whole=wanted.address is not None)
    if name is not None:
        spots = iter(await _bound_to(core, name, wanted.address))
    total, end, shown = 0, wanted.offset + wanted.limit, []
    while some := list(islice(spots, WALKED)):
        for cell, part in some[max(wanted.offset - total, 0) : max(end - total, 0)]:
            shown.append(await looking.row(cell, part))
        total += len(some)
        await asyncio.sleep(0)
    return {
        "asOf": as_of,
        "total": total,
        "offset": wanted.offset,
        "limit": wanted.limit,
        "cells": shown,
    }


def _found(forest: Forest, address: str | None) -> list[Spot]:
    """The top cells, or those at an address: chains may have the same."""
    if address is None:
        return [(c, None) for chain in forest.chains.values() for c in chain.cells[chain.top]]
    found: list[Spot] = []
    for chain in forest.chains.values():
        for cell in forest.by_address(chain, address):
            slot = cell.slot
            if cell.address == address:
                found.append((cell, None))
            elif slot is not None:
                parts = (part for _, part in _parts(cell, slot.shape.root) if part is not None)
                found += [(cell, part) for part in parts if slot.address(part) == address]
    return found


def _spots(found: list[Spot], *, is_whole: bool) -> Iterator[Spot]:
    """Cells and all below them, parents first; ``is_whole``: also what is inside nodes."""
    for cell, part in found:
        yield cell, part
        if part is not None:
            yield from _parts(cell, part)
        elif cell.slot is None:
            yield from _spots([(child, None) for child in cell.children], is_whole=is_whole)
        elif is_whole:
            yield from _parts(cell, cell.slot.shape.root)


def _parts(cell: Cell, part: Part) -> Iterator[Spot]:
    for child in part.children:
        yield cell, child
        yield from _parts(cell, child)


async def _bound_to(core: Core, name: str, address: str | None) -> list[Spot]:
    """What is bound to a virtual cluster, in order; none of these cells is in another."""
    owners = {owner_of(name)}
    owners |= {pin_owner(pin) for pin, vc in core.forest.pin_owners.items() if vc == name}
    chains, spots = list(core.forest.chains), []
    for number, bound in enumerate(list(core.cells.bound(owners)), 1):
        if number % WALKED == 0:
            await asyncio.sleep(0)
        if address is None or f"{bound.address}/".startswith(f"{address}/"):
            first = next(bound.cell.slots())
            leaves = first.shape.full if bound.part is None else bound.part.mask
            order = chains.index(bound.cell.chain.name), first.number, leaves & -leaves
            spots.append((order, (bound.cell, bound.part)))
    return [spot for _, spot in sorted(spots, key=lambda each: each[0])]


@dataclass(slots=True)
class _Figures:
    """Of a cell's GPUs. ``troubled``: nodes with something that is not well, ``trouble`` of the
    first. ``priority``: the highest of the gangs that use them or have them nominated or reserved.
    ``reserved_for``: the first of the reservations to start.
    """

    gpus: int = 0
    healthy: int = 0
    used: int = 0
    nominated: int = 0
    free: int = 0
    bound: int = 0
    reserved: int = 0
    reserved_for: ReservedLeaves | None = None
    priority: int | None = None
    troubled: int = 0
    trouble: str | None = None


class _Looking:
    """Reads a cluster's cells and yields to other tasks after so many nodes. Meanwhile another
    cluster may come into force, with other numbers of nodes.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._core = state.core
        self._looked = 0
        forest = self._core.forest
        owners: dict[str, tuple[str | None, str | None]] = {
            owner_of(name): (name, None) for name in forest.quotas
        }
        pins = {pin_owner(pin): (forest.pin_owners.get(pin), pin) for pin in forest.pins}
        self._owners = owners | pins

    async def row(self, cell: Cell, part: Part | None) -> Answer:
        """A cell as it is shown."""
        figures, level = _Figures(), cell.level if part is None else part.level
        for slot in cell.slots():
            self._looked += 1
            if self._looked % STEP == 0:
                await asyncio.sleep(0)
            mask = slot.shape.full if part is None else part.mask
            self._add(figures, slot, mask, is_above=slot.cell is not cell)
        slot_of = cell.slot
        order = None if slot_of is None else self._state.orders.get(slot_of.machine)
        is_well = figures.healthy == figures.gpus
        return {
            "cell": cell.address if part is None or slot_of is None else slot_of.address(part),
            "chain": cell.chain.name,
            "type": cell.chain.types[level],
            "node": None if slot_of is None else slot_of.machine,
            "gpu": _gpu(cell, part),
            "health": "healthy" if is_well else "bad",
            "trouble": _trouble(figures),
            "order": None if order is None else order.value,
            "gpus": figures.gpus,
            "gpusHealthy": figures.healthy,
            "gpusUsed": figures.used,
            "gpusNominated": figures.nominated,
            "gpusFree": figures.free,
            "gpusBound": figures.bound,
            "gpusReserved": figures.reserved,
            "reservedFor": self._reserved_for(figures.reserved_for),
            "binding": self._binding(cell, part),
            "priority": figures.priority,
        }

    def _add(self, to: _Figures, slot: Slot, mask: int, *, is_above: bool) -> None:
        """Count a node's leaves."""
        state = self._core.cells.slot(slot)
        well = mask & ~state.bad if state.is_healthy else 0
        bound = reserved = 0
        for leaves, _ in state.cells:
            bound |= leaves
        to.gpus += mask.bit_count()
        to.healthy += well.bit_count()
        to.used += (state.used & mask).bit_count()
        to.nominated += (state.nominated & mask).bit_count()
        to.free += (state.free & mask).bit_count()
        to.bound += (bound & mask).bit_count()
        for leaves, priority in state.gangs:
            if leaves & mask and (to.priority is None or priority > to.priority):
                to.priority = priority
        for each in state.reserved:
            reserved |= each.leaves & mask
            first = to.reserved_for
            if each.leaves & mask and (first is None or each.starts_at < first.starts_at):
                to.reserved_for = each
        to.reserved += reserved.bit_count()
        if well != mask:
            to.troubled += 1
            if to.trouble is None:
                name = f"{slot.machine}: " if is_above else ""
                to.trouble = name + self._why_bad(slot, state.bad & mask)

    def _reserved_for(self, reserved: ReservedLeaves | None) -> Answer | None:
        if reserved is None:
            return None
        return named(self._state, reserved.gang) | {"startsAt": time_of(reserved.starts_at)}

    def _why_bad(self, slot: Slot, leaves: int) -> str:
        node = self._state.ledger.nodes.get(slot.machine)
        if node is None:
            return "it has not reported yet"
        if node.trouble is not None or node.report is None:
            return node.trouble or "it has not reported yet"
        reported = {gpu.index: gpu for gpu in node.report.gpus}
        bad = slot.indices(leaves)
        if not bad:
            return "it is well again, as of the next cycle"
        gpu = reported.get(bad[0])
        why = "the node does not have it" if gpu is None else gpu.problem or "it is unhealthy"
        return f"GPU {bad[0]}: {why}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")

    def _binding(self, cell: Cell, part: Part | None) -> Answer | None:
        """Of the cell, or of the one around it that is bound."""
        first, found = next(cell.slots()), None
        mask = first.shape.full if part is None else part.mask
        level = cell.level if part is None else part.level
        for leaves, bound in self._core.cells.slot(first).cells:
            around = bound.cell.level if bound.part is None else bound.part.level
            if not mask & ~leaves and around >= level:
                found = bound
        return None if found is None else self._bound(found)

    def _bound(self, bound: BoundCell) -> Answer:
        name, pin = self._owners[bound.owner]
        return {
            "cell": bound.address,
            "virtualCluster": name,
            "quota": bound.quota,
            "pin": pin,
        }


def _gpu(cell: Cell, part: Part | None) -> int | None:
    if part is None or part.level or cell.slot is None:
        return None
    return cell.slot.indices(part.mask)[0]


def _trouble(figures: _Figures) -> str | None:
    more = figures.troubled - 1
    if figures.trouble is None or more < 1:
        return figures.trouble
    return f"{figures.trouble} (and {counted(more, 'more node')})"
