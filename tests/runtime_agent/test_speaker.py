"""What the agent says while a part of the bus is away."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from muster.bus import Outgoing
from muster.contracts.notices import AppliedRevision
from muster.errors import Transient
from muster.metrics import PlumbingMetrics
from prometheus_client import CollectorRegistry
from runtime_agent.settings import AgentSettings
from runtime_agent.speaker import Speaker
from runtime_agent.store import Journal, Letter

STUCK, FREE = "job-stuck", "job-free"


class OddBus:
    """Takes no records of one key while it `is_away`."""

    def __init__(self) -> None:
        self.metrics = PlumbingMetrics(CollectorRegistry())
        self.on_open: list[Callable[[], None]] = []
        self.is_away = True
        self.taken: list[str] = []

    async def publish(self, records: Sequence[Outgoing]) -> list[Transient | None]:
        held = [self.is_away and record.key == STUCK for record in records]
        pairs = zip(records, held, strict=True)
        self.taken += [record.event_id for record, is_held in pairs if not is_held]
        return [Transient("away") if is_held else None for is_held in held]


def word(name: str, key: str) -> Outgoing:
    return Outgoing("pod-started", key, b"{}", name, 0.0)


async def test_what_a_partition_does_not_take_waits_and_nothing_else_does(tmp_path: Path) -> None:
    bus: Any = OddBus()
    journal = Journal(tmp_path / "journal.sqlite", "id")
    speaker = Speaker(bus, AgentSettings(node="n", batch_records=10), journal)
    stuck = [f"stuck {n}" for n in range(35)]
    for name in stuck:
        speaker.say(name, word(name, STUCK))
    speaker.say("free", word("free", FREE))
    speaker.say("seen", AppliedRevision(kind="pod", subject=STUCK, revision=1, sender_revision=1))
    letters = [Letter(f"{n:02}", "pod-requested.dead-letter", STUCK, "{}", 0.0) for n in range(15)]
    last = Letter("99", "pod-requested.dead-letter", FREE, "{}", 0.0)
    journal.save(letters=[*letters, last])
    await speaker.flush()
    assert bus.taken == ["free", "99"]
    assert speaker.waiting == 36
    speaker.say("stuck 0", word("newer", STUCK))
    bus.is_away = False
    await speaker.flush()
    assert speaker.waiting == 0
    assert journal.letters(100) == []
    words = [name for name in bus.taken if not name.startswith("runtime-agent/")]
    assert words == ["free", "99", "newer", *stuck[1:], *(letter.id for letter in letters)]
    assert len(bus.taken) == len(words) + 1


async def test_a_journal_that_takes_nothing_for_a_while_does_not_end_the_speaker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus: Any = OddBus()
    journal = Journal(tmp_path / "journal.sqlite", "id")
    journal.save(letters=[Letter("1", "pod-requested.dead-letter", FREE, "{}", 0.0)])
    drop, failures, dropped = Journal.drop_letters, iter(range(2)), asyncio.Event()

    def full_for_a_while(self: Journal, ids: Sequence[str]) -> None:
        if next(failures, None) is not None:
            raise sqlite3.OperationalError("database or disk is full")
        drop(self, ids)
        dropped.set()

    monkeypatch.setattr(Journal, "drop_letters", full_for_a_while)
    speaking = asyncio.create_task(
        Speaker(bus, AgentSettings(node="n", retry_s=0.01), journal).run()
    )
    waiting = asyncio.create_task(dropped.wait())
    await asyncio.wait({speaking, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert not speaking.done()
    assert journal.letters(10) == []
    speaking.cancel()
    await asyncio.wait({speaking})
