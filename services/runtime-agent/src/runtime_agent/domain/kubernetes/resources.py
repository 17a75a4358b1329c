"""Counted resources of a node, as its device plug-ins offer them, and what a pod requests."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.contracts.node_access import RDMA, RDMA_PREFIX

from runtime_agent.domain.kubernetes.quantities import quantity

_NOT_COUNTED = re.compile(r"(.*\.)?kubernetes\.io/|nvidia\.com/(gpu|mig-)")
"""Kubernetes' own, and GPUs: those are the Scheduler's to choose."""


def counted(allocatable: Mapping[str, str]) -> dict[str, int]:
    """What the node offers of each counted resource, by the name that job files use."""
    offered = _offered(allocatable)
    found = {name: n for name, n in offered.items() if not name.startswith(RDMA_PREFIX)}
    if cards := [n for name, n in offered.items() if name.startswith(RDMA_PREFIX)]:
        found[RDMA] = min(cards)
    return found


def requested(asked: Mapping[str, int], allocatable: Mapping[str, str]) -> dict[str, int]:
    """What the pod requests, by Kubernetes' names. A name without "/" is only counted, by the
    cluster file. Raises LookupError with the name that the node has nothing of.
    """
    offered = _offered(allocatable)
    found: dict[str, int] = {}
    for name, count in asked.items():
        if count == 0 or ("/" not in name and name != RDMA):
            continue
        if name == RDMA:
            names = [each for each in offered if each.startswith(RDMA_PREFIX)]
        else:
            names = [each for each in offered if each == name]
        if not names:
            raise LookupError(name)
        found |= {each: max(count, found.get(each, 0)) for each in names}
    return found


def _offered(allocatable: Mapping[str, str]) -> dict[str, int]:
    return {
        name: int(quantity(amount))
        for name, amount in allocatable.items()
        if "/" in name and not _NOT_COUNTED.match(name)
    }
