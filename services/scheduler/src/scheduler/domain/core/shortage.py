"""Quota by counts: how many leaves a workload wants of whom, and whether they are to be had."""

from collections.abc import Mapping
from typing import NamedTuple

from scheduler.domain.core.node_models import NEVER
from scheduler.domain.core.nodes import Workload
from scheduler.domain.core.state import State

Wanted = Mapping[tuple[str, tuple[str, ...]], int]
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
    some: dict[tuple[str, tuple[str, ...]], int] = {}
    total: dict[tuple[str, tuple[str, ...]], int] = {}
    every = state.gpu_types
    for want, pods in workload.wants:
        owner = workload.owner_of(want)
        least = want.least(state.models)
        if owner is None or least == NEVER:
            continue
        leaves, key = least * len(pods), (owner, every)
        total[key] = total.get(key, 0) + leaves
        if want.gpu_types and want.gpu_types != every:
            key = owner, want.gpu_types
            some[key] = some.get(key, 0) + leaves
    return some | total if some else total


def shortage(state: State, wanted: Wanted, priority: int) -> Shortage | None:
    """What is wanting now, beside gangs of this priority or a higher one."""
    for (owner, types), leaves in wanted.items():
        spare = state.spare(owner, types, priority)
        if leaves > spare:
            return Shortage(leaves, spare, owner, types)
    return None


def is_beyond(state: State, wanted: Wanted) -> bool:
    """More is wanted than is owned."""
    return any(
        leaves > sum(state.owned.get((owner, name), 0) for name in types)
        for (owner, types), leaves in wanted.items()
    )
