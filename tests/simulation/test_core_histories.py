"""Random histories of the core: after every cycle its accounting is right, gangs are
whole, and nobody left for an equal.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
from oracle.hardware import Hardware
from random_clusters import a_cluster, a_gang
from scheduler.domain.core.audit import drifts
from scheduler.domain.core.config import USUAL_ORDER
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Placed, Preempted
from scheduler.domain.core.nodes import Phase, Workload
from seeds import how_many

CLUSTERS, STEPS = how_many(6, deep=20), 40

Stays = tuple[str | None, float]
"""On whose reserved cells a gang runs, and until when it may."""


def whole(core: Core) -> None:
    """Every gang has all its places, or none; so has all that one grows by. Pods on hardware that
    is gone have perhaps what is left of it.
    """
    children = (child for record in core.gangs.values() for child in record.children)
    for record in (*core.gangs.values(), *children):
        workload, name = record.workload, record.workload.name
        pods = sorted(pod for _, names in workload.wants for pod in names)
        orphaned = {place.pod for place in record.orphaned}
        placed = [place.pod for place in workload.places if place.pod not in orphaned]
        placed = sorted((*placed, *orphaned))
        assert placed == ([] if workload.phase is Phase.WAITING else pods), name


def is_lower(
    victim: Workload, other: Workload, stays: tuple[str | None, float], now: float
) -> None:
    """None leaves for an equal, but a gang that overstays on cells that are reserved for it."""
    passed, until = stays
    if passed == other.gang.id:
        assert until <= now
    elif victim.gang.virtual_cluster == other.gang.virtual_cluster:
        assert victim.gang.priority < other.gang.priority


def wanted(chance: random.Random, hardware: Hardware, number: int) -> Gang:
    """A gang; now and then one that tests a node."""
    gang = a_gang(chance, hardware, f"g{number}", float(number), 0.15)
    seconds = chance.choice((None, 3.0, 10.0, 30.0))
    if chance.random() < 0.15:
        node = frozenset({chance.choice(hardware.machines)})
        gang = replace(gang, priority=OPPORTUNISTIC, allowed_nodes=node, is_preflight=True)
        return replace(gang, expected_s=seconds)
    return replace(gang, is_borrowing=chance.random() < 0.4, expected_s=seconds)


def fault(core: Core, chance: random.Random, machines: list[str]) -> None:
    """A node or GPU goes bad or is well again, an operator's order, what foreign pods hold."""
    name = chance.choice(machines)
    kind, is_well = chance.randrange(4), chance.random() < 0.7
    if kind == 0:
        core.nodes.set_node_health(name, is_well)
    elif kind == 1:
        core.nodes.set_gpu_health(name, chance.randrange(4), is_well)
    elif kind == 2:
        chance.choice((core.nodes.uncordon, core.nodes.cordon, core.nodes.drain))(name)
    else:
        amounts = {} if is_well else {"cpu": 1}
        core.nodes.block(name, () if is_well else (0,), amounts, () if is_well else (20_000,))


@pytest.mark.parametrize(
    "policy",
    [
        {"preemptions_per_hour": 3},
        {"is_backfilling": True, "assumed_s": 20.0, "order_by": USUAL_ORDER},
        {"is_strict": True},
    ],
)
@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_the_accounting_is_right_and_gangs_whole_after_every_cycle(
    seed: int, policy: dict[str, Any]
) -> None:
    chance = random.Random(seed)
    config = a_cluster(chance)
    config = replace(config, policy=replace(config.policy, **policy))
    hardware, core = Hardware(config), Core(config)
    leaving: list[str] = []
    running: set[str] = set()
    stays_until = core._gangs.records.stays_until
    for number in range(STEPS):
        kind = chance.random()
        if kind < 0.6:
            core.request(wanted(chance, hardware, number))
        elif kind < 0.72 and core.gangs:
            core.release(chance.choice(sorted(core.gangs)))
        elif kind < 0.75 and core.gangs:
            core.requeue(chance.choice(sorted(core.gangs)), number + chance.choice((0.0, 3.0, 9.0)))
        elif kind < 0.85:
            fault(core, chance, hardware.machines)
        elif kind < 0.9 and core.gangs:
            name = chance.choice(sorted(core.gangs))
            core.release_pod(name, chance.choice(core.gangs[name].workload.gang.roles[0].pods))
        elif leaving:
            core.release(leaving.pop(chance.randrange(len(leaving))))
        before = {name: record.workload for name, record in core.gangs.items()}
        stays = {name: (each.passed, stays_until(each)) for name, each in core.gangs.items()}
        for decision in core.cycle(float(number)):
            if isinstance(decision, Preempted):
                assert decision.gang in running
                leaving.append(decision.gang)
                if decision.for_gang is not None:
                    victim, other = before[decision.gang], before[decision.for_gang]
                    is_lower(victim, other, stays[decision.gang], float(number))
            elif isinstance(decision, Placed):
                running.add(decision.gang)
        workloads = [*core.workloads()]
        assert list(drifts(core.state, workloads)) == [], number
        whole(core)


def picture(core: Core) -> list[object]:
    """All that decides, by names."""
    slots = [slot for pool in core.state.pools for slot in pool.slots]
    masks = [(s.good, s.used, s.held, s.staying, s.charged, s.open) for s in slots]
    cells = [sorted((m, b.owner, b.users) for m, b in s.bindings) for s in slots]
    pods = [sorted((w.name, each) for w, each in s.pods.items() if any(each)) for s in slots]
    nodes = [(n.left, n.soon, n.ports) for n in core.state.nodes.values()]
    spare = [(b.counts, b.owed, b.spare()) for b in core.state.buddies.values()]
    charged = [{p: n for p, n in each.items() if n} for each in core.state.charged.values()]
    counts = [core.state.leaving]
    gangs = {
        w.name: (w.phase, w.owner, w.priority, w.is_surplus, [place.pod for place in w.places])
        for w in sorted(core.workloads(), key=lambda each: each.name)
        if w.wants and w.places
    }
    return [masks, cells, pods, nodes, spare, charged, counts, gangs]


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_a_core_that_is_restored_is_the_same(seed: int) -> None:
    chance = random.Random(seed)
    config = a_cluster(chance)
    hardware, core = Hardware(config), Core(config)
    for number in range(STEPS):
        kind = chance.random()
        if kind < 0.7:
            gang = a_gang(chance, hardware, f"g{number}", float(number), 0.15)
            core.request(replace(gang, is_borrowing=chance.random() < 0.4))
        elif kind < 0.85 and core.gangs:
            core.release(chance.choice(sorted(core.gangs)))
        else:
            core.nodes.set_node_health(chance.choice(hardware.machines), chance.random() < 0.7)
        core.cycle(float(number))
        restored = Core(config)
        for node in core.state.nodes.values():
            restored.nodes.set_node_health(node.name, node.is_healthy)
        placed = [name for name, record in core.gangs.items() if record.workload.places]
        for name in placed:
            restored.restore(core.exported(name))
        assert picture(restored) == picture(core), number
        assert [restored.exported(name) for name in placed] == [*map(core.exported, placed)]
