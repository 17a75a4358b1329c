"""The nodes as this process receives them: reports, heartbeats, its own probe, and their leases.

Only nodes' messages change the state here; the decider receives lost and returned nodes.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from muster.bus import Bus, Outgoing, partition_of
from muster.contracts.model import Model
from muster.contracts.node_orders import NODE_SETTING, NodeOrder, Order
from muster.contracts.nodes import (
    NodeHeartbeat,
    NodeLost,
    NodeNameClashed,
    NodeReport,
    NodeReturned,
)
from muster.contracts.notices import SettingChanged
from muster.contracts.scheduling import SCHEDULING_SETTING, SchedulingConfig
from muster.contracts.topics import Service
from muster.newest import Newest, revision_of
from muster.readers import Follower
from muster.records import Received

from scheduler.domain.clashes import Clash, Clashes
from scheduler.domain.configured import Setting
from scheduler.domain.leases import Judgement, Leases
from scheduler.domain.moments import DAY_S, moment
from scheduler.domain.nodes import Node, nonsense
from scheduler.domain.stored import Stored
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from scheduler.store.nodes import KnownNode

_log = structlog.get_logger()

SETTINGS = "settings-changed"
HEARTBEAT, REPORTED, LOST, RETURNED, CLASHED = (
    "node-heartbeat",
    "node-reported",
    "node-lost",
    "node-returned",
    "node-name-clashed",
)
PODS_NAMED = 200
"""In one `node-lost`."""

NOTICES = 500
"""The most messages about nodes that are published at once."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A node's last heartbeat: its time, its journal, and since when no other journal sent one."""

    at: float
    journal: str
    since: float


