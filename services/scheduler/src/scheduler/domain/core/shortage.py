"""Quota by counts: how many leaves a workload wants of whom, and whether they are to be had."""

from collections.abc import Mapping
from typing import NamedTuple

from scheduler.domain.core.node_models import NEVER
from scheduler.domain.core.nodes import Workload
from scheduler.domain.core.state import State


class Leaves(NamedTuple):
    """``shared``: so many of them are wanted only if no others share theirs."""

    alone: int = 0
    shared: int = 0


Wanted = Mapping[tuple[str, tuple[str, ...]], Leaves]
"""Leaves by owner and GPU types; those of pods with some types also count for all types."""


class Shortage(NamedTuple):
    """More leaves of an owner and GPU types are wanted than gangs of the same priority or higher
    leave.
    """

    leaves: int
    spare: int
    owner: str
    types: tuple[str, ...]


def wanted(state: State, workload: Workload) -> Wanted:
    """What a workload takes at least; nothing of pods that no node takes."""
    some: dict[tuple[str, tuple[str, ...]], Leaves] = {}
    total: dict[tuple[str, tuple[str, ...]], Leaves] = {}
    every = state.gpu_types
    for want, pods in workload.wants:
        owner = workload.owner_of(want)
        least = want.least(state.models)
        if owner is None or least == NEVER:
            continue
        alone, shared = least * len(pods), 0
        if least == 1 and want.kind.costs_nothing:
            alone, shared = 0, -(-len(pods) // want.most_in_leaf(state.models))
        _add(total, (owner, every), alone, shared)
        if want.gpu_types and want.gpu_types != every:
            _add(some, (owner, want.gpu_types), alone, shared)
    return some | total if some else total


def _add(
    to: dict[tuple[str, tuple[str, ...]], Leaves],
    key: tuple[str, tuple[str, ...]],
    alone: int,
    shared: int,
) -> None:
    """Pods of several kinds may share one leaf, so no more is sure than of one kind."""
    before = to.get(key, Leaves())
    to[key] = Leaves(before.alone + alone, max(before.shared, shared))


def shortage(state: State, wanted: Wanted, priority: int) -> Shortage | None:
    """What is wanting now, beside gangs of this priority or a higher one."""
    for (owner, types), leaves in wanted.items():
        spare, (alone, shared) = state.spare(owner, types, priority), leaves
        if alone > spare or (alone + shared > spare and not state.may_join_any(owner)):
            return Shortage(alone + shared, spare, owner, types)
    return None


def is_beyond(state: State, wanted: Wanted) -> bool:
    """More is wanted than is owned."""
    return any(
        sum(leaves) > sum(state.owned.get((owner, name), 0) for name in types)
        for (owner, types), leaves in wanted.items()
    )
