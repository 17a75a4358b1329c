"""What the answers say, and that long ones are made in steps: the process hears and decides
meanwhile.
"""

import asyncio
from typing import Any

import httpx2
from muster.contracts.node_orders import Order
from muster.contracts.nodes import Gpu
from scheduler.domain.core.config import Policy
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.rules import Rules
from scheduler.domain.state import State
from scheduler.domain.words import word_of
from scheduler_answers import served

Kit = Any

NODES, WAITING = 600, 1000
DEADLINE_S = 60.0
TURNS = 10
"""Of others while an answer of so much is made, at the least; a short one has a few."""


def crowded(kit: Kit) -> State:
    """The GPU of each node is taken, and many wait."""
    state: State = kit.state(*(kit.report(f"n{n:03}", gpus=1) for n in range(NODES)))
    for n in range(NODES):
        state.request(kit.gang(f"p{n:03}", *kit.pods(f"p{n:03}", 1, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    for n in range(WAITING):
        state.request(kit.gang(f"w{n:03}", *kit.pods(f"w{n:03}", 2, gpus=1), age=n), 0.0, 0.0)
    kit.decide(state, 1.0)
    return state


async def test_a_long_answer_leaves_turns_to_others(kit: Kit) -> None:
    async with served(crowded(kit)) as (leader, client):
        for path, name, count in (
            ("/queue", "gangs", WAITING),
            ("/nodes", "nodes", NODES),
            ("/gangs", "gangs", NODES),
            ("/cells", "cells", NODES),
            ("/export", "events", NODES + WAITING),
        ):
            before = leader.turns
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
            assert len(answer.json()[name]) >= count
            assert leader.turns - before > TURNS, path


async def test_who_is_placed_while_the_queue_is_shown_is_left_out(kit: Kit) -> None:
    state = crowded(kit)
    async with served(state) as (leader, client):

        def withdraw() -> None:
            state.request(kit.gang("w999"), 2.0, 2.0)

        leader.beside = withdraw
        gangs = (await client.get("/queue")).json()["gangs"]
        shown = {gang["gang"]: gang["position"] for gang in gangs}
        assert shown == {f"w{n:03}": n + 1 for n in range(WAITING - 1)}


async def test_the_whole_cluster_is_exported_once_at_a_time(kit: Kit) -> None:
    """However close together they come: each would have decisions wait."""
    async with served(crowded(kit)) as (_, client), asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*(client.get("/export") for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 503, 503, 503]
        busy = [answer for answer in answers if answer.status_code == 503]
        assert {answer.json()["code"] for answer in busy} == {"BusyError"}
        assert all(int(answer.headers["retry-after"]) > 0 for answer in busy)
        assert (await client.get("/export")).status_code == 200


async def test_the_whole_cluster_is_taken_between_two_cycles(kit: Kit) -> None:
    async with served(crowded(kit)) as (leader, client):
        async with leader.deciding:
            asked = asyncio.create_task(client.get("/export"))
            seen = leader.turns
            while leader.turns < seen + 100:
                await asyncio.sleep(0)
            assert not asked.done()
        leader.beside = lambda: setattr(leader, "is_leading", not leader.deciding.locked())
        assert (await asked).status_code == 503


async def test_who_asks_in_the_midst_of_a_cycle_waits_a_little_for_its_end(kit: Kit) -> None:
    """Nothing is tried then, which the answer says."""
    state = crowded(kit)
    state.request(kit.gang("p000"), 2.0, 2.0)
    state.decide(2.0, 2.0, lambda: True)
    assert state.is_under_way
    async with served(state) as (leader, client):
        for is_over in (False, True):
            if is_over:
                leader.beside = lambda: state.is_under_way and kit.decide(state, 3.0)
            answer = (await client.get("/gangs/w001")).json()
            assert bool(answer["counterfactual"]["leftOut"]) != is_over
            assert state.is_under_way != is_over


CLUSTER = """
cellTypes:
  switch: {child: t, count: 2}
  node: {child: switch, count: 2, node: true}
  rack: {child: node, count: 2}
physicalCells:
  - {type: rack, name: r0, nodes: [n0, n1]}
  - type: rack
    name: r1
    children:
      - type: node
        name: n2
        children: [{type: switch, name: s, pin: lab}, {type: switch, name: s1}]
      - {type: node, name: n3}
  - {type: node, name: n4, children: [{type: switch, pin: solo}]}
virtualClusters:
  vision: {cells: [{type: rack, count: 1}], pins: [lab, solo]}
  nlp: {cells: [{type: rack/node/switch, count: 1}]}
  idle: {}
"""


def furnished(kit: Kit) -> State:
    """Each of three gangs is where it must be: `v` in a rack of vision, `p` in its pinned switch,
    `n` in a switch of nlp. n3 has a bad GPU and a guest, n1 is drained.
    """
    reports = [kit.report(f"n{n}", gpus=4) for n in range(5)]
    bad = Gpu(index=2, uuid="n3-2", model="T", memory_mb=1, is_healthy=False, problem="it is hot")
    gpus = tuple(bad if gpu.index == 2 else gpu for gpu in reports[3].gpus)
    reports[3] = reports[3].model_copy(update={"gpus": gpus})
    state: State = kit.state(*reports, file=read_cluster(CLUSTER.encode()).config)
    for name, vc, priority, wants in (
        ("v", "vision", 7, {"count": 1, "gpus": 4}),
        ("p", "vision", 3, {"count": 1, "gpus": 1, "pin": "lab"}),
        ("n", "nlp", 5, {"count": 1, "gpus": 2}),
        ("guest", "nlp", -1, {"count": 1, "gpus": 3}),
    ):
        word = kit.gang(name, *kit.pods(name, **wants), priority=priority)
        state.request(word.model_copy(update={"virtual_cluster": vc}), 0.0, 0.0)
    kit.decide(state, 1.0)
    state.order("n1", Order.CORDON)
    kit.decide(state, 2.0)
    return state


COUNTS = ("gpus", "gpusHealthy", "gpusUsed", "gpusReserved", "gpusFree", "gpusBound")
RACK = {"cell": "r0", "virtualCluster": "vision", "quota": "rack", "pin": None}
PIN = {"cell": "r1/n2/s", "virtualCluster": "vision", "quota": None, "pin": "lab"}
SOLO = {"cell": "n4/0", "virtualCluster": "vision", "quota": None, "pin": "solo"}
SWITCH = {
    "cell": "r1/n2/s1",
    "virtualCluster": "nlp",
    "quota": "rack/node/switch",
    "pin": None,
}


async def asked(client: httpx2.AsyncClient, query: str = "") -> dict[str, dict[str, Any]]:
    """Cells by address."""
    answer = await client.get(f"/cells?{query}")
    assert answer.status_code == 200, answer.text
    cells = answer.json()["cells"]
    found = {cell["cell"]: cell for cell in cells}
    assert len(found) == len(cells)
    return found


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
        assert {(cell["gpusKept"], cell["keptFor"]) for cell in inside.values()} == {(0, None)}
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
            cells = (await client.get(f"/cells?limit={odd}&after={odd}")).json()["cells"]
            gangs = (await client.get(f"/gangs?limit={odd}")).json()["gangs"]
            assert (len(cells), len(gangs)) == ((1, 1) if odd == "0" else (7, 4)), odd


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


async def test_long_lists_are_told_page_by_page(kit: Kit) -> None:
    """Whatever is asked for, no page is longer than the Scheduler's own bound, which it tells."""
    state = crowded(kit)
    async with served(state, cells_answer=50, queue_answer=50) as (_, client):
        for path, name, total in (
            ("/cells?", "cell", "total"),
            ("/cells?virtualCluster=default&", "cell", "total"),
            ("/gangs?", "gang", "running"),
        ):
            names: list[str] = []
            after, pages = "", 0
            while after is not None:
                page = (await client.get(f"{path}limit=100&after={after}")).json()
                assert (page["limit"], page["asOf"]) == (50, state.cluster.cycle)
                assert page[total] == NODES
                names += [each[name] for each in page[f"{name}s"]]
                after, pages = page["next"], pages + 1
            assert pages == NODES / 50
            assert names == sorted(set(names))
            assert len(names) == NODES
        queue = (await client.get("/queue?limit=100")).json()
        assert (queue["limit"], len(queue["gangs"]), queue["waiting"]) == (50, 50, WAITING)


async def test_the_gangs_that_run_are_told(kit: Kit) -> None:
    async with served(furnished(kit)) as (_, client):
        found = (await client.get("/gangs")).json()
        assert (found["running"], found["next"]) == (4, None)
        shown = {gang["gang"]: gang for gang in found["gangs"]}
        assert list(shown) == ["guest", "n", "p", "v"]
        guest = shown["guest"]
        assert (guest["class"], guest["state"], guest["gpus"]) == ("opportunistic", "placed", 3)
        assert (guest["virtualCluster"], guest["pods"], guest["downgrade"]) == ("nlp", 1, None)
        assert guest["startedAt"] == "1970-01-01T00:00:01+00:00"
        assert [gang["gang"] for gang in (await client.get("/gangs?after=n")).json()["gangs"]] == [
            "p",
            "v",
        ]


async def test_a_waiting_gang_is_told_what_would_have_to_be_otherwise(kit: Kit) -> None:
    state: State = kit.state(*(kit.report(f"n{n}", gpus=1) for n in range(4)))
    state.request(kit.gang("runs", *kit.pods("runs", 3, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    for age, name in enumerate(("first", "second")):
        state.request(kit.gang(name, *kit.pods(name, 2, gpus=1), age=age), 0.0, 0.0)
    kit.decide(state, 1.0)
    async with served(state) as (_, client):
        told = (await client.get("/gangs/second")).json()
        assert told["asOf"] == state.cluster.cycle
        place = told["inVirtualCluster"]
        assert (place["position"], place["waiting"], place["gpusAhead"]) == (2, 2, 2)
        assert [each["gang"] for each in place["ahead"]] == ["first"]
        otherwise = told["counterfactual"]
        assert [each["gang"] for each in otherwise["ends"]["gangs"]] == ["runs"]
        assert (otherwise["ends"]["count"], otherwise["ends"]["gpus"]) == (1, 3)
        assert (otherwise["fewer"]["pods"], otherwise["fewer"]["insteadOf"]) == (1, 2)
        assert (otherwise["opportunistic"], otherwise["leftOut"]) == (False, [])
        queue = (await client.get("/queue")).json()
        shown = {gang["gang"]: gang for gang in queue["gangs"]}
        assert shown["second"]["gpus"] == 2
        assert shown["second"]["expectedStart"] == told["expectedStart"]["at"]
        assert shown["second"]["reason"] == told["reason"]
        assert queue["asOf"] == told["asOf"]
        job = (await client.get(f"/jobs/{state.gangs['second'].request.job}/why")).json()
        waiting = {gang["gang"]: gang for gang in job["gangs"]}
        assert waiting["second"] == {name: told[name] for name in told if name != "asOf"}


async def test_a_gang_for_which_cells_are_kept_is_told_when_it_is_expected(kit: Kit) -> None:
    state: State = kit.state(
        *(kit.report(f"n{n}", gpus=1) for n in range(2)),
        policy=Policy(is_backfilling=True, assumed_s=100.0),
    )
    state.request(kit.gang("runs", *kit.pods("runs", 1, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    for age, name in enumerate(("first", "behind")):
        state.request(kit.gang(name, *kit.pods(name, 2 - age, gpus=1), age=age), 0.0, 0.0)
    kit.decide(state, 1.0)
    async with served(state) as (_, client):
        first, behind = [(await client.get(f"/gangs/{n}")).json() for n in ("first", "behind")]
        start = first["expectedStart"]
        assert start["source"] == "kept"
        reason = state.reason_of("first")
        assert reason is not None
        assert reason.numbers["expectedStart"] == start["at"]
        cells = await asked(client)
        named = {name: first[name] for name in ("gang", "name", "user")}
        for node, used, priority in (("n0", 1, 10), ("n1", 0, None)):
            kept = cells[node]
            assert (kept["gpusUsed"], kept["gpusKept"], kept["priority"]) == (used, 1, priority)
            assert kept["keptFor"] == named | {"startsAt": start["at"]}
        assert behind["reason"]["code"] == "reservation"
        assert behind["reason"]["numbers"]["startsAt"] == start["at"]
        assert f"from {start['at']} on" in behind["reason"]["text"]
        for said, at in ((first, start["at"]), (behind, None)):
            wait = word_of(state, state.gangs[said["gang"]], 1).wait
            assert wait is not None
            place = said["inVirtualCluster"]
            assert (wait.as_of, wait.position) == (said["asOf"], place["position"])
            assert wait.waiting == place["waiting"] == 2
            told = wait.expected_start
            assert (told and told.isoformat(timespec="seconds")) == at
        assert word_of(state, state.gangs["runs"], 1).wait is None


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
        assert {name: (cell["gpusKept"], cell["priority"]) for name, cell in found.items()} == {
            "n0": (2, 10),
            **dict.fromkeys(("n1", "n2", "n3"), (4, None)),
        }
        assert {cell["keptFor"]["gang"] for cell in found.values()} == {"waits"}
        inside = await asked(client, "address=n0")
        idle = [cell for cell in inside.values() if cell["gpu"] is not None and cell["gpusFree"]]
        assert [(cell["gpusKept"], cell["priority"]) for cell in idle] == [(1, None)] * 2


def test_where_many_wait_only_who_asks_is_told_the_place(kit: Kit) -> None:
    state = crowded(kit)
    wait = word_of(state, state.gangs["w000"], 1).wait
    assert wait is not None
    assert (wait.as_of, wait.position, wait.waiting) == (state.cluster.cycle, None, None)
