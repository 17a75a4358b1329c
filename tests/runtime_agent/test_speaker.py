"""What the agent says while a part of the bus is away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    speaker.say("seen", AppliedRevision(kind="pod", subject=STUCK, revision=1, spoken=1))
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
