"""The first file of a pod's folder on a Kubernetes node: its object and its start permit."""

from __future__ import annotations

from dataclasses import dataclass

from runtime_agent.domain.kubernetes.permit import Ticket


@dataclass(frozen=True)
class KubeRecord:
    """Written before the object is created, and again with each of its later fields.

    `object`: the name of the Pod object. `uid`: Kubernetes' id of it, once it is known. `nonce`:
    of the container that has the start permit. `boot`: of the machine when that was given.
    `has_secret`: a pull secret may be left of it.
    """

    name: str
    namespace: str
    object: str
    ticket: str
    uid: str = ""
    nonce: str = ""
    boot: str = ""
    started_at_s: float | None = None
    ended_at_s: float | None = None
    has_secret: bool = False

    @property
    def is_permitted(self) -> bool:
        """Whether the command has begun, or is about to."""
        return self.nonce != ""

    def as_ticket(self) -> Ticket:
        """What a container's request is compared with."""
        return Ticket(self.ticket, self.nonce, self.boot)
