"""The watcher of the bus ends when it is cancelled."""

import asyncio
from contextlib import suppress

import pytest
from aiokafka.errors import KafkaConnectionError
from muster import bus
from muster.contracts.topics import Service
from muster.metrics import PlumbingMetrics
from muster.settings import ServiceSettings
from prometheus_client import CollectorRegistry


class Swallowing:
    """A client of a bus that is away, in whose closing a cancellation is lost: aiokafka's own tasks
    end by the same exception, and it passes over that.
    """

    closing = asyncio.Event()

    def __init__(self, **_options: object) -> None:
        pass

    async def bootstrap(self) -> None:
        raise KafkaConnectionError("away")

    async def close(self) -> None:
        self.closing.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def test_a_watch_whose_cancellation_is_lost_once_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bus, "AIOKafkaClient", Swallowing)
    monkeypatch.setattr(Swallowing, "closing", asyncio.Event())
    settings = ServiceSettings(kafka_bootstrap="127.0.0.1:1", bus_watch_s=0.01)
    watched = bus.Bus(settings, Service.SCHEDULER, PlumbingMetrics(CollectorRegistry()))
    task = asyncio.create_task(watched.run())
    await Swallowing.closing.wait()
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=30)
    assert not pending
