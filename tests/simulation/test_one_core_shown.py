"""What the core with one state shows of nodes and cells: the same as the present one would of the
same gangs.
"""

from dataclasses import replace
from typing import Any

import pytest
from scenes import config, gang, owning
from scheduler.domain.core.config import ClusterConfig, NodeLimits, PhysicalCell
from scheduler.domain.core.interface import NodeState, SlotState
from scheduler.domain.core.model import Placed
from scheduler.domain.core.old_core import OldCore
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.nodes import Phase
from test_one_core_again import History

CLUSTERS, STEPS = 20, 40


def shown(core: Any, configuration: ClusterConfig) -> list[Any]:
    """All that is shown, by names."""
    owners = [owner_of(name) for name in configuration.virtual_clusters]
    owners += [pin_owner(pin) for vc in configuration.virtual_clusters.values() for pin in vc.pins]
    free = sorted((slot.machine, good, free) for slot, good, free in core.cells.free())
    slots = [(slot.machine, named(core.cells.slot(slot))) for slot, _, _ in core.cells.free()]
    return [
        [node_of(core.nodes.of(name)) for name in sorted(core.forest.machines)],
        sorted(slots, key=repr),
        sorted((each.address, each.owner, each.quota or "") for each in core.cells.bound(owners)),
        free,
        dict(core.cells.quotas()),
        dict(core.cells.borrowing()),
    ]


def node_of(node: NodeState) -> NodeState:
    """A node with sets of ports, and with amounts of what is limited on it."""
    held = {name: amount for name, amount in node.amounts.items() if amount and name in node.left}
    return replace(
        node,
        amounts=held,
        ports=set(node.ports),
        avoided=set(node.avoided),
        used_ports=set(node.used_ports),
    )


def named(slot: SlotState) -> list[Any]:
    """A slot with its cells by address, and by leaf the highest priority there."""
    cells = sorted((mask, each.owner, each.address, each.quota or "") for mask, each in slot.cells)
    highest = [
        max((priority for leaves, priority in slot.gangs if leaves >> leaf & 1), default=None)
        for leaf in range(8)
    ]
    return [replace(slot, cells=(), gangs=()), highest, cells]


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_both_cores_show_the_same_of_the_same_gangs(seed: int) -> None:
    history = History(seed)
    (core,) = history.cores
    for _ in range(STEPS):
        history.happen()
        core.cycle(history.now)
    core.cycle(history.now + 10.0)  # what is kept for next attempts is free
    for record in list(core.gangs.values()):
        if record.workload.phase is Phase.NOMINATED:
            core.release(record.id)
    other: Any = OldCore(history.config)
    for name, node in core.state.nodes.items():
        known = core.nodes.of(name)
        assert known is not None
        other.nodes.set_node_health(name, node.is_healthy)
        other.nodes.block(name, known.blocked, known.amounts, known.ports, known.avoided)
    waiting = [n for n, each in core.gangs.items() if each.workload.phase is Phase.WAITING]
    for name in core.gangs.keys() - waiting:
        other.restore(core.exported(name), history.now)
    for name in waiting:
        other.request(core.gangs[name].workload.gang)
    for reservation in core.rows.reservations():
        other.rows.restore_reservation(reservation)
    assert shown(core, history.config) == shown(other, history.config), seed


def test_foreign_pods_ports_are_not_assigned_and_avoided_ones_are_last() -> None:
    limits = NodeLimits(ports=(20_000, 20_003))
    one = (PhysicalCell("old-node", name="n0"),)
    core = Core(config(one, {"n0": limits}, a=owning(("old-node", 1))))
    assert core.nodes.block("n0", (), {}, (20_000,), (20_001,))
    assert not core.nodes.block("n0", (), {}, (20_000,), (20_001,))
    core.request(gang("first", "a", 1, ports=1))
    core.request(gang("second", "a", 1, ports=2))
    placed = [each for each in core.cycle(1.0) if isinstance(each, Placed)]
    assert [pod.ports for each in placed for pod in each.pods] == [(20_002,), (20_001, 20_003)]
    known = core.nodes.of("n0")
    assert known is not None
    assert set(known.used_ports) == {20_001, 20_002, 20_003}


def test_conditions_are_taken_over_by_nodes_that_are_still_there() -> None:
    before, after = Core(config(a=owning())), Core(config((), nodes={"n0": NodeLimits()}))
    before.nodes.drain("n3")
    after.nodes.take_over(before.nodes)
    assert after.nodes.of("n3") is None
    again = Core(config(nodes={"n0": NodeLimits(cpu=4)}, a=owning()))
    before.nodes.set_gpu_health("n0", 2, False)
    before.nodes.block("n0", (1,), {"cpu": 1}, (20_000,), (20_001,))
    again.nodes.take_over(before.nodes)
    for name in ("n1", "n3"):
        assert again.nodes.of(name) == before.nodes.of(name)
    known = again.nodes.of("n0")
    assert known is not None
    assert (known.bad, known.blocked, known.left) == ({2}, (1,), {"cpu": 3})
    assert (known.ports, known.avoided) == ((20_000,), (20_001,))
