"""Lost records, a bus that is thrown away or stays away, services that are away: delay only."""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bare_bus import published_beat, unread
from cli.embedded.broker import EmbeddedBroker
from launcher.handlers import RECEIVED_TOPICS
from muster.bus import Bus
from muster.contracts.jobs import Execution, JobRequest, JobSpec, TaskRoleSpec
from muster.contracts.topics import TOPICS, Service
from muster.db import Connection, Pool
from muster.ids import new_id
from scheduler_watched import measured, until
from whole_muster import Muster, a_job, a_muster, eventually, until_there

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SHORT_LEASES = {
    "lease_timeout_s": 2.0,
    "watch_s": 0.2,
    "stall_s": 1.0,
    "probe_s": 0.2,
    "probe_window_s": 1.0,
}
"""They begin anew where this process, which is also the agent's, was starved for a second."""
QUICK = {"stop_grace_s": 2.0, "retry_backoff_first_s": 0.1}


class Lossy:
    """Stands before `Bus.publish`: some records never reach the bus, some reach it twice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        print(f"seed {seed}")
        self._random = random.Random(seed)
        self._publish = Bus.publish
        self.lose_share = 0.0
        self.lose_first_of: set[str] = set()
        self.lost: list[str] = []
        lossy = self

        async def publish(bus: Bus, records: Sequence[Any]) -> list[BaseException | None]:
            return await lossy.publish(bus, records)

        monkeypatch.setattr(Bus, "publish", publish)
        monkeypatch.setattr("muster.exchange.REPEAT_LONGEST", timedelta(seconds=4))

    async def publish(self, bus: Bus, records: Sequence[Any]) -> list[BaseException | None]:
        kept: list[int] = []
        for place, record in enumerate(records):
            if self._is_lost(record.topic):
                self.lost.append(record.topic)
            else:
                kept += [place] * self._random.choice((1, 1, 1, 2))
        self._random.shuffle(kept)
        outcomes: list[BaseException | None] = [None] * len(records)
        published = await self._publish(bus, [records[place] for place in kept])
        for place, outcome in zip(kept, published, strict=True):
            outcomes[place] = outcome
        return outcomes

    def _is_lost(self, topic: str) -> bool:
        if topic in self.lose_first_of:
            self.lose_first_of.discard(topic)
            return True
        return self._random.random() < self.lose_share


async def ends_right(muster: Muster, jobs: int) -> None:
    """A mixed bag of jobs ends as it should, and afterwards everything is free and silent."""
    wanted: dict[str, str] = {}
    for number in range(jobs):
        good = await muster.submit(a_job(f"good-{number}", "sleep 2", instances=2, gpus=2))
        bad = await muster.submit(a_job(f"bad-{number}", "exit 7", retries=1))
        wanted |= {good: "SUCCEEDED", bad: "FAILED"}
    for name, state in wanted.items():
        assert await muster.end_of(name, 180) == state
        if state == "FAILED":
            assert (await muster.job(name))["jobStatus"]["retryDetails"]["user"] == 1
    whole = await muster.submit(a_job("whole", "true", gpus=8))
    assert await muster.end_of(whole) == "SUCCEEDED"
    await eventually(muster.unsettled, lambda count: count == 0)
    await everything_is_free(muster)


async def everything_is_free(muster: Muster) -> None:
    """PostgreSQL's placements, the Scheduler's memory and the agent's pods are all empty."""
    pool = muster.runtimes[Service.REST].pool

    async def held() -> int:
        count = await pool.fetchval("SELECT count(*) FROM scheduler.placement")
        assert isinstance(count, int)
        return count

    await eventually(held, lambda count: count == 0)

    async def free_gpus() -> Any:
        nodes = (await muster.call("GET", "/api/v2/cluster/nodes")).json()
        return [gpu.get("pod") for node in nodes["nodes"] for gpu in node["gpus"]]

    await eventually(free_gpus, lambda pods: pods == [None] * 8)


async def test_with_every_fifth_record_lost_for_ever_all_jobs_end_right(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lossy = Lossy(monkeypatch, seed=random.SystemRandom().randrange(2**32))
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path, launcher=QUICK) as muster:
        lossy.lose_share = 0.2
        await ends_right(muster, 3)
    assert lossy.lost


async def test_with_one_record_of_each_kind_lost_all_jobs_end_right(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lossy = Lossy(monkeypatch, seed=1)
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path, launcher=QUICK) as muster:
        exchanged = {name for name, topic in TOPICS.items() if topic.kind is not None}
        lossy.lose_first_of = exchanged | {
            "revision-acknowledged",
            "pod-acknowledged",
            "node-reported",
        }
        await ends_right(muster, 2)
    usual = {"job-submitted", "gang-requested", "placement-decided", "pod-requested"}
    assert usual | {"pod-started", "pod-succeeded", "pod-failed", "job-updated"} <= set(lossy.lost)


