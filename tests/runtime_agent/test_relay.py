"""What the agent publishes while a part of the bus is away."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from muster.channels import Channel, Outgoing
from muster.errors import Transient
from muster.metrics import PlumbingMetrics
from prometheus_client import CollectorRegistry
from runtime_agent.relay import Relay
from runtime_agent.settings import AgentSettings
from runtime_agent.store import Journal

STUCK, FREE, LARGE = "job-stuck", "job-free", "job-large"


class OddBus:
    """Takes no records of one key while it `is_away`, and refuses those of another."""

    def __init__(self) -> None:
        self.metrics = PlumbingMetrics(CollectorRegistry())
        self.on_open: list[Callable[[Channel], None]] = []
        self.is_away = True
        self.taken: list[str] = []

    async def publish(self, records: Sequence[Outgoing]) -> list[Exception | None]:
        outcomes = [self._outcome(record.key) for record in records]
        pairs = zip(records, outcomes, strict=True)
        self.taken += [record.event_id for record, outcome in pairs if outcome is None]
        return outcomes

    def _outcome(self, key: str) -> Exception | None:
        if key == LARGE:
            return ValueError("too large")
        return Transient("away") if self.is_away and key == STUCK else None


def a_message(name: str, key: str) -> Outgoing:
    return Outgoing("pod-started", key, b"{}", f"runtime-agent/pod/{name}/3", 0.0)


def a_letter(ident: str, key: str) -> Outgoing:
    return Outgoing("pod-requested.dead-letter", key, b"{}", ident, 0.0)


async def test_what_a_partition_does_not_take_is_left_to_the_journal(tmp_path: Path) -> None:
    bus: Any = OddBus()
    journal = Journal(tmp_path / "journal.sqlite", "id")
    refused = list[tuple[str, int]]()
    settings = AgentSettings(node="n", batch_records=10)
    relay = Relay(bus, settings, journal, lambda pod, revision: refused.append((pod, revision)))
    relay.publish([a_message(f"stuck-{n}", STUCK) for n in range(35)])
    relay.publish([a_message("large", LARGE), a_message("free", FREE)])
    letters = [a_letter(f"{n:02}", STUCK) for n in range(15)]
    journal.save(letters=[*letters, a_letter("99", FREE)])
    await relay.flush()
    assert bus.taken == ["runtime-agent/pod/free/3", "99"]
    assert refused == [("large", 3)]
    assert journal.letters(100) == letters
    bus.is_away = False
    await relay.flush()
    assert bus.taken[2:] == [letter.event_id for letter in letters]
    assert journal.letters(100) == []


async def test_a_journal_that_takes_nothing_for_a_while_does_not_end_the_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus: Any = OddBus()
    journal = Journal(tmp_path / "journal.sqlite", "id")
    journal.save(letters=[a_letter("1", FREE)])
    drop, failures, dropped = Journal.drop_letters, iter(range(2)), asyncio.Event()

    def full_for_a_while(self: Journal, ids: Sequence[str]) -> None:
        if next(failures, None) is not None:
            raise sqlite3.OperationalError("database or disk is full")
        drop(self, ids)
        dropped.set()

    monkeypatch.setattr(Journal, "drop_letters", full_for_a_while)
    settings = AgentSettings(node="n", retry_s=0.01)
    relaying = asyncio.create_task(Relay(bus, settings, journal, lambda _pod, _number: None).run())
    waiting = asyncio.create_task(dropped.wait())
    await asyncio.wait({relaying, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert not relaying.done()
    assert journal.letters(10) == []
    relaying.cancel()
    await asyncio.wait({relaying})
