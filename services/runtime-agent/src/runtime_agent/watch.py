"""The agent's loops around its handlers: carry out, look, republish, clean up.

Each survives a full disk and a process that can't be started: it retries what failed. The clean-up
retries what failed of removals.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

import structlog
from muster.contracts.model import Model
from muster.contracts.notices import REDRIVE_SETTING, RESYNC_SETTING, SettingChanged
from muster.contracts.services import ServiceStarted
from muster.contracts.topics import Service
from muster.metrics import PlumbingMetrics
from muster.newest import Newest
from muster.records import Received

from runtime_agent.domain.pods import Effect, Forget, Launch, Phase, Stop
from runtime_agent.handlers import Handlers
from runtime_agent.metrics import AgentMetrics
from runtime_agent.pod_files import PodFiles, Remains
from runtime_agent.runner import Runner, Seen
from runtime_agent.settings import MEBIBYTE, AgentSettings
from runtime_agent.store import SPARE_BYTES

SHORTEST_WAIT_S = 0.02
LONGEST_WAIT_S = 60.0
LOOKS_APART_S = 0.01
RETURNS_APART_S = 0.5
REQUEST_SETTINGS = (REDRIVE_SETTING, RESYNC_SETTING)
DOORBELL_BYTES = 64 * 1024

_log = structlog.get_logger()


class Doorbell:
    """A named pipe into which supervisors write the name of a pod that has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_fifo():
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def listen(self, on_names: Callable[[set[str]], None]) -> None:
        """Calls back in this loop with the pods that have rung."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, lambda: on_names(self._read()))

    def _read(self) -> set[str]:
        try:
            content = self._rest + os.read(self._descriptor, DOORBELL_BYTES)
        except BlockingIOError:
            return set()
        *names, self._rest = content.split(b"\n")
        return {name.decode(errors="replace") for name in names}

    def close(self) -> None:
        """Later rings have no effect."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


