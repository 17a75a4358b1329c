"""Nodes in the database."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from muster.service import Runtime
from scheduler.domain.nodes import Size
from scheduler.store.nodes import KnownNode, load_nodes, save_nodes

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def test_a_nodes_size_is_read_as_it_was_written(
    scheduler: Callable[..., AbstractAsyncContextManager[Runtime]],
) -> None:
    gpus, ports = ((0, "T"), (1, "T")), (20000, 29999)
    counted = (None, (), (("example.com/fpga", 2), ("rdma", 1)))
    sizes = [Size(gpus, 8, 1024, ports, resources) for resources in counted]
    async with scheduler() as runtime, runtime.pool.acquire() as conn:
        for size in (None, *sizes):
            node = KnownNode("n", 1, is_lost=False, lost_since=None, size=size)
            await save_nodes(conn, [node])
            assert await load_nodes(conn) == [node]