async def test_a_bus_thrown_away_with_all_its_records_costs_delay_only(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path, launcher=QUICK) as muster:
        names = [await muster.submit(a_job(f"j{n}", "sleep 1", gpus=1)) for n in range(8)]
        await eventually(muster.states, lambda states: "RUNNING" in states.values())
        fresh_broker.kill()
        names += [await muster.submit(a_job(f"k{n}", "true", gpus=1)) for n in range(4)]
        fresh_broker.start()
        for name in names:
            assert await muster.end_of(name) == "SUCCEEDED"
            assert (await muster.job(name))["jobStatus"]["retries"] == 0
        await eventually(muster.unsettled, lambda count: count == 0)
        await everything_is_free(muster)


async def test_a_bus_away_for_three_leases_restarts_no_job(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with a_muster(
        database_url,
        fresh_broker.bootstrap,
        tmp_path,
        launcher=QUICK,
        scheduler=SHORT_LEASES,
        runtime_agent={"heartbeat_s": 0.4},
    ) as muster:
        gate = tmp_path / "gate"
        name = await muster.submit(a_job("long", until_there(gate), gpus=8))
        await eventually(lambda: muster.state(name), lambda s: s == "RUNNING")
        await until(lambda: measured(muster.runtimes[Service.SCHEDULER], "probe_round"))
        fresh_broker.kill()
        await asyncio.sleep(6.5)  # the three leases are the subject of this test
        fresh_broker.start()
        gate.touch()
        assert await muster.end_of(name) == "SUCCEEDED"
        status = (await muster.job(name))["jobStatus"]
        assert (status["retries"], status["attemptId"]) == (0, 0)


@pytest.mark.parametrize("away", [Service.LAUNCHER, Service.SCHEDULER])
async def test_a_service_that_is_away_fails_no_pod(
    muster: Muster, tmp_path: Path, away: Service
) -> None:
    gate = tmp_path / "gate"
    name = await muster.submit(a_job("long", until_there(gate), instances=2, gpus=4))
    await eventually(lambda: muster.state(name), lambda s: s == "RUNNING")
    await muster.stop(away)
    late = await muster.submit(a_job("late", "true", gpus=8))
    await eventually(lambda: muster.states(), lambda states: len(states) == 2)
    gate.touch()
    await muster.start(away)
    for each in (name, late):
        assert await muster.end_of(each) == "SUCCEEDED"
        assert (await muster.job(each))["jobStatus"]["retries"] == 0


async def test_an_agent_that_stops_withdraws_its_pods_at_no_cost(
    muster: Muster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    name = await muster.submit(a_job("long", until_there(gate), gpus=8))
    await eventually(lambda: muster.state(name), lambda s: s == "RUNNING")
    await muster.stop(Service.RUNTIME_AGENT)
    gate.touch()
    await muster.start(Service.RUNTIME_AGENT)
    assert await muster.end_of(name) == "SUCCEEDED"
    assert (await muster.job(name))["jobStatus"]["retryDetails"]["user"] == 0


async def test_a_lost_node_fails_its_pods_at_no_cost_and_they_are_stopped_when_it_returns(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with a_muster(
        database_url,
        fresh_broker.bootstrap,
        tmp_path,
        launcher=QUICK,
        scheduler=SHORT_LEASES,
        runtime_agent={"heartbeat_s": 0.4, "agent_on_stop": "keep"},
    ) as muster:
        marks = tmp_path / "marks"
        command = f"echo $$ >> {marks}; test $(wc -l < {marks}) = 2 || sleep 600"
        name = await muster.submit(a_job("long", command, gpus=8))
        await eventually(lambda: muster.state(name), lambda s: s == "RUNNING")
        await muster.stop(Service.RUNTIME_AGENT)
        await eventually(lambda: muster.state(name), lambda s: s == "WAITING")
        await muster.start(Service.RUNTIME_AGENT)
        assert await muster.end_of(name) == "SUCCEEDED"
        status = (await muster.job(name))["jobStatus"]
        assert status["retryDetails"] == {"user": 0, "platform": 1, "resource": 0}
        assert len(marks.read_text().split()) == 2


async def test_an_agent_that_has_lost_its_journal_costs_its_jobs_no_retry(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It ends the pods that it finds. The node itself is never lost."""
    async with a_muster(
        database_url,
        fresh_broker.bootstrap,
        tmp_path,
        launcher=QUICK,
        scheduler=SHORT_LEASES | {"lease_timeout_s": 8.0},
        runtime_agent={"heartbeat_s": 0.4, "agent_on_stop": "keep"},
    ) as muster:
        pids, go_on = tmp_path / "pids", tmp_path / "go-on"
        command = f"echo $$ >> {pids}; {until_there(go_on)}"
        name = await muster.submit(a_job("long", command, gpus=8))
        await eventually(lambda: muster.state(name), lambda s: s == "RUNNING")
        await muster.stop(Service.RUNTIME_AGENT)
        for file in (tmp_path / "agent").glob("journal.sqlite*"):
            file.unlink()
        await muster.start(Service.RUNTIME_AGENT)
        first = int(pids.read_text().split()[0])
        await until(lambda: not Path(f"/proc/{first}").exists())
        go_on.touch()
        assert await muster.end_of(name) == "SUCCEEDED"
        status = (await muster.job(name))["jobStatus"]
        assert status["retryDetails"] == {"user": 0, "platform": 1, "resource": 0}
        assert len(pids.read_text().split()) == 2
        scheduler = muster.runtimes[Service.SCHEDULER]
        assert measured(scheduler, "lost_journals_total") == 1
        assert measured(scheduler, "nodes_lost_total") == 0
        await eventually(muster.unsettled, lambda count: count == 0)
        await everything_is_free(muster)


async def test_a_record_of_a_job_that_all_have_forgotten_begins_nothing(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """As of a topic without retention, read again from its beginning: the job has run days ago."""
    role = TaskRoleSpec(name="worker", instances=1, cpu=1, memory_mb=1, gpus=0, command="true")
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path, launcher=QUICK) as muster:
        rest, launcher = (muster.runtimes[each] for each in (Service.REST, Service.LAUNCHER))
        submitted_at = await launcher.pool.fetchval("SELECT now() - interval '9 days'")
        at = submitted_at.timestamp()
        old = JobRequest(
            revision=1,
            job=new_id(int(at * 1000), 0),
            name="old",
            user="admin",
            execution=Execution.START,
            submitted_at=submitted_at,
            spec=JobSpec(task_roles=(role,)),
        )
        event_id = f"rest/job/{old.job}/1"
        await rest.bus.broadcast("job-submitted", old.job, old, event_id=event_id, at=at)
        dead = ("muster_dead_letters_total", {"topic": "job-submitted"})
        await until(lambda: launcher.registry.get_sample_value(*dead) == 1)
        name = await muster.submit(a_job("new", "true"))
        assert await muster.end_of(name) == "SUCCEEDED"
        assert await launcher.pool.fetchval("SELECT count(*) FROM job") == 1


async def back_up(pool: Pool, schemas: Sequence[str]) -> None:
    async with pool.acquire() as conn, conn.transaction(isolation="repeatable_read"):
        await conn.execute("CREATE SCHEMA backup")
        for table, kept in await tables_of(conn, schemas):
            await conn.execute(f"CREATE TABLE {kept} AS TABLE {table}")


async def put_back(pool: Pool, schemas: Sequence[str]) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SET LOCAL session_replication_role = replica")  # in any order
        for table, kept in await tables_of(conn, schemas):
            await conn.execute(f"DELETE FROM {table}")
            names = ", ".join(await written_columns(conn, table))
            await conn.execute(
                f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {kept}"
            )


async def written_columns(conn: Connection, table: str) -> list[str]:
    """All but those that the database makes of others."""
    rows = await conn.fetch(
        "SELECT quote_ident(attname) AS name FROM pg_attribute WHERE attrelid = $1::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
        table,
    )
    return [row["name"] for row in rows]


async def is_noticed(pool: Pool, bootstrap: str, schemas: Sequence[str]) -> bool:
    """Each service has published a beat from after the backup, and the Launcher has no
    unread records.
    """
    if await unread(bootstrap, "muster-launcher", RECEIVED_TOPICS):
        return False
    for schema in schemas:
        beat = await pool.fetchval(f"SELECT beat FROM backup.{schema}_incarnation")
        if await published_beat(bootstrap, schema) <= beat:
            return False
    return True


async def tables_of(conn: Connection, schemas: Sequence[str]) -> list[tuple[str, str]]:
    """Each table of these services, and the one that keeps its rows."""
    rows = await conn.fetch(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY($1)", schemas
    )
    return [(".".join(row), f"backup.{'_'.join(row)}") for row in rows]


async def submit_one_that_runs_and_one_that_waits(
    muster: Muster, gate: Path, go_on: Path, ran: Path
) -> tuple[str, str]:
    """The first runs until the file `gate` is there. The other needs its GPUs; it notes its pods in
    `ran`, fails in its first attempt, and ends when the file `go_on` is there.
    """
    busy = await muster.submit(a_job("busy", until_there(gate), gpus=8))
    await eventually(lambda: muster.state(busy), lambda s: s == "RUNNING")
    note = f"echo $MUSTER_POD >> {ran}; test $MUSTER_JOB_ATTEMPT -gt 0 || exit 7"
    command = f"{note}; {until_there(go_on)}"
    return busy, await muster.submit(a_job("waits", command, gpus=8, retries=1))


async def test_a_pod_that_all_have_forgotten_but_its_node_runs_on_no_other_node(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The Launcher and the Scheduler know only that the job waits. Since then its first attempt has
    failed on a node that is away, where the second one runs, and another node has come.
    """
    services = [Service.LAUNCHER, Service.SCHEDULER]
    async with a_muster(
        database_url,
        fresh_broker.bootstrap,
        tmp_path,
        launcher=QUICK | {"resync_s": 1.0},
        scheduler={"lease_timeout_s": 300.0, "resync_s": 1.0},
        runtime_agent={"agent_on_stop": "keep"},
    ) as muster:
        pool = muster.runtimes[Service.REST].pool
        gate, go_on, ran = (tmp_path / name for name in ("gate", "go-on", "ran"))
        busy, name = await submit_one_that_runs_and_one_that_waits(muster, gate, go_on, ran)
        await eventually(muster.unsettled, lambda count: count == 0)
        await back_up(pool, services)
        gate.touch()
        await until(lambda: ran.exists() and len(ran.read_text().split()) == 2)
        await eventually(partial(is_noticed, pool, muster.bootstrap, services), bool)
        agent = dict(muster.settings[Service.RUNTIME_AGENT])
        for service in (Service.RUNTIME_AGENT, *services):
            await muster.stop(service)
        await put_back(pool, services)
        other = {"node": "node-2", "agent_home": tmp_path / "agent-2"}
        muster.settings[Service.RUNTIME_AGENT] = agent | other
        for service in (*services, Service.RUNTIME_AGENT):
            await muster.start(service)
        await until(lambda: len(ran.read_text().split()) == 3)
        go_on.touch()
        assert await muster.end_of(name) == "SUCCEEDED"
        assert len(set(ran.read_text().split())) == 3
        status = (await muster.job(name))["jobStatus"]
        assert status["retryDetails"] == {"user": 0, "platform": 1, "resource": 0}
        await muster.stop(Service.RUNTIME_AGENT)
        muster.settings[Service.RUNTIME_AGENT] = agent
        await muster.start(Service.RUNTIME_AGENT)
        is_open = "SELECT count(*) FROM launcher.job WHERE completed_at IS NULL"
        await eventually(lambda: pool.fetchval(is_open), lambda count: count == 0)
        assert await muster.state(busy) == "SUCCEEDED"


async def test_a_gang_that_has_ended_runs_never_again_for_a_restored_launcher(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It knows only that the job waits. Since then the first attempt has failed, and the second one
    has begun. The agent, which could tell so, is away.
    """
    async with a_muster(
        database_url,
        fresh_broker.bootstrap,
        tmp_path,
        launcher=QUICK | {"resync_s": 1.0},
        scheduler={"lease_timeout_s": 300.0},
        runtime_agent={"agent_on_stop": "keep"},
    ) as muster:
        pool = muster.runtimes[Service.REST].pool
        gate, go_on, ran = (tmp_path / name for name in ("gate", "go-on", "ran"))
        busy, name = await submit_one_that_runs_and_one_that_waits(muster, gate, go_on, ran)
        deferred = "SELECT topic FROM scheduler.subject ORDER BY topic DESC LIMIT 1"
        await eventually(lambda: pool.fetchval(deferred), lambda t: t == "placement-deferred")
        await eventually(muster.unsettled, lambda count: count == 0)
        await back_up(pool, ["launcher"])
        gate.touch()

        async def attempt() -> tuple[int, str]:
            status = (await muster.job(name))["jobStatus"]
            return status["attemptId"], status["state"]

        await eventually(attempt, lambda found: found == (1, "RUNNING"))
        assert await muster.end_of(busy) == "SUCCEEDED"
        await eventually(partial(is_noticed, pool, muster.bootstrap, ["launcher"]), bool)
        await muster.stop(Service.RUNTIME_AGENT)
        await muster.stop(Service.LAUNCHER)
        await put_back(pool, ["launcher"])
        await muster.start(Service.LAUNCHER)
        await eventually(attempt, lambda it: it[0] > 1 and it[1] == "WAITING")
        await muster.start(Service.RUNTIME_AGENT)
        await eventually(attempt, lambda it: it[0] > 1 and it[1] == "RUNNING")
        go_on.touch()
        assert await muster.end_of(name) == "SUCCEEDED"
        status = (await muster.job(name))["jobStatus"]
        assert status["retryDetails"] == {"user": 0, "platform": 1, "resource": 0}
        pods = ran.read_text().split()
        assert len(pods) == len(set(pods)) == 3
        assert await muster.state(busy) == "SUCCEEDED"
        await eventually(muster.unsettled, lambda count: count == 0)
        await everything_is_free(muster)
