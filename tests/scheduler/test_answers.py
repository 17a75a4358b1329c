"""Long answers are made in steps: the process hears and decides meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from scheduler.api.routes import routes
from scheduler.domain.state import State
from scheduler.settings import SchedulerSettings
from starlette.applications import Starlette

Kit = Any

NODES, WAITING = 600, 1000
DEADLINE_S = 60.0
TURNS = 10
"""Of others while an answer of so much is made, at the least; a short one has a few."""


class Leader:
    """Who answers. ``beside``: called at each turn of the others."""

    epoch = 1

    def __init__(self, state: State) -> None:
        self.state = state
        self.is_leading = True
        self.deciding = asyncio.Lock()
        self.turns = 0
        self.beside: Callable[[], object] = lambda: None

    def at(self) -> float:
        return 5.0

    async def live(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turns += 1
            self.beside()


@asynccontextmanager
async def served(state: State) -> AsyncIterator[tuple[Leader, httpx2.AsyncClient]]:
    """The answers from this state, and who lives beside them."""
    leader = Leader(state)
    app = Starlette(routes=routes(leader, SchedulerSettings(), _away))
    living = asyncio.create_task(leader.live())
    door = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=door, base_url="http://scheduler") as client:
        yield leader, client
    living.cancel()


def _away() -> Any:
    raise AssertionError("no database")


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
