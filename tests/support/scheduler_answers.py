"""The Scheduler's answers over HTTP: of a service that runs, and from a state without one around
it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from muster.contracts.node_orders import Order
from muster.contracts.nodes import Gpu
from muster.metrics import PlumbingMetrics
from muster.service_keys import SCHEDULER
from muster.token_guard import TokenGuard
from plain_http import NO_TLS
from prometheus_client import CollectorRegistry
from scheduler.api.routes import routes
from scheduler.comparisons import Comparisons
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.state import State
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from service_auth import ServiceAuth
from starlette.applications import Starlette

Kit = Any
AUTH = ServiceAuth(SCHEDULER)


class Leader:
    """The process that answers. ``beside``: called at each turn of the others."""

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


async def asked(client: httpx2.AsyncClient, query: str = "") -> dict[str, dict[str, Any]]:
    """Cells by address."""
    answer = await client.get(f"/cells?{query}")
    assert answer.status_code == 200, answer.text
    cells = answer.json()["cells"]
    found = {cell["cell"]: cell for cell in cells}
    assert len(found) == len(cells)
    return found


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
    `n` in a switch of nlp. n3 has a bad GPU and an opportunistic gang, n1 is drained.
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
        message = kit.gang(name, *kit.pods(name, **wants), priority=priority)
        state.request(message.model_copy(update={"virtual_cluster": vc}), 0.0, 0.0)
    kit.decide(state, 1.0)
    state.order("n1", Order.CORDON)
    kit.decide(state, 2.0)
    return state


@asynccontextmanager
async def asking(port: int, auth: httpx2.Auth = AUTH) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service that runs."""
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        auth=auth,
        timeout=60,
        trust_env=False,
        verify=NO_TLS,
    ) as client:
        yield client


@asynccontextmanager
async def served(state: State, **settings: Any) -> AsyncIterator[tuple[Leader, httpx2.AsyncClient]]:
    """The answers from this state, and the Leader beside them."""
    leader = Leader(state)
    changed = SchedulerSettings(**settings)
    comparisons = Comparisons(changed, SchedulerMetrics(CollectorRegistry()))
    guard = TokenGuard(SCHEDULER, changed.service_key, PlumbingMetrics(CollectorRegistry()))
    app = Starlette(routes=routes(leader, changed, _away, comparisons, guard))
    living = asyncio.create_task(leader.live())
    door = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=door, base_url="http://scheduler") as client:
        yield leader, client
    living.cancel()


def _away() -> Any:
    raise AssertionError("no database")
