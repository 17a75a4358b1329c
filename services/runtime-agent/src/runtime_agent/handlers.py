"""What the agent does with records, with what it sees of its pods, and with the passing of time.

Each is one step: decide in memory, write the journal, and only then publish and act. A step that
the disk does not take has changed nothing; its caller retries it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

import structlog
from muster.acknowledgements import acknowledgements
from muster.channels import Outgoing
from muster.contracts.notices import REDRIVE_SETTING
from muster.exchange import Exchange, next_revision, reject_by_bus, resync
from muster.records import Received

from runtime_agent.domain import pods as decide
from runtime_agent.domain.pods import Effect
from runtime_agent.runner import Seen
from runtime_agent.step import ME, Memory, Step
from runtime_agent.store import Entry, Position

RESTORED = "launcher/restored"
"""The mark of the Launcher's last restore that was answered."""

_log = structlog.get_logger()


class Handlers:
    """One function for each thing that can happen; they raise sqlite3.Error where the disk fails.

    `send` takes records for the bus, once they are in the journal; `changed` is called when the
    node's report is outdated. `has_effects` wakes the loop that empties `effects` and carries them
    out; `has_times` wakes the one that calls `on_time`.
    """

    def __init__(
        self,
        memory: Memory,
        send: Callable[[Sequence[Outgoing]], None],
        changed: Callable[[], None],
    ) -> None:
        self.memory = memory
        self.effects: deque[Effect] = deque()
        self.has_effects = asyncio.Event()
        self.has_times = asyncio.Event()
        self._send = send
        self._changed = changed
        memory.entries = {entry.pod.pod: entry for entry in memory.journal.active()}

    def live(self) -> list[Entry]:
        """The pods that may hold something of the node."""
        return [entry for entry in self.memory.entries.values() if entry.is_live]

    def is_live(self, name: str) -> bool:
        """Whether the pod may hold something of the node."""
        entry = self.memory.entries.get(name)
        return entry is not None and entry.is_live

    def unacknowledged(self) -> int:
        """How many messages the Launcher has not acknowledged yet."""
        entries = self.memory.entries.values()
        return sum(entry.subject.exchange.repeat_at is not None for entry in entries)

    def knows(self, name: str) -> bool:
        """Whether the pod was there before."""
        return name in self.memory.entries or bool(self.memory.journal.load([name]))

    def on_records(
        self,
        records: Sequence[Received],
        positions: Iterable[Position],
        foreign_ports: frozenset[int],
    ) -> None:
        """A batch of this node's records, and where reading goes on after it."""
        step = Step(self.memory, foreign_ports)
        for record in records:
            step.take(record)
        self._commit(step, positions)

    def on_seen(self, seen: Iterable[Seen]) -> dict[str, str]:
        """What became of pods; for those that have ended, the rule of their verdict."""
        step = Step(self.memory)
        ended = {}
        for each in seen:
            entry = step.entry(each.pod)
            if entry is None or not entry.is_live:
                continue
            try:
                rule = step.see(entry, each)
            except Exception:  # a bug: one pod must not end the agent, and so all others
                _log.exception("what was seen of a pod can't be handled", pod=each.pod)
                continue
            if rule is not None:
                ended[each.pod] = rule
        if step.changed:
            self._commit(step)
        return ended

    def on_withdraw(self, grace_s: float) -> None:
        """The agent is asked to end and takes its pods down; it accepts no more."""
        self.memory.is_stopping = True
        step = Step(self.memory)
        for entry in self.live():
            step.put(entry, decide.withdrawn(entry.pod, grace_s))
        self._commit(step)
        self._changed()

    def on_return(self) -> None:
        """The agent was away, or was given up: it publishes again which pods are still there.

        A Launcher that has ended them meanwhile repeats its stop within a second of that message,
        however long its interval of repeats has become.
        """
        step = Step(self.memory)
        for entry in self.live():
            step.publish_still_there(entry)
        if step.changed:
            self._commit(step)

    def on_operator(self, setting: str, revision: int) -> None:
        """An operator wants messages published again: the rejected ones, or all. Each revision of
        the setting counts once, also over restarts.
        """
        journal = self.memory.journal
        if revision <= journal.mark(setting):
            return
        if setting == REDRIVE_SETTING:
            self._publish_again(setting, revision, journal.refused(), next_revision)
        else:
            self._publish_again(setting, revision, journal.unforgotten(), resync)

    def on_restored(self, restored: int, as_of: datetime) -> None:
        """The Launcher's database was restored to that time: the agent publishes again what the
        Launcher may have lost. Each restore counts once.
        """
        if restored != self.memory.journal.mark(RESTORED):
            lost = self.memory.journal.unforgotten(as_of)
            self._publish_again(RESTORED, restored, lost, next_revision)

    def _publish_again(
        self,
        mark: str,
        number: int,
        entries: Sequence[Entry],
        how: Callable[[Exchange, datetime], Exchange],
    ) -> None:
        step = Step(self.memory)
        for entry in entries:
            step.publish_again(entry, how)
        _log.warning("messages are republished", mark=mark, messages=len(step.outgoing))
        self._commit(step, marks={mark: number})

    def on_refused(self, name: str, revision: int) -> None:
        """The bus refuses a message for good."""
        entry = self.memory.entries.get(name)
        if entry is not None:
            step = Step(self.memory)
            after = reject_by_bus(entry.subject.exchange, revision)
            step.keep(replace(entry, subject=replace(entry.subject, exchange=after)))
            self._commit(step)

    def on_time(self, allowance: int) -> tuple[int, float | None]:
        """Sends what is due, at most `allowance` messages.

        How many were republished, and in how many seconds the next is due (None: nothing is).
        """
        step = Step(self.memory)
        republished = 0
        for entry in list(self.memory.entries.values()):
            jitter = random.random()  # noqa: S311  jitter
            may_repeat = republished < allowance
            republished += step.send_due(entry, jitter, may_repeat=may_repeat)
        if step.changed:
            self._commit(step)
        moments = [m for e in self.memory.entries.values() for m in _moments(e)]
        wait_s = (min(moments) - step.now).total_seconds() if moments else None
        return republished, wait_s

    def on_recovered(self, topic: str | None = None) -> None:
        """The bus is another one, or takes records of a topic again: unacknowledged messages are
        due now.
        """
        step = Step(self.memory)
        for entry in self.memory.entries.values():
            is_concerned = topic in (None, entry.subject.topic)
            if is_concerned and entry.subject.exchange.repeat_at is not None:
                step.repeat_now(entry)
        if step.changed:
            self._commit(step)

    def _commit(
        self,
        step: Step,
        positions: Iterable[Position] = (),
        marks: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Writes a step, then makes it what holds."""
        self.memory.journal.save(step.changed.values(), positions, step.letters, marks)
        entries = self.memory.entries
        for name, entry in step.changed.items():
            _log_phase(entries.get(name), entry)
            if entry.is_active:
                entries[name] = entry
            else:
                entries.pop(name, None)
        at = step.now.timestamp()
        self._send([*step.outgoing, *acknowledgements(ME, step.acknowledged, at)])
        if step.effects:
            self.effects.extend(step.effects)
            self.has_effects.set()
        self.has_times.set()
        if step.outdates_report:
            self._changed()


def _log_phase(before: Entry | None, now: Entry) -> None:
    if before is None or before.pod.phase is not now.pod.phase:
        _log.info("pod", pod=now.pod.pod, job=now.pod.job, phase=now.pod.phase.value)


def _moments(entry: Entry) -> list[datetime]:
    exchange = entry.subject.exchange
    return [m for m in (exchange.repeat_at, exchange.answer_at) if m is not None]
