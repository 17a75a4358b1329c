"""The core with one state in parts, and its reservations after a restart."""

import random
from dataclasses import replace
from typing import Any

import pytest
from oracle.hardware import Hardware
from random_clusters import a_cluster, a_gang
from scheduler.domain.core.config import USUAL_ORDER
from scheduler.domain.newcore.audit import drifts
from scheduler.domain.newcore.cycle import Core
from scheduler.domain.newcore.nodes import Phase

CLUSTERS, STEPS = 12, 40
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

    @property
    def now(self) -> float:
        return float(self.number)

    def happen(self) -> None:
        """One thing happens."""
        self.number += 1
        kind, names = self.chance.random(), sorted(self.cores[0].gangs)
        gang = a_gang(self.chance, self.hardware, f"g{self.number}", self.now, 0.15)
        gang = replace(gang, is_borrowing=self.chance.random() < 0.4)
        name = self.chance.choice(names) if names else ""
        node, is_well = self.chance.choice(self.hardware.machines), self.chance.random() < 0.7
        for core in self.cores:
            if kind < 0.65:
                core.request(gang)
            elif kind < 0.85:
                core.release(name)
            elif kind < 0.95:
                core.nodes.set_node_health(node, is_well)
            else:
                core.nodes.block(node, (), {"cpu": 1}, (20_000,))


def facts(core: Core) -> list[Any]:
    """All that is kept of a core."""
    waiting = [n for n, each in core.gangs.items() if each.workload.phase is Phase.WAITING]
    placed = sorted(core.gangs.keys() - waiting)
    return [sorted(waiting), [core.exported(name) for name in placed], core.kept_reservations()]


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
        for node in core.state.nodes.values():
            restored.nodes.set_node_health(node.name, node.is_healthy)
            if node.blocked and any(node.blocked):
                restored.nodes.block(node.name, (), {"cpu": 1}, (20_000,))
        waiting, placed, reservations = facts(core)
        for each in placed:
            restored.restore(each)
        for name in waiting:
            restored.request(core.gangs[name].workload.gang)
        for reservation in reversed(reservations):
            restored.restore_reservation(reservation)
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
            met += len(history.cores[0].kept_reservations())
    assert met > STEPS


def test_a_reservation_waits_for_nodes_that_have_not_reported_yet() -> None:
    history = History(2)
    core = history.cores[0]
    while not core.kept_reservations():
        history.happen()
        core.cycle(history.now)
    (reservation, *_) = core.kept_reservations()
    for is_patient in (False, True):
        restored = Core(history.config)
        for name in history.hardware.machines:
            restored.nodes.set_node_health(name, False)
        restored.request(core.gangs[reservation.gang].workload.gang)
        until = history.now + 5.0 if is_patient else None
        restored.restore_reservation(replace(reservation, patient_until=until))
        restored.cycle(history.now)
        assert bool(restored.kept_reservations()) is is_patient
        restored.cycle(history.now + 5.0)
        assert not restored.kept_reservations()
