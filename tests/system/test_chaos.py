"""One long run of random trouble: kills, pauses, stops, restores and bus losses amid many jobs.

`make test-chaos` runs it. MUSTER_CHAOS_EVENTS is the number of events; MUSTER_TEST_SEED chooses
them.
"""

import asyncio
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from job_stream import Jobs, a_seed, errors
from parts_of_muster import PARTS, Parts, parts_up, send

pytestmark = [pytest.mark.system, pytest.mark.chaos, pytest.mark.timeout(0)]

EVENTS = int(os.environ.get("MUSTER_CHAOS_EVENTS", "1000"))
OPEN_JOBS = 20
"""New jobs wait while so many have not ended."""
AT_ONCE = 3
"""Events that overlap, each on parts of its own."""
BACKUPS = 6
SHOW_S = 10.0
QUIET_S = 900.0
SCHEMAS = ("rest", "launcher", "scheduler", "alerting")


@dataclass
class Chaos:
    """The trouble. An event holds the lock of each part that it touches; `done` counts them.
    `backups`: of what, where, and which jobs were over then. `has_lost_jobs`: REST's rows were put
    back.
    """

    parts: Parts
    jobs: Jobs
    rng: random.Random
    say: Callable[[str], None]
    locks: dict[str, asyncio.Lock] = field(
        default_factory=lambda: {part: asyncio.Lock() for part in PARTS}
    )
    backups: list[tuple[str, Path, set[str]]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    has_lost_jobs: bool = False
    made: int = 0

    async def run(self, events: int) -> None:
        """So many events; some of them at the same time."""
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for _ in range(events):
                await places.acquire()
                group.create_task(self._event()).add_done_callback(lambda _: places.release())
                await asyncio.sleep(self.rng.uniform(0.5, 4.0))

    async def _event(self) -> None:
        part = self.rng.choice(PARTS)
        kinds: dict[Callable[[str], Awaitable[str]], int] = {
            self._kill: 30,
            self._pause: 25,
            self._stop: 15,
            self._back_up: 12,
            self._restore: 8,
            self._kill_supervisor: 5,
        }
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        self.done[await kind(part)] += 1

    async def _kill(self, part: str) -> str:
        async with self.locks[part]:
            self.parts.kill(part)
        return f"kill {part}"

    async def _pause(self, part: str) -> str:
        async with self.locks[part], self.parts.frozen(part):
            await asyncio.sleep(self.rng.uniform(0.5, 8.0))
        return f"pause {part}"

    async def _stop(self, part: str) -> str:
        async with self.locks[part]:
            if part in self.parts.programs:
                await self.parts.stop(part)
                await asyncio.sleep(self.rng.uniform(0.0, 5.0))
                self.parts.start(part)
            else:
                server = self.parts.broker if part == "kafka" else self.parts.postgres
                server.stop()
                await asyncio.sleep(self.rng.uniform(0.0, 5.0))
                server.start()
        return f"stop {part}"

    async def _kill_supervisor(self, _part: str) -> str:
        found = self.parts.supervisors()
        send(self.rng.sample(found, min(1, len(found))), signal.SIGKILL)
        return "kill supervisor"

    async def _back_up(self, _part: str) -> str:
        what = self.rng.choice(("snapshot", "base backup", *SCHEMAS))
        self.made += 1
        to, over = self.parts.home / f"backup-{self.made}", self.jobs.over()
        async with self.locks["database"]:
            if what == "snapshot":
                await self.parts.disk_snapshot(to)
            elif what == "base backup":
                await self.parts.base_backup(to)
            else:
                await self.parts.dump(what, to)
        self.backups.append((what, to, over))
        if len(self.backups) > BACKUPS:
            _, oldest, _ = self.backups.pop(0)
            await asyncio.to_thread(_remove, oldest)
        return f"back up {what}"

    async def _restore(self, _part: str) -> str:
        if not self.backups:
            return "no backup yet"
        what, backup, over = self.backups.pop(self.rng.randrange(len(self.backups)))
        if what not in ("launcher", "scheduler", "alerting"):
            self.has_lost_jobs = True
            self.jobs.forgotten |= self.jobs.wanted.keys() - over
        is_bus_lost = self.rng.random() < 0.3
        async with self.locks["database"]:
            if is_bus_lost:
                async with self.locks["kafka"]:
                    self.parts.broker.kill()
                    await self._put_back(what, backup)
                    self.parts.broker.start()
            else:
                await self._put_back(what, backup)
        await asyncio.to_thread(_remove, backup)
        return f"restore {what}" + " and lose the bus" * is_bus_lost

    async def _put_back(self, what: str, backup: Path) -> None:
        self.say(f"    puts back {what}")
        if what in ("snapshot", "base backup"):
            self.parts.put_back_server(backup, kills=self.rng.random() < 0.5)
            return
        if self.rng.random() < 0.5:
            await self.parts.put_back_schema(what, backup)
            return
        async with self.locks[what]:
            await self.parts.stop(what)
            await self.parts.put_back_schema(what, backup)
            self.parts.start(what)


def _remove(backup: Path) -> None:
    if backup.is_dir():
        shutil.rmtree(backup)
    else:
        backup.unlink()


async def keep_coming(jobs: Jobs, rng: random.Random, is_over: asyncio.Event) -> None:
    """Jobs at a modest rate, each until it is accepted."""
    while not is_over.is_set():
        await jobs.look()
        await jobs.stop_some(0.2)
        for _ in range(OPEN_JOBS - jobs.open()):
            await jobs.submit()
            await asyncio.sleep(rng.uniform(0.0, 1.0))
        await asyncio.sleep(1.0)


async def show(chaos: Chaos, jobs: Jobs, seed: int, say: Callable[[str], None]) -> None:
    """A line every some seconds, until cancelled."""
    started = time.monotonic()
    while True:
        states = Counter(jobs.states.values())
        say(
            f"{time.monotonic() - started:.0f} s: {chaos.done.total()} of {EVENTS} events,"
            f" {len(jobs.wanted)} jobs submitted, {dict(states)}, seed {seed}"
        )
        await asyncio.sleep(SHOW_S)


async def test_whatever_happens_all_jobs_end_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = a_seed()

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nseed {seed}, {EVENTS} events, over {tmp_path}")
    rng = random.Random(seed)
    async with parts_up(tmp_path / "home", lambda _: None) as (parts, http):
        jobs = Jobs(http, parts, random.Random(seed + 1))
        chaos = Chaos(parts, jobs, rng, say)
        shown = asyncio.create_task(show(chaos, jobs, seed, say))
        is_over = asyncio.Event()
        coming = asyncio.create_task(keep_coming(jobs, rng, is_over))
        try:
            await chaos.run(EVENTS)
            is_over.set()
            await coming
            say(f"events: {dict(sorted(chaos.done.items()))}")
            await jobs.end_right(seed, QUIET_S, may_be_gone=chaos.has_lost_jobs)
        finally:
            coming.cancel()
            shown.cancel()
            errors(parts.home / "log", say)
