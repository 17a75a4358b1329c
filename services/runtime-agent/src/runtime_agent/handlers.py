"""What the agent does with records, with what it sees of its pods, and with the passing of time.

Each is one step: decide in memory, write the journal, and only then say and do. A step that the
disk does not take has changed nothing and is tried again by its caller.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

import structlog
from muster.bus import Outgoing
from muster.contracts.notices import REDRIVE_SETTING, AppliedRevision
from muster.exchange import (
    ANSWER_AFTER,
    REPEAT_LONGEST,
    REPEAT_SPREAD,
    answered,
    publish,
    republish,
    resync,
)
from muster.records import Received

from runtime_agent.domain import pods as decide
from runtime_agent.domain.pods import Effect
from runtime_agent.runner import Seen
from runtime_agent.step import Memory, Step
from runtime_agent.store import Entry, Position

REPEAT_LATEST = REPEAT_LONGEST * (1 + REPEAT_SPREAD)

_log = structlog.get_logger()


class Handlers:
    """One function for each thing that can happen; they raise sqlite3.Error where the disk fails.

    `say` takes a record or an acknowledgement for the bus under a key, by which a newer one
    replaces it; `changed` is called when the node's report is outdated; `effects` is emptied by
    whoever carries them out, who is woken by `has_effects`; `has_times` wakes whoever calls
    `on_time`.
    """

    def __init__(
        self,
        memory: Memory,
        say: Callable[[str, Outgoing | AppliedRevision], None],
        changed: Callable[[], None],
    ) -> None:
        self.memory = memory
        self.effects: deque[Effect] = deque()
        self.has_effects = asyncio.Event()
        self.has_times = asyncio.Event()
        self._say = say
        self._changed = changed
        memory.entries = {entry.pod.pod: entry for entry in memory.journal.active()}

    def live(self) -> list[Entry]:
        """The pods that may hold something of the node."""
        return [entry for entry in self.memory.entries.values() if entry.is_live]

    def unacknowledged(self) -> int:
        """How many last words the Launcher has not named yet."""
        entries = self.memory.entries.values()
        return sum(entry.exchange.repeat_at is not None for entry in entries)

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

        A Launcher that has ended them meanwhile repeats its stop within a second of hearing that,
        however rarely it does so by now.
        """
        step = Step(self.memory)
        for entry in self.live():
            step.say_still_there(entry)
        if step.changed:
            self._commit(step)

    def on_operator(self, setting: str, revision: int) -> None:
        """An operator wants words said again: those that were refused, or all (once for each
        revision of the setting, also over restarts).
        """
        journal = self.memory.journal
        if revision <= journal.mark(setting):
            return
        step = Step(self.memory)
        entries = journal.refused() if setting == REDRIVE_SETTING else journal.unforgotten()
        for entry in entries:
            step.say_anew(entry, publish if setting == REDRIVE_SETTING else resync)
        _log.warning("an operator has words said again", setting=setting, words=len(step.said))
        self._commit(step, marks={setting: revision})

    def on_time(self, allowance: int) -> tuple[int, float | None]:
        """Says again and answers what is due, at most `allowance` words.

        How many words were said again, and in how many seconds the next is due (None: nothing is).
        """
        step = Step(self.memory)
        spoken = 0
        for entry in list(self.memory.entries.values()):
            spoken += _say_due(step, entry, may_repeat=spoken < allowance)
        if step.changed:
            self._commit(step)
        moments = [m for e in self.memory.entries.values() for m in _moments(e)]
        wait_s = (min(moments) - step.now).total_seconds() if moments else None
        return spoken, wait_s

    def on_new_bus(self) -> None:
        """The bus is another one: whatever is not acknowledged is said again at once."""
        step = Step(self.memory)
        for entry in self.memory.entries.values():
            if entry.exchange.repeat_at is not None:
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
        for key, word in step.said:
            self._say(key, word)
        if step.effects:
            self.effects.extend(step.effects)
            self.has_effects.set()
        self.has_times.set()
        if step.outdates_report:
            self._changed()


def _log_phase(before: Entry | None, now: Entry) -> None:
    if before is None or before.pod.phase is not now.pod.phase:
        _log.info("pod", pod=now.pod.pod, job=now.pod.job, phase=now.pod.phase.value)


def _say_due(step: Step, entry: Entry, *, may_repeat: bool) -> bool:
    """Whether a word was said again."""
    is_repeat = may_repeat and _is_due(entry.exchange.repeat_at, step.now, REPEAT_LATEST)
    if is_repeat:
        jitter = random.random()  # noqa: S311  jitter
        entry = replace(entry, exchange=republish(entry.exchange, step.now, jitter))
        step.keep(entry, say=True)
    if _is_due(entry.exchange.answer_at, step.now, ANSWER_AFTER):
        step.acknowledge(entry)
        step.keep(replace(entry, exchange=answered(entry.exchange)))
    return is_repeat


def _is_due(moment: datetime | None, now: datetime, latest: timedelta) -> bool:
    """Also what lies further ahead than it ever is put: then the clock was set back."""
    return moment is not None and not now < moment <= now + latest


def _moments(entry: Entry) -> list[datetime]:
    exchange = entry.exchange
    return [m for m in (exchange.repeat_at, exchange.answer_at) if m is not None]
