"""Makes usage reports: of the week so far on request, and of each week once, soon after its end."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import structlog
from muster.bus import Bus
from muster.contracts.reports import UsageLine, UsageReported
from muster.db import Pool, is_transient, transaction
from muster.errors import Rejected, Transient
from pydantic import BaseModel

from rest.cluster import Cluster
from rest.domain.reports import WEEK, JobUse, Line, Report, begin_of, report, shortened, week_of
from rest.peers import Peers
from rest.settings import RestSettings
from rest.store import usage
from rest.store.usage import Known

TOPIC = "usage-reported"
NAMED = 15
"""How many virtual clusters, users and jobs a message names."""

_log = structlog.get_logger()


class JobSums(BaseModel):
    """What an agent knows of a job's GPU seconds."""

    gpu_known_s: float | None = None
    gpu_busy_s: float | None = None
    gpu_idle_s: float | None = None


class AgentSums(BaseModel):
    """What an agent tells of its jobs."""

    jobs: dict[str, JobSums]


@dataclass
class Reports:
    """Makes them from the read model and the agents' figures."""

    pool: Pool
    peers: Peers
    cluster: Cluster
    settings: RestSettings
    bus: Bus

    async def of(self, week: date) -> Report | None:
        """The report of a week that is over, or of this one so far; None: it is not made (yet)."""
        now = datetime.fromtimestamp(time.time(), UTC)
        since = begin_of(week)
        if week != week_of(now):
            async with self.pool.acquire() as conn:
                found = await usage.kept(conn, week)
            if found is None:
                return None
            return await asyncio.to_thread(report, found[0], since, since + WEEK, found[1])
        async with self.pool.acquire() as conn:
            held = await usage.held(conn, week, now)
        known, missing = await self._ask(since, now)
        nothing = Known()
        jobs = [_use(each, known.get(each.job, nothing)) for each in held]
        return await asyncio.to_thread(report, jobs, since, now, missing)

    async def run(self, nodes_are_read: asyncio.Event) -> None:
        """Make the report of each week until cancelled; retry transient failures. After a start it
        waits: what was published while REST was away is to be read first.
        """
        await nodes_are_read.wait()
        await asyncio.sleep(self.settings.usage_settle_s)
        while True:
            try:
                await self.make(week_of(datetime.fromtimestamp(time.time(), UTC) - WEEK))
            except Exception as error:
                if not (isinstance(error, Transient | Rejected) or is_transient(error)):
                    raise
                _log.warning("the usage report is tried again later", error=str(error))
            await asyncio.sleep(self.settings.maintenance_s)

    async def make(self, week: date) -> Report | None:
        """Make the report of a week that is over, and publish it, if no replica has made it or is
        making it. It may be published again where this process ends before it has noted that it
        was: Alerting knows it by its week. Raises Transient where the bus is away.
        """
        since, until = begin_of(week), begin_of(week) + WEEK
        async with transaction(self.pool) as conn:
            if not await usage.claim(conn, week):
                return None
            jobs = await usage.note_held(conn, week, until)
        if not jobs:
            await self._finish(week)
            return None
        known, missing = await self._ask(since, until)
        async with transaction(self.pool) as conn:
            await usage.note_known(conn, week, known, missing)
            used = await usage.jobs_of(conn, week)
        made = await asyncio.to_thread(report, used, since, until, missing)
        await self._publish(week, made)
        await self._finish(week)
        _log.info("the usage report of a week is made", week=str(week), jobs=jobs)
        return made

    async def _publish(self, week: date, made: Report) -> None:
        now_s = time.time()
        most = shortened(made, NAMED)
        message = UsageReported(
            week=week,
            total=_told(most.total),
            virtual_clusters=tuple(map(_told, most.virtual_clusters[:NAMED])),
            users=tuple(map(_told, most.users)),
            jobs=tuple(map(_told, most.jobs)),
            missing=len(made.missing),
            at=datetime.fromtimestamp(now_s, UTC),
        )
        ident = f"rest/usage/{week}"
        await self.bus.broadcast(TOPIC, str(week), message, event_id=ident, at=now_s)

    async def _finish(self, week: date) -> None:
        async with self.pool.acquire() as conn:
            await usage.finish(conn, week)

    async def _ask(self, since: datetime, until: datetime) -> tuple[Mapping[str, Known], list[str]]:
        """What all agents know of each job, and the nodes that did not tell."""
        agents = {each.report.node: each.report.log_url for each in self.cluster.nodes()}
        query = {"since": since.timestamp(), "until": until.timestamp()}
        answers, missing = await self.peers.ask_agents(agents, "/usage", query, _sums_in)
        for node, why in missing.items():
            _log.warning("a node's figures are missing", node=node, why=why[:200])
        sums: dict[str, Known] = {}
        for told in answers.values():
            for job, it in told.items():
                so_far = sums.get(job, Known())
                sums[job] = Known(
                    so_far.known_s + (it.gpu_known_s or 0.0),
                    so_far.busy_s + (it.gpu_busy_s or 0.0),
                    so_far.idle_s + (it.gpu_idle_s or 0.0),
                )
        return sums, sorted(missing)


def _sums_in(answer: Any) -> dict[str, JobSums]:
    return AgentSums.model_validate(answer).jobs


def _told(line: Line) -> UsageLine:
    return UsageLine(**line.shown())


def _use(held: usage.Held, known: Known) -> JobUse:
    return JobUse(
        held.user,
        held.name,
        held.virtual_cluster,
        held.held_s,
        held.refunded_s,
        known.known_s,
        known.busy_s,
        known.idle_s,
    )
