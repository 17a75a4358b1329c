"""Gives the bus what the agent has to say, as fast as the bus takes it.

What the bus can't take now waits, and holds up nothing that it can take. The newest word about a
pod replaces an older one that still waits, so what waits is bounded by the number of pods however
long the bus is away. Nothing here is durable: what is lost with the process is in the journal,
unacknowledged, and is said again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from itertools import islice

import structlog
from muster.acknowledgements import Acknowledgement, acknowledgements
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
        bus.on_open.append(lambda _channel: self._woken.set())

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
            except sqlite3.Error as error:
                _log.error("dead letters stay in the journal; trying again", error=str(error))
                await asyncio.sleep(self._settings.retry_s)
                self._woken.set()

    async def flush(self) -> None:
        """Publish all that waits; what the bus can't take now waits on. Raises sqlite3.Error."""
        held: dict[str, Outgoing | AppliedRevision] = {}
        try:
            while self._waiting:
                taken = dict(islice(self._waiting.items(), self._settings.batch_records))
                for key in taken:
                    del self._waiting[key]
                held |= taken
                for key in await self._publish(taken):
                    del held[key]
        finally:
            self._waiting = held | self._waiting
        await self._flush_letters()

    async def _publish(self, words: Mapping[str, Outgoing | AppliedRevision]) -> set[str]:
        """Which of them are done with."""
        applied = {key: word for key, word in words.items() if isinstance(word, AppliedRevision)}
        plain = {key: word for key, word in words.items() if isinstance(word, Outgoing)}
        together = acknowledgements(
            Service.RUNTIME_AGENT,
            (Acknowledgement(a.subject, self._journal.id, a) for a in applied.values()),
            time.time(),
        )
        records = [*plain.values(), *together]
        outcomes = await self._bus.publish(records)
        are_done = [not isinstance(outcome, Transient) for outcome in outcomes]
        done = {key for key, is_done in zip(plain, are_done, strict=False) if is_done}
        return done | applied.keys() if all(are_done[len(plain) :]) else done

    async def _flush_letters(self) -> None:
        last = ""
        while letters := self._journal.letters(self._settings.batch_records, last):
            last = letters[-1].id
            outcomes = await self._bus.publish(
                [Outgoing(x.topic, x.key, x.value.encode(), x.id, x.at_s) for x in letters]
            )
            done = []
            for letter, outcome in zip(letters, outcomes, strict=True):
                if isinstance(outcome, Transient):
                    continue
                done.append(letter.id)
                self._bus.metrics.dead.labels(letter.topic).inc()
                if outcome is not None:
                    _log.error("the bus refuses a dead letter", id=letter.id, why=str(outcome))
            self._journal.drop_letters(done)
