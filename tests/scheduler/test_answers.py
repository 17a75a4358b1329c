"""What the answers say, and that long ones are made in steps: the process hears and decides
meanwhile.
"""

import asyncio
from typing import Any

from scheduler.domain.core.config import Policy
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.messages import message_of
from scheduler.domain.moments import written
from scheduler.domain.state import State
from scheduler_answers import asked, furnished, served

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
        assert (await asked).status_code == 421


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


async def test_long_lists_are_told_page_by_page(kit: Kit) -> None:
    """Whatever is asked for, no page is longer than the Scheduler's own bound, which it tells."""
    state = crowded(kit)
    async with served(state, cells_answer=50, queue_answer=50) as (_, client):
        for path, name, total in (
            ("/cells?", "cell", NODES),
            ("/cells?virtualCluster=default&", "cell", NODES),
            ("/gangs?", "gang", NODES),
            ("/queue?", "gang", WAITING),
        ):
            names: list[str] = []
            offset = 0
            while offset < total:
                page = (await client.get(f"{path}limit=100&offset={offset}")).json()
                assert (page["offset"], page["limit"], page["total"]) == (offset, 50, total)
                assert page["asOf"] == state.core.cycles
                names += [each[name] for each in page[f"{name}s"]]
                offset += page["limit"]
            assert names == sorted(set(names))
            assert len(names) == total
        queue = (await client.get("/queue?offset=50")).json()
        assert [gang["position"] for gang in queue["gangs"][:2]] == [51, 52]


SMALL = """
cellTypes: {node: {child: gpu, count: 2, node: true}}
physicalCells: [{type: node, name: n0}, {type: node, name: n1}, {type: node, name: n3}]
virtualClusters: {x: {cells: [{type: node, count: 2}]}}
nodes: {n1: {cpu: 3, memoryMB: 4096}}
"""


async def test_nodes_have_what_the_cluster_file_leaves_of_them(kit: Kit) -> None:
    reports = [kit.report(name, gpus=2) for name in ("n0", "n1", "n2")]
    file = read_cluster(SMALL.encode()).config
    state = kit.state(*reports, file=file)
    kit.decide(state, 0.0)
    async with served(state) as (_, client):
        found = (await client.get("/nodes")).json()["nodes"]
        absent = {"node": "n3", "state": "absent", "trouble": "it has not reported yet"}
        assert found.pop() == absent | {"gpus": 2, "cpu": None, "memoryMB": None}
        amounts = [(it["cpu"], it["cpuFree"], it["memoryMB"], it["memoryMBFree"]) for it in found]
        cpu, memory_mb = reports[0].cpu, reports[0].memory_mb
        assert amounts == [
            (cpu, cpu, memory_mb, memory_mb),
            (3, 3, 4096, 4096),
            (cpu, None, memory_mb, None),
        ]
        missing = "it is not in the cluster file; add it there"
        assert [node["trouble"] for node in found] == [None, None, missing]
        for query, names in (
            ("first=n1", ["n1", "n2", "n3"]),
            ("first=n0&last=n1", ["n0", "n1"]),
            ("troubled=true", ["n2", "n3"]),
        ):
            some = (await client.get(f"/nodes?{query}")).json()["nodes"]
            assert [node["node"] for node in some] == names


async def test_the_gangs_that_run_are_told(kit: Kit) -> None:
    async with served(furnished(kit)) as (_, client):
        found = (await client.get("/gangs")).json()
        assert (found["total"], found["offset"]) == (4, 0)
        shown = {gang["gang"]: gang for gang in found["gangs"]}
        assert list(shown) == ["guest", "n", "p", "v"]
        guest = shown["guest"]
        assert (guest["class"], guest["state"], guest["gpus"]) == ("opportunistic", "placed", 3)
        assert (guest["virtualCluster"], guest["pods"], guest["downgrade"]) == ("nlp", 1, None)
        assert guest["startedAt"] == "1970-01-01T00:00:01Z"
        assert [gang["gang"] for gang in (await client.get("/gangs?offset=2")).json()["gangs"]] == [
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
        assert told["asOf"] == state.core.cycles
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
        assert shown["second"]["expectedStart"] == told["expectedStart"]
        assert shown["second"]["reason"] == told["reason"]
        assert queue["asOf"] == told["asOf"]
        job = (await client.get(f"/jobs/{state.gangs['second'].request.job}/why")).json()
        waiting = {gang["gang"]: gang for gang in job["gangs"]}
        assert waiting["second"] == {name: told[name] for name in told if name != "asOf"}


async def test_fewer_pods_of_an_elastic_gang_are_its_least(kit: Kit) -> None:
    state: State = kit.state(*(kit.report(f"n{n}", gpus=1) for n in range(4)))
    state.request(kit.gang("runs", *kit.pods("runs", 3, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    for name, least in (("whole", 2), ("elastic", 2)):
        count = 4 if name == "elastic" else 2
        asks = [
            ask.model_copy(update={"surplus": number >= least})
            for number, ask in enumerate(kit.pods(name, count, gpus=1))
        ]
        state.request(kit.gang(name, *asks), 0.0, 0.0)
    kit.decide(state, 1.0)
    async with served(state) as (_, client):
        for name in ("whole", "elastic"):
            fewer = (await client.get(f"/gangs/{name}")).json()["counterfactual"]["fewer"]
            assert (fewer["pods"], fewer["insteadOf"]) == (1, 2)
            assert fewer["isElastic"] == (name == "elastic")


async def test_a_waiting_gang_is_told_what_is_free_now(kit: Kit) -> None:
    """Though no place was sought for it again, as less is free than before."""
    state: State = kit.state(*(kit.report(f"n{n}", gpus=4) for n in range(2)))
    for name, gpus in (("a", 3), ("b", 3), ("waits", 4), ("c", 1)):
        priority = -1 if name == "waits" else 0
        pods = kit.pods(name, 1, gpus=gpus)
        state.request(kit.gang(name, *pods, priority=priority), 0.0, 0.0)
        kit.decide(state, 0.0)
    async with served(state) as (_, client):
        reason = (await client.get("/gangs/waits")).json()["reason"]
        assert (reason["code"], reason["numbers"]["gpusFree"]) == ("shape", 1)


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
        assert behind["expectedStart"] is None
        reason = state.reason_of("first")
        assert reason is not None
        assert reason.numbers["expectedStart"] == start
        cells = await asked(client)
        named = {name: first[name] for name in ("gang", "name", "user")}
        for node, used, priority in (("n0", 1, 10), ("n1", 0, None)):
            kept = cells[node]
            assert (kept["gpusUsed"], kept["gpusReserved"], kept["priority"]) == (used, 1, priority)
            assert kept["reservedFor"] == named | {"startsAt": start}
        assert behind["reason"]["code"] == "reservation"
        assert behind["reason"]["numbers"]["startsAt"] == start
        assert f"from {start} on" in behind["reason"]["text"]
        for said, at in ((first, start), (behind, None)):
            wait = message_of(state, state.gangs[said["gang"]], 1).wait
            assert wait is not None
            place = said["inVirtualCluster"]
            assert (wait.as_of, wait.position) == (said["asOf"], place["position"])
            assert wait.waiting == place["waiting"] == 2
            told = wait.expected_start
            assert (told and written(told)) == at
        assert message_of(state, state.gangs["runs"], 1).wait is None


def test_where_many_wait_only_who_asks_is_told_the_place(kit: Kit) -> None:
    state = crowded(kit)
    wait = message_of(state, state.gangs["w000"], 1).wait
    assert wait is not None
    assert (wait.as_of, wait.position, wait.waiting) == (state.core.cycles, None, None)
