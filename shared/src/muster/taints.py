"""Which taint of a Kubernetes node keeps tasks off it. Agents report such a node as unhealthy, and
`muster deploy check` warns of it.
"""

from collections.abc import Collection
from typing import Any

TOLERATED = "muster/only,nvidia.com/gpu"
"""The default of MUSTER_KUBE_TOLERATED_TAINTS."""
EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Those of taints that keep pods off."""
FIX = "Remove it, or name its key in MUSTER_KUBE_TOLERATED_TAINTS."
_OF_CONDITIONS = "node.kubernetes.io/"
"""Kubernetes sets these by the node's conditions, which are read themselves."""


def keeps_off(node: dict[str, Any], tolerated: Collection[str]) -> str | None:
    """The first such taint, as kubectl writes it; None: there is none. ``tolerated``: keys of
    taints that keep nobody off.
    """
    for taint in (node.get("spec") or {}).get("taints") or ():
        key, effect = taint["key"], taint.get("effect")
        is_others = not key.startswith(_OF_CONDITIONS) and key not in tolerated
        if is_others and effect in EFFECTS:
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"{key}{value}:{effect}"
    return None
