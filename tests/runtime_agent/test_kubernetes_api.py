"""An API server that is overloaded: agents and fence ask again when it allows it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration
from muster.contracts.nodes import NodeLost
from muster.records import Received
from prometheus_client import CollectorRegistry
from runtime_agent.fence import Fence, FenceMetrics, FenceSettings
from runtime_agent.kubernetes.api import Change, Unavailable
from runtime_agent.kubernetes.api_server import ApiServer
from runtime_agent.kubernetes.runner import LONGEST_RETRY_S, retry_s

DEADLINE_S = 60.0
LONG = "3600"


class Overloaded:
    """An API server that answers 429. `retry_after`: by a part of the path. `asked`: the paths.
    `lists`: what it answers all the same.
    """

    def __init__(self) -> None:
        self.retry_after: dict[str, str] = {}
        self.asked: list[str] = []
        self.lists: object = None
        self.client: ApiClient

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(request.path)
        if self.lists is not None:
            return web.json_response(self.lists)
        given = [each for part, each in self.retry_after.items() if part in request.path]
        headers = {"Retry-After": given[0]} if given else {}
        return web.json_response({"message": "too many requests"}, status=429, headers=headers)

    def count(self, part: str) -> int:
        """The requests about it."""
        return sum(part in path for path in self.asked)

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, "what the test waited for has not come"
            await asyncio.sleep(0.005)


@pytest.fixture
async def server() -> AsyncIterator[Overloaded]:
    found = Overloaded()
    runner = web.ServerRunner(web.Server(found.answer, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        configuration = Configuration()
        configuration.host = f"http://{host}:{port}"
        found.client = await stack.enter_async_context(ApiClient(configuration))
        yield found


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is the wait that the server asks for."""
    monkeypatch.setattr("random.uniform", lambda _least, _most: 0.0)


@asynccontextmanager
async def going_on(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("given", "after_s"),
    [("7", 7.0), ("", 0.0), ("inf", 0.0), ("-1", 0.0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0)],
)
async def test_seconds_are_kept_and_all_else_is_left_to_the_agents_own_backoff(
    server: Overloaded, given: str, after_s: float
) -> None:
    server.retry_after = {"/": given}
    with pytest.raises(Unavailable, match="too many requests") as refused:
        await ApiServer("n", server.client).read("jobs", "a")
    assert refused.value.after_s == after_s


async def test_a_list_that_fails_is_told(server: Overloaded) -> None:
    changes = ApiServer("n", server.client).follow_node()
    assert [(await anext(changes)).kind for _ in range(4)] == ["listing", "unlisted"] * 2


async def test_an_answer_that_is_no_list_is_told_too(server: Overloaded) -> None:
    server.lists = {"message": "a proxy says so"}
    changes = ApiServer("n", server.client).follow_node()
    assert [(await anext(changes)).kind for _ in range(4)] == ["listing", "unlisted"] * 2


def test_a_request_about_a_pod_waits_also_after_a_weekend_of_refusals() -> None:
    assert retry_s(0) < retry_s(1) < retry_s(10**5) == LONGEST_RETRY_S


async def test_a_watch_is_not_opened_again_before_the_server_allows_it(
    server: Overloaded,
) -> None:
    server.retry_after = {"/pods": LONG}
    api = ApiServer("n", server.client)

    async def read(changes: AsyncIterator[Change]) -> None:
        async for _change in changes:
            pass

    async with going_on(read(api.follow_pods())):
        await server.until(lambda: server.count("/pods") > 0)
        async with going_on(read(api.follow_node())):
            await server.until(lambda: server.count("/nodes") > 10)
            assert server.count("/pods") == 1


async def test_the_fence_does_not_ask_again_before_the_server_allows_it(
    server: Overloaded,
) -> None:
    server.retry_after = {"/slow/": LONG}
    lost = NodeLost(
        node="n", lease=1, since=datetime(2026, 1, 1, tzinfo=UTC), silent_s=8, pods=("pod-1",)
    )
    async with AsyncExitStack() as stack:
        for namespace in ("slow", "quick"):
            settings = FenceSettings(kube_namespace=namespace, kube_host_namespace="host")
            fence = Fence(settings, server.client, FenceMetrics(CollectorRegistry()))
            fence.on_record(cast(Received, None), lost)
            await stack.enter_async_context(going_on(fence.run()))
            await server.until(lambda: server.count(f"/{namespace}/") > 0)  # noqa: B023
        await server.until(lambda: server.count("/quick/") > 10)
        assert server.count("/slow/") == 1
