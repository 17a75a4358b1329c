"""A scheduler straight from the definitions: the same door as the core's, no index, no hurry.

It takes the first place that its search finds, so how near pods are is not its strength. It is
there to try the checker and the follower on, and to break.
"""

from collections.abc import Iterator
from dataclasses import replace

from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    CellUse,
    Decision,
    Deferred,
    Downgraded,
    Gang,
    GangClass,
    Placed,
    Preempted,
    PreemptionCancelled,
    Reason,
    Refused,
    Restored,
    Role,
    Upgraded,
)

from oracle import choices, covers
from oracle.choices import Found
from oracle.fitting import TooHardError
from oracle.hardware import Hardware
from oracle.quota import numbers_of, shortage
from oracle.settling import held_cells, release_pod, settle, without_cells
from oracle.state import Record, State, kinds_of, order_of
from oracle.views import Terms, demands, look


class SlowCluster:
    """The door of the core; `cycle` decides."""

    def __init__(self, config: ClusterConfig) -> None:
        self.state = State(Hardware(config))
        self._codes: dict[str, str] = {}

    def request(self, gang: Gang, told: str | None = None) -> None:
        self.state.waiting[gang.id] = gang
        if told is not None:
            self._codes[gang.id] = told

    def all_tried(self) -> None:
        """Nothing is left to be done."""

    def withdraw(self, gang_id: str) -> None:
        self.release(gang_id)

    def grow(self, gang_id: str, roles: tuple[Role, ...], told: str | None = None) -> None:
        """The slow one has no room for more pods, ever."""

    def release(self, gang_id: str) -> None:
        self.state.waiting.pop(gang_id, None)
        self.state.records.pop(gang_id, None)
        self._codes.pop(gang_id, None)

    def release_pod(self, gang_id: str, pod: str) -> None:
        release_pod(self.state, gang_id, pod)

    def checkpointed(self, gang_id: str, at: float) -> None:
        self.state.replace_record(gang_id, checkpointed_at=at)

    def set_node_health(self, node: str, is_healthy: bool) -> None:
        (self.state.bad_nodes.discard if is_healthy else self.state.bad_nodes.add)(node)

    def set_gpu_health(self, node: str, gpu: int, is_healthy: bool) -> None:
        (self.state.bad_gpus.discard if is_healthy else self.state.bad_gpus.add)((node, gpu))

    def cordon(self, node: str) -> None:
        self.state.cordoned.add(node)

    def drain(self, node: str) -> None:
        self.state.drained.add(node)

    def uncordon(self, node: str) -> None:
        self.state.cordoned.discard(node)
        self.state.drained.discard(node)

    def change(self, config: ClusterConfig, now: float) -> None:
        """The slow one keeps to its configuration."""

    def exported(self, gang_id: str) -> Restored:
        record = self.state.records[gang_id]
        cells = self.state.hardware.cells
        return Restored(
            record.gang,
            tuple(record.places.values()),
            record.gang_class,
            tuple(CellUse(cells[cell].address, path) for cell, path in sorted(record.cells)),
            record.started_at,
            record.preempted_until,
            record.preempted_for,
            checkpointed_at=record.checkpointed_at,
        )

    def restore(self, kept: Restored, now: float) -> None:
        cells = set()
        for use in kept.cells:
            at = self.state.hardware.cell_at(use.cell, use.quota)
            assert at is not None
            cells.add((at, use.quota))
        assert kept.gang_class is not None
        self.state.records[kept.gang.id] = Record(
            kept.gang,
            {place.pod: place for place in kept.places},
            kept.gang_class,
            frozenset(cells),
            kept.started_at,
            kept.preempted_until,
            kept.preempted_for,
            kept.checkpointed_at,
        )

    def decide(self, now: float) -> list[Decision]:
        self.state.now = now
        """One cycle as docs/scheduling.md has it."""
        return list(self._cycle(now))

    def _cycle(self, now: float) -> Iterator[Decision]:
        yield from self._drain(now)
        yield from self._start_or_lose(now)
        done: set[str] = set()
        while todo := [g for g in self.state.waiting.values() if g.id not in done]:
            gang = min(todo, key=order_of)
            done.add(gang.id)
            yield from self._serve(gang, now)
        low = [r for r in self.state.records.values() if r.gang_class is GangClass.DOWNGRADED]
        for record in sorted(low, key=lambda r: (r.gang.submitted_at, r.gang.id)):
            cells = None if record.is_leaving else covers.cells_for(self.state, record)
            if cells is not None:
                self._raise(record, cells)
                yield Upgraded(record.gang.id)

    def _drain(self, now: float) -> Iterator[Decision]:
        until = now + self.state.hardware.config.policy.grace_s
        for name, record in sorted(self.state.records.items()):
            nodes = {place.node for place in record.places.values()}
            if nodes & self.state.drained and not record.is_leaving and not record.is_reserved:
                self._tell_to_leave(name, until, None)
                yield Preempted(name, None, until, Reason("drain", "", {}))

    def _tell_to_leave(self, name: str, until: float, for_gang: str | None) -> None:
        self.state.records[name] = replace(
            self.state.records[name],
            cells=frozenset(),
            preempted_until=until,
            preempted_for=for_gang,
        )

    def _start_or_lose(self, now: float) -> Iterator[Decision]:
        state = self.state
        for name, record in sorted(state.records.items()):
            if not record.is_reserved:
                continue
            leaves = set(state.leaves_of(record))
            machines = {place.node for place in record.places.values()}
            running = [r for r in state.records.values() if not r.is_reserved]
            held = {leaf for other in running for leaf in state.leaves_of(other)}
            well = all(map(state.is_usable, leaves)) and all(map(state.is_machine_usable, machines))
            if not well:
                state.waiting[name] = state.records.pop(name).gang
                yield PreemptionCancelled(name)
            elif any(other.preempted_for == name for other in running):
                continue
            elif not leaves & held and self._has_room(record):
                state.replace_record(name, started_at=now)
                self._codes.pop(name, None)
                yield Placed(name, tuple(record.places.values()))

    def _has_room(self, record: Record) -> bool:
        gone = {n for n, r in self.state.records.items() if r.is_reserved}
        view = look(self.state, record.gang, Terms(gone=frozenset(gone)))
        kinds = kinds_of(record.gang.roles)
        for machine in {place.node for place in record.places.values()}:
            left = dict(view.left[machine])
            for pod, place in record.places.items():
                for name, count in demands(kinds[pod]) if place.node == machine else ():
                    if name in left:
                        left[name] -= count
            if min(left.values(), default=0) < 0:
                return False
        return True

    def _serve(self, gang: Gang, now: float) -> Iterator[Decision]:
        try:
            decided = list(self._decide(gang, now))
        except TooHardError:
            decided = []
        if decided:
            yield from decided
            return
        if choices.is_refused(self.state, gang):
            del self.state.waiting[gang.id]
            yield Refused(gang.id, Reason("refused", "", {}))
            return
        yield from self._tell(gang, choices.code_of(self.state, gang))

    def _tell(self, gang: Gang, code: str) -> Iterator[Decision]:
        if self._codes.get(gang.id) != code:
            self._codes[gang.id] = code
            numbers = numbers_of(shortage(self.state, gang)) if code == "quota" else {}
            yield Deferred(gang.id, Reason(code, "", numbers))

    def _decide(self, gang: Gang, now: float) -> Iterator[Decision]:
        state = self.state
        step = choices.cheapest_step(state, gang)
        if step is None:
            if choices.may_be_opportunistic(gang):
                found = choices.find(state, gang, choices.AS_OPPORTUNISTIC)
                if found:
                    yield self._take(gang, found, now, GangClass.OPPORTUNISTIC)
            return
        terms = choices.terms_of(state, gang, step)
        if step == "victims":
            terms = self._choose_victims(gang, terms, now)
        found = choices.find(state, gang, terms)
        assert found is not None
        for name in sorted(terms.downgraded):
            state.records[name] = without_cells(state.records[name], GangClass.DOWNGRADED)
            yield Downgraded(name, gang.id)
        until = now + state.hardware.config.policy.grace_s
        victims = terms.gone - choices.leaving(state)
        for name in sorted(victims):
            if state.records[name].is_reserved:
                state.waiting[name] = state.records.pop(name).gang
                yield PreemptionCancelled(name)
                continue
            self._tell_to_leave(name, until, gang.id)
            yield Preempted(name, gang.id, until, Reason("preempted", "", {}))
        own = GangClass.OPPORTUNISTIC if gang.priority == OPPORTUNISTIC else GangClass.GUARANTEED
        placed = self._take(gang, found, now, own)
        if terms.gone:
            state.replace_record(gang.id, started_at=None)
            yield from self._tell(gang, "preempting")
        else:
            yield placed

    def _choose_victims(self, gang: Gang, terms: Terms, now: float) -> Terms:
        """The cheapest ones with which it fits, and of the reservations those that it needs."""
        found = next(
            terms
            for _, terms in choices.prices(self.state, gang, now)
            if choices.find(self.state, gang, terms)
        )
        for name in sorted(found.gone):
            if self.state.records[name].is_reserved:
                rest = replace(found, gone=found.gone - {name})
                found = rest if choices.find(self.state, gang, rest) else found
        return found

    def _take(self, gang: Gang, found: Found, now: float, own: GangClass) -> Placed:
        places, cells = settle(found, self.state.hardware)
        if own is not GangClass.GUARANTEED:
            cells = frozenset()
        self.state.records[gang.id] = Record(gang, places, own, cells, now)
        del self.state.waiting[gang.id]
        self._codes.pop(gang.id, None)
        return Placed(gang.id, tuple(places.values()))

    def _raise(self, record: Record, bindings: covers.Bindings) -> None:
        hardware, kinds = self.state.hardware, kinds_of(record.gang.roles)
        view = look(self.state, record.gang, Terms(gone=frozenset({record.gang.id})))
        pools = view.pools(list(bindings))
        taken = set(self.state.leaves_of(record))
        places = dict(record.places)
        for pod, place in record.places.items():
            here = {
                gpu: leaf for (node, gpu), leaf in hardware.leaf_at.items() if node == place.node
            }
            own = {hardware.node_cell_of(here[gpu]) for gpu in place.gpus}
            more = (hardware.leaves_needed(kinds[pod], place.node) or 0) - len(place.gpus)
            rest = [
                (gpu, leaf)
                for gpu, leaf in sorted(here.items())
                if pools.get(leaf) == (kinds[pod].pin or "")
                and leaf in view.chargeable - taken
                and (not own or hardware.node_cell_of(leaf) in own)
            ][: max(more, 0)]
            taken.update(leaf for _, leaf in rest)
            places[pod] = place._replace(charged=tuple(gpu for gpu, _ in rest))
        mine = {
            cell: path
            for cell, (owner, path) in view.with_bound(list(bindings)).items()
            if owner == record.gang.virtual_cluster
        }
        raised = replace(record, gang_class=GangClass.GUARANTEED, places=places)
        cells = held_cells(hardware, mine, self.state.charged_by(raised))
        self.state.records[record.gang.id] = replace(raised, cells=cells)
