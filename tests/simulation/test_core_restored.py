"""The core in parts, after a restart, and under another configuration."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from oracle.hardware import Hardware
from random_changes import a_change
from random_clusters import Traits, a_cluster, a_gang
from scheduler.domain.core.audit import drifts
from scheduler.domain.core.config import USUAL_ORDER
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.model import Downgraded, Placed, PodPlace, Preempted, PreemptionCancelled
from scheduler.domain.core.nodes import Phase
from seeds import how_many

CLUSTERS, STEPS = how_many(6, deep=12), 40
KEEPING = {"is_backfilling": True, "assumed_s": 20.0, "order_by": USUAL_ORDER}


class History:
    """The same things happen to each of some cores."""

    def __init__(self, seed: int, count: int = 1) -> None:
        self.chance = random.Random(seed)
        config = a_cluster(self.chance)
        self.config = replace(config, policy=replace(config.policy, **KEEPING))
        self.hardware = Hardware(self.config)
        self.cores = [Core(self.config) for _ in range(count)]
        self.number = 0
        self.failed: list[str] = []

    @property
    def now(self) -> float:
        return float(self.number)

    def happen(self) -> None:
        """One thing happens."""
        self.number += 1
        kind, names = self.chance.random(), sorted(self.cores[0].gangs)
        gang = a_gang(self.chance, self.hardware, f"g{self.number}", self.now, 0.15)
        gang = replace(gang, is_borrowing=self.chance.random() < 0.4)
        if self.failed and self.number % 3 == 0:
            gang = replace(gang, follows=self.failed.pop())
        name = self.chance.choice(names) if names else ""
        self.failed += [name] if 0.8 <= kind < 0.85 else []
        node, is_well = self.chance.choice(self.hardware.machines), self.chance.random() < 0.7
        for core in self.cores:
            if kind < 0.65:
                core.request(gang)
            elif kind < 0.8:
                core.release(name)
            elif kind < 0.85:
                core.requeue(name, self.now + 9.0)
            elif kind < 0.95:
                core.nodes.set_node_health(node, is_well)
            else:
                core.nodes.block(node, (), {"cpu": 1}, (20_000,))


def facts(core: Core) -> list[Any]:
    """All that is kept of a core."""
    waiting = [n for n, each in core.gangs.items() if each.workload.phase is Phase.WAITING]
    placed = sorted(core.gangs.keys() - waiting)
    return [sorted(waiting), [core.exported(name) for name in placed], core.rows.reservations()]


def running(core: Core) -> dict[str, set[PodPlace]]:
    """Where gangs run: each place without what it is charged."""
    kept = {name: core.exported(name) for name in core.gangs}
    return {
        name: {place._replace(charged=()) for place in each.places}
        for name, each in kept.items()
        if each.started_at is not None
    }


def held(core: Core) -> list[Any]:
    """Cells that are kept for gangs, or for next attempts."""
    holds = [each for each in core.workloads() if not each.wants]
    places = [(each.name, p.slot.node.name, p.charge) for each in holds for p in each.places]
    return sorted(places)


def is_right(core: Core) -> None:
    assert list(drifts(core.state, [*core.workloads()])) == []


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_a_cycle_in_parts_decides_the_same(seed: int) -> None:
    history, parts = History(seed, 2), 0
    whole, parted = history.cores
    for _ in range(STEPS):
        history.happen()
        expected, found = whole.cycle(history.now), []
        asked = 0

        def is_enough(_: int) -> bool:
            nonlocal asked
            asked += 1
            return asked % 2 == 0  # one step

        found += parted.cycle(history.now, is_enough)
        while parted.is_under_way:
            is_right(parted)
            parts += 1
            found += parted.cycle(history.now + 0.1, is_enough)
        assert found == expected
    assert parts > STEPS


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_a_restored_core_keeps_its_reservations_and_decides_the_same(seed: int) -> None:
    history = History(seed)
    (core,) = history.cores
    for _ in range(STEPS):
        history.happen()
        core.cycle(history.now)
        restored = Core(history.config)
        restored.nodes.take_over(core.nodes)
        waiting, placed, reservations = facts(core)
        for each in placed:
            restored.restore(each)
        for name in waiting:
            restored.request(core.gangs[name].workload.gang)
        for reservation in reversed(reservations):
            restored.rows.restore_reservation(reservation)
        is_right(restored)
        assert facts(restored) == facts(core)


def test_some_reservations_were_restored() -> None:
    """Else the test before would say nothing."""
    met = 0
    for seed in range(CLUSTERS):
        history = History(seed)
        for _ in range(STEPS):
            history.happen()
            history.cores[0].cycle(history.now)
            met += len(history.cores[0].rows.reservations())
    assert met > STEPS


def test_a_reservation_waits_for_nodes_that_have_not_reported_yet() -> None:
    history = History(2)
    core = history.cores[0]
    while not core.rows.reservations():
        history.happen()
        core.cycle(history.now)
    (reservation, *_) = core.rows.reservations()
    for is_patient in (False, True):
        restored = Core(history.config)
        for name in history.hardware.machines:
            restored.nodes.set_node_health(name, False)
        restored.request(core.gangs[reservation.gang].workload.gang)
        until = history.now + 5.0 if is_patient else None
        restored.rows.restore_reservation(replace(reservation, patient_until=until))
        restored.cycle(history.now)
        assert bool(restored.rows.reservations()) is is_patient
        restored.cycle(history.now + 5.0)
        assert not restored.rows.reservations()


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_the_same_configuration_changes_nothing(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.happen()
        history.cores[0].cycle(history.now)
        again = history.cores[0].changed(history.config, history.now)
        is_right(again)
        assert facts(again) == facts(history.cores[0])
        assert held(again) == held(history.cores[0])


def test_under_another_configuration_what_runs_stays_where_it_is() -> None:
    met: Counter[str] = Counter()
    for seed in range(5 * CLUSTERS):
        history = History(seed)
        (core,) = history.cores
        for _ in range(STEPS):
            history.happen()
            core.cycle(history.now)
        before, config = running(core), a_change(history.chance, history.config, Traits())
        config = replace(config, policy=replace(config.policy, **KEEPING))
        fresh = core.changed(config, history.now)
        is_right(fresh)
        assert running(fresh) == before, seed
        assert fresh.gangs.keys() == core.gangs.keys()
        met["orphaned"] += any(record.orphaned for record in fresh.gangs.values())
        back = fresh.changed(history.config, history.now)
        is_right(back)
        assert running(back) == before == running(core), seed
        for decision in fresh.cycle(history.now + 1):
            met[type(decision).__name__] += 1
            assert not isinstance(decision, Placed) or decision.gang not in before, seed
        is_right(fresh)
        for name in list(fresh.gangs):
            fresh.release(name)
        is_right(fresh)
    wanted = (Downgraded, PreemptionCancelled, Placed, Preempted)
    assert all(met[each.__name__] for each in wanted), met
    assert met["orphaned"], met
