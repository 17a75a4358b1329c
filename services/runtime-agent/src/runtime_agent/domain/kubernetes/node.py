"""What a Node object and the pods of others on it mean for what the node offers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from muster.contracts.nodes import PodOnNode

from runtime_agent.domain.kubernetes.quantities import cpus, mebibytes
from runtime_agent.domain.kubernetes.resources import counted
from runtime_agent.domain.report import Offer

OTHERS = "kubernetes/foreign"
"""Under this name the requests of pods that are not Muster's count."""
HEADROOM_CPUS = 0.5
"""Kept free: kubelet counts pods that have ended a moment longer than Muster does."""
_UNREADY = "node.kubernetes.io/"
"""Taints that Kubernetes sets by the node's conditions, which are read themselves."""
_OWN_TAINT = "muster/only"
"""It keeps other people's pods away; Muster's own are placed by name."""
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def offer_of(node: dict[str, Any], others: Iterable[tuple[float, float]]) -> Offer:
    """The node's allocatable amounts, what pods of others hold of them (CPUs, MiB), and what speaks
    against the node.
    """
    allocatable = allocatable_of(node)
    held = list(others)
    given = PodOnNode(
        pod=OTHERS,
        cpu=_up(sum(each[0] for each in held)),
        memory_mb=_up(sum(each[1] for each in held)),
    )
    return Offer(
        cpu=max(1, int(cpus(allocatable.get("cpu", "1")) - HEADROOM_CPUS)),
        memory_mb=max(1, int(mebibytes(allocatable.get("memory", "1Mi")))),
        others=(given,) if given.cpu or given.memory_mb else (),
        labels=(node.get("metadata") or {}).get("labels") or {},
        resources=counted(allocatable),
        problem=problem_of(node),
    )


def allocatable_of(node: dict[str, Any]) -> dict[str, str]:
    """What pods may request of the node."""
    return (node.get("status") or {}).get("allocatable") or {}


def requests_of(spec: dict[str, Any]) -> tuple[float, float]:
    """CPUs and MiB that a pod holds: its containers' sum, or its largest init container, whichever
    is more, and the overhead of its runtime class (Kubernetes' rule for effective requests).

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
    return max(total[0], peak[0]) + overhead[0], max(total[1], peak[1]) + overhead[1]


def _amounts(container: dict[str, Any]) -> tuple[float, float]:
    return _quantities((container.get("resources") or {}).get("requests") or {})


def _quantities(amounts: dict[str, str]) -> tuple[float, float]:
    return cpus(amounts.get("cpu", "0")), mebibytes(amounts.get("memory", "0"))


def problem_of(node: dict[str, Any]) -> str | None:
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
    for taint in spec.get("taints") or ():
        if _keeps_away(taint):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"The node has the taint {taint['key']}{value}:{taint['effect']}."
    return None


def _keeps_away(taint: dict[str, str]) -> bool:
    key, effect = taint["key"], taint.get("effect")
    is_others = not key.startswith(_UNREADY) and key != _OWN_TAINT
    return is_others and effect in ("NoSchedule", "NoExecute")


def _up(amount: float) -> int:
    """To the next whole number."""
    return -int(-amount // 1)
