"""What the API server has of this node, as its watches show it: all pods, and the node itself."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import assert_never

from runtime_agent.domain.kubernetes.node import offer_of, requests_of
from runtime_agent.domain.kubernetes.status import Observed, observed
from runtime_agent.domain.report import Offer
from runtime_agent.kubernetes.api import WATCH_SILENCE_S, Json, PodApi

Key = tuple[str, str]
"""An object's namespace and name."""


@dataclass
class Mirror:
    """`objects`: the pods of tasks, in `namespaces`; others' are counted in `offer`. `on_put` and
    `on_drop` are called with an object that has changed or is gone, `on_offer` when what the node
    offers has changed, `on_unlisted` when a list has failed. `pods_known`, `node_known`: they were
    listed.
    """

    api: PodApi
    namespaces: Collection[str]
    tolerated: Collection[str]
    on_put: Callable[[Observed], None]
    on_drop: Callable[[Observed], None]
    on_offer: Callable[[], None]
    on_unlisted: Callable[[], None]
    objects: dict[Key, Observed] = field(default_factory=dict)
    node: Json | None = None
    offer: Offer = Offer(1, 1, problem="The API server has not answered yet.")  # noqa: RUF009 - frozen
    pods_known: asyncio.Event = field(default_factory=asyncio.Event)
    node_known: asyncio.Event = field(default_factory=asyncio.Event)
    _held: dict[Key, tuple[float, float]] = field(default_factory=dict)
    _listed_s: float = -math.inf
    _back_s: float = -math.inf

    def of(self, name: str) -> list[Observed]:
        """The objects of a pod, whosever they are."""
        return [seen for seen in self.objects.values() if seen.pod == name]

    def answers_for_s(self) -> float:
        """Since when the API server is back from its last absence; 0 while it is away. Each watch
        begins with a list, and none lasts longer than this silence.
        """
        now_s = time.monotonic()
        return 0.0 if now_s - self._listed_s > WATCH_SILENCE_S else now_s - self._back_s

    async def follow_pods(self) -> None:
        """Without end."""
        listed: set[Key] = set()
        async for change in self.api.follow_pods():
            match change.kind:
                case "listing":
                    listed = set()
                case "put":
                    listed.add(self.put(change.body))
                case "gone":
                    self.drop(self.put(change.body))
                case "listed":
                    for key in (self.objects.keys() | self._held.keys()) - listed:
                        self.drop(key)
                    if self.pods_known.is_set() and not self.answers_for_s():
                        self._back_s = time.monotonic()
                    self._listed_s = time.monotonic()
                    self.pods_known.set()
                case "unlisted":
                    self.on_unlisted()
                case never:
                    assert_never(never)
            self._renew_offer()

    async def follow_node(self) -> None:
        """Without end."""
        is_listed = False
        async for change in self.api.follow_node():
            match change.kind:
                case "listing":
                    is_listed = False
                case "put":
                    is_listed, self.node = True, change.body
                case "gone":
                    self.node = None
                case "listed":
                    self.node = self.node if is_listed else None
                    self.node_known.set()
                case "unlisted":
                    self.on_unlisted()
                case never:
                    assert_never(never)
            self._renew_offer()

    def put(self, body: Json) -> Key:
        """A pod as it is now, whosever it is."""
        seen = observed(body)
        key = (seen.namespace, seen.name)
        # Anybody may write our annotations elsewhere.
        if not seen.pod or seen.namespace not in self.namespaces:
            self._held.pop(key, None)
            if not seen.is_terminal:
                self._held[key] = requests_of(body.get("spec") or {})
            return key
        self.objects[key] = seen
        self.on_put(seen)
        return key

    def drop(self, key: Key) -> None:
        """It is gone."""
        self._held.pop(key, None)
        seen = self.objects.pop(key, None)
        if seen is not None:
            self.on_drop(seen)

    def _renew_offer(self) -> None:
        before = self.offer
        if self.node is not None:
            self.offer = offer_of(self.node, self._held.values(), self.tolerated)
        elif self.node_known.is_set():
            self.offer = replace(before, problem="Kubernetes has no node of this name.")
        if before != self.offer:
            self.on_offer()
