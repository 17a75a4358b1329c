"""All inputs of the core pass through here, and are recorded in the simulator's form.

A cycle's events have one time, the cycle's. A cycle without inputs is recorded only if it decided
or searched for a reason; other such cycles change nothing. Of an interrupted cycle these are
recorded: its beginning (its time applies to all of it), each part that decided, and its end.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec

from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import (
    Decision,
    Gang,
    Restored,
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    Role,
)
from scheduler.domain.formats.cluster_file import cluster_data
from scheduler.domain.formats.export import (
    Fields,
    blocked_event,
    checkpointed_event,
    elastic_event,
    grown_event,
    pod_released_event,
    preemption_event,
    released_event,
    requested_event,
    reservation_event,
    restored_event,
    usage_event,
)
from scheduler.domain.formats.writing import to_record

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Noted:
    """The events of the cycle at ``at`` seconds: lines of JSON without their time."""

    at: float
    lines: tuple[str, ...]


class Given:
    """``is_recording``: off while memory is restored, as a snapshot records that."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.is_recording = False
        self._lines: list[str] = []
        self._noted: list[Noted] = []

    # Gangs.

    def request(self, gang: Gang) -> None:
        """A gang is requested."""
        self._note(requested_event, gang)
        self.core.request(gang)

    def grow(self, gang: str, roles: Sequence[Role]) -> None:
        """A gang requests more pods."""
        self._note(grown_event, gang, roles)
        self.core.grow(gang, roles)

    def want_more(self, gang: str, roles: Sequence[Role]) -> None:
        """A gang grows by as many of these pods as possible without cost."""
        self._note(elastic_event, gang, roles)
        self.core.want_more(gang, roles)

    def checkpointed(self, gang: str, saved_at: float) -> None:
        """A gang's work up to then is saved. A gang that does not run, or has saved since, is
        ignored.
        """
        if self.core.checkpointed(gang, saved_at):
            self._note(checkpointed_event, gang, saved_at)

    def requeue(self, gang: str, until: float) -> None:
        """A gang is over by the platform's fault. Unknown ones are ignored."""
        if self.core.gang(gang) is not None:
            self._note(released_event, gang, until)
            self.core.requeue(gang, until)

    def release(self, gang: str) -> None:
        """A gang is over, and nothing is kept of it. Unknown ones are ignored."""
        core = self.core
        if core.gang(gang) is not None or core.rows.reservation(gang) is not None:
            self._note(released_event, gang)
            self.core.release(gang)

    def release_pod(self, gang: str, pod: str, *, is_lost: bool = False) -> None:
        """A pod is over, perhaps by the platform's fault. Those of unknown gangs are ignored."""
        found = self.core.gang(gang)
        if found is None:
            return
        self._note(pod_released_event, gang, pod, is_lost=is_lost)
        self.core.release_pod(gang, pod, is_lost=is_lost)
        is_over = found.has_elastic and self.core.gang(gang) is None
        if is_over and not is_lost:  # no pod of it waits any more
            self._note(released_event, gang)

    def restore(self, restored: Restored, at: float) -> None:
        """A gang was placed before."""
        self._note(restored_event, restored)
        self.core.restore(restored, at)

    def keep_again(self, restored: RestoredReservation) -> None:
        """Cells were reserved for a gang before."""
        self._note(reservation_event, restored)
        self.core.rows.restore_reservation(restored)

    def restore_usage(self, restored: RestoredUsage) -> None:
        """A user had this usage before."""
        self._note(usage_event, restored)
        self.core.rows.restore_usage(restored)

    def restore_preemption(self, restored: RestoredPreemption) -> None:
        """A gang of one job was preempted for one of another before."""
        self._note(preemption_event, restored)
        self.core.rows.restore_preemption(restored)

    # Nodes.

    def set_node_health(self, node: str, is_healthy: bool) -> None:
        """A node is healthy, or not; the state is new."""
        self._record("node-healthy" if is_healthy else "node-bad", node=node)
        self.core.nodes.set_node_health(node, is_healthy)

    def set_gpu_health(self, node: str, gpu: int, is_healthy: bool) -> None:
        """A GPU is healthy, or not; the state is new."""
        self._record("gpu-healthy" if is_healthy else "gpu-bad", node=node, gpu=gpu)
        self.core.nodes.set_gpu_health(node, gpu, is_healthy)

    def block(
        self,
        node: str,
        gpus: Collection[int],
        amounts: Mapping[str, int],
        ports: Collection[int],
        avoided: Collection[int],
    ) -> None:
        """Resources of a node that foreign pods hold; ``avoided``: ports to use last."""
        if self.core.nodes.block(node, gpus, amounts, ports, avoided):
            self._note(blocked_event, node, gpus, amounts, ports, avoided)

    def order(self, node: str, *, is_cordoned: bool, is_drained: bool) -> None:
        """An operator's order; it replaces another one."""
        self._record("node-uncordoned", node=node)
        self.core.nodes.uncordon(node)
        if is_cordoned:
            self._record("node-cordoned", node=node)
            self.core.nodes.cordon(node)
        if is_drained:
            self._record("node-drained", node=node)
            self.core.nodes.drain(node)

    def change(self, core: Core, line: str | None = None) -> None:
        """Another configuration, already made; ``line``: its `changed_line`."""
        self.core = core
        if self.is_recording:
            self._lines.append(line or changed_line(core.forest.config))

    # The cycle.

    def run(
        self, at: float, is_enough: Callable[[int], bool], *, is_settled: bool
    ) -> list[Decision]:
        """A cycle at ``at`` seconds, or the rest of the one under way, until ``is_enough`` stops
        it.
        """
        core, goes_on = self.core, self.core.is_under_way
        if not goes_on:
            core.settle(is_settled)
        explained = core.explained
        decisions = core.cycle(at, is_enough)
        is_still = goes_on if core.is_under_way else not goes_on and core.explained == explained
        if self.is_recording and (self._lines or decisions or not is_still):
            self._end(at, len(decisions))
        return decisions

    def take_noted(self) -> list[Noted]:
        """The events recorded since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def _end(self, at: float, decided: int) -> None:
        how: Fields = {"most": decided} if self.core.is_under_way else {}
        if not self.core.is_settled:
            how["settled"] = False
        if how or not self._lines:
            self._record("cycle", **how)
        self._noted.append(Noted(at, tuple(self._lines)))
        self._lines = []

    def _note(self, event_of: Callable[P, Fields], *given: P.args, **more: P.kwargs) -> None:
        if self.is_recording:
            self._lines.append(to_record(event_of(*given, **more)))

    def _record(self, event: str, **fields: object) -> None:
        if self.is_recording:
            self._lines.append(to_record({"event": event, **fields}))


def recorded(config: ClusterConfig) -> Fields:
    """A configuration for a replay: gangs end only by events."""
    data = cluster_data(config)
    policy = data["policy"]
    assert isinstance(policy, dict)
    return data | {"policy": policy | {"enforceGrace": False}}


def changed_line(config: ClusterConfig) -> str:
    """The event of another configuration. It takes long where nodes are many."""
    return to_record({"event": "cluster-changed", "cluster": recorded(config)})
