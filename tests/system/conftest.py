"""Fixtures of the tests that run all five services."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cli.embedded.broker import EmbeddedBroker
from whole_muster import Muster, a_muster


@pytest.fixture
async def muster(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> AsyncIterator[Muster]:
    """A whole Muster with one node that pretends to have 8 GPUs."""
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path) as running_muster:
        yield running_muster
