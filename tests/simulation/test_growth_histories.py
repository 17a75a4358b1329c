"""Random histories of gangs that grow, and of elastic ones, in the core."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from oracle.hardware import Hardware
from random_changes import a_change
from random_clusters import Traits, a_cluster, a_gang
from scheduler.domain.core.audit import drifts
from scheduler.domain.core.config import USUAL_ORDER, ClusterConfig
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Gang,
    Grown,
    Kind,
    Placed,
    PodPlace,
    Preempted,
    Refused,
    Reserved,
    Role,
    Shrunk,
)
from scheduler.domain.core.nodes import Phase
from scheduler.domain.core.records import Growth, Record
from seeds import how_many
from test_core_histories import fault, picture, whole

CLUSTERS, STEPS = how_many(6, deep=20), 40


class History:
    """A core to which random things happen, and what its gangs want by all that was asked."""

    def __init__(self, seed: int, policy: dict[str, Any]) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        config = a_cluster(self.random)
        self.config = replace(config, policy=replace(config.policy, **policy))
        self.hardware, self.core = Hardware(self.config), Core(self.config)
        self.needed: dict[str, dict[str, Kind]] = {}
        self.growing: dict[str, dict[str, Kind]] = {}
        self.spare: dict[str, dict[str, Kind]] = {}
        self.leaving: list[str] = []
        self.shrinking: list[tuple[str, str]] = []
        self.running: set[str] = set()

    def a_gang(self, number: int) -> Gang:
        """Often one that can do without some of its pods, or that may borrow."""
        gang = a_gang(self.random, self.hardware, f"g{number}", float(number), 0.1)
        roles = [
            replace(role, least=self.random.randrange(len(role.pods) + 1))
            if self.random.random() < 0.5
            else role
            for role in gang.roles
        ]
        roles[0] = replace(roles[0], least=roles[0].least and max(roles[0].least, 1))
        if not roles[0].least:
            roles[0] = replace(roles[0], least=None)
        is_borrowing = self.random.random() < 0.4
        return replace(gang, roles=tuple(roles), job="", is_borrowing=is_borrowing)

    def ask(self, gang: Gang) -> None:
        """A gang comes."""
        needed = {p: role.kind for role in gang.roles for p in role.pods[: role.least]}
        spare = {p: role.kind for role in gang.roles for p in role.pods if p not in needed}
        self.needed[gang.id], self.spare[gang.id], self.growing[gang.id] = needed, spare, {}
        self.core.request(gang)

    def step(self, number: int) -> None:
        """One thing happens."""
        chance, core, some = self.random.random(), self.core, sorted(self.core.gangs)
        name = self.random.choice(some) if some else None
        if chance < 0.4 or name is None:
            self.ask(self.a_gang(number))
        elif chance < 0.55:
            self.release(name)
        elif chance < 0.65:
            fault(core, self.random, self.hardware.machines)
        elif chance < 0.75:
            self.release_pod(name)
        elif chance < 0.9:
            self.grow(name, number)
        elif self.leaving:
            self.release(self.leaving[0])
        if self.shrinking and self.random.random() < 0.7:
            self.give_back(*self.shrinking[0])

    def release(self, name: str) -> None:
        self.core.release(name)
        self.forget(name)

    def forget(self, name: str) -> None:
        for each in (self.needed, self.spare, self.growing):
            del each[name]
        self.leaving = [each for each in self.leaving if each != name]
        self.shrinking = [each for each in self.shrinking if each[0] != name]
        self.running.discard(name)

    def release_pod(self, name: str) -> None:
        """Any pod of a gang is over: one that it needs, waits for, or can do without."""
        pods = sorted({**self.needed[name], **self.growing[name], **self.spare[name]})
        self.end_pod(name, self.random.choice(pods))

    def end_pod(self, name: str, pod: str) -> None:
        for each in (self.needed, self.growing, self.spare):
            each[name].pop(pod, None)
        self.shrinking = [each for each in self.shrinking if each != (name, pod)]
        self.core.release_pod(name, pod)
        if name not in self.core.gangs:
            assert not {**self.needed[name], **self.growing[name]}, name
            self.forget(name)
        elif name in self.running and not self.needed[name]:
            self.has_lost_all(name)

    def has_lost_all(self, name: str) -> None:
        """It needs what it could do without, or begins anew with what it was to grow by."""
        record = self.core.gangs[name]
        own = {pod: want.kind for want, pods in record.workload.wants for pod in pods}
        assert own, name
        if record.workload.phase is Phase.WAITING:
            assert own == self.growing[name], name
            self.needed[name], self.growing[name] = own, {}
            self.running.discard(name)
            self.leaving = [each for each in self.leaving if each != name]
        else:
            (pod,) = own
            self.needed[name][pod] = self.spare[name].pop(pod)

    def grow(self, name: str, number: int) -> None:
        """More pods like others that it has, or others: all at once, or as many as can be had."""
        kind = self.random.choice([*self.needed[name].values(), Kind(1)])
        pods = tuple(f"more{number}-{each}" for each in range(self.random.choice((1, 1, 2))))
        roles = (Role(kind, pods),)
        if self.random.random() < 0.5:
            self.core.want_more(name, roles)
            self.spare[name] |= dict.fromkeys(pods, kind)
            return
        self.core.grow(name, roles)
        is_running = name in self.running
        (self.growing if is_running else self.needed)[name].update(dict.fromkeys(pods, kind))

    def give_back(self, name: str, pod: str) -> None:
        """A pod that was asked back has left, and is wanted again."""
        kind = self.spare[name].get(pod)
        self.end_pod(name, pod)
        if name in self.core.gangs and kind is not None:
            self.core.want_more(name, (Role(kind, (pod,)),))
            self.spare[name][pod] = kind

    def cycle(self, now: float) -> list[Decision]:
        """What is decided is as gangs may have it."""
        records = dict(self.core.gangs)
        decided = self.core.cycle(now)
        for each in decided:
            self.judge(each, records)
        assert list(drifts(self.core.state, [*self.core.workloads()])) == [], now
        whole(self.core)
        return decided

    def judge(self, decision: Decision, records: dict[str, Record]) -> None:
        name = decision.gang
        if isinstance(decision, Placed):
            assert name not in self.running, "it is placed twice"
            placed, wanted = {place.pod for place in decision.pods}, self.needed[name].keys()
            assert placed == wanted or placed == wanted | self.spare[name].keys(), decision
            self.running.add(name)
        elif isinstance(decision, Grown):
            grown = {place.pod for place in decision.pods}
            if grown == self.growing[name].keys():
                self.needed[name] |= self.growing[name]
                self.growing[name] = {}
            else:
                assert len(grown) == 1, decision
                assert grown <= self.spare[name].keys(), decision
        elif isinstance(decision, Shrunk):
            assert set(decision.pods) <= self.spare[name].keys(), decision
            self.shrinking += [(name, pod) for pod in decision.pods]
        elif isinstance(decision, Preempted):
            assert name in self.running
            self.leaving.append(name)
            self.shrinking = [each for each in self.shrinking if each[0] != name]
            if decision.for_gang is not None:
                one, other = (records[each].workload.gang for each in (name, decision.for_gang))
                assert one.virtual_cluster != other.virtual_cluster or one.priority < other.priority
        elif isinstance(decision, Refused):
            if name not in self.core.gangs:
                self.forget(name)
            else:
                self.growing[name] = {}

    def twin(self) -> Core:
        """After a restart."""
        twin = restarted(self.core, self.config)
        for name in sorted(self.core.gangs):
            record = self.core.gangs[name]
            if not record.workload.places:
                if name not in twin.gangs:
                    self.ask_again(twin, record)
                continue
            if record.growth is not None and record.growth.wanted and not is_held(record):
                twin.grow(name, roles_of(record.growth.wanted))
            placed = {place.pod for place in self.core.exported(name).places}
            spare = {pod: k for pod, k in self.spare[name].items() if pod not in placed}
            twin.want_more(name, roles_of(spare))
        return twin

    def ask_again(self, twin: Core, record: Record) -> None:
        name = record.id
        roles = [*roles_of(self.needed[name]), *roles_of(self.spare[name], least=0)]
        twin.request(replace(record.workload.gang, roles=tuple(roles)))


def is_held(record: Record) -> bool:
    """Places are held for what a gang grows by."""
    child = None if record.growth is None else record.growth.asking
    return child is not None and bool(child.workload.places)


def roles_of(pods: dict[str, Kind], least: int | None = None) -> tuple[Role, ...]:
    return tuple(Role(kind, (pod,), least=least) for pod, kind in sorted(pods.items()))


def restarted(core: Core, config: ClusterConfig) -> Core:
    """All that is placed is restored."""
    fresh = Core(config)
    for node in core.state.nodes.values():
        fresh.nodes.set_node_health(node.name, node.is_healthy)
        for slot in node.slots:
            for gpu in slot.fixed.indices(slot.sick) if slot.fixed else ():
                fresh.nodes.set_gpu_health(node.name, gpu, False)
        if node.is_cordoned:
            fresh.nodes.cordon(node.name)
        if node.is_drained:
            fresh.nodes.drain(node.name)
        if node.blocked:
            amounts = dict(zip(core.state.resources.names, node.blocked, strict=True))
            gpus = [g for s in node.slots if s.fixed for g in s.fixed.indices(s.blocked)]
            ports = [20_000] if node.blocked_ports else []
            fresh.nodes.block(node.name, gpus, amounts, ports)
    for name, record in core.gangs.items():
        if record.workload.places:
            fresh.restore(core.exported(name))
    for each in core.rows.reservations():
        if each.kept_of is not None:  # of gangs that leave for a drain
            fresh.rows.restore_reservation(each)
    return fresh


def done(decided: Sequence[Decision]) -> list[Decision]:
    """Without what is only said."""
    return [each for each in decided if not isinstance(each, Deferred | Reserved)]


POLICIES: list[dict[str, Any]] = [
    {},
    {"is_backfilling": True, "assumed_s": 20.0, "order_by": USUAL_ORDER},
    {"is_strict": True, "is_lazy": True},
]


@pytest.mark.parametrize("policy", POLICIES, ids=["plain", "usual", "strict"])
@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_growth_is_whole_and_only_surplus_is_given_back(seed: int, policy: dict[str, Any]) -> None:
    history = History(seed, policy)
    for number in range(STEPS):
        history.step(number)
        history.cycle(float(number))


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_a_core_that_is_restored_has_the_same(seed: int) -> None:
    history = History(seed, {})
    for number in range(STEPS):
        history.step(number)
        history.cycle(float(number))
        core, fresh = history.core, restarted(history.core, history.config)
        assert picture(fresh) == picture(core), number
        placed = [name for name, record in core.gangs.items() if record.workload.places]
        assert [fresh.exported(name) for name in placed] == [*map(core.exported, placed)]


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_a_core_that_is_restored_decides_the_same(seed: int) -> None:
    """Those that wait wait on, but that a cell bound for one owner may help another, who is not
    woken by it. A gang that comes next gets the same at the same cost.
    """
    history, helped = History(seed, {}), 0
    for number in range(STEPS):
        history.step(2 * number)
        history.cycle(2.0 * number)
        twin = history.twin()
        if done(twin.cycle(2.0 * number)):
            helped += 1
            continue
        gang = history.a_gang(2 * number + 1)
        twin.request(gang)
        history.ask(gang)
        now = 2.0 * number + 1
        assert done(history.cycle(now)) == done(twin.cycle(now)), number
    assert helped <= STEPS / 20


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_a_trial_in_which_pods_change_hands_leaves_nothing_behind(seed: int) -> None:
    history = History(seed, {})
    for number in range(STEPS):
        history.step(number)
        history.cycle(float(number))
        core, before = history.core, picture(history.core)
        state, workloads = core.state, [*core.workloads()]
        wants = [(each.name, each.wants) for each in workloads]
        with state.trial():
            for record in core.gangs.values():
                for child in record.children:
                    is_same = child.workload.phase is record.workload.phase
                    if child.workload.places and is_same and child.workload.owner is not None:
                        pods = [place.pod for place in child.workload.places]
                        state.pass_on(child.workload, dict.fromkeys(pods, record.workload))
            for workload in workloads:
                if workload.phase is Phase.RUNNING and history.random.random() < 0.3:
                    state.evict(workload)
        assert picture(core) == before
        assert [(each.name, each.wants) for each in workloads] == wants
        assert list(drifts(state, workloads)) == [], number


def wants(core: Core) -> dict[str, list[Any]]:
    """What gangs want beside the pods that they have."""
    found = {}
    for name, record in core.gangs.items():
        growth = record.growth or Growth()
        waiting = [p for p, c in growth.surplus.items() if c.workload.phase is Phase.WAITING]
        found[name] = [growth.wanted, sorted((*growth.spare, *waiting)), record.published]
    return found


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_the_same_configuration_changes_nothing(seed: int) -> None:
    history = History(seed, POLICIES[seed % 2])
    for number in range(STEPS):
        history.step(number)
        history.cycle(float(number))
        core = history.core
        again = core.changed(history.config, float(number))
        assert picture(again) == picture(core), number
        assert wants(again) == wants(core), number
        placed = [name for name, record in core.gangs.items() if record.workload.places]
        assert [again.exported(name) for name in placed] == [*map(core.exported, placed)]


def running(core: Core) -> dict[str, set[PodPlace]]:
    """Where pods run: each place without what it is charged."""
    kept = [core.exported(name) for name in core.gangs]
    return {
        each.gang.id: {p._replace(charged=()) for p in each.places if p.pod not in each.reserved}
        for each in kept
        if each.started_at is not None
    }


@pytest.mark.parametrize("seed", range(2 * CLUSTERS))
def test_histories_go_on_under_other_configurations(seed: int) -> None:
    """All that is wanted is wanted on, what runs stays where it is, and none is placed twice."""
    history = History(seed, POLICIES[seed % 3])
    for number in range(STEPS):
        history.step(number)
        history.cycle(float(number))
        if number % 8 == 7:
            before, config = history.core, a_change(history.random, history.config, Traits())
            policy = replace(config.policy, **POLICIES[seed % 3])
            history.config = replace(config, policy=policy)
            history.hardware = Hardware(history.config)
            history.core = before.changed(history.config, float(number))
            assert list(drifts(history.core.state, [*history.core.workloads()])) == [], number
            assert running(history.core) == running(before), number
            history.cycle(float(number))
