"""The Scheduler's answers over HTTP, from a state without a service around it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from prometheus_client import CollectorRegistry
from scheduler.api.routes import routes
from scheduler.comparisons import Comparisons
from scheduler.domain.state import State
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from starlette.applications import Starlette


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
async def served(state: State, **settings: Any) -> AsyncIterator[tuple[Leader, httpx2.AsyncClient]]:
    """The answers from this state, and who lives beside them."""
    leader = Leader(state)
    changed = SchedulerSettings(**settings)
    comparisons = Comparisons(changed, SchedulerMetrics(CollectorRegistry()))
    app = Starlette(routes=routes(leader, changed, _away, comparisons))
    living = asyncio.create_task(leader.live())
    door = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=door, base_url="http://scheduler") as client:
        yield leader, client
    living.cancel()


def _away() -> Any:
    raise AssertionError("no database")
