"""Publishes what the agent's steps wrote, from memory.

Nothing here is durable. What the bus does not take is in the journal, unacknowledged, and the
agent republishes it from there. Dead letters, which nobody acknowledges, stay in the journal until
the bus has them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

import structlog
from muster.bus import Bus
from muster.channels import Outgoing
from muster.contracts.topics import DEAD_LETTER
from muster.errors import Transient
from muster.fresh import Fresh
from muster.records import read_message_id

from runtime_agent.settings import AgentSettings
from runtime_agent.store import Journal

_log = structlog.get_logger()


class Relay:
    """One queue to the bus. `on_refused` gets the pod and the revision of a message that the bus
    refuses for good.
    """

    def __init__(
        self,
        bus: Bus,
        settings: AgentSettings,
        journal: Journal,
        on_refused: Callable[[str, int], None],
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._journal = journal
        self._on_refused = on_refused
        self._fresh = Fresh()
        self._woken = asyncio.Event()
        self._woken.set()  # dead letters may have been left by the process before
        bus.on_open.append(lambda _channel: self._woken.set())

    def publish(self, records: Sequence[Outgoing]) -> None:
        """Takes records that are in the journal."""
        self._fresh.add(records)
        self._woken.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self.flush()
            except sqlite3.Error as error:
                _log.error("the journal can't be written; trying again", error=str(error))
                await asyncio.sleep(self._settings.retry_s)
                self._woken.set()

    async def flush(self) -> None:
        """Publish all that waits. Raises sqlite3.Error."""
        while records := self._fresh.take(self._settings.batch_records):
            for record, outcome in zip(records, await self._bus.publish(records), strict=True):
                named = read_message_id(record.event_id)
                is_refused = outcome is not None and not isinstance(outcome, Transient)
                if is_refused and named is not None:
                    self._on_refused(named[2], named[3])
        await self._flush_letters()

    async def _flush_letters(self) -> None:
        last = ""
        while letters := self._journal.letters(self._settings.batch_records, last):
            last = letters[-1].event_id
            outcomes = await self._bus.publish(letters)
            done = [
                letter
                for letter, outcome in zip(letters, outcomes, strict=True)
                if not isinstance(outcome, Transient)
            ]
            for letter in done:
                topic = letter.topic.removesuffix(DEAD_LETTER)
                self._bus.metrics.dead.labels(topic).inc()
            self._journal.drop_letters([letter.event_id for letter in done])
