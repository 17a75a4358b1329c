"""What the agent asks of the API server: this node's pods, and the node itself."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Json = dict[str, Any]

WATCH_SILENCE_S = 330.0
"""A connection that is silent for longer is dead, for the server would have ended the watch."""


class Exists(Exception):
    """There is an object of that name."""


class Refused(Exception):
    """The server will not take it, however often it is asked; with its words."""


class Unavailable(Exception):
    """The server is away, overloaded, or a quota is used up: later. `after_s`: not before."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Change:
    """`put`: an object as it is now; `gone`: as it was last. From `listing` to `listed` all that
    there are have been put. `unlisted`: they could not be listed.
    """

    kind: Literal["put", "gone", "listing", "listed", "unlisted"]
    body: Json = field(default_factory=dict)


class PodApi(Protocol):
    """All that the agent asks of the API server."""

    async def create(self, manifest: Json) -> Json:
        """The pod or secret as created. Raises Exists, Refused, Unavailable."""

    async def read(self, namespace: str, name: str) -> Json | None:
        """The object; None where there is none. Raises Refused, Unavailable."""

    async def delete(self, namespace: str, name: str, uid: str, grace_s: int) -> bool:
        """Has the pod of that uid end; False where it is gone. Raises Refused, Unavailable."""

    async def claim(self, namespace: str, name: str) -> Json | None:
        """The PersistentVolumeClaim; None where there is none. Raises Refused, Unavailable."""

    async def events(self, namespace: str, uid: str) -> list[Json]:
        """What Kubernetes tells of the pod of that uid. Raises Refused, Unavailable."""

    def follow_pods(self) -> AsyncIterator[Change]:
        """All pods of the node, whosever they are, without end."""

    def follow_node(self) -> AsyncIterator[Change]:
        """The node, without end."""

    async def close(self) -> None:
        """Ends all connections."""
