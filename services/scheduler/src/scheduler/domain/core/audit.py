"""Is the state right? Everything that it keeps is worked out once more from places and bindings."""

from collections import Counter
from collections.abc import Collection, Iterator

from scheduler.domain.core.forest import Cell, Chain
from scheduler.domain.core.nodes import Binding, Phase, Place, Slot, Workload
from scheduler.domain.core.state import UNLIMITED, State
from scheduler.domain.core.views import View

Held = tuple[Workload, Place]


def drifts(state: State, workloads: Collection[Workload]) -> Iterator[str]:
    """What the state has otherwise than its workloads say, in words."""
    held: dict[Slot, list[Held]] = {}
    for workload in workloads:
        for place in workload.places:
            held.setdefault(place.slot, []).append((workload, place))
    users: Counter[Binding] = Counter()
    bindings: set[Binding] = set()
    for pool in state.pools:
        for slot in pool.slots:
            yield from _slot_drifts(slot, held.get(slot, []), users)
            bindings.update(each for _, each in slot.bindings)
    yield from _amount_drifts(state, held)
    yield from _user_drifts(bindings, users)
    for chain in state.forest.chains.values():
        yield from _spare_drifts(state, chain, bindings)
    yield from _charge_drifts(state, workloads)
    for view in state.views():
        yield from _view_drifts(view)


def _amount_drifts(state: State, held: dict[Slot, list[Held]]) -> Iterator[str]:
    for node in state.nodes.values():
        of_node = [each for slot in node.slots for each in held.get(slot, [])]
        for name, is_soon in (("left", False), ("soon", True)):
            amounts = _amounts(state, node.slots[0], of_node, is_soon=is_soon)
            if amounts != getattr(node, name):
                yield f"{node.name}: {name} is {getattr(node, name)}, not {amounts}"
        ports = 0
        for workload, place in of_node:
            if place.ports & ports:
                yield f"{node.name}: {workload.name} shares ports"
            ports |= place.ports
        if ports != node.ports:
            yield f"{node.name}: ports are {node.ports:b}, not {ports:b}"


def _user_drifts(bindings: Collection[Binding], users: Counter[Binding]) -> Iterator[str]:
    for binding in bindings:
        if binding.users != users[binding]:
            yield f"{binding.cell.address}: {binding.users} users, not {users[binding]}"
        if not binding.users and binding.quota is not None:
            yield f"{binding.cell.address}: bound without users"


def _slot_drifts(slot: Slot, held: list[Held], users: Counter[Binding]) -> Iterator[str]:
    used = holding = staying = charged = 0
    pods: dict[Workload, tuple[int, int]] = {}
    for workload, place in held:
        is_leaving = workload.phase is Phase.LEAVING
        is_nominated = workload.phase is Phase.NOMINATED
        if place.gpus & (holding if is_nominated else used):
            yield f"{slot.node.name}: {workload.name} shares GPUs"
        used |= 0 if is_nominated else place.gpus
        holding |= place.gpus if is_nominated else 0
        if place.gpus & staying and not is_leaving:
            yield f"{slot.node.name}: {workload.name} is where another stays"
        staying |= 0 if is_leaving else place.gpus
        charge = 0 if is_leaving or workload.is_opportunistic else place.charge
        if charge & charged:
            yield f"{slot.node.name}: {workload.name} is charged what another is"
        charged |= charge
        if charge & ~slot.bound.get(place.owner, 0):
            yield f"{slot.node.name}: {workload.name} is charged outside its owner's cells"
        users.update(each for mask, each in slot.bindings if mask & charge)
        before = pods.get(workload, (0, 0))
        pods[workload] = before[0] | place.gpus, before[1] | charge
    found = (slot.used, slot.held, slot.staying, slot.charged)
    if found != (used, holding, staying, charged):
        yield f"{slot.node.name}: masks are {found}, not {(used, holding, staying, charged)}"
    pods = {workload: masks for workload, masks in pods.items() if any(masks)}
    if pods != {workload: masks for workload, masks in slot.pods.items() if any(masks)}:
        yield f"{slot.node.name}: its pods are others"
    bound = 0
    for owner, mask in slot.bound.items():
        cells = 0
        for each, binding in slot.bindings:
            cells |= each if binding.owner == owner else 0
        if mask != cells or mask & bound or not mask:
            yield f"{slot.node.name}: bound to {owner} is {mask:b}, its cells are {cells:b}"
        bound |= mask
    if slot.open != slot.shape.full & ~bound:
        yield f"{slot.node.name}: open is {slot.open:b}, bound is {bound:b}"


