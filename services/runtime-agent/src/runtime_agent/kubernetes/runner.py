"""Pods that the kubelet of this node runs, created and deleted through the API server.

The journal says what is wanted, and each look compares it with the objects: so a request that was
not answered, a restart and a lost watch need no code of their own.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog
from muster.settings import names_in

from runtime_agent.counters import filled, first_of, groups_of, of_groups, of_network
from runtime_agent.devices import Devices
from runtime_agent.domain.ending import Ending, Loss, Refusal, unstarted
from runtime_agent.domain.environment import CHECKPOINT_FILE
from runtime_agent.domain.kubernetes.manifest import (
    PodRules,
    is_on_host_network,
    namespace_of,
    object_name,
    own_address,
)
from runtime_agent.domain.kubernetes.permit import Ticket
from runtime_agent.domain.kubernetes.status import (
    Observed,
    ending,
    given_up,
    may_lack_volumes,
    not_taken,
    observed,
    stray,
    vanished,
    waits,
)
from runtime_agent.domain.pods import Pod, Stopping
from runtime_agent.domain.report import Offer
from runtime_agent.domain.usage import TaskUsage
from runtime_agent.kubernetes.api import Exists, PodApi, Refused, Unavailable
from runtime_agent.kubernetes.creation import Creation
from runtime_agent.kubernetes.logs import Logs
from runtime_agent.kubernetes.mirror import Mirror
from runtime_agent.kubernetes.record import KubeRecord
from runtime_agent.logreader import last_lines
from runtime_agent.metrics import AgentMetrics
from runtime_agent.pod_files import PodFiles, touched_at_s
from runtime_agent.runner import Seen
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings
from runtime_agent.store import Journal
from runtime_agent.supervisor import proc
from runtime_agent.supervisor.records import SPEC_FILE, read_record, ring, write_record

IN_FLIGHT = 16
"""Requests about pods that the agent has open at a time."""
SWEEP_S = 1.0
TICKET_BYTES = 16
AT_ONCE_S, SOON_S = 0, 1
"""Grace of an object that runs nothing, and of one that nobody wants."""
RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
PAUSE = "pause"
"""The process that holds a pod's namespaces."""
SECRET_LATE_S = 1.0
"""After this kubelet may have asked the registry without the pull secret: `step` takes longer."""
VOLUMES_S = 30.0
"""Between two questions for the volumes of a pod that does not start."""
STOP_TAKEN_S = 5.0
"""By then the object of a stopped pod shows its deletion; else the agent signals the pod itself."""


def retry_s(tries: int) -> float:
    """How long a request about a pod waits that has failed so often before."""
    return min(LONGEST_RETRY_S, RETRY_S * 2.0 ** min(tries, 16))


_log = structlog.get_logger()


@dataclass
class _Work:
    """What the agent is doing about one pod, in memory only.

    `request`: to the API server, on its way; `tries` of them failed for now, the last for `why`,
    and the next is made at `try_at_s`. `refused`: the pod is never to run. `last`: the object as
    it was before it went; `is_gone`: the server confirms that. `deleted_uid`: of the object that it
    was asked to delete, with `grace_s`. `heard_s`: when its container last asked for its permit, or
    was first seen to run. `stopped_at_s`: since when the pod is stopped; `kill_at_s`: when the
    agent kills by itself. `created_s`: when this agent asked for the object, None where an
    earlier request may have made it. `volumes`: why some are not mounted, as Kubernetes told after
    `volumes_s`; None: not asked yet. Times are monotonic.
    """

    request: asyncio.Task[None] | None = None
    tries: int = 0
    try_at_s: float = 0.0
    why: str = ""
    refused: Ending | None = None
    last: Observed | None = None
    is_gone: bool = False
    deleted_uid: str = ""
    grace_s: int = 0
    stopped_at_s: float | None = None
    kill_at_s: float | None = None
    is_signalled: bool = False
    heard_s: float | None = None
    created_s: float | None = None
    volumes: str | None = None
    volumes_s: float = -math.inf

    @property
    def is_free(self) -> bool:
        """Whether a request may be made."""
        return self.request is None and time.monotonic() >= self.try_at_s


