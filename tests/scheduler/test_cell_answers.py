"""What the answers say of cells: whether they are well, what of them is used, whose they are and
for whom they are kept.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from muster.contracts.node_orders import Order
from scheduler.api.cells import WALKED, Wanted, cells
from scheduler.domain.core.config import ClusterConfig, Policy
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.rules import Rules
from scheduler.domain.state import State
from scheduler_answers import asked, furnished, served

Kit = Any

COUNTS = ("gpus", "gpusHealthy", "gpusUsed", "gpusNominated", "gpusFree", "gpusBound")
RACK = {"cell": "r0", "virtualCluster": "vision", "quota": "rack", "pin": None}
PIN = {"cell": "r1/n2/s", "virtualCluster": "vision", "quota": None, "pin": "lab"}
SOLO = {"cell": "n4/0", "virtualCluster": "vision", "quota": None, "pin": "solo"}
SWITCH = {
    "cell": "r1/n2/s1",
    "virtualCluster": "nlp",
    "quota": "rack/node/switch",
    "pin": None,
}


async def test_cells_are_told_with_health_use_binding_and_priority(kit: Kit) -> None:
    async with served(furnished(kit)) as (_, client):
        found = await asked(client)
        assert [
            (name, *(cell[count] for count in COUNTS), cell["priority"], cell["binding"])
            for name, cell in found.items()
        ] == [
            ("r0", 8, 8, 4, 0, 0, 8, 7, RACK),
            ("r0/n0", 4, 4, 4, 0, 0, 4, 7, RACK),
            ("r0/n1", 4, 4, 0, 0, 0, 4, None, RACK),
            ("r1", 8, 7, 6, 0, 1, 4, 5, None),
            ("r1/n2", 4, 4, 3, 0, 1, 4, 5, None),
            ("r1/n3", 4, 3, 3, 0, 0, 0, -1, None),
            ("n4", 2, 2, 0, 0, 2, 2, None, None),
        ]
        assert {name for name, cell in found.items() if cell["health"] == "bad"} == {"r1", "r1/n3"}
        assert found["r1"]["trouble"] == "n3: GPU 2: it is hot"
        assert found["r1/n3"]["trouble"] == "GPU 2: it is hot"
        assert {name: cell["order"] for name, cell in found.items() if cell["order"]} == {
            "r0/n1": "cordon"
        }
        assert {(cell["chain"], cell["type"], cell["node"]) for cell in found.values()} == {
            ("rack", "rack", None),
            *(("rack", "node", f"n{n}") for n in range(4)),
            ("node", "node", "n4"),
        }


async def test_a_cell_is_told_with_all_that_is_in_it(kit: Kit) -> None:
    async with served(furnished(kit)) as (_, client):
        inside = await asked(client, "address=r1/n2")
        assert list(inside) == [
            "r1/n2",
            "r1/n2/s",
            "r1/n2/s/0",
            "r1/n2/s/1",
            "r1/n2/s1",
            "r1/n2/s1/0",
            "r1/n2/s1/1",
        ]
        assert [cell["gpu"] for cell in inside.values()] == [None, None, 0, 1, None, 2, 3]
        bindings = [cell["binding"] for cell in inside.values()]
        assert bindings == [None, PIN, PIN, PIN, SWITCH, SWITCH, SWITCH]
        assert [cell["priority"] for cell in inside.values()] == [5, 3, 3, None, 5, 5, 5]
        switch = await asked(client, "address=r1/n2/s")
        assert list(switch) == ["r1/n2/s", "r1/n2/s/0", "r1/n2/s/1"]
        assert {(cell["gpusReserved"], cell["reservedFor"]) for cell in inside.values()} == {
            (0, None)
        }
        (gpu,) = (await asked(client, "address=r1/n3/1/0")).values()
        assert (gpu["gpu"], gpu["health"], gpu["trouble"]) == (2, "bad", "GPU 2: it is hot")
        assert [c["binding"] for c in (await asked(client, "address=n4")).values()] == [
            None,
            *[SOLO] * 3,
        ]
        for name in ("r0", "r1", "n4"):
            top, *below = (await asked(client, f"address={name}")).values()
            leaves = [cell for cell in below if cell["gpu"] is not None]
            for count in COUNTS:
                assert top[count] == sum(leaf[count] for leaf in leaves), count


async def test_the_cells_of_a_virtual_cluster_are_those_that_are_bound_to_it(kit: Kit) -> None:
    async with served(furnished(kit)) as (_, client):
        for query, bindings in (
            ("virtualCluster=vision", [RACK, PIN, SOLO]),
            ("virtualCluster=vision&address=r1", [PIN]),
            ("virtualCluster=vision&address=r1/n2/s", [PIN]),
            ("virtualCluster=vision&address=r1/n2/s1", []),
            ("virtualCluster=nlp", [SWITCH]),
            ("virtualCluster=nlp&address=r1/n2/s", []),
            ("virtualCluster=idle", []),
        ):
            found = await asked(client, query)
            assert [cell["binding"] for cell in found.values()] == bindings, query
            assert list(found) == [binding["cell"] for binding in bindings]


async def test_what_is_not_there_is_not_told(kit: Kit) -> None:
    async with served(State(Rules())) as (_, client):
        assert (await asked(client), await asked(client, "virtualCluster=default")) == ({}, {})
    async with served(furnished(kit)) as (_, client):
        for query in ("address=r2", "address=r1/n2/s/2", "address=n2", "virtualCluster=x"):
            assert (await client.get(f"/cells?{query}")).status_code == 404, query
        for odd in ("0", "-1", "²", "9" * 5000, "x", ""):
            cells = (await client.get(f"/cells?limit={odd}&offset={odd}")).json()["cells"]
            gangs = (await client.get(f"/gangs?limit={odd}")).json()["gangs"]
            assert (len(cells), len(gangs)) == ((0, 0) if odd == "0" else (7, 4)), odd


async def test_what_is_reserved_and_whom_others_leave_for_is_told(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=2), kit.report("n1", gpus=1))
    for name, priority, gpus in (("guest", -1, 2), ("owner", 10, 1), ("other", 3, 2)):
        gang = kit.gang(name, *kit.pods(name, 1, gpus=gpus), priority=priority)
        state.request(gang, 0.0, 0.0)
        kit.decide(state, 1.0)
    async with served(state) as (_, client):
        node = (await asked(client))["n0"]
        assert [node[count] for count in COUNTS] == [2, 2, 2, 2, 0, 2]
        assert (node["priority"], node["binding"]["virtualCluster"]) == (3, "default")
        assert (await asked(client))["n1"]["priority"] == 10
        state.order("n1", Order.DRAIN)
        kit.decide(state, 2.0)
        assert (await asked(client))["n1"]["priority"] == -1
        state.lose("n1", 2.0)
        kit.decide(state, 2.0)
        node = (await asked(client))["n1"]
        assert (node["health"], node["trouble"]) == ("bad", "it is lost")


FOUR_NODES = """
cellTypes: {node: {child: gpu, count: 4, node: true}}
physicalCells:
  - {type: node, name: n0}
  - {type: node, name: n1}
  - {type: node, name: n2}
  - {type: node, name: n3}
