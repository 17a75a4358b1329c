"""Gives the bus what the agent has to say, as fast as the bus takes it.

The newest word about a pod replaces an older one that still waits, so what waits is bounded by the
number of pods however long the bus is away. Nothing here is durable: what is lost with the process
is in the journal, unacknowledged, and is said again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog
from muster.acknowledgements import acknowledgements
from muster.bus import Bus, Outgoing
from muster.contracts.notices import AppliedRevision
from muster.contracts.topics import Service
from muster.errors import Transient

from runtime_agent.settings import AgentSettings
from runtime_agent.store import Journal

_log = structlog.get_logger()


class Speaker:
    """One queue to the bus."""

    def __init__(self, bus: Bus, settings: AgentSettings, journal: Journal) -> None:
        self._bus = bus
        self._settings = settings
        self._journal = journal
        self._waiting: dict[str, Outgoing | AppliedRevision] = {}
        self._woken = asyncio.Event()
        self._woken.set()  # dead letters may have been left by the process before

    def say(self, key: str, word: Outgoing | AppliedRevision) -> None:
        """Takes a record or an acknowledgement; a newer one under the same key replaces it."""
        self._waiting[key] = word
        self._woken.set()

    @property
    def waiting(self) -> int:
        """How many records the bus has not taken yet."""
        return len(self._waiting)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self.flush()
            except Transient as error:
                self._bus.metrics.retries.labels("speaker").inc()
                _log.debug("publishing is retried", error=str(error))
                await asyncio.sleep(self._settings.retry_s)
                self._woken.set()

    async def flush(self) -> None:
        """Publish all that waits. Raises Transient where the bus is away; then it still waits."""
        while self._waiting:
            taken = dict(list(self._waiting.items())[: self._settings.batch_records])
            for key in taken:
                del self._waiting[key]
            try:
                records = _records(taken.values())
                outcomes = await self._bus.publish(records)
            except BaseException:
                self._waiting = taken | self._waiting
                raise
            for record, refusal in zip(records, outcomes, strict=True):
                if refusal is not None:
                    self._bus.metrics.parked.labels(record.topic).inc()
                    _log.error("the bus refuses a record", id=record.event_id, why=str(refusal))
        await self._flush_letters()

    async def _flush_letters(self) -> None:
        while letters := self._journal.letters(self._settings.batch_records):
            outcomes = await self._bus.publish(
                [Outgoing(x.topic, x.key, x.value.encode(), x.id, x.at_s) for x in letters]
            )
            for letter, refusal in zip(letters, outcomes, strict=True):
                self._bus.metrics.dead.labels(letter.topic).inc()
                if refusal is not None:
                    _log.error("the bus refuses a dead letter", id=letter.id, why=str(refusal))
            self._journal.drop_letters([letter.id for letter in letters])


def _records(words: Iterable[Outgoing | AppliedRevision]) -> list[Outgoing]:
    """Records as they are; the acknowledgements among them together."""
    records: list[Outgoing] = []
    applied: list[tuple[str, AppliedRevision]] = []
    for word in words:
        match word:
            case Outgoing():
                records.append(word)
            case AppliedRevision(subject=subject):
                applied.append((subject, word))
    return records + acknowledgements(Service.RUNTIME_AGENT, applied, time.time())