def _amounts(state: State, slot: Slot, held: list[Held], *, is_soon: bool) -> tuple[int, ...]:
    totals = state.resources.totals(slot.node.limits)
    left = [UNLIMITED if total is None else total for total in totals]
    for i, amount in enumerate(slot.node.blocked):
        left[i] -= amount
    for workload, place in held:
        if slot.model.limited and not (is_soon and workload.phase is Phase.LEAVING):
            left = [a - b for a, b in zip(left, place.amounts, strict=True)]
    return tuple(left)


def _charge_drifts(state: State, workloads: Collection[Workload]) -> Iterator[str]:
    charged: Counter[tuple[str, str, int]] = Counter()
    for workload in workloads:
        for place in workload.places:
            if workload.owner is None or workload.phase is Phase.LEAVING or not place.charge:
                continue
            assert place.slot.model.chain is not None
            account = (place.owner, place.slot.model.chain.leaf, workload.priority)
            charged[account] += place.charge.bit_count()
    found = {
        (*account, priority): leaves
        for account, by_priority in state.charged.items()
        for priority, leaves in by_priority.items()
        if leaves
    }
    if found != charged:
        yield f"charged is {found}, not {dict(charged)}"
    leaving = sum(each.phase is Phase.LEAVING for each in workloads)
    if state.leaving != leaving:
        yield f"leaving are {state.leaving}, not {leaving}"


def _spare_drifts(state: State, chain: Chain, bindings: Collection[Binding]) -> Iterator[str]:
    """S by its definition, from the bound cells alone."""
    bound: set[tuple[Slot, int]] = set()
    for binding in bindings:
        for slot in state.slots_of(binding.cell):
            mask = slot.shape.full if binding.part is None else binding.part.mask
            bound.update((slot, 1 << i) for i in range(slot.shape.leaves) if mask >> i & 1)
    free = [0] * len(chain.types)
    for top in chain.cells[chain.top]:
        _count_free(state, top, bound, free)
    left, spare = 0, [0] * len(free)
    for level in range(chain.top, -1, -1):
        owed = sum(
            each.left
            for quotas in state.quotas.values()
            for each in quotas
            if each.chain is chain and each.level == level
        )
        times = chain.counts[level + 1] if level < chain.top else 1
        left = spare[level] = free[level] + times * left - owed
    if spare != state.buddies[chain.name].spare():
        yield f"{chain.name}: spare is {state.buddies[chain.name].spare()}, not {spare}"
    if min(spare) < 0:
        yield f"{chain.name}: not all that is owned can be had: {spare}"


def _count_free(state: State, cell: Cell, bound: set[tuple[Slot, int]], free: list[int]) -> None:
    slots = state.slots_of(cell)
    is_touched = any((slot, 1 << i) in bound for slot in slots for i in range(slot.shape.leaves))
    if cell.is_complete and not is_touched:
        free[cell.level] += 1
    elif cell.slot is not None:
        taken = sum(bit for slot, bit in bound if slot is slots[0])
        for part in slots[0].shape.whole(slots[0].shape.full & ~taken):
            free[part.level] += 1
    for child in cell.children if is_touched or not cell.is_complete else ():
        _count_free(state, child, bound, free)


def _view_drifts(view: View) -> Iterator[str]:
    view.flush()
    fresh = view.anew()
    if view.facts() != fresh.facts():
        yield f"a view of {view.pool.leaf} is {view.facts()}, not {fresh.facts()}"
