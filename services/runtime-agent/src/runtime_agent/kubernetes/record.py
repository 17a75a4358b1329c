"""The first file of a pod's folder on a Kubernetes node: its object and its start permit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KubeRecord:
    """Written before the object is created, and again with each of its later fields.

    `object`: the name of the Pod object. `uid`: Kubernetes' id of it, once it is known. `nonce`:
    of the container that has the start permit. `boot`: of the machine when that was given.
    `key`: in the answer's first line. `denied`: why a container of it got no permit.
    `lacks_secret`: its pull secret is still to be created. `is_secret_late`: kubelet may have asked
    for the image without it.
    """

    name: str
    namespace: str
    object: str
    ticket: str
    key: str = ""
    uid: str = ""
    nonce: str = ""
    boot: str = ""
    started_at_s: float | None = None
    ended_at_s: float | None = None
    denied: str = ""
    lacks_secret: bool = False
    is_secret_late: bool = False

    @property
    def is_permitted(self) -> bool:
        """Whether the command has begun, or is about to."""
        return self.nonce != ""