virtualClusters: {default: {cells: [{type: node, count: 3}]}}
policy: {backfill: true}
"""


async def test_cells_that_are_kept_as_their_quota_is_wanted_elsewhere_are_told(kit: Kit) -> None:
    """Of three nodes' quota one is bound in a fourth, whose idle half is kept for its sake."""
    reports = [kit.report(f"n{n}", gpus=4) for n in range(4)]
    state: State = kit.state(*reports, file=read_cluster(FOUR_NODES.encode()).config)
    state.request(kit.gang("runs", *kit.pods("runs", 1, gpus=2)), 0.0, 0.0)
    kit.decide(state, 0.0)
    state.order("n0", Order.CORDON)
    state.request(kit.gang("waits", *kit.pods("waits", 3, gpus=4)), 0.0, 0.0)
    kit.decide(state, 1.0)
    state.order("n0", Order.NONE)
    kit.decide(state, 2.0)
    async with served(state) as (_, client):
        found = await asked(client)
        assert {name: (cell["gpusReserved"], cell["priority"]) for name, cell in found.items()} == {
            "n0": (2, 10),
            **dict.fromkeys(("n1", "n2", "n3"), (4, None)),
        }
        assert {cell["reservedFor"]["gang"] for cell in found.values()} == {"waits"}
        inside = await asked(client, "address=n0")
        idle = [cell for cell in inside.values() if cell["gpu"] is not None and cell["gpusFree"]]
        assert [(cell["gpusReserved"], cell["priority"]) for cell in idle] == [(1, None)] * 2


