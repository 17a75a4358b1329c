"""What a standby had heard of nodes before it knew what is stored counts once that is restored."""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from muster.contracts.gangs import GangRequest
from muster.contracts.node_orders import Order
from scheduler.domain.core.config import CellType, ClusterConfig, PhysicalCell, Policy
from scheduler.domain.core.config import QuotaCells as Quota
from scheduler.domain.core.config import VirtualCluster as Owner
from scheduler.domain.core.model import (
    Downgraded,
    Preempted,
    RestoredPreemption,
    RestoredUsage,
    Upgraded,
    UserKey,
)
from scheduler.domain.core_rows import KnownReservation
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold
from scheduler.domain.requests import Downgrade
from scheduler.domain.rules import Rules
from scheduler.domain.run_times import History, Key
from scheduler.domain.state import State
from scheduler.domain.stored import Stored
from scheduler.renewing import renew
from scheduler.store.changes import Changed
from scheduler.store.nodes import KnownNode

Kit = Any


class Rows:
    """What a leader has stored."""

    def __init__(self, leader: State) -> None:
        self._leader = leader

    async def nodes(self, names: Sequence[str]) -> list[KnownNode]:
        nodes = self._leader.ledger.nodes
        return [KnownNode(n, nodes[n].lease, nodes[n].is_lost, None) for n in names]

    async def run_times(self, keys: Collection[Key]) -> dict[Key, History]:
        return {key: self._leader.run_times.histories[key] for key in keys}

    async def usage(self, keys: Collection[UserKey]) -> dict[UserKey, RestoredUsage]:
        rows = self._leader.core_rows.usage
        return {key: rows[key] for key in keys if key in rows}

    async def preemptions(self, numbers: Collection[int]) -> list[RestoredPreemption]:
        rows = self._leader.core.preemptions.exported()
        return [rows[number] for number in sorted(numbers)]

    async def reservations(self, gangs: Collection[str]) -> dict[str, KnownReservation]:
        rows = self._leader.core_rows.reservations
        return {gang: rows[gang] for gang in gangs if gang in rows}

    async def holds(self, gangs: Sequence[str]) -> AsyncIterator[list[Hold]]:
        ledger = self._leader.ledger
        holds = [hold for pod in ledger.pods if (hold := ledger.hold_of(pod)) is not None]
        yield [hold for hold in holds if hold.placement.gang in gangs]

    async def gangs(self, gangs: Sequence[str]) -> AsyncIterator[list[KnownGang]]:
        yield [self._leader.known(gang) for gang in gangs if gang in self._leader.gangs]

    def recall(self, nodes: Sequence[str]) -> None:
        """All were heard all along."""

    def at(self) -> float:
        return 0.0


def standing_by(kit: Kit, *gangs: GangRequest) -> tuple[State, Stored]:
    """A leader that has placed these gangs, and a standby that knows the node."""
    leader = kit.state(kit.report("n0", gpus=4))
    for gang in gangs:
        leader.request(gang, 0.0, 0.0)
    kit.decide(leader, 0.0)
    standby = Stored(Rules(settle_s=0.0))
    standby.report(kit.report("n0", gpus=4), 0.0)
    standby.ledger.receive("n0", "", 0.0)
    standby.change(None, 0.0)
    return leader, standby


async def look(standby: Stored, leader: State, *gangs: str) -> None:
    await renew(
        standby, Changed("", frozenset(gangs), frozenset()), Rows(leader), 0.0, is_last=True
    )


async def test_a_pod_that_was_reported_before_it_was_known_is_no_stranger(kit: Kit) -> None:
    leader, standby = standing_by(kit, kit.gang("g", *kit.pods("g", 1, gpus=2)))
    standby.report(kit.report("n0", gpus=4, holding={"g-w-0": (0, 1)}, revision=2), 0.0)
    assert standby.ledger.nodes["n0"].orphaned
    await look(standby, leader, "g")
    assert not standby.ledger.nodes["n0"].orphaned
    assert [place.pod for place in standby.core.exported("g").places] == ["g-w-0"]


async def test_a_pod_that_is_no_gangs_any_more_is_a_stranger_as_long_as_it_is_reported(
    kit: Kit,
) -> None:
    leader, standby = standing_by(kit, kit.gang("g", *kit.pods("g", 1, gpus=2)))
    await look(standby, leader, "g")
    report = kit.report("n0", gpus=4, holding={"g-w-0": (0, 1)}, revision=2)
    standby.report(report, 0.0)
    gone = kit.state(report)
    await look(standby, gone, "g")
    assert standby.ledger.nodes["n0"].orphaned.keys() == {"g-w-0"}


def owned(nodes: int) -> ClusterConfig:
    """Two nodes, of which `default` owns so many; who loses its cells runs on."""
    cells = tuple(PhysicalCell("node", name=f"n{n}") for n in range(2))
    owner = Owner((Quota("node", nodes),))
    types = {"node": CellType("t", 2, is_node=True)}
    return ClusterConfig(types, cells, {}, {"default": owner}, Policy(is_lazy=True))


async def test_for_whom_and_since_when_a_gang_is_downgraded_is_followed(kit: Kit) -> None:
    reports = [kit.report(f"n{n}", gpus=2) for n in range(2)]
    leader = kit.state(*reports, file=owned(1))
    standby = Stored(Rules(settle_s=0.0))
    for report in reports:
        standby.report(report, 0.0)
        standby.ledger.receive(report.node, "", 0.0)
    standby.change(owned(1), 0.0)

    def told() -> list[Downgrade | None]:
        return [state.downgrade_of("low") for state in (leader, standby)]

    leader.request(kit.gang("low", *kit.pods("low", 1, gpus=2), priority=1), 0.0, 0.0)
    kit.decide(leader, 1.0)
    leader.request(kit.gang("high", *kit.pods("high", 1, gpus=2), priority=2), 1.0, 1.0)
    assert Downgraded("low", "high") in kit.decide(leader, 2.0)
    await look(standby, leader, "low", "high")
    assert told() == [Downgrade("high", 2.0)] * 2
    leader.request(kit.gang("high"), 3.0, 3.0)
    assert kit.decide(leader, 3.0) == [Upgraded("low")]
    await look(standby, leader, "low", "high")
    assert told() == [None, None]
    for state in (leader, standby):
        state.change(owned(0), 4.0)
    assert kit.decide(leader, 4.0) == [Downgraded("low", None)]
    await look(standby, leader, "low")
    assert told() == [Downgrade(None, 4.0)] * 2


def test_a_gang_that_begins_anew_was_never_downgraded(kit: Kit) -> None:
    leader = kit.state(*(kit.report(f"n{n}", gpus=2) for n in range(2)), file=owned(1))
    for name, priority, now in (("low", 1, 1.0), ("high", 2, 2.0)):
        leader.request(kit.gang(name, *kit.pods(name, 1, gpus=2), priority=priority), now, now)
        kit.decide(leader, now)
    (node,) = (place.node for place in leader.core.exported("low").places)
    leader.order(node, Order.DRAIN)
    assert isinstance(kit.decide(leader, 3.0)[0], Preempted)
    assert leader.known("low").downgrade == Downgrade("high", 2.0)
    leader.request(kit.gang("low", *kit.pods("low", 2, gpus=2)[1:], priority=1), 4.0, 4.0)
    assert leader.known("low").downgrade is None