@dataclass
class Watch:
    """The loops and their shared state. No pod is launched while `caught_up` is not set: the reader
    may still find the request that revokes the launch.
    """

    handlers: Handlers
    runner: Runner
    files: PodFiles
    settings: AgentSettings
    metrics: AgentMetrics
    plumbing: PlumbingMetrics
    caught_up: asyncio.Event
    _newest: Newest = field(default_factory=Newest)
    _requests: dict[str, int] = field(default_factory=dict)
    _has_requests: asyncio.Event = field(default_factory=asyncio.Event)
    _restored: ServiceStarted | None = None
    _rung: set[str] = field(default_factory=set)
    _has_rung: asyncio.Event = field(default_factory=asyncio.Event)
    _accepted_s: dict[str, float] = field(default_factory=dict)
    _removal: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ring(self, names: set[str]) -> None:
        """These pods have changed."""
        self._rung |= names
        self._has_rung.set()

    async def run_effects(self) -> None:
        """Carry out what was decided, in its order."""
        while True:
            await self.handlers.has_effects.wait()
            self.handlers.has_effects.clear()
            while self.handlers.effects:
                self._carry_out(self.handlers.effects.popleft())
                await asyncio.sleep(0)  # a batch of launches must not hold up everything else

    def carry_out_all(self) -> None:
        """Carry out what waits, when the loops have ended."""
        while self.handlers.effects:
            self._carry_out(self.handlers.effects.popleft())

    def _carry_out(self, effect: Effect) -> None:
        """The next look retries what fails here, the next clean-up a `Forget`."""
        try:
            match effect:
                case Launch(pod):
                    self._accepted_s[pod.pod] = time.monotonic()
                    entry = self.handlers.memory.entries.get(pod.pod)
                    is_wanted = entry is not None and entry.is_live and entry.pod.stop is None
                    if is_wanted and self.caught_up.is_set():  # else a later look launches it
                        self.runner.launch(pod)
                case Stop(name, stopping):
                    self.runner.stop(name, stopping)
                case Forget(name):
                    self.runner.forget(name)
                case never:
                    assert_never(never)
        except (OSError, ValueError) as error:
            self.metrics.effects_failed.labels(type(effect).__name__.lower()).inc()
            _log.error("an effect failed", effect=type(effect).__name__, error=str(error))

    async def run_looks(self) -> None:
        """Look at pods when they ring, and at all of them at intervals."""
        looked_s = rung_s = 0.0
        while True:
            # One look at many pods costs the journal one write; a single ring need not wait.
            await asyncio.sleep(max(0.0, rung_s + LOOKS_APART_S - time.monotonic()))
            rung_s = time.monotonic()
            is_full = time.monotonic() - looked_s >= self.settings.pod_look_s
            if is_full:
                looked_s = time.monotonic()
            self.look(None if is_full else self._rung)
            try:
                async with asyncio.timeout(
                    max(SHORTEST_WAIT_S, looked_s + self.settings.pod_look_s - time.monotonic())
                ):
                    await self._has_rung.wait()
            except TimeoutError:
                pass

    def look(self, names: set[str] | None) -> list[Seen]:
        """Look at these pods, or at all live ones; what was seen."""
        self._has_rung.clear()
        queued = {e.pod.pod for e in self.handlers.effects if isinstance(e, Launch)}
        live = [e.pod for e in self.handlers.live() if e.pod.pod not in queued]
        if not self.caught_up.is_set():  # a look launches what has not begun
            live = [pod for pod in live if pod.phase is not Phase.ACCEPTED or pod.stop is not None]
        chosen = [pod for pod in live if names is None or pod.pod in names]
        self._rung = set()
        seen: list[Seen] = []
        for pod in chosen:
            try:
                seen += self.runner.look([pod])
            except (OSError, ValueError) as error:
                self.metrics.effects_failed.labels("look").inc()
                _log.error("a pod can't be looked at", pod=pod.pod, error=str(error))
        if seen:
            # What the journal does not take is seen again by the next full look.
            with self._counting_failures():
                self._count(self.handlers.on_seen(seen))
        return seen

    def _count(self, rules: Mapping[str, str]) -> None:
        """`rules`: of the verdicts of those pods that have ended."""
        for name, rule in rules.items():
            _log.info("a pod's verdict", pod=name, rule=rule)
            self._accepted_s.pop(name, None)
            self.metrics.ended.labels(rule).inc()
        phases = [entry.pod.phase for entry in self.handlers.live()]
        for phase in (Phase.ACCEPTED, Phase.RUNNING):
            self.metrics.pods.labels(phase.value).set(phases.count(phase))
        for entry in self.handlers.live():
            if entry.pod.phase is Phase.RUNNING and entry.pod.pod in self._accepted_s:
                waited_s = time.monotonic() - self._accepted_s.pop(entry.pod.pod)
                self.metrics.start_seconds.observe(waited_s)

    async def run_times(self) -> None:
        """Republish and acknowledge what is due."""
        allowance, looked_s = float(self.settings.repeats_per_s), time.monotonic()
        while True:
            self.handlers.has_times.clear()
            now_s = time.monotonic()
            rate = self.settings.repeats_per_s
            allowance, looked_s = min(rate, allowance + rate * (now_s - looked_s)), now_s
            wait_s: float | None = self.settings.retry_s
            with self._counting_failures():
                republished, wait_s = self.handlers.on_time(int(allowance))
                allowance -= republished
                self.plumbing.repeated.inc(republished)
                self.plumbing.unacknowledged.set(self.handlers.unacknowledged())
            await self._until_due(wait_s)

    async def _until_due(self, wait_s: float | None) -> None:
        wait_s = min(LONGEST_WAIT_S if wait_s is None else wait_s, LONGEST_WAIT_S)
        await asyncio.sleep(SHORTEST_WAIT_S)
        try:
            async with asyncio.timeout(max(0.0, wait_s - SHORTEST_WAIT_S)):
                await self.handlers.has_times.wait()
        except TimeoutError:
            pass

    async def run_returns(self, has_begun: asyncio.Event, has_returned: asyncio.Event) -> None:
        """Publish which pods are there: at the start, and when a lost node has returned."""
        await has_begun.wait()
        while True:
            with self._counting_failures():
                self.handlers.on_return()
            await has_returned.wait()
            await asyncio.sleep(RETURNS_APART_S)
            has_returned.clear()

    def on_setting(self, record: Received, message: Model | None) -> None:
        """A setting of the cluster; settings for other services have no effect here."""
        if not isinstance(message, SettingChanged) or message.setting not in REQUEST_SETTINGS:
            return
        if self._newest.is_news(record, message):
            self._requests[message.setting] = message.revision
            self._has_requests.set()

    async def run_requests(self, has_begun: asyncio.Event) -> None:
        """Do what an operator requests; retry what the journal does not take."""
        await has_begun.wait()
        while True:
            await self._has_requests.wait()
            self._has_requests.clear()
            for setting, revision in list(self._requests.items()):
                with self._counting_failures():
                    self.handlers.on_operator(setting, revision)
                    if self._requests[setting] == revision:
                        del self._requests[setting]
            if self._restored is not None:
                with self._counting_failures():
                    restored, as_of = self._restored.restored, self._restored.lost_since
                    self.handlers.on_restored(restored, as_of)
                    self._restored = None
            if self._requests or self._restored:
                await asyncio.sleep(self.settings.retry_s)
                self._has_requests.set()

    def on_service(self, record: Received, message: Model | None) -> None:
        """The Launcher may have lost its state of the pods."""
        if not isinstance(message, ServiceStarted) or not self._newest.is_news(record, message):
            return
        if message.service == Service.LAUNCHER.value and message.restored:
            self._restored = message
            self._has_requests.set()

    def on_recovered(self, topic: str | None = None) -> None:
        """Messages that the bus may have lost are due again."""
        with self._counting_failures():
            self.handlers.on_recovered(topic)

    async def run_removals(self) -> None:
        """Take off the disk what was removed."""
        while True:
            await self.files.has_doomed.wait()
            await self._remove_doomed()

    async def _remove_doomed(self) -> None:
        async with self._removal:
            with self._counting_removals():
                await self.files.remove_doomed()

    async def run_cleaning(self) -> None:
        """Take out what is too old."""
        while True:
            await asyncio.sleep(self.settings.clean_s)
            with self._counting_failures():
                await self.clean(time.time())

    def see_to_reserve(self) -> None:
        """Have the journal reserve what it needs on a full disk, and set the metric of it."""
        with self._counting_failures():
            left = self.handlers.memory.journal.keep_reserve()
            self.metrics.journal_reserve_bytes.set(left)
            if left < SPARE_BYTES:
                _log.warning("the disk has no room for the journal's reserve", bytes_left=left)

    async def clean(self, now_s: float) -> None:
        """Names that ended long ago leave the journal; logs that are too old or too large, and what
        earlier removals have left, leave the disk.

        A directory is removed only after its name has left the journal, for it guards the name too.
        """
        settings, journal = self.settings, self.handlers.memory.journal
        remains = await asyncio.to_thread(self.files.remains)
        # First what writes no journal: on a full disk it takes nothing.
        self._forget_again(remains)
        await self._remove_doomed()
        await self._drop_work(remains)
        await self._drop_logs(remains)
        before = datetime.fromtimestamp(now_s - settings.keep_ended_s, UTC)
        journal.drop_ended(before, settings.clean_pods)
        self.see_to_reserve()
        too_old_s = now_s - max(settings.keep_logs_s, settings.keep_ended_s)
        old = [each for each in remains if each.changed_s < too_old_s][: settings.clean_pods]
        known = journal.load(each.name for each in old)
        gone = [each for each in old if each.name not in known]
        for each in gone:
            with self._counting_removals():
                self.files.remove(each.name)

    def _forget_again(self, remains: Sequence[Remains]) -> None:
        """For pods whose work is still there: it could not be removed, or the agent had ended."""
        left = self.handlers.memory.journal.load(each.name for each in remains if each.has_work)
        for name, entry in left.items():
            if entry.pod.is_forgotten and not entry.is_live:
                self._carry_out(Forget(name))

    async def _drop_work(self, remains: Sequence[Remains]) -> None:
        """Where the disk lacks space, ended pods lose their work directories before they are
        forgotten: the journal could not store the request to forget them.
        """
        for each in remains:
            if self._has_room():
                return
            has_work = self.files.work_path(each.name).is_dir()
            if has_work and not self.handlers.is_live(each.name):
                _log.info("removing a work directory, for the disk is full", pod=each.name)
                with self._counting_removals():
                    self.runner.forget(each.name)
                await self._remove_doomed()

    async def _drop_logs(self, remains: Sequence[Remains]) -> None:
        """The oldest ended pods lose their logs until all logs together fit their bound, and the
        disk has the free space that a healthy node needs.
        """
        total = sum(each.log_bytes for each in remains)
        live = {entry.pod.pod for entry in self.handlers.live()}
        for each in remains:
            if total <= self.settings.logs_max_mb * MEBIBYTE and self._has_room():
                break
            if each.name not in live and each.log_bytes:
                _log.info("removing logs, for all together are too large", pod=each.name)
                with self._counting_removals():
                    self.files.drop_logs(each.name)
                await self._remove_doomed()
                total -= each.log_bytes
        self.metrics.log_bytes.set(total)

    def _has_room(self) -> bool:
        free_bytes = shutil.disk_usage(self.files.root).free
        return free_bytes >= self.settings.disk_min_mb * MEBIBYTE

    @contextmanager
    def _counting_removals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.metrics.effects_failed.labels("remove").inc()
            _log.error("a removal failed; the next clean-up tries again", error=str(error))

    @contextmanager
    def _counting_failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self.metrics.journal_failures.inc()
            _log.error("the journal can't be written; trying again", error=str(error))
