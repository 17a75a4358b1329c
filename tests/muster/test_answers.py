"""What the Launcher can't handle reaches the agent that published it, though it knows nothing of
the pod.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from launcher.domain.model import Policy
from launcher.handlers import jobs
from muster.acknowledgements import ACKNOWLEDGED
from muster.aggregates import apply_records
from muster.bus import Bus
from muster.channels import Outgoing
from muster.contracts.pods import PodAction, PodRequest
from muster.contracts.topics import Service
from muster.db import open_pool
from muster.incarnation import Incarnations
from muster.metrics import PlumbingMetrics
from muster.records import Received
from muster.relay import Relay
from muster.settings import DatabaseSettings
from prometheus_client import CollectorRegistry
from runtime_agent.handlers import Handlers
from runtime_agent.step import Memory, Node
from runtime_agent.store import Journal

NODE = "node-a"
WAIT_S = 60


class Agent:
    """An agent without a bus, on whose node nothing runs."""

    def __init__(self, home: Path) -> None:
        self.published: list[Outgoing] = []
        self.journal = Journal(home / "journal.sqlite", "id")
        memory = Memory(self.journal, Node(NODE, "boot", 1.0), lambda _name: False)
        self.handlers = Handlers(memory, self._publish, lambda: None)

    def _publish(self, records: Sequence[Outgoing]) -> None:
        self.published += [record for record in records if record.topic != ACKNOWLEDGED]

    def receive(self, records: Sequence[Received]) -> None:
        """As from the one partition that it reads."""
        own = [record for record in records if record.key == NODE]
        self.handlers.on_records(own, (), frozenset())


def received(record: Outgoing, value: bytes | None = None) -> Received:
    headers = {"ce_id": record.event_id}
    return Received(record.topic, 0, 0, record.key, headers, value or record.value)


@pytest.mark.parametrize(
    "spoilt",
    [{"state": 7}, {"reportRevision": 2**70}],
    ids=["a state that is no text", "a revision beyond all"],
)
async def test_an_agent_learns_that_its_message_on_an_unknown_pod_was_rejected(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: dict[str, object]
) -> None:
    agent = Agent(tmp_path)
    stop = PodRequest(
        revision=1, pod="j-0-w-0-0", job="j", gang="j-0", node=NODE, journal="id",
        action=PodAction.FORGET,
    )  # fmt: skip
    asked = Outgoing("pod-requested", NODE, stop.model_dump_json().encode(), "", 0.0)
    agent.receive([received(asked)])
    (message,) = agent.published
    assert message.key != NODE
    answers = asyncio.Queue[Outgoing]()

    async def publish(_bus: Bus, records: Sequence[Outgoing]) -> list[None]:
        for record in records:
            answers.put_nowait(record)
        return [None] * len(records)

    monkeypatch.setattr(Bus, "publish", publish)
    settings = DatabaseSettings(database_url=database_url)
    pool = await open_pool(settings, "launcher")
    bus = Bus(settings, Service.LAUNCHER, PlumbingMetrics(CollectorRegistry()))
    unreadable = json.dumps(json.loads(message.value or b"") | spoilt).encode()
    relay = Relay(bus, pool, Incarnations(bus, 0.0))
    async with relay.transaction() as opened:
        record = received(message, unreadable)
        await apply_records(opened, Service.LAUNCHER, jobs(Policy(), relay.incarnations), [record])
    relaying = asyncio.create_task(relay.run())
    async with asyncio.timeout(WAIT_S):
        while (answer := await answers.get()).topic != "revision-acknowledged":
            pass
    relaying.cancel()
    await asyncio.wait([relaying])
    await pool.close()
    agent.receive([received(answer)])
    entry = agent.journal.load(["j-0-w-0-0"])["j-0-w-0-0"]
    exchange = entry.subject.exchange
    assert exchange.rejected == exchange.revision
    assert exchange.repeat_at is None
