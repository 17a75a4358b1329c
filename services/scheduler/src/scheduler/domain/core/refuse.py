"""Gangs that can never start here: what counts prove to be too large."""

from collections import Counter
from collections.abc import Iterator
from math import inf

from scheduler.domain.core.model import Reason
from scheduler.domain.core.names import wrong_in
from scheduler.domain.core.node_models import NEVER, Model, Want
from scheduler.domain.core.nodes import Pool, Slot, Workload
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.shortage import is_beyond, wanted
from scheduler.domain.core.state import State
from scheduler.domain.core.wording import amount_of, too_large, wanted_of


def refusal(state: State, workload: Workload) -> Reason | None:
    """Why a healthy, empty cluster of this configuration could not hold a workload; None: by counts
    it could.
    """
    gang = workload.gang
    if not any(_is_too_large(state, workload)):
        return None
    return too_large(gang, workload.kinds, _remedy(state, workload), _pins(state, workload))


def misnaming(state: State, workload: Workload) -> Reason | None:
    """What a workload names that the configuration has not; None: nothing."""
    kinds = (want.kind for want, _ in workload.wants)
    wrong = wrong_in(state.forest, workload.gang, kinds)
    return None if wrong is None else Reason(*wrong, wanted_of(workload.kinds))


def _pins(state: State, workload: Workload) -> list[str]:
    """Pins of its virtual cluster that could hold it, where it names none: its pods may have no
    others' cells.
    """
    owners, cluster = state.forest.pin_owners, workload.gang.virtual_cluster
    if workload.is_opportunistic or any(kind.pin for kind, _ in workload.kinds):
        return []
    mine = (pin for pin, owner in owners.items() if owner == cluster)
    return sorted(pin for pin in mine if _has_room(state, workload, pin))


def _has_room(state: State, workload: Workload, pin: str) -> bool:
    owner = pin_owner(pin)
    slots = [slot for pool in state.pools for slot in pool.slots if owner in slot.bound]
    return all(
        sum(_room(want, slot) for slot in slots if _has_type(want, slot.pool)) >= len(pods)
        for want, pods in workload.wants
    )


def _is_too_large(state: State, workload: Workload) -> Iterator[bool]:
    gang = workload.gang
    may_be_opportunistic = all(want.kind.costs_nothing for want, _ in workload.wants)
    if workload.owner is not None and not gang.is_borrowing and not may_be_opportunistic:
        yield is_beyond(state, wanted(state, workload))
    for want, pods in workload.wants:
        is_charged = want.is_charged and not want.kind.costs_nothing  # several share a leaf
        asked = state.want(want.kind, is_charged=is_charged)
        yield _rooms(state, asked, gang.allowed_nodes, len(pods)) < len(pods)


def _rooms(state: State, want: Want, allowed: frozenset[str] | None, enough: int) -> int:
    """Pods that all empty nodes together have room for, by counts; ``enough`` of them at most."""
    found = 0
    for pool in state.pools:
        if not _has_type(want, pool):
            continue
        for slot in pool.slots:
            if allowed is None or slot.node.name in allowed:
                found += _room(want, slot)
                if found >= enough:
                    return enough
    return found


def _has_type(want: Want, pool: Pool) -> bool:
    return not want.gpu_types or pool.gpu_type in want.gpu_types


def _remedy(state: State, workload: Workload) -> str:
    if scarce := _scarce(state, workload):
        return f"No node has {'; none has '.join(scarce)}. Ask for less in each task."
    remedy = "Ask for fewer tasks, or for less in each."
    if sum(count for _, count in workload.kinds) == 1:
        remedy = "Ask for less."
    if scarce := _scarce_in_all(state, workload):
        return f"All nodes together have {' and '.join(scarce)}. {remedy}"
    return remedy


def _scarce(state: State, workload: Workload) -> list[str]:
    """What one pod wants more of than any node has, or any with its GPUs."""
    allowed = workload.gang.allowed_nodes
    slots = [slot for pool in state.pools for slot in pool.slots]
    slots = [slot for slot in slots if allowed is None or slot.node.name in allowed]
    every, found = {slot.model for slot in slots}, set[str]()
    for want, _ in workload.wants:
        typed = (slot for slot in slots if _has_type(want, slot.pool))
        fit = {slot.model for slot in typed if slot.shape.full.bit_count() >= want.kind.gpus}
        for name, amount in _asked(state, want).items():
            most = max((_has(state, model, name) for model in every), default=0)
            beside = max((_has(state, model, name) for model in fit), default=inf)
            if amount > most:
                found.add(f"{amount_of(amount, name)}, the most is {most}" if most else name)
            elif amount > beside:
                has = f"the most is {beside}" if beside else "there are none"
                found.add(f"{amount_of(amount, name)} beside such GPUs, {has}")
    return sorted(found)


def _scarce_in_all(state: State, workload: Workload) -> list[str]:
    """How much all nodes have of what all pods want more of."""
    allowed, asked, found = workload.gang.allowed_nodes, Counter[str](), list[str]()
    nodes = [each for each in state.nodes.values() if allowed is None or each.name in allowed]
    for want, pods in workload.wants:
        for name, amount in _asked(state, want).items():
            asked[name] += amount * len(pods)
    for name, amount in sorted(asked.items()):
        slots = (slot for node in nodes for slot in node.slots[: None if name == "GPUs" else 1])
        total = sum(_has(state, slot.model, name) for slot in slots)
        if amount > total:
            found.append(amount_of(total, name))
    return found


def _asked(state: State, want: Want) -> dict[str, int]:
    """What one pod wants, by name."""
    return {"GPUs": want.kind.gpus} | state.resources.named(want.kind)


def _has(state: State, model: Model, name: str) -> float:
    if name == "GPUs":
        return model.shape.full.bit_count()
    total = model.totals[state.resources.index(name)]
    return inf if total is None else total


def _room(want: Want, slot: Slot) -> int:
    model, (leaves, _) = slot.model, want.need(slot.model)
    if leaves == NEVER:
        return 0
    rooms = [(model.totals[i] or 0) // want.amounts[i] for i in model.limited if want.amounts[i]]
    if leaves:
        rooms.append(slot.shape.full.bit_count() // leaves)
    return min(rooms, default=NEVER)
