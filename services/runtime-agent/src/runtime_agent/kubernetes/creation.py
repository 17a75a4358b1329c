"""How the objects of a pod come to be: all that speaks against them, and the POSTs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from muster.claims import why_not_bound, why_not_everywhere
from muster.contracts.pods import PodRun

from runtime_agent.devices import Devices
from runtime_agent.domain.ending import Ending, Refusal
from runtime_agent.domain.kubernetes.manifest import (
    Given,
    Identity,
    PodRules,
    claims_of,
    manifest,
    namespace_of,
    pull_secret,
    volume_of,
    why_not_of_host,
    why_too_small,
)
from runtime_agent.domain.kubernetes.node import allocatable_of
from runtime_agent.domain.kubernetes.permit import proof_of
from runtime_agent.domain.kubernetes.resources import requested
from runtime_agent.domain.kubernetes.status import observed, unmounted
from runtime_agent.domain.pods import Pod
from runtime_agent.domain.storages import why_no_claims
from runtime_agent.kubernetes.api import Exists, Json, Refused, Unavailable
from runtime_agent.kubernetes.mirror import Mirror
from runtime_agent.kubernetes.record import KubeRecord
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings
from runtime_agent.store import Journal


@dataclass
class Creation:
    """Of the journal's pods."""

    settings: AgentSettings
    rules: PodRules
    journal: Journal
    mirror: Mirror
    devices: Devices
    secrets_key: SecretsKey

    async def create(self, pod: Pod, record: KubeRecord) -> Ending | None:
        """Puts the object into the mirror; the end of a pod that never can have one. Raises
        Exists, Refused, Unavailable.
        """
        assert pod.run is not None
        if (why := why_too_small(pod.run)) is not None:
            return Ending(start_error=why)
        if (why := why_not_of_host(pod.run, self.rules)) is not None:
            return Ending(refusal=Refusal.NO_HOST_NETWORK, detail=why)
        try:
            uuids, counted = self._gpu_uuids(pod.run), self._counted(pod.run)
        except LookupError as error:
            why = f"The node has no {error}."
            return Ending(refusal=Refusal.OUT_OF_RESOURCES, detail=why)
        if (why := await self._why_no_storages(pod.run)) is not None:
            return Ending(refusal=Refusal.NO_STORAGE, detail=why)
        try:
            who = self._identity(pod, record)
        except OSError as error:
            return Ending(start_error=str(error))
        given = Given(uuids, counted)
        wanted = manifest(pod, pod.run, who, self.rules, given)
        try:
            self._show(await self.mirror.api.create(wanted))
        except Refused as error:
            return Ending(refusal=Refusal.REJECTED, detail=str(error))
        return None

    async def find(self, record: KubeRecord) -> None:
        """Puts the object that has the name into the mirror. Raises Refused, Unavailable."""
        found = await self.mirror.api.read(record.namespace, record.object)
        if found is None:
            raise Unavailable("an object of that name has just gone")
        self._show(found)

    def _show(self, body: Json) -> None:
        seen = observed(body)
        self.mirror.objects.setdefault((seen.namespace, seen.name), seen)  # it may know more

    async def create_pull_secret(self, pod: Pod, record: KubeRecord) -> Ending | None:
        """It belongs to the pod's object, so Kubernetes deletes it with that, also one that comes
        late. Returns as `create` does. Raises Refused, Unavailable.
        """
        assert pod.run is not None
        try:
            who = self._identity(pod, record)
            if who.pull is not None:
                with contextlib.suppress(Exists):
                    secret = pull_secret(pod, pod.run, who, self.rules, record.uid)
                    await self.mirror.api.create(secret)
        except OSError as error:
            return Ending(start_error=str(error))
        except Refused as error:
            return Ending(refusal=Refusal.REJECTED, detail=str(error))
        return None

    def _identity(self, pod: Pod, record: KubeRecord) -> Identity:
        """Raises OSError where its secrets can't be opened."""
        proof, pull = proof_of(record.key), self.secrets_key.open(pod).pull
        return Identity(self.settings.node, self.journal.id, record.ticket, proof, pull)

    async def _why_no_storages(self, run: PodRun) -> str | None:
        if (why := why_no_claims(run)) is not None:
            return why
        namespace = namespace_of(run, self.rules)
        for name in claims_of(run):
            claim = await self.mirror.api.claim(namespace, name)
            if (why := why_not_bound(name, namespace, claim)) is not None:
                return why
        return None

    async def why_not_mounted(self, run: PodRun, record: KubeRecord) -> str:
        """What Kubernetes tells of the volumes that the pod waits for, with the claims of these
        that only one node at a time can mount; empty: it waits for none. Raises Refused,
        Unavailable.
        """
        api = self.mirror.api
        why = unmounted(await api.events(record.namespace, record.uid))
        if not why:
            return ""
        names = [f"{why.rstrip('.')}."]
        for number, claim in enumerate(claims_of(run)):
            body = await api.claim(record.namespace, claim) or {}
            volume = body.get("spec", {}).get("volumeName") or volume_of(number)
            if volume not in why and volume_of(number) not in why:
                continue
            storages = [each.name for each in run.mounts if each.claim == claim]
            names.append(f"{volume} is the claim {claim} of the storage {', '.join(storages)}.")
            if body and (limit := why_not_everywhere(claim, record.namespace, body)):
                names.append(limit)
        return " ".join(names)

    def _counted(self, run: PodRun) -> dict[str, int]:
        """Raises LookupError with what the node has nothing of."""
        if run.resources and self.mirror.node is None:
            raise Unavailable("the node's resources are not known yet")
        try:
            return requested(run.resources, allocatable_of(self.mirror.node or {}))
        except LookupError as error:
            raise LookupError(f"resource {error}") from error

    def _gpu_uuids(self, run: PodRun) -> list[str]:
        """Raises LookupError with a GPU that has gone, as a MIG device that was destroyed."""
        uuids = self.devices.uuids
        if gone := set(run.gpus) - uuids.keys():
            raise LookupError(f"GPU {min(gone)} any more")
        return [uuids[gpu] for gpu in run.gpus]