NODES = 300


def one_in_use(kit: Kit) -> State:
    """Nodes of one GPU each, of which one is in use."""
    reports = [kit.report(f"n{n:04}", gpus=1) for n in range(NODES)]
    state: State = kit.state(*reports, policy=Policy(is_backfilling=True, assumed_s=100.0))
    state.request(kit.gang("runs", *kit.pods("runs", 1, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    return state


async def told_beside(state: State, change: Callable[[], object], **wanted: Any) -> list[Any]:
    """The cells, of which the first are looked at before something changes."""
    asking = asyncio.create_task(cells(state, Wanted(**EVERY | wanted)))
    await asyncio.sleep(0)
    assert not asking.done()
    change()
    answer = await asking
    assert answer is not None
    found: list[Any] = answer["cells"]
    return found


EVERY = {"address": None, "virtual_cluster": None, "offset": 0, "limit": 10 * NODES}


async def test_cells_that_come_to_be_kept_are_told_so_at_once(kit: Kit) -> None:
    """Nobody uses what is kept: it is not as if somebody of the lowest rank did."""
    state = one_in_use(kit)

    def wait() -> None:
        state.request(kit.gang("waits", *kit.pods("waits", NODES, gpus=1)), 1.0, 1.0)
        kit.decide(state, 1.0)

    found = await told_beside(state, wait)
    told = [(cell["gpusReserved"], cell["priority"]) for cell in found if not cell["gpusUsed"]]
    assert set(told) == {(0, None), (1, None)}
    assert told == sorted(told)
    assert {cell["reservedFor"]["gang"] for cell in found if cell["gpusReserved"]} == {"waits"}


async def test_cells_are_those_of_one_cluster_though_another_comes(kit: Kit) -> None:
    """There the same numbers mean other nodes."""
    count = WALKED + 1
    state: State = kit.state(*(kit.report(f"n{n:04}", gpus=1) for n in range(count)))
    state.change(reversed_nodes(count), 0.0)
    for name, pods in (("runs", count), ("waits", 2)):
        state.request(kit.gang(name, *kit.pods(name, pods, gpus=1)), 0.0, 0.0)
        kit.decide(state, 0.0)
    (reservation,) = state.core.rows.reservations()
    kept = {node for node, _ in reservation.cells}
    found = await told_beside(state, lambda: state.change(None, 1.0), virtual_cluster="default")
    assert {cell["cell"] for cell in found if cell["gpusReserved"]} == kept
    assert len(found) == count


def reversed_nodes(count: int) -> ClusterConfig:
    """A file that has the nodes the other way round than they are without one."""
    nodes = "\n".join(f"  - {{type: node, name: n{n:04}}}" for n in reversed(range(count)))
    return read_cluster(
        f"""
cellTypes: {{node: {{child: gpu, count: 1, node: true}}}}
physicalCells:
{nodes}
virtualClusters: {{default: {{cells: [{{type: node, count: {count}}}]}}}}
policy: {{backfill: true}}
""".encode()
    ).config
