"""Physical cells by address: health, use and owner of each.

A virtual cluster has only the cells that are bound to it, so one view serves both. Long answers
are computed in steps.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from scheduler.api.answers import Answer
from scheduler.api.why import named
from scheduler.domain.core.binding import Binding, cell_key
from scheduler.domain.core.forest import Cell, Forest
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.model import NO_ONE, OPPORTUNISTIC
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core.reservation import Reservation
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
    after the first ``after``.
    """

    address: str | None
    virtual_cluster: str | None
    after: int
    limit: int


async def cells(state: State, wanted: Wanted) -> Answer | None:
    """The cells in the order of the file; None for an unknown name. Each is as of its step. After
    a rebuild of the cluster the rest is as before it.
    """
    looking = _Looking(state)
    as_of, hardware = state.cluster.cycle, state.cluster.hardware
    found = _found(hardware.forest, wanted.address)
    name = wanted.virtual_cluster
    is_there = bool(found) or wanted.address is None
    if not is_there or (name is not None and name not in hardware.forest.quotas):
        return None
    spots = _spots(found, is_whole=wanted.address is not None)
    if name is not None:
        spots = iter(await _bound_to(hardware, name, wanted.address))
    total, end, shown = 0, wanted.after + wanted.limit, []
    while some := list(islice(spots, WALKED)):
        for cell, part in some[max(wanted.after - total, 0) : max(end - total, 0)]:
            shown.append(await looking.row(cell, part))
        total += len(some)
        await asyncio.sleep(0)
    return {
        "asOf": as_of,
        "total": total,
        "limit": wanted.limit,
        "next": str(end) if end < total else None,
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


async def _bound_to(hardware: Hardware, name: str, address: str | None) -> list[Spot]:
    """What is bound to a virtual cluster, in order; none of these cells is in another."""
    owners = {owner_of(name)}
    owners |= {pin_owner(pin) for pin, vc in hardware.forest.pin_owners.items() if vc == name}
    chains, spots = list(hardware.forest.chains), []
    mine = [binding for binding in hardware.bindings.values() if binding.owner in owners]
    for number, binding in enumerate(mine, 1):
        if number % WALKED == 0:
            await asyncio.sleep(0)
        if address is None or f"{binding.address}/".startswith(f"{address}/"):
            first, mask = next(binding.masks())
            order = chains.index(binding.cell.chain.name), first.number, mask & -mask
            spots.append((order, (binding.cell, binding.part)))
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
    reserved_for: Reservation | None = None
    priority: int | None = None
    troubled: int = 0
    trouble: str | None = None


class _Looking:
    """Reads a cluster's cells and yields to other tasks after so many nodes. Meanwhile another
    cluster may come into force, with other numbers of nodes.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._cluster = state.cluster
        self._looked = 0
        forest = self._cluster.hardware.forest
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
            self._add(
                figures,
                self._cluster.hardware.states[slot.number],
                mask,
                is_above=slot.cell is not cell,
            )
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

    def _add(self, to: _Figures, state: SlotState, mask: int, *, is_above: bool) -> None:
        """Count a node's leaves."""
        well = mask & ~state.sick if state.machine.is_healthy else 0
        used = state.held | state.leaving | state.blocked
        bound = 0
        for leaves in state.bound.values():
            bound |= leaves
        to.gpus += mask.bit_count()
        to.healthy += well.bit_count()
        to.used += (used & mask).bit_count()
        to.nominated += (state.reserved & mask).bit_count()
        to.free += (state.usable & ~self._cluster.hardware.used(state) & mask).bit_count()
        to.bound += (bound & mask).bit_count()
        for gang, leaves in state.holders.items():
            if leaves & mask:
                to.priority = _highest(to.priority, self._priority(gang))
        reserved = self._add_reserved(to, state, mask)
        for gang, leaves in state.chargers.items():
            if leaves & mask and gang not in reserved:
                to.priority = _highest(to.priority, self._priority(gang))
        if well != mask:
            to.troubled += 1
            if to.trouble is None:
                name = f"{state.machine.name}: " if is_above else ""
                to.trouble = name + self._why_bad(state, mask)

    def _add_reserved(self, to: _Figures, state: SlotState, mask: int) -> set[str]:
        """Count a node's reserved leaves: cells of reservations, and what these are charged
        elsewhere as quota is short. Returns the gangs with reserved leaves there.
        """
        reserved, gangs = 0, set[str]()
        for gang, reservation in self._cluster.reservations.by_gang.items():
            charged = state.chargers.get(gang, 0)
            leaves = (reservation.leaves.get(state.slot.number, 0) | charged) & mask
            if leaves:
                gangs.add(gang)
                reserved |= leaves
                first = to.reserved_for
                if first is None or reservation.starts_at < first.starts_at:
                    to.reserved_for = reservation
        to.reserved += reserved.bit_count()
        return gangs

    def _reserved_for(self, reservation: Reservation | None) -> Answer | None:
        if reservation is None:
            return None
        starts_at = time_of(reservation.starts_at)
        return named(self._state, reservation.live) | {"startsAt": starts_at}

    def _priority(self, gang: str) -> int | None:
        """As other gangs see it: any gang with cells can preempt a gang without cells."""
        live = self._cluster.gangs.get(gang)
        if live is None or live.gang.virtual_cluster == NO_ONE:
            return None
        return live.gang.priority if live.is_charged else OPPORTUNISTIC

    def _why_bad(self, state: SlotState, mask: int) -> str:
        node = self._state.ledger.nodes.get(state.machine.name)
        if node is None:
            return "it has not reported yet"
        if node.trouble is not None or node.report is None:
            return node.trouble or "it has not reported yet"
        reported = {gpu.index: gpu for gpu in node.report.gpus}
        bad = state.slot.indices(state.sick & mask)
        if not bad:
            return "it is well again, as of the next cycle"
        gpu = reported.get(bad[0])
        why = "the node does not have it" if gpu is None else gpu.problem or "it is unhealthy"
        return f"GPU {bad[0]}: {why}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")

    def _binding(self, cell: Cell, part: Part | None) -> Answer | None:
        """Of the cell, or of the one around it that is bound."""
        found = None
        if cell.slot is not None:
            mask = cell.slot.shape.full if part is None else part.mask
            level = cell.level if part is None else part.level
            for bindings in self._cluster.hardware.states[cell.slot.number].bindings.values():
                for leaves, binding in bindings:
                    around = binding.cell.level if binding.part is None else binding.part.level
                    if not mask & ~leaves and around >= level:
                        found = binding
        else:
            above: Cell | None = cell
            while above is not None and found is None:
                found = self._cluster.hardware.bindings.get(cell_key(above, None))
                above = above.parent
        return None if found is None else self._bound(found)

    def _bound(self, binding: Binding) -> Answer:
        name, pin = self._owners[binding.owner]
        return {
            "cell": binding.address,
            "virtualCluster": name,
            "quota": None if binding.quota is None else binding.quota.path,
            "pin": pin,
        }


def _gpu(cell: Cell, part: Part | None) -> int | None:
    if part is None or part.level or cell.slot is None:
        return None
    return cell.slot.indices(part.mask)[0]


def _highest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _trouble(figures: _Figures) -> str | None:
    more = figures.troubled - 1
    if figures.trouble is None or more < 1:
        return figures.trouble
    return f"{figures.trouble} (and {more} more node{'' if more == 1 else 's'})"
