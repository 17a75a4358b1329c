"""Questions try things on the state that decisions are made from: they wait for who decides, and
for the thread that makes the cluster anew.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from cli.embedded.process import free_port
from muster.service import Runtime
from scheduler import configuring
from scheduler.domain.core.interface import Core
from scheduler.domain.plans import Plan, made_with_line
from scheduler.domain.state import State
from scheduler_answers import Leader, asking, served
from scheduler_watched import measured, until

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

DEADLINE_S = 60.0
QUESTIONS = ("/queue", "/gangs", "/gangs/late", "/jobs/late/why", "/advice")


def crowded(kit: Kit) -> State:
    """One gang has a GPU of two, and one that wants both waits."""
    state: State = kit.state(kit.report("n0", gpus=1), kit.report("n1", gpus=1))
    for name, count in (("runs", 1), ("late", 2)):
        state.request(kit.gang(name, *kit.pods(name, count, gpus=1)), 0.0, 0.0)
        kit.decide(state, 1.0)
    return state


async def turns(leader: Leader, count: int = 500) -> None:
    """All others had so many turns: more than any question takes."""
    seen = leader.turns
    while leader.turns < seen + count:
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", QUESTIONS)
async def test_a_question_waits_for_who_decides(kit: Kit, path: str) -> None:
    async with served(crowded(kit)) as (leader, client):
        async with leader.deciding:
            asked = asyncio.create_task(client.get(path))
            await turns(leader)
            assert not asked.done()
        assert (await asked).status_code == 200


@pytest.mark.parametrize("path", QUESTIONS)
async def test_a_question_that_would_wait_for_long_is_told_to_come_again(
    kit: Kit, path: str
) -> None:
    async with served(crowded(kit), question_wait_s=0.01) as (leader, client):
        async with leader.deciding:
            answer = await client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (503, "BusyError")
        assert int(answer.headers["retry-after"]) > 0
        assert (await client.get(path)).status_code == 200


async def test_a_question_that_has_waited_is_not_answered_by_who_leads_no_longer(kit: Kit) -> None:
    async with served(crowded(kit)) as (leader, client):
        async with leader.deciding:
            asked = asyncio.create_task(client.get("/gangs/late"))
            await turns(leader)
            leader.is_leading = False
        answer = await asked
        assert (answer.status_code, answer.json()["code"]) == (421, "StandbyError")


@pytest.mark.postgres
@pytest.mark.kafka
async def test_questions_wait_while_a_thread_makes_the_cluster_anew(
    kit: Kit, scheduler: RunScheduler, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a question takes away in thought would be lost in the new cluster: the thread is held
    where it begins to read, and the questions come then.
    """
    is_held, reads, goes_on = threading.Event(), threading.Event(), threading.Event()

    def held(cluster: Core, plan: Plan, at: float) -> tuple[Core, str]:
        if is_held.is_set():
            reads.set()
            assert goes_on.wait(DEADLINE_S)
        return made_with_line(cluster, plan, at)

    monkeypatch.setattr(configuring, "made_with_line", held)
    port = free_port()
    async with scheduler(port, question_wait_s=DEADLINE_S) as runtime, asking(port) as client:
        await until(lambda: measured(runtime, "is_leader") == 1)
        for node in ("n0", "n1"):
            await others.report(kit.report(node, gpus=1))
        await others.ask(kit.gang("runs", *kit.pods("runs", 2, gpus=1)))
        await others.until(lambda: others.states("runs") == ["placed"] * 2)
        await others.ask(kit.gang("late", *kit.pods("late", 1, gpus=1)))
        await others.until(lambda: others.states("late") == ["waiting"])
        is_held.set()
        await others.report(kit.report("n2", gpus=1))
        assert await asyncio.to_thread(reads.wait, DEADLINE_S)
        asked = [asyncio.create_task(client.get(path)) for path in QUESTIONS]
        for _ in range(50):  # which need nothing that others change
            assert (await client.get("/configuration")).status_code == 200
        assert not any(question.done() for question in asked)
        goes_on.set()
        answers = [await question for question in asked]
        assert [answer.status_code for answer in answers] == [200] * len(QUESTIONS)
        await others.until(lambda: others.states("late") == ["placed"])
        assert others.states("runs") == ["placed"] * 2
        shown = (await client.get("/gangs")).json()["gangs"]
        assert {gang["gang"]: gang["gpus"] for gang in shown} == {"late": 1, "runs": 2}
