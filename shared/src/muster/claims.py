"""Whether pods can mount a PersistentVolumeClaim. REST asks it at submission, an agent before it
creates a pod: kubelet would wait for ever for a claim that nothing binds.
"""

from typing import Any


def why_not_bound(name: str, namespace: str, claim: dict[str, Any] | None) -> str | None:
    """Why pods can't mount the claim, and the fix; None: they can. ``claim``: the object as
    Kubernetes has it; None: there is none.
    """
    what = f"The claim {name}"
    if claim is None:
        return f"{what} does not exist in the namespace {namespace}: an operator makes it."
    if claim["metadata"].get("deletionTimestamp"):
        return f"{what} in the namespace {namespace} is being deleted: an operator makes it anew."
    phase = claim.get("status", {}).get("phase", "Pending")
    if phase == "Bound":
        return None
    fix = _PENDING if phase == "Pending" else "An operator makes it anew, with a volume."
    return f"{what} in the namespace {namespace} is {phase}, not Bound. {fix}"


def why_not_everywhere(name: str, namespace: str, claim: dict[str, Any]) -> str | None:
    """Why pods of some nodes can't mount a bound claim, and the fix; None: all can."""
    modes = claim["status"].get("accessModes") or claim["spec"]["accessModes"]
    if _ON_ALL_NODES.intersection(modes):
        return None
    return (
        f"The claim {name} in the namespace {namespace} has the access mode {' and '.join(modes)}:"
        " one node at a time can mount it, and tasks on other nodes do not start. With more than"
        " one node an operator makes it anew with ReadWriteMany."
    )


_ON_ALL_NODES = frozenset(("ReadWriteMany", "ReadOnlyMany"))
_PENDING = (
    "Wait until it is bound. One whose StorageClass has the mode WaitForFirstConsumer never is, as"
    " Muster places pods itself: an operator makes it with a class of the mode Immediate, or with"
    " the name of its volume."
)
