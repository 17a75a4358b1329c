"""What REST does while a server that it needs is away."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest
from scheduler_watched import until
from structlog.testing import capture_logs
from tcp_proxy import Proxy

pytestmark = [pytest.mark.postgres]


async def test_a_database_that_is_away_ends_nothing(
    start_rest: Callable[..., Any], database_url: str
) -> None:
    """The look for repairs that have ended is the first that finds it away."""
    proxy = Proxy(database_url)
    direct = await asyncpg.connect(database_url)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(direct.close)
        away = await opened.enter_async_context(AsyncExitStack())
        await away.enter_async_context(proxy.running())
        rest = await opened.enter_async_context(
            start_rest(database_url=proxy.url, retry_longest_s=0.05)
        )
        with capture_logs() as logs:
            await away.aclose()
            await direct.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
            await until(lambda: sum(log["event"] == "an action waits" for log in logs) > 1)
        answer = await rest.client.get("/api/v2/jobs")
        assert answer.status_code == 503, answer.text