@dataclass
class KubernetesPods:
    """`rules`: what holds for all of the node's pods. `changed` is called when what the node offers
    has changed.
    """

    settings: AgentSettings
    rules: PodRules
    files: PodFiles
    journal: Journal
    api: PodApi
    devices: Devices
    secrets_key: SecretsKey
    metrics: AgentMetrics
    doorbell: Path
    changed: Callable[[], None] = lambda: None
    _mirror: Mirror = field(init=False)
    _logs: Logs = field(init=False)
    _creation: Creation = field(init=False)
    _records: dict[str, KubeRecord] = field(default_factory=dict)
    _works: defaultdict[str, _Work] = field(default_factory=lambda: defaultdict(_Work))
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT))

    def __post_init__(self) -> None:
        self._mirror = Mirror(
            self.api,
            namespaces=(self.rules.namespace, self.rules.host_namespace),
            tolerated=names_in(self.settings.kube_tolerated_taints),
            on_put=lambda seen: self._ring(seen.pod),
            on_drop=self._on_drop,
            on_offer=lambda: self.changed(),
            on_unlisted=self.metrics.kube_requests.labels("unlisted").inc,
        )
        self._logs = Logs(self.settings, self.files, self._ring)
        self._creation = Creation(
            self.settings, self.rules, self.journal, self._mirror, self.devices, self.secrets_key
        )

    # What the journal wants

    def launch(self, pod: Pod) -> None:
        """Prepare the folder and have the object created; looks see to the rest."""
        self._look_at(pod)

    def stop(self, name: str, stopping: Stopping) -> None:
        """The next look has the object deleted."""
        self._ring(name)

    def look(self, pods: Iterable[Pod]) -> list[Seen]:
        """Compare the journal with the objects, and act on what differs."""
        found = []
        for pod in pods:
            seen = self._look_at(pod)
            if seen is not None:
                found.append(seen)
                if seen.ending is not None:
                    self._note_end(pod.pod, seen.ended_at_s)
        return found

    def _look_at(self, pod: Pod) -> Seen | None:
        record = self.record(pod.pod)
        if record is None:
            return self._begin(pod)
        started = record.started_at_s
        if pod.stop is not None and not record.is_permitted:
            return _ended(pod, started, unstarted(pod.stop.reason))
        if record.is_permitted and record.boot != proc.boot_id():
            if not self._logs.is_read(record):
                return None if started is None else Seen(pod.pod, started)
            return _ended(pod, started, Ending(loss=Loss.REBOOT))
        if (refused := self._works[pod.pod].refused) is not None:
            return _ended(pod, started, refused)
        key = (record.namespace, record.object)
        seen = self._mirror.objects.get(key)
        if seen is not None and not self._is_own(seen, record):
            return self._taken(pod, record, seen)
        if seen is None:
            return self._without_object(pod, record)
        if seen.uid != record.uid:
            record = self._note(replace(record, uid=seen.uid))
        if pod.stop is not None and not seen.is_terminal:
            self._see_to_stop(pod, pod.stop, record)
        return self._with_object(pod, record, seen)

    def _begin(self, pod: Pod) -> Seen | None:
        """Nothing of it is here: it was never launched, or its folder has vanished."""
        if pod.started_at is not None:
            if self._end_objects(pod.pod):
                return None
            return Seen(pod.pod, None, time.time(), Ending(loss=Loss.DIRECTORY))
        if pod.stop is not None:
            return _ended(pod, None, unstarted(pod.stop.reason))
        assert pod.run is not None
        folder = self.files.path(pod.pod)
        self.files.logs_path(pod.pod).mkdir(parents=True, exist_ok=True, mode=0o700)
        record = KubeRecord(
            name=pod.pod,
            namespace=namespace_of(pod.run, self.rules),
            object=object_name(pod),
            ticket=secrets.token_hex(TICKET_BYTES),
            key=secrets.token_hex(TICKET_BYTES),
            lacks_secret=pod.run.secrets is not None,
        )
        write_record(folder / SPEC_FILE, record)
        self._records[pod.pod] = record
        return self._without_object(pod, record)

    def _without_object(self, pod: Pod, record: KubeRecord) -> Seen | None:
        """It is still to be created, or has ended without Muster."""
        name, started, work = pod.pod, record.started_at_s, self._works[pod.pod]
        running = None if started is None else Seen(name, started)
        if not record.uid and not record.is_permitted:
            if work.is_free:
                self._request(work, name, self._create(pod, record))
            # One refused request is no reason yet: the next is made a second later.
            return Seen(name, reason=not_taken(work.why)) if work.tries > 1 else running
        if work.last is not None and work.last.uid == record.uid and work.last.is_terminal:
            return self._with_object(pod, record, work.last)
        if not self._mirror.pods_known.is_set():
            if pod.stop is not None:
                self._see_to_processes(pod, pod.stop, record)
            return running
        if not work.is_gone:
            if work.is_free:
                self._request(work, name, self._confirm(record))
            return running
        if record.uid and any(proc.in_pod(record.uid)):
            if pod.stop is not None:
                self._see_to_processes(pod, pod.stop, record)
            return running
        if not self._logs.is_read(record):
            return running
        found = vanished(pod.stop, was_permitted=record.is_permitted)
        return _ended(pod, started, self._with_tail(name, found))

    def _with_object(self, pod: Pod, record: KubeRecord, seen: Observed) -> Seen | None:
        started = record.started_at_s
        found = ending(seen, pod.stop, was_permitted=record.is_permitted, denied=record.denied)
        if found is not None:
            # Without kubelet's word, as after its node was deleted, something may still run.
            is_unsure = record.is_permitted and seen.exit_code is None
            if (is_unsure and any(proc.in_pod(seen.uid))) or not self._logs.is_read(record):
                return None if started is None else Seen(pod.pod, started)
            return _ended(pod, started, self._with_tail(pod.pod, found), seen.ended_at_s)
        if started is not None:
            saved_at_s = self._checkpointed_at_s(record)
            address = None if pod.run is None else own_address(pod.run, seen.address)
            return Seen(pod.pod, started, checkpointed_at_s=saved_at_s, address=address)
        work, waited_s = self._works[pod.pod], time.time() - seen.created_at_s
        if record.lacks_secret:
            if work.is_free:
                self._request(work, pod.pod, self._create_pull_secret(pod, record))
            why = not_taken(work.why, "pod's pull secret") if work.tries > 1 else None
            return Seen(pod.pod, reason=why)
        if seen.is_running:  # it asks each second
            now_s = time.monotonic()
            work.heard_s = now_s if work.heard_s is None else work.heard_s
            waited_s = now_s - work.heard_s
        if may_lack_volumes(seen, waited_s):
            self._see_to_volumes(pod, record)
            if work.volumes is None:
                return Seen(pod.pod, reason=pod.reason)
        volumes = work.volumes or ""
        # kubelet may have had no chance to start it while the API server was away.
        could_s = min(waited_s, self._mirror.answers_for_s())
        patience_s, is_late = self.settings.image_wait_s, record.is_secret_late
        hopeless = given_up(seen, could_s, patience_s, is_secret_late=is_late, volumes=volumes)
        if hopeless is not None:
            return _ended(pod, None, hopeless)
        return Seen(pod.pod, reason=waits(seen, waited_s, pod.reason, volumes))

    def _taken(self, pod: Pod, record: KubeRecord, seen: Observed) -> Seen | None:
        """Another object has the name. One of this pod that is not of its record goes away."""
        if seen.pod == pod.pod:
            if self._end_objects(pod.pod) or not record.is_permitted:
                return None
            return _ended(pod, record.started_at_s, Ending(loss=Loss.DIRECTORY))
        detail = f"The object is {seen.namespace}/{seen.name}."
        return _ended(pod, record.started_at_s, Ending(refusal=Refusal.NAME_TAKEN, detail=detail))

    def _end_objects(self, name: str) -> bool:
        """Has all objects of the pod deleted; whether anything of them is left."""
        found = self._mirror.of(name)
        for seen in found:
            self._ask_to_delete(seen, AT_ONCE_S if seen.is_terminal else SOON_S)
        return bool(found)

    def _is_own(self, seen: Observed, record: KubeRecord) -> bool:
        is_mine = seen.pod == record.name and seen.journal == self.journal.id
        return is_mine and seen.ticket == record.ticket

    # Requests to the API server

    async def _create(self, pod: Pod, record: KubeRecord) -> None:
        asked_s = time.monotonic()
        try:
            refused = await self._creation.create(pod, record)
        except Exists:  # of an earlier request that was not answered, or somebody else's
            await self._creation.find(record)
            return
        if refused is not None:
            self.refuse(pod.pod, refused)
        else:
            self._works[pod.pod].created_s = asked_s

    async def _create_pull_secret(self, pod: Pod, record: KubeRecord) -> None:
        refused = await self._creation.create_pull_secret(pod, record)
        if refused is not None:
            self.refuse(pod.pod, refused)
        elif (now := self.record(pod.pod)) is not None:
            created_s = self._works[pod.pod].created_s
            is_late = created_s is None or time.monotonic() - created_s > SECRET_LATE_S
            self._note(replace(now, lacks_secret=False, is_secret_late=is_late))

    def _see_to_volumes(self, pod: Pod, record: KubeRecord) -> None:
        work, now_s = self._works[pod.pod], time.monotonic()
        if work.is_free and now_s - work.volumes_s > VOLUMES_S:
            work.volumes_s = now_s
            self._request(work, pod.pod, self._ask_for_volumes(pod, record))

    async def _ask_for_volumes(self, pod: Pod, record: KubeRecord) -> None:
        """Why some are not mounted. What is not answered is asked again later, and holds up no
        other request about the pod.
        """
        assert pod.run is not None
        work = self._works[pod.pod]
        try:
            work.volumes = await self._creation.why_not_mounted(pod.run, record)
        except (Refused, Unavailable) as error:
            self.metrics.kube_requests.labels("later").inc()
            _log.warning("events of a pod can't be read", pod=pod.pod, why=str(error))
            work.volumes = work.volumes or ""

    async def _confirm(self, record: KubeRecord) -> None:
        """Whether an object is gone that the watch no longer shows: the list may be older."""
        found = await self.api.read(record.namespace, record.object)
        if found is None or (record.uid and observed(found).uid != record.uid):
            self._works[record.name].is_gone = True
        else:
            self._mirror.put(found)

    async def _delete(self, work: _Work, seen: Observed, grace_s: int) -> None:
        if await self.api.delete(seen.namespace, seen.name, seen.uid, grace_s):
            if work.deleted_uid != seen.uid and not seen.is_deleting:
                self._count_stray(seen)
            work.deleted_uid, work.grace_s = seen.uid, grace_s
            return
        known = self._mirror.objects.get((seen.namespace, seen.name))
        if known is not None and known.uid == seen.uid:
            self._mirror.drop((seen.namespace, seen.name))

    def _count_stray(self, seen: Observed) -> None:
        is_known = bool(self.journal.load([seen.pod]))
        record = self._records.get(seen.pod) or self._read(seen.pod)
        ticket = None if record is None else record.ticket
        why = stray(seen, self.journal.id, is_known=is_known, ticket=ticket)
        if why is not None:
            self.metrics.kube_strays.labels(why).inc()
            _log.warning("an object was not the journal's", pod=seen.pod, why=why, uid=seen.uid)

    def _request(self, work: _Work, name: str, request: Coroutine[Any, Any, None]) -> None:
        """One at a time about each pod; one that fails for now is made again by a look."""

        async def make() -> None:
            try:
                async with self._slots:
                    await request
                work.tries, work.why = 0, ""
                self.metrics.kube_requests.labels("done").inc()
            except Exception as error:  # also an answer that no server of Kubernetes gives
                outcome = "refused" if isinstance(error, Refused) else "later"
                self.metrics.kube_requests.labels(outcome).inc()
                why = str(error)
                if not isinstance(error, Unavailable | Refused):
                    why = f"a request failed ({type(error).__name__}); the agent's log has why"
                    _log.exception("a request to the API server failed", pod=name)
                wait_s = retry_s(work.tries)
                after_s = error.after_s if isinstance(error, Unavailable) else 0.0
                work.tries, work.try_at_s = work.tries + 1, time.monotonic() + max(wait_s, after_s)
                if work.why != why:
                    work.why = why
                    _log.warning(
                        "a request about a pod is made again later", pod=name, why=work.why
                    )
            finally:
                work.request = None
                self._ring(name)

        work.request = asyncio.create_task(make())

    # The end

    def _see_to_stop(self, pod: Pod, stop: Stopping, record: KubeRecord) -> None:
        """Has kubelet end it. Where that is not possible, the agent signals the processes."""
        seen = self._mirror.objects[record.namespace, record.object]
        self._ask_to_delete(seen, max(SOON_S, round(stop.grace_s)))
        self._see_to_processes(pod, stop, record)

    def _ask_to_delete(self, seen: Observed, grace_s: int) -> None:
        """A repeat can only shorten the grace."""
        work = self._works[seen.pod]
        is_first = work.deleted_uid != seen.uid
        if work.is_free and (is_first or grace_s < work.grace_s):
            self._request(work, seen.pod, self._delete(work, seen, grace_s))

    def _see_to_processes(self, pod: Pod, stop: Stopping, record: KubeRecord) -> None:
        """SIGTERM once where the API server does not take the stop; SIGKILL when grace and patience
        are over.
        """
        work, now_s = self._works[pod.pod], time.monotonic()
        due = now_s + stop.grace_s + self.settings.supervisor_patience_s
        work.kill_at_s = due if work.kill_at_s is None else min(due, work.kill_at_s)
        if work.stopped_at_s is None:
            work.stopped_at_s = now_s
        seen = self._mirror.objects.get((record.namespace, record.object))
        is_taken = seen is not None and seen.is_deleting
        is_late = work.tries > 0 or now_s - work.stopped_at_s > STOP_TAKEN_S
        if now_s >= work.kill_at_s:
            self._signal(pod, record, signal.SIGKILL)
        elif is_late and not is_taken and not work.is_signalled:
            work.is_signalled = True
            self._signal(pod, record, signal.SIGTERM)

    def _signal(self, pod: Pod, record: KubeRecord, number: signal.Signals) -> None:
        found = list(proc.in_pod(record.uid)) if record.uid else []
        if found:
            _log.warning(
                "Kubernetes does not stop a pod, so the agent signals it",
                pod=pod.pod,
                signal=number.name,
                processes=len(found),
            )
        for pid, ticks in found:
            # With `pause` gone kubelet would end the pod with the grace of its object.
            if number is signal.SIGKILL or proc.name_of(pid) != PAUSE:
                proc.kill(pid, ticks, number)

    def _note_end(self, name: str, ended_at_s: float | None) -> None:
        record = self.record(name)
        if record is not None and record.ended_at_s is None:
            record = self._note(replace(record, ended_at_s=ended_at_s or time.time()))
        self._logs.end(name)

    def _with_tail(self, name: str, found: Ending) -> Ending:
        if found.exit_code in (0, None):
            return found
        return replace(found, log_tail=last_lines(self.files.logs_path(name)))

    def _checkpointed_at_s(self, record: KubeRecord) -> float | None:
        volumes = self.settings.kube_pods / record.uid / "volumes"
        return touched_at_s(volumes / "kubernetes.io~empty-dir" / "work" / CHECKPOINT_FILE)

    # Records

    def record(self, name: str) -> KubeRecord | None:
        """What the node has of the pod."""
        if name not in self._records:
            found = self._read(name)
            if found is None:
                return None
            self._records[name] = found
        return self._records[name]

    def _read(self, name: str) -> KubeRecord | None:
        try:
            directory = self.files.path(name)
        except ValueError:  # no pod's name
            return None
        return _read_in(directory)

    def ticket(self, name: str) -> Ticket | None:
        """What a container's request is compared with; None: of no pod that may begin here."""
        record = self.record(name)
        if record is None or record.ended_at_s is not None:
            return None
        seen = self._mirror.objects.get((record.namespace, record.object))
        address = seen.address if seen is not None and self._is_own(seen, record) else ""
        return Ticket(record.ticket, record.nonce, record.boot, address)

    def _note(self, record: KubeRecord) -> KubeRecord:
        """What can be learnt again, or is in the journal too: a full disk holds up no pod."""
        self._records[record.name] = record
        try:
            return self.keep(record)
        except OSError as error:
            _log.warning("a pod's record can't be written", pod=record.name, error=str(error))
            return record

    def keep(self, record: KubeRecord) -> KubeRecord:
        """Durable when it returns. Raises OSError."""
        write_record(self.files.path(record.name) / SPEC_FILE, record)
        self._records[record.name] = record
        return record

    def asked(self, name: str) -> None:
        """Its container has reached the agent."""
        self._works[name].heard_s = time.monotonic()

    def refuse(self, name: str, found: Ending) -> None:
        """The pod is never to run; the next look ends it."""
        self._works[name].refused = found
        self._ring(name)

    def has(self, name: str) -> bool:
        """Whether there is a folder."""
        return self.record(name) is not None

    def forget(self, name: str) -> None:
        """The work directory goes with the object; the record stays on the disk."""
        self._records.pop(name, None)
        self._logs.forget(name)
        is_done = name not in self._works or self._works[name].request is None
        if is_done and not self._mirror.of(name):
            self._works.pop(name, None)

    # What the journal does not know

    async def ready(self) -> None:
        """Once the node and all its pods are listed."""
        await self._mirror.pods_known.wait()
        await self._mirror.node_known.wait()

    def names(self) -> list[str]:
        """Those with a folder or an object."""
        found = {seen.pod for seen in self._mirror.objects.values() if seen.pod}
        for directory in self.files.directories():
            record = _read_in(directory)
            found.add(self.files.name_of(directory) if record is None else record.name)
        return sorted(found)

    def end_now(self, name: str, *, of_another_machine: bool) -> bool:
        """Deletes its objects; over when they and their processes are gone."""
        record = self.record(name)
        if self._end_objects(name):
            return False
        if record is not None and record.ended_at_s is None:
            if record.uid and any(proc.in_pod(record.uid)):
                return False
            self._note_end(name, None)
        return True

    async def _sweep(self) -> None:
        """Deletes objects that the journal does not want: ended, unknown, or of another one."""
        await self._mirror.pods_known.wait()
        while True:
            objects = [seen for seen in self._mirror.objects.values() if seen.pod]
            try:
                live = self.journal.live() if objects else set()
            except sqlite3.Error as error:
                _log.error("the journal can't be read; trying again", error=str(error))
                objects = []
            for seen in objects:
                if seen.pod not in live or seen.journal != self.journal.id:
                    self._ask_to_delete(seen, AT_ONCE_S if seen.is_terminal else SOON_S)
            await asyncio.sleep(SWEEP_S)

    # The node

    def owns(self, pid: int) -> bool:
        """By the uids of pods in its control groups."""
        uids = {seen.uid for seen in self._mirror.objects.values() if seen.pod}
        uids |= {record.uid for record in self._records.values() if record.uid}
        return not self._mirror.pods_known.is_set() or proc.is_in_pod(pid, uids)

    def usage(self, pod: Pod) -> TaskUsage:
        """By the pod's control groups, and by its network where it has one of its own."""
        record = self._records.get(pod.pod)
        if record is None or not record.uid:
            return TaskUsage()
        groups = groups_of(record.uid)
        used = of_groups(groups)
        if pod.run is None or is_on_host_network(pod.run):
            return used
        first = first_of(groups)
        return used if first is None else filled(used, of_network(first))

    def offer(self) -> Offer:
        """As Kubernetes has it, as far as settings do not say otherwise."""
        offer = self._mirror.offer
        return replace(
            offer,
            cpu=self.settings.cpu or offer.cpu,
            memory_mb=self.settings.memory_mb or offer.memory_mb,
        )

    async def run(self) -> None:
        """Watches, the clean-up and the copying of logs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirror.follow_pods())
            group.create_task(self._mirror.follow_node())
            group.create_task(self._sweep())
            group.create_task(self._logs.run(self._records))

    def _on_drop(self, seen: Observed) -> None:
        if seen.pod in self._records:
            self._works[seen.pod].last = seen
        else:  # nobody's any more
            self._works.pop(seen.pod, None)
        self._ring(seen.pod)

    def _ring(self, name: str) -> None:
        ring(self.doorbell, f"{name}\n".encode())

    async def close(self) -> None:
        """Pods go on under kubelet."""
        for work in self._works.values():
            if work.request is not None:
                work.request.cancel()
        self._logs.close()
        await self.api.close()


def _read_in(directory: Path) -> KubeRecord | None:
    try:
        return read_record(directory / SPEC_FILE, KubeRecord)
    except ValueError as error:
        _log.error("a record of a pod is damaged", error=str(error))
        return None


def _ended(
    pod: Pod, started_at_s: float | None, found: Ending, ended_at_s: float | None = None
) -> Seen:
    # kubelet tells whole seconds, so a short task would have ended before it began.
    at_s = max(ended_at_s or time.time(), started_at_s or 0.0)
    return Seen(pod.pod, started_at_s, at_s, found)
