"""The wiring of the Scheduler: it stands by and listens to nodes, and decides while it leads."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from muster.contracts.topics import Service
from muster.db import is_transient
from muster.errors import Transient
from muster.readers import Consumer
from muster.service import Runtime, run_service
from muster.settings import read

from scheduler import leadership
from scheduler.api.routes import routes
from scheduler.api.views import state_of
from scheduler.decider import Decider
from scheduler.handlers import TOPICS_HEARD, words_beside
from scheduler.leadership import Deposed
from scheduler.settings import SchedulerSettings

_log = structlog.get_logger()


class Candidate:
    """Takes the lead when nobody has it, and gives it up when it stops."""

    def __init__(self, runtime: Runtime, settings: SchedulerSettings, decider: Decider) -> None:
        self._runtime = runtime
        self._settings = settings
        self._decider = decider
        handler = words_beside(decider.deciding)
        self._consumer: Consumer = runtime.consumer(TOPICS_HEARD, handler, decider.words_came)

    async def run(self) -> None:
        """Stand by, lead, stand by again; until cancelled."""
        while True:
            try:
                epoch = await self._take()
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("leadership can't be looked at", error=str(error))
                epoch = None
            if epoch is None:
                await asyncio.sleep(self._settings.leader_renew_s)
            else:
                await self._lead(epoch)

    async def _take(self) -> int | None:
        async with self._runtime.pool.acquire() as conn:
            return await leadership.take(conn, self._decider.holder, self._settings)

    async def _lead(self, epoch: int) -> None:
        decider, metrics = self._decider, self._decider.metrics
        decider.epoch = epoch
        _log.info("this process decides now", epoch=epoch, holder=decider.holder)
        metrics.epoch.set(epoch)
        decider.watch.begin_anew()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew(epoch), name="renew")
                tasks.create_task(decider.run(), name="decide")
                tasks.create_task(self._watch(), name="watch")
                tasks.create_task(self._consumer.run(), name="consumer")
        except* Deposed:
            _log.warning("another process decides now", epoch=epoch)
        except* (OSError, Transient) as errors:  # what did not end in time, among others
            _log.warning("this process stands by again", errors=[str(e) for e in errors.exceptions])
        finally:
            decider.is_leading = False
            metrics.is_leader.set(0)

    async def _renew(self, epoch: int) -> None:
        while True:
            await asyncio.sleep(self._settings.leader_renew_s)
            try:
                async with self._runtime.pool.acquire() as conn:
                    has_words = await leadership.renew(
                        conn, epoch, self._decider.holder, self._settings
                    )
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("leadership can't be renewed", error=str(error))
            else:
                if has_words:
                    self._decider.words_came(0)

    async def _watch(self) -> None:
        watch = self._decider.watch
        probed = -self._settings.probe_s
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - probed >= self._settings.probe_s:
                probed = loop.time()
                await watch.probe()
            watch.judge()
            await watch.tell(self._decider.known)
            self._measure()
            await asyncio.sleep(self._settings.watch_s)

    def _measure(self) -> None:
        cluster, metrics = self._decider.cluster, self._decider.metrics
        counts = dict.fromkeys(("alive", "lost", "stopping", "unhealthy", "unknown"), 0)
        for node in cluster.nodes.values():
            counts[state_of(node)] += 1
        for state, count in counts.items():
            metrics.nodes.labels(state).set(count)
        usable = [node for node in cluster.nodes.values() if node.is_eligible]
        metrics.gpus.labels("healthy").set(sum(node.healthy.bit_count() for node in usable))
        metrics.gpus.labels("free").set(cluster.free.gpus)
        metrics.waiting.set(cluster.queue.size)
        metrics.gangs.set(len(cluster.gangs))
        metrics.placements.set(len(cluster.holds))

    async def resign(self) -> None:
        """Let the standby decide at once, instead of after some seconds."""
        decider = self._decider
        if decider.epoch:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(self._settings.leader_renew_s):
                    async with self._runtime.pool.acquire() as conn:
                        await leadership.resign(conn, decider.epoch, decider.holder)


@asynccontextmanager
async def build(runtime: Runtime) -> AsyncIterator[None]:
    """Set the Scheduler up; its tasks run until the stop."""
    settings = runtime.settings
    assert isinstance(settings, SchedulerSettings)
    holder = f"{settings.instance}/{secrets.token_hex(4)}"
    decider = Decider(runtime, settings, holder)
    candidate = Candidate(runtime, settings, decider)
    runtime.spawn("reports", decider.watch.reports.run)
    runtime.spawn("heartbeats", decider.watch.heartbeats.run)
    runtime.spawn("candidate", candidate.run)
    runtime.routes.extend(routes(decider, settings))
    try:
        yield
    finally:
        await candidate.resign()


def main() -> None:
    """Run the service until it is told to stop."""
    settings = read(SchedulerSettings)
    run_service(Service.SCHEDULER, settings, settings.http_port, build)
