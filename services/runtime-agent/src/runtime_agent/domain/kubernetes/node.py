"""What a Node object and the pods of others on it mean for what the node offers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from muster import taints
from muster.contracts.nodes import FOREIGN, PodOnNode

from runtime_agent.domain.kubernetes.quantities import cpus, mebibytes
from runtime_agent.domain.kubernetes.resources import counted
from runtime_agent.domain.report import Offer

HEADROOM_CPUS = 0.5
"""Kept free: kubelet counts pods that have ended a moment longer than Muster does. It is also what
the largest pod that a roll-out adds requests: the Scheduler's, in deploy/k8s/base.
"""
HEADROOM_MB = 512
"""Kept free for the same pod; else Kubernetes preempts a job's pod for it."""
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def offer_of(
    node: dict[str, Any],
    others: Iterable[tuple[float, float]],
    tolerated: Collection[str] = (),
) -> Offer:
    """The node's allocatable amounts, what pods of others hold of them (CPUs, MiB), and what speaks
    against the node. ``tolerated``: keys of taints that do not.
    """
    allocatable = allocatable_of(node)
    held = list(others)
    usable_cpus = cpus(allocatable.get("cpu", "1")) - HEADROOM_CPUS
    usable_mb = mebibytes(allocatable.get("memory", "1Mi")) - HEADROOM_MB
    given = PodOnNode(
        pod=FOREIGN,
        cpu=_held(usable_cpus, sum(each[0] for each in held)),
        memory_mb=_held(usable_mb, sum(each[1] for each in held)),
    )
    return Offer(
        cpu=_whole(usable_cpus),
        memory_mb=_whole(usable_mb),
        others=(given,) if given.cpu or given.memory_mb else (),
        labels=(node.get("metadata") or {}).get("labels") or {},
        resources=counted(allocatable),
        problem=problem_of(node, tolerated),
    )


def _whole(usable: float) -> int:
    return max(1, int(usable))


def _held(usable: float, held: float) -> int:
    """What others hold, so that the rest is what is free in whole numbers: rounded once."""
    return _whole(usable) - max(0, int(usable - held)) if held else 0


def allocatable_of(node: dict[str, Any]) -> dict[str, str]:
    """What pods may request of the node."""
    return (node.get("status") or {}).get("allocatable") or {}


def requests_of(spec: dict[str, Any]) -> tuple[float, float]:
    """CPUs and MiB that a pod holds: what it requests as a whole, else its containers' sum or its
    largest init container, whichever is more; and the overhead of its runtime class (Kubernetes'
    rule for effective requests).

    An init container that stays (restartPolicy Always) counts with the containers.
    """
    running = [_amounts(each) for each in spec.get("containers") or ()]
    peak = (0.0, 0.0)
    for each in spec.get("initContainers") or ():
        amounts = _amounts(each)
        if each.get("restartPolicy") == "Always":
            running.append(amounts)
        else:
            peak = (max(peak[0], amounts[0]), max(peak[1], amounts[1]))
    overhead = _quantities(spec.get("overhead") or {})
    total = (sum(each[0] for each in running), sum(each[1] for each in running))
    whole = (spec.get("resources") or {}).get("requests") or {}
    asked = _quantities(whole)
    cpu = asked[0] if "cpu" in whole else max(total[0], peak[0])
    memory_mb = asked[1] if "memory" in whole else max(total[1], peak[1])
    return cpu + overhead[0], memory_mb + overhead[1]


def _amounts(container: dict[str, Any]) -> tuple[float, float]:
    return _quantities((container.get("resources") or {}).get("requests") or {})


def _quantities(amounts: dict[str, str]) -> tuple[float, float]:
    return cpus(amounts.get("cpu", "0")), mebibytes(amounts.get("memory", "0"))


def problem_of(node: dict[str, Any], tolerated: Collection[str] = ()) -> str | None:
    """Why nothing may start on the node; None: nothing speaks against it."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready")
    if ready is None or ready["status"] != "True":
        why = "" if ready is None else (ready.get("message") or ready.get("reason") or "")
        return f"Kubernetes does not hold the node ready. {why}".strip()
    for name in _PRESSURES:
        if conditions.get(name, {}).get("status") == "True":
            why = conditions[name].get("message") or ""
            return f"Kubernetes reports {name} of the node. {why}".strip()
    if spec.get("unschedulable"):
        return "The node is cordoned in Kubernetes; `kubectl uncordon` frees it."
    if (taint := taints.keeps_off(node, tolerated)) is not None:
        return f"The node has the taint {taint}. {taints.FIX}"
    return None
