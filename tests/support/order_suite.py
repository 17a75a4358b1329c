"""What must hold of any policies of the order, Muster's own and a site's."""

from collections.abc import Mapping, Sequence
from random import Random

from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import Gang, Kind, Placed, Preempted, Role
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy
from scheduler.domain.cores import core_of

NODES = 6
ASKING_S = 200.0
"""So long gangs are requested."""


def a_cluster(policies: Mapping[str, OrderPolicy], order_by: Sequence[str]) -> Core:
    """Some machines of four GPUs, all of one virtual cluster."""
    cells = PhysicalCell("rack", name="r", nodes=tuple(f"n{number}" for number in range(NODES)))
    types = {
        "node": CellType("gpu", 4, is_node=True),
        "rack": CellType("node", NODES),
    }
    policy = Policy(order_by=tuple(order_by), is_strict=True, half_life_s=1_000.0)
    owned = VirtualCluster((QuotaCells("rack/node", NODES),))
    config = ClusterConfig(types, (cells,), {}, {"x": owned}, policy)
    core = core_of(config, {**BUILT_IN, **policies})
    for number in range(NODES):
        core.nodes.set_node_health(f"n{number}", True)
    return core


def a_gang(chance: Random, name: str, at: float) -> Gang:
    """Of one of three users; it fits where as many GPUs are free as it has pods."""
    pods = tuple(f"w-{number}" for number in range(chance.choice((1, 2, 3, 8, 16))))
    return Gang(
        name,
        "x",
        chance.choice(("ann", "ben", "eve")),
        chance.choice((0, 0, 1)),
        (Role(Kind(1), pods),),
        submitted_at=at,
        expected_s=chance.choice((10.0, 100.0)),
    )


def check(policies: Mapping[str, OrderPolicy], order_by: Sequence[str], seed: int) -> None:
    """No gang overtakes against the policy; each waiting gang starts; a second run is equal."""
    once, again = (starts(policies, order_by, seed) for _ in range(2))
    assert once == again, seed


def starts(policies: Mapping[str, OrderPolicy], order_by: Sequence[str], seed: int) -> list[str]:
    """The gangs in the order of their starts, until all requested gangs have started."""
    chance, core = Random(seed), a_cluster(policies, order_by)
    ends_at: dict[str, float] = {}
    preempted: dict[str, Gang] = {}
    started: list[str] = []
    asked, now = 0, 0.0
    while now < ASKING_S or core.questions.counts().waiting or preempted:
        for gang in [gang for gang, at in ends_at.items() if at <= now or gang in preempted]:
            core.release(gang)
            del ends_at[gang]
        for again in preempted.values():
            core.request(again)
        preempted.clear()
        for _ in range(chance.randint(0, 3) if now < ASKING_S else 0):
            core.request(a_gang(chance, f"g{asked}", now))
            asked += 1
        for decision in core.cycle(now):
            if isinstance(decision, Placed):
                started.append(decision.gang)
                ends_at[decision.gang] = now + (_gang(core, decision.gang).expected_s or 0.0)
            elif isinstance(decision, Preempted):
                preempted[decision.gang] = _gang(core, decision.gang)
        for first in core.questions.first(1):
            free = sum(mask.bit_count() for _, _, mask in core.cells.free())
            would_fit = free >= len(_gang(core, first).roles[0].pods)
            assert not would_fit or preempted, (seed, f"{first} is first, and would fit")
        now += 10.0
        assert now < 100_000.0, (seed, "somebody never starts")
    assert len(set(started)) == asked, seed
    return started


def _gang(core: Core, name: str) -> Gang:
    """One that has not ended."""
    found = core.gang(name)
    assert found is not None
    return found.gang
