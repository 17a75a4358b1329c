"""Plays the API server and a kubelet towards the agent's Kubernetes runner, in memory."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from runtime_agent.kubernetes.api import Change, Exists, Json, Unavailable

Key = tuple[str, str]


class PodApiDouble:
    """`objects` is what the server has, `claims` the phase of each claim, `told` the
    events. `failing` raises what a
    request is to fail with; `is_deaf`: a request takes effect, but its answer is lost. `is_paused`:
    watches show nothing.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.claims: dict[Key, str] = {}
        self.secrets: dict[Key, Json] = {}
        self.told: list[Json] = []
        self.calls: list[tuple[str, str]] = []
        self.failing: Callable[[str], Exception | None] = lambda _call: None
        self.is_deaf = self.is_paused = False
        self._uids = itertools.count(1)
        self._of_node: asyncio.Queue[Change] = asyncio.Queue()
        self._followers: list[asyncio.Queue[Change]] = []
        self.node: Json = {
            "metadata": {"name": "n", "labels": {"rack": "r1"}},
            "spec": {},
            "status": {
                "allocatable": {"cpu": "8", "memory": "16777216Ki"},  # as kubelet has it
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    # The API server

    def _called(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        if (error := self.failing(verb)) is not None:
            raise error

    def _answer(self, body: Json) -> Json:
        if self.is_deaf:
            raise Unavailable("no answer")
        return copy.deepcopy(body)

    async def create(self, manifest: Json) -> Json:
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if manifest["kind"] == "Secret":
            self._called("create-secret", metadata["name"])
            if key in self.secrets:
                raise Exists(metadata["name"])
            self.secrets[key] = manifest
            return manifest
        self._called("create", metadata["name"])
        if key in self.objects:
            raise Exists(metadata["name"])
        body = copy.deepcopy(manifest)
        body["metadata"]["uid"] = f"uid-{next(self._uids)}"
        body["metadata"]["creationTimestamp"] = datetime.fromtimestamp(time.time(), UTC).isoformat()
        body["status"] = {"phase": "Pending", "podIP": "127.0.0.1"}
        self.put(body)
        return self._answer(body)

    async def read(self, namespace: str, name: str) -> Json | None:
        self._called("read", name)
        return copy.deepcopy(self.objects.get((namespace, name)))

    async def delete(self, namespace: str, name: str, uid: str, grace_s: int) -> bool:
        self._called("delete", name)
        body = self.objects.get((namespace, name))
        if body is None or body["metadata"]["uid"] != uid:
            return False
        if grace_s == 0:
            self.drop((namespace, name))
        else:
            body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            body["metadata"]["deletionGracePeriodSeconds"] = grace_s
            self.put(body)
        self._answer({})
        return True

    async def claim(self, namespace: str, name: str) -> Json | None:
        self._called("claim", name)
        phase = self.claims.get((namespace, name))
        if phase is None:
            return None
        spec = {"volumeName": f"pv-{name}", "accessModes": ["ReadWriteOnce"]}
        return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}

    async def events(self, namespace: str, uid: str) -> list[Json]:
        self._called("events", uid)
        return [each for each in self.told if each["involvedObject"]["uid"] == uid]

    async def follow_pods(self) -> AsyncIterator[Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        yield Change("listing")
        for body in list(self.objects.values()):
            yield Change("put", copy.deepcopy(body))
        yield Change("listed")
        self._followers.append(queue)
        while True:
            yield await queue.get()

    async def follow_node(self) -> AsyncIterator[Change]:
        yield Change("listing")
        yield Change("put", self.node)
        yield Change("listed")
        while True:
            yield await self._of_node.get()

    async def close(self) -> None:
        """Nothing is open."""

    # What the tests do

    def put(self, body: Json) -> None:
        self.objects[body["metadata"]["namespace"], body["metadata"]["name"]] = body
        self._tell(Change("put", copy.deepcopy(body)))

    def drop(self, key: Key) -> None:
        body = self.objects.pop(key)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": key[1], "uid": body["metadata"]["uid"]}
        if (secret := self.secrets.get(key)) and secret["metadata"]["ownerReferences"] == [owner]:
            del self.secrets[key]
        self._tell(Change("gone", body))

    def tell_node(self, change: Change) -> None:
        self._of_node.put_nowait(change)

    def _tell(self, change: Change) -> None:
        if self.is_paused:
            return
        for queue in self._followers:
            queue.put_nowait(change)

    def relist(self) -> None:
        """As after a watch that was cut off and whose version is forgotten."""
        self._tell(Change("listing"))
        for body in self.objects.values():
            self._tell(Change("put", copy.deepcopy(body)))
        self._tell(Change("listed"))

    # The kubelet

    def only(self) -> Json:
        """The only object."""
        (found,) = self.objects.values()
        return found

    def ticket(self, body: Json) -> str:
        env = body["spec"]["containers"][0]["env"]
        return next(str(each["value"]) for each in env if each["name"] == "MUSTER_TICKET")

    def running(self, body: Json) -> None:
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        self._status(body, "Running", state)

    def waiting(self, body: Json, reason: str, message: str = "") -> None:
        self._status(body, "Pending", {"waiting": {"reason": reason, "message": message}})

    def ended(self, body: Json, code: int, reason: str = "", message: str = "") -> None:
        ended = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "finishedAt": "2026-01-01T00:01:00Z",
        }
        self._status(body, "Succeeded" if code == 0 else "Failed", {"terminated": ended})

    def failed(self, body: Json, reason: str, message: str = "") -> None:
        """kubelet ends the pod itself, or does not take it."""
        body["status"] = {"phase": "Failed", "reason": reason, "message": message}
        self.put(body)

    def _status(self, body: Json, phase: str, state: dict[str, Any]) -> None:
        body["status"] = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "containerStatuses": [{"name": "main", "state": state}],
        }
        self.put(body)
