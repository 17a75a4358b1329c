"""A core in the middle of a history, with the oracle beside it."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from core_door import CoreDoor
from oracle.follow import Follower
from oracle.hardware import Hardware
from oracle.settling import release_pod
from oracle.told import growth_of
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Decision, Deferred, Gang, PodPlace, Restored, Role

Event = tuple[Any, ...]
"""What happens: its name and what it is about, like ``("release", "g3")``."""


class Door(Protocol):
    """What a core offers."""

    def request(self, gang: Gang, told: str | None = None) -> None: ...
    def grow(self, gang_id: str, roles: tuple[Role, ...], told: str | None = None) -> None: ...
    def all_tried(self) -> None: ...
    def withdraw(self, gang_id: str) -> None: ...
    def release(self, gang_id: str) -> None: ...
    def release_pod(self, gang_id: str, pod: str) -> None: ...
    def checkpointed(self, gang: str, at: float) -> None: ...
    def set_node_health(self, node: str, is_healthy: bool) -> None: ...
    def set_gpu_health(self, node: str, gpu: int, is_healthy: bool) -> None: ...
    def cordon(self, node: str) -> None: ...
    def drain(self, node: str) -> None: ...
    def uncordon(self, node: str) -> None: ...
    def change(self, config: ClusterConfig, now: float) -> None: ...
    def restore(self, kept: Restored, now: float) -> None: ...
    def exported(self, gang_id: str) -> Restored: ...
    def decide(self, now: float) -> Sequence[Decision]: ...


Maker = Callable[[ClusterConfig], Door]
Watch = Callable[["Run"], None]


@dataclass
class Run:
    """A core in the middle of a history, the oracle beside it, since a restart a second core."""

    make: Maker
    config: ClusterConfig
    judges: str = "all"
    events: list[Event] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    latest: list[Decision] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = self._healthy(self.config)
        self.asked: dict[str, Gang] = {}
        self.grown: dict[str, tuple[Role, ...]] = {}
        self.twin: Door | None = None
        self.follower = Follower(Hardware(self.config), self.judges)
        self._codes_of_twin: dict[str, str] = {}
        self.now = 0.0

    def _healthy(self, config: ClusterConfig) -> Door:
        core = self.make(config)
        for machine in Hardware(config).machines:
            core.set_node_health(machine, True)
        return core

    @property
    def state(self) -> Any:
        """The oracle's state."""
        return self.follower.state

    def apply(self, event: Event) -> None:
        """Let one thing happen; what makes no sense at this point doesn't happen."""
        self.events.append(event)
        name, *about = event
        try:
            getattr(self, f"_on_{name}")(*about)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.name}"
            self.problems.append(f"fails in {place} at {name}: {error!r}")

    def _both(self) -> list[Door]:
        return [self.core] if self.twin is None else [self.core, self.twin]

    def names(self) -> list[str]:
        """Gangs with places."""
        return [name for name in self.state.records if not name.endswith("+")]

    def started_places(self, name: str) -> list[PodPlace]:
        """Where a gang's pods run by the core's own account, without what is reserved only."""
        kept = self.core.exported(name)
        if kept.started_at is None:
            return []
        return [place for place in kept.places if place.pod not in kept.reserved]

    def _on_request(self, gang: Gang) -> None:
        if gang.id in self.state.waiting or gang.id in self.state.records:
            return
        for core in self._both():
            core.request(gang)
        self.state.waiting[gang.id] = self.asked[gang.id] = gang

    def _on_release(self, gang: str) -> None:
        self._forget(gang, "release")

    def _on_withdraw(self, gang: str) -> None:
        record = self.state.records.get(gang)
        if gang in self.state.waiting or (record is not None and record.is_reserved):
            self._forget(gang, "withdraw")

    def _forget(self, gang: str, how: str) -> None:
        for core in self._both():
            getattr(core, how)(gang)
        self.follower.forget(gang)
        self._codes_of_twin.pop(gang, None)

    def _on_release_pod(self, gang: str, pod: str) -> None:
        record = self.state.records.get(gang)
        if record is None or record.is_reserved or pod not in record.places:
            return
        if len(record.places) == 1 and gang in self.state.growing:
            return
        for core in self._both():
            core.release_pod(gang, pod)
        release_pod(self.state, gang, pod)
        if gang not in self.state.records:
            self.follower.forget(gang)

    def _on_grow(self, gang: str, roles: tuple[Role, ...]) -> None:
        record = self.state.records.get(gang)
        if record is None or record.is_leaving or record.is_reserved or gang in self.state.growing:
            return
        for core in self._both():
            core.grow(gang, roles)
        self.state.growing[gang] = self.grown[gang] = roles

    def _on_checkpoint(self, gang: str) -> None:
        record = self.state.records.get(gang)
        if record is None or record.is_reserved:
            return
        for core in self._both():
            core.checkpointed(gang, self.now)
        self.state.replace_record(gang, checkpointed_at=self.now)

    def _on_node(self, node: str, is_healthy: bool) -> None:
        for core in self._both():
            core.set_node_health(node, is_healthy)
        (self.state.bad_nodes.discard if is_healthy else self.state.bad_nodes.add)(node)

    def _on_gpu(self, node: str, gpu: int, is_healthy: bool) -> None:
        for core in self._both():
            core.set_gpu_health(node, gpu, is_healthy)
        (self.state.bad_gpus.discard if is_healthy else self.state.bad_gpus.add)((node, gpu))

    def _on_cordon(self, node: str) -> None:
        for core in self._both():
            core.cordon(node)
        self.state.cordoned.add(node)

    def _on_drain(self, node: str) -> None:
        for core in self._both():
            core.drain(node)
        self.state.drained.add(node)

    def _on_uncordon(self, node: str) -> None:
        for core in self._both():
            core.uncordon(node)
        self.state.cordoned.discard(node)
        self.state.drained.discard(node)

    def _on_change(self, config: ClusterConfig) -> None:
        for core in self._both():
            core.change(config, self.now)
        known = set(self.follower.state.hardware.machines)
        for machine in set(Hardware(config).machines) - known:
            for core in self._both():
                core.set_node_health(machine, True)
        self.config = config
        self.follower.change(Hardware(config), self.core.exported)

    def _on_restart(self) -> None:
        """From now on a second core goes along that knows only what is kept of the first."""
        twin = self._healthy(self.config)
        state = self.state
        if isinstance(self.core, CoreDoor):
            for preemption in self.core.core.rows.preemptions():
                twin.rows.restore_preemption(preemption)  # type: ignore[attr-defined]
        for node in sorted(state.bad_nodes):
            twin.set_node_health(node, False)
        for node, gpu in sorted(state.bad_gpus):
            twin.set_gpu_health(node, gpu, False)
        for node in sorted(state.cordoned):
            twin.cordon(node)
        for node in sorted(state.drained):
            twin.drain(node)
        for name in sorted(state.records, reverse=True):
            if name.endswith("+"):
                continue
            twin.restore(self.core.exported(name), self.now)
        codes = self.follower.codes.told
        for name in sorted(state.waiting, reverse=True):
            twin.request(state.waiting[name], codes.get(name))
        for name, roles in sorted(state.growing.items()):
            if growth_of(name) not in state.records:
                twin.grow(name, roles, codes.get(growth_of(name)))
        twin.all_tried()
        self.twin, self._codes_of_twin = twin, {k.rstrip("+"): v for k, v in codes.items()}

    def _on_cycle(self, now: float) -> None:
        self.now = now
        for name, record in sorted(self.state.records.items()):
            if record.preempted_until is not None and record.preempted_until <= now:
                self._forget(name, "release")
                self._on_request(replace(record.gang, roles=_joined(record.gang.roles)))
        decisions = self.latest = list(self.core.decide(now))
        self.decisions += decisions
        if self.twin is not None:
            self._compare(decisions, self.twin.decide(now))
        is_followed = bool(self.judges) or not isinstance(self.core, CoreDoor)
        found = self.follower.cycle(decisions, exported_once(self.core), now) if is_followed else []
        if isinstance(self.core, CoreDoor):  # what it chose is judged, and its state is right
            self.problems += self.follower.adopt(self.core.core)
        else:
            self.problems += [*found, *self.follower.judged]
            self.follower.judged.clear()

    def _compare(self, decisions: list[Decision], others: Sequence[Decision]) -> None:
        """The twin may say again what the first said before the restart; nothing else differs."""
        kept = []
        for decision in others:
            if isinstance(decision, Deferred):
                if self._codes_of_twin.get(decision.gang) == decision.reason.code:
                    continue
                self._codes_of_twin[decision.gang] = decision.reason.code
            else:
                self._codes_of_twin.pop(decision.gang, None)
            kept.append(decision)
        for decision in decisions:
            if isinstance(decision, Deferred):
                self._codes_of_twin[decision.gang] = decision.reason.code
        if repr(decisions) != repr(kept):
            self.problems.append(f"restart: {decisions} is decided, after a restart {kept}")


def exported_once(core: Door) -> Callable[[str], Restored]:
    """What is kept of gangs, as long as nothing happens."""
    return cache(core.exported)


def _joined(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """Pods of a role together, those by which it has grown too; without roles that are over."""
    by_name: dict[str, Role] = {}
    for role in roles:
        known = by_name.get(role.name)
        by_name[role.name] = role if known is None else replace(role, pods=known.pods + role.pods)
    return tuple(role for role in by_name.values() if role.pods)