@dataclass
class Watch:
    """The received messages. ``to_lose``, ``to_lose_forgotten``, ``to_return`` and ``to_remove``
    wait for the decider; ``wake`` calls it.
    """

    bus: Bus
    settings: SchedulerSettings
    metrics: SchedulerMetrics
    state: Stored
    holder: str
    wake: Callable[[], None]
    leases: Leases = field(init=False)
    reports: Follower = field(init=False)
    heartbeats: Follower = field(init=False)
    orders: Follower = field(init=False)
    setting: Setting | None = None
    received: dict[str, Voice] = field(default_factory=dict)
    to_lose: set[str] = field(default_factory=set)
    to_lose_forgotten: set[str] = field(default_factory=set)
    to_return: set[str] = field(default_factory=set)
    to_remove: set[str] = field(default_factory=set)
    published_at: dict[str, float] = field(default_factory=dict)
    clashes: Clashes = field(init=False)
    clashes_published: dict[str, tuple[datetime, float]] = field(default_factory=dict)
    _newest: Newest = field(default_factory=Newest)
    _restarts: int = 0
    _times_begun: int = 0
    _withheld: tuple[str, ...] = ()
    _was_round: bool = True

    def __post_init__(self) -> None:
        self.leases = Leases(self.settings.lease_policy())
        self.clashes = Clashes(self.settings.clash_quiet_s)
        self.reports = Follower(self.bus, [REPORTED], self.on_report)
        self.heartbeats = Follower(self.bus, [HEARTBEAT], self.on_heartbeat, from_start=False)
        self.orders = Follower(self.bus, [SETTINGS], self.on_setting)
        self.bus.on_new_bus.append(self.begin_anew)

    async def wait_for_reports(self) -> None:
        """Wait for all earlier records, with a time limit: unknown resources are not free."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.catch_up_s):
                await self.reports.caught_up.wait()
                await self.orders.caught_up.wait()

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes as they are known now."""
        return self.state.ledger.nodes

    # Messages of nodes.

    def on_report(self, record: Received, message: Model | None) -> None:
        """A node's report, or a tombstone: the node was removed. A node that is not lost yet is
        removed once it is.
        """
        now = time.monotonic()
        if message is None:
            self.clashes.forget(record.key or "")
            self.to_remove.add(record.key or "")
            self.wake()
            return
        assert isinstance(message, NodeReport)
        problem = nonsense(message)
        if problem is not None:
            self.bus.metrics.dead.labels(record.topic).inc()
            _log.error("a report makes no sense", node=message.node, problem=problem)
            return
        self.to_remove.discard(message.node)
        is_fresh = self.reports.caught_up.is_set()
        age_s = 0.0 if is_fresh else max(time.time() - message.at.timestamp(), 0.0)
        self.clashes.report(message, now - age_s)
        self._note_clash(message.node, now)
        self.state.report(message, now)
        node = self.nodes[message.node]
        if is_fresh and node.report is message:
            self._receive(message.node, message.journal, now, is_new=node.knows_lease)
        self.wake()

    def _note_clash(self, name: str, now: float) -> Clash | None:
        """Whether two machines report under the node's name."""
        node, clash = self.nodes.get(name), self.clashes.look(name, now)
        before = None if node is None else node.clash
        if clash == before:
            return clash
        if before is None and clash is not None:
            _log.error("two machines report under one name", node=name, addresses=clash.addresses)
        elif clash is None:
            _log.info("one machine reports under the name again", node=name)
        self.state.ledger.clash(name, clash, now)
        self.wake()
        return clash

    def on_setting(self, record: Received, message: Model | None) -> None:
        """An operator's order about a node, or the setting of virtual clusters and policy; or a
        tombstone, which removes it.
        """
        key = record.key or ""
        is_scheduling = key == SCHEDULING_SETTING
        if not (is_scheduling or key.startswith(NODE_SETTING)):
            return
        if not self._newest.is_news(record, message):
            return
        if is_scheduling:
            self._set(record, message)
            return
        order = Order.NONE
        if isinstance(message, SettingChanged):
            order = NodeOrder.model_validate(message.value).order
        self.state.order(key.removeprefix(NODE_SETTING), order)
        self.wake()

    def _set(self, record: Received, message: Model | None) -> None:
        revision = revision_of(record, message)
        if isinstance(message, SettingChanged):
            config = SchedulingConfig.model_validate(message.value)
            self.setting = Setting(message.revision, config.version, config.content)
        elif revision is not None:
            self.setting = Setting(revision)
        elif self.setting is not None:  # a tombstone that REST did not publish
            self.setting = Setting(self.setting.revision + 1)
        self.wake()

    def received_setting(self) -> Setting | None:
        """The setting of virtual clusters and policy; None if not all records were read yet, or
        none was received.
        """
        return self.setting if self.orders.caught_up.is_set() else None

    def on_heartbeat(self, record: Received, message: Model | None) -> None:
        """A node's heartbeat, or this process's probe."""
        now = time.monotonic()
        if not isinstance(message, NodeHeartbeat):
            return
        if message.probe is not None:
            if message.probe == self._probe:
                self.leases.probe_received(record.partition, now)
        elif message.node:
            is_new = self.leases.is_current(record.partition)
            self._receive(message.node, message.journal, now, is_new=is_new)

    def _receive(self, node: str, journal: str, now: float, *, is_new: bool) -> None:
        """``is_new``: sent after a previous leader lost the node, if it did. In a clash only the
        machine that the placements name keeps the node alive.
        """
        if node in self.nodes and self.nodes[node].is_of_others(journal):
            return
        was_alive = node in self.nodes and self.nodes[node].is_alive
        since, before = now, self.received.get(node)
        if before is not None and before.journal == journal:
            since = before.since
        else:
            self.to_lose_forgotten.discard(node)
        self.received[node] = Voice(now, journal, since)
        if self.state.ledger.receive(node, journal, now):
            if not is_new:
                return
            self.to_return.add(node)
        self.leases.receive(node, now)
        self.to_lose.discard(node)
        if not was_alive:
            self.wake()

    @property
    def has_news(self) -> bool:
        """The decider has nodes to process."""
        return bool(self.to_lose or self.to_lose_forgotten or self.to_return or self.to_remove)

    def settle(self) -> None:
        """Drop the entries that no longer hold."""
        nodes = self.nodes
        self.to_lose_forgotten &= self.state.ledger.forgetful
        self.to_lose = {n for n in self.to_lose if n in nodes and not nodes[n].is_lost}
        self.to_return = {n for n in self.to_return if n in nodes and nodes[n].is_lost}
        self.to_remove = {n for n in self.to_remove if n in nodes and not nodes[n].is_alive}

    # Leading.

    def take_lead(self) -> None:
        """This process leads from now on: findings of its earlier lead are void."""
        self.to_lose.clear()
        self.to_lose_forgotten.clear()
        self.to_return.clear()
        self.begin_anew()

    def begin_anew(self) -> None:
        """A new leader, bus or reader: earlier silence does not count, nor do probes under way."""
        self._times_begun += 1
        self.leases.begin_anew(time.monotonic())

    @property
    def _probe(self) -> str:
        return f"{self.holder}/{self._times_begun}"

    def pass_on(self, state: Stored) -> None:
        """Pass nodes' reports and operators' orders to a state that is being restored."""
        now = time.monotonic()
        for node in self.nodes.values():
            if node.clash is not None:
                state.ledger.clash(node.name, node.clash, now)
            for report in (node.report, node.rival):
                if report is not None:
                    state.report(report, now)
        for name, order in self.state.orders.items():
            state.order(name, order)

    def adopt(self, state: Stored) -> None:
        """Receive for the restored state from now on, and pass all earlier messages to it."""
        self.pass_on(state)
        self.state = state
        self.recall(self.received)

    def recall(self, nodes: Iterable[str]) -> None:
        """Pass these nodes' heartbeats to the state again: it lacked the stored rows then. A lost
        node returns only by a later heartbeat, as this one may precede the loss.
        """
        now = time.monotonic()
        for name in nodes:
            voice = self.received.get(name)
            if voice is not None and self._is_fresh(voice.at, now):
                self.state.ledger.receive(name, voice.journal, now)

    def lead(self, nodes: Iterable[KnownNode]) -> None:
        """Judge leases from now on, by the messages received so far. Nodes that are lost already
        are left out.
        """
        now, lost = time.monotonic(), set()
        for known in nodes:
            if known.is_lost and known.node not in self.to_return:
                lost.add(known.node)
                self.leases.forget(known.node)
            elif known.node not in self.leases.received:
                self.leases.receive(known.node, now)
        for name, voice in self.received.items():
            if name in lost:
                continue
            if self._is_fresh(voice.at, now):
                self.leases.receive(name, voice.at)
            else:  # while this process stood by, where silence is not judged
                self.state.ledger.doubt(name)
        for name in self.to_lose:
            self.leases.forget(name)

    def _is_fresh(self, at: float, now: float) -> bool:
        return now - at < self.settings.lease_timeout_s

    def receives_from_bus(self) -> bool:
        """This process's own messages come back to it, on every partition."""
        partitions = self.heartbeats.partitions.get(HEARTBEAT, 0)
        is_round = self.leases.is_round(partitions, time.monotonic())
        self.metrics.probe_round.set(is_round)
        return is_round

    def judge(self) -> None:
        """Find silent nodes, and journals that nodes have lost. The leader calls it every
        ``watch_s``.
        """
        restarts = self.heartbeats.restarts + self.reports.restarts
        if restarts != self._restarts:
            self._restarts = restarts
            self.begin_anew()
        partitions = self.heartbeats.partitions.get(HEARTBEAT, 0)
        now = time.monotonic()
        judgement = self.leases.judge(partitions, now)
        self._note(judgement)
        self.to_lose.update(judgement.lost)
        self.to_lose_forgotten.update(
            name for name in self.state.ledger.forgetful if self._has_lost_journal(name, now)
        )
        if judgement.lost or self.to_lose_forgotten:
            self.wake()

    def _has_lost_journal(self, name: str, now: float) -> bool:
        """For a lease's length only the report's journal has sent heartbeats. Another machine of
        the same name, which may run the pods, would have sent one too.
        """
        report, voice = self.nodes[name].report, self.received.get(name)
        if report is None or voice is None or voice.journal != report.journal:
            return False
        return self.leases.is_over(voice.since, now)

    def _note(self, judgement: Judgement) -> None:
        self.metrics.withheld.set(len(judgement.withheld))
        if judgement.is_round != self._was_round:
            self._was_round = judgement.is_round
            _log.info("the probe comes round" if self._was_round else "the probe does not return")
        if judgement.withheld != self._withheld:
            self._withheld = judgement.withheld
            if judgement.withheld:
                _log.error(
                    "too many nodes are silent at once; none is declared lost."
                    " Look at the network between nodes and bus; if they are gone for good,"
                    " restart with MUSTER_MANY_SILENT=1",
                    nodes=judgement.withheld,
                )

    async def probe(self) -> None:
        """Send the probe to every partition; a partition that is away gets the next one."""
        partitions = self.heartbeats.partitions.get(HEARTBEAT, 0)
        message = NodeHeartbeat(node="", probe=self._probe).model_dump_json(exclude_defaults=False)
        at = time.time()
        records = [
            Outgoing(
                HEARTBEAT, key, message.encode(), f"scheduler/probe/{key}/{int(at * 1000)}", at
            )
            for key in probe_keys(partitions)
        ]
        for failure in await self.bus.publish(records):
            if failure is not None:
                _log.debug("the probe was not published", error=str(failure))

    async def publish(self, known: dict[str, KnownNode]) -> None:
        """Publish lost nodes and clashing names every minute, and returned nodes until they name
        their lease. A tombstone on the reports' topic, which all read, removes a node that was lost
        long ago.
        """
        now, at, due = time.monotonic(), time.time(), list[Outgoing]()
        for node in self.nodes.values():
            clash = None if node.clash is None else self._note_clash(node.name, now)
            if clash is None:
                self.clashes_published.pop(node.name, None)
            elif notice := self._clash_notice(node.name, clash, now, at):
                due.append(notice)
            row = known.get(node.name)
            if row is None or (row.lease, row.is_lost) != (node.lease, node.is_lost):
                continue  # not committed yet
            if node.lease == 0:
                continue
            if node.is_lost:
                repeat_s = self.settings.lost_repeat_s
            elif node.is_alive and not node.knows_lease:
                repeat_s = self.settings.returned_repeat_s
            else:
                self.published_at.pop(node.name, None)
                continue
            if now - self.published_at.get(node.name, -repeat_s) >= repeat_s:
                self.published_at[node.name] = now
                due.append(self._notice_record(row, at))
        for first in range(0, len(due), NOTICES):
            await self._publish_all(due[first : first + NOTICES])

    def _clash_notice(self, node: str, clash: Clash, now: float, at: float) -> Outgoing | None:
        """None: it was published less than a minute ago."""
        since, published_at = self.clashes_published.get(
            node, (moment(at - (now - clash.since)), -math.inf)
        )
        if now - published_at < self.settings.lost_repeat_s:
            return None
        self.clashes_published[node] = since, now
        (journal, other_journal), (address, other_address) = clash.journals, clash.addresses
        notice = NodeNameClashed(
            node=node,
            journal=journal,
            address=address,
            other_journal=other_journal,
            other_address=other_address,
            since=since,
            at=moment(at),
        )
        event_id = f"{Service.SCHEDULER.value}/{CLASHED}/{node}/{int(at * 1000)}"
        return Outgoing(CLASHED, node, notice.model_dump_json().encode(), event_id, at)

    def _notice(self, row: KnownNode, at: float) -> tuple[str, NodeLost | NodeReturned | None]:
        node = self.nodes[row.node]
        if not node.is_lost:
            return RETURNED, NodeReturned(node=row.node, lease=node.lease, at=moment(at))
        since = row.lost_since or moment(at)
        lost_s = max(at - since.timestamp(), 0.0)  # the two clocks may differ
        if lost_s > self.settings.lost_kept_days * DAY_S:
            return REPORTED, None
        pods = sorted(node.holds)
        return LOST, NodeLost(
            node=row.node,
            lease=node.lease,
            since=since,
            silent_s=round(lost_s + self.settings.lease_timeout_s, 1),
            pods=tuple(pods[:PODS_NAMED]),
        )

    def _notice_record(self, row: KnownNode, at: float) -> Outgoing:
        topic, message = self._notice(row, at)
        value = None if message is None else message.model_dump_json(exclude_none=True).encode()
        event_id = f"{Service.SCHEDULER.value}/{topic}/{row.node}/{row.lease}"
        return Outgoing(topic, row.node, value, event_id, at)

    async def _publish_all(self, notices: Sequence[Outgoing]) -> None:
        """All at once: one after the other would delay the check of leases."""
        for notice, failure in zip(notices, await self.bus.publish(notices), strict=True):
            if failure is not None:
                why = str(failure)
                _log.debug(
                    "a notice was not published; it is repeated", topic=notice.topic, error=why
                )


def probe_keys(partitions: int) -> list[str]:
    """One key for each partition, by the producers' own hash."""
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < partitions:
        keys.setdefault(partition_of(f"probe-{number}", partitions), f"probe-{number}")
        number += 1
    return [keys[partition] for partition in range(partitions)]
