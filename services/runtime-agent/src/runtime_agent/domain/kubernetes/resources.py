"""Counted resources of a node, as its device plug-ins offer them, and what a pod requests."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.contracts.jobs import RDMA
from muster.contracts.pods import PodRun

from runtime_agent.domain.kubernetes.quantities import quantity

_RDMA_PREFIX = f"{RDMA}/"
"""Plug-ins have one such resource for each kind of network card: `rdma` is one of each."""
_NOT_COUNTED = re.compile(r"(.*\.)?kubernetes\.io/|nvidia\.com/(gpu|mig-)")
"""Kubernetes' own, and GPUs: those are the Scheduler's to choose."""


def counted(allocatable: Mapping[str, str]) -> dict[str, int]:
    """What the node offers of each counted resource, by the name that job files use."""
    offered = _offered(allocatable)
    found = {name: n for name, n in offered.items() if not name.startswith(_RDMA_PREFIX)}
    if cards := [n for name, n in offered.items() if name.startswith(_RDMA_PREFIX)]:
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
            names = [each for each in offered if each.startswith(_RDMA_PREFIX)]
        else:
            names = [each for each in offered if each == name]
        if not names:
            raise LookupError(name)
        found |= {each: max(count, found.get(each, 0)) for each in names}
    return found


def needs_rdma(run: PodRun) -> bool:
    """Whether the task uses such cards, and so locks memory for them."""
    asked = [name for name, count in run.resources.items() if count]
    return any(name == RDMA or name.startswith(_RDMA_PREFIX) for name in asked)


def _offered(allocatable: Mapping[str, str]) -> dict[str, int]:
    return {
        name: int(quantity(amount))
        for name, amount in allocatable.items()
        if "/" in name and not _NOT_COUNTED.match(name)
    }
