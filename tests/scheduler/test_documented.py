"""The Scheduler's answers are what REST's OpenAPI document says, field by field."""

import json
from typing import Any

import pytest
from muster.contracts.node_orders import Order
from rest.api.scheduling import Cells, ExplainedJob, Gangs, Queue, ShownAdvice
from scheduler.domain.state import State
from scheduler_answers import furnished, served

Kit = Any


def contended(kit: Kit) -> State:
    """An opportunistic gang is preempted for the first of the waiting ones; the last has cells
    reserved. A node is cordoned, and one that is not there any more is lost.
    """
    state: State = kit.state(*(kit.report(f"n{n}", gpus=2) for n in range(3)))
    for name, priority, pods in (("low", -1, 3), ("first", 5, 2), ("last", 1, 3)):
        state.request(kit.gang(name, *kit.pods(name, pods, gpus=2), priority=priority), 0.0, 0.0)
        kit.decide(state, 0.0)
    return state


def scattered(kit: Kit) -> State:
    """A gang of one GPU on each node."""
    state: State = kit.state(*(kit.report(f"n{n}", gpus=2) for n in range(3)))
    for number, name in enumerate("abc"):
        for node in range(3):
            state.order(f"n{node}", Order.NONE if node == number else Order.CORDON)
        state.request(kit.gang(name, *kit.pods(name, 1, gpus=1)), 0.0, 0.0)
        kit.decide(state, 0.0)
    state.order("n0", Order.NONE)
    state.order("n1", Order.NONE)
    kit.decide(state, 10.0)
    return state


def waiting(kit: Kit) -> State:
    """Two gangs wait for the end of a third one, which leaves room for a part of each."""
    state: State = kit.state(*(kit.report(f"n{n}", gpus=1) for n in range(4)))
    state.request(kit.gang("runs", *kit.pods("runs", 3, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    for age, name in enumerate(("first", "second")):
        state.request(kit.gang(name, *kit.pods(name, 2, gpus=1), age=age), 0.0, 0.0)
    kit.decide(state, 1.0)
    return state


@pytest.mark.parametrize("make", [furnished, contended, scattered])
async def test_answers_have_the_fields_of_the_document_and_no_others(kit: Kit, make: Any) -> None:
    async with served(make(kit)) as (_, client):
        for path, model in (
            ("/queue", Queue),
            ("/gangs", Gangs),
            ("/cells", Cells),
            ("/cells?virtualCluster=default", Cells),
            ("/cells?address=r1", Cells),
            ("/advice", ShownAdvice),
            ("/advice?cells=3", ShownAdvice),
        ):
            answer = await client.get(path)
            if answer.status_code == 404:
                continue
            content = answer.json()
            parsed = model.model_validate(content)
            assert json.loads(parsed.model_dump_json(by_alias=True)) == content, path


@pytest.mark.parametrize("make", [furnished, contended, scattered, waiting])
async def test_a_jobs_explanation_has_the_fields_of_the_document(kit: Kit, make: Any) -> None:
    """Of each job; a field that the document calls optional may be absent."""
    state = make(kit)
    async with served(state) as (_, client):
        for job in {asked.request.job for asked in state.gangs.values()}:
            content = (await client.get(f"/jobs/{job}/why")).json()
            parsed = ExplainedJob.model_validate(content)
            assert json.loads(parsed.model_dump_json(by_alias=True, exclude_unset=True)) == content


async def test_what_is_explained_holds_something(kit: Kit) -> None:
    """The test above compares each part of an explanation."""
    found = set()
    for make in (furnished, contended, waiting):
        state = make(kit)
        async with served(state) as (_, client):
            for job in {asked.request.job for asked in state.gangs.values()}:
                for gang in (await client.get(f"/jobs/{job}/why")).json()["gangs"]:
                    parts = gang | (gang.get("counterfactual") or {})
                    found |= {name for name, value in parts.items() if value}
    assert found >= {"cells", "preemption", "inVirtualCluster", "expectedStart", "ahead"}
    assert found >= {"ends", "fewer"}


async def test_what_is_compared_holds_something(kit: Kit) -> None:
    """The test above compares a gang in each list, a reserved cell, a binding and a move."""
    async with served(contended(kit)) as (_, client):
        assert (await client.get("/queue")).json()["gangs"]
        assert (await client.get("/gangs")).json()["gangs"]
    async with served(furnished(kit)) as (_, client):
        cells = (await client.get("/cells")).json()["cells"]
        assert any(cell["binding"] for cell in cells)
    async with served(scattered(kit)) as (_, client):
        assert (await client.get("/advice")).json()["moves"]
