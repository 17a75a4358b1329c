"""A whole Muster as processes, for tests that kill any part, stop it, and put databases back.

The five services and a second agent run as `muster up` runs them, each kept running by a
`ServiceProcess`. The test owns PostgreSQL and the broker, so it can replace their data too.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import asyncpg
import psutil
from cli.client import Client
from cli.embedded.binaries import readable_binaries
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.process import end_leftovers, free_port
from cli.logins import log_in
from cli.standalone.processes import Patience, Program, ServiceProcess
from cli.standalone.programs import EMBEDDED_BUS, SERVICES, Choices, Endpoints, programs
from muster.contracts.topics import EVERY_TOPIC
from muster.sealing import make_private_key
from muster_up import Http

AGENTS = ("runtime-agent", "runtime-agent-2")
PARTS = (*SERVICES, AGENTS[1], "kafka", "database")
GPUS = 8
PASSWORD = "a-password-for-tests"
CLUSTER_KEY = secrets.token_urlsafe(32)
READY_S = 90.0
QUICK = {
    "MUSTER_STOP_GRACE_S": "1",
    "MUSTER_GRACE_S": "1",
    "MUSTER_WITHDRAW_GRACE_S": "1",
    "MUSTER_RETRY_BACKOFF_FIRST_S": "0.1",
    "MUSTER_RETRY_BACKOFF_LONGEST_S": "5",
    "MUSTER_MEMORY_LIMITS": "false",
    "MUSTER_CPU_LIMITS": "false",
    "MUSTER_REPORT_S": "5",
    "MUSTER_GROUP_SESSION_S": "2",
}
PATIENCE = Patience(first_s=0.1, longest_s=2.0, steady_s=10.0, hung_s=60.0)


@dataclass
class Parts:
    """All processes over one folder. `keepers` has those that are to run now."""

    home: Path
    postgres: EmbeddedPostgres
    broker: EmbeddedBroker
    say: Callable[[str], None]
    ports: dict[str, int] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    keepers: dict[str, tuple[ServiceProcess, asyncio.Task[None]]] = field(default_factory=dict)

    @property
    def dsn(self) -> str:
        return self.postgres.dsn

    def start(self, name: str) -> None:
        """Start a service, and keep it running from now on."""
        service = ServiceProcess(self.programs[name], self.say, PATIENCE)
        self.keepers[name] = (service, asyncio.create_task(service.run()))

    async def stop(self, name: str) -> None:
        """Stop a service in order."""
        service, run = self.keepers.pop(name)
        await service.stop()
        await run

    async def ready(self, *names: str) -> None:
        """Wait until services are ready. Raises TimeoutError where they are not in time."""
        async with asyncio.timeout(READY_S):
            for name in names:
                await self.keepers[name][0].ready.wait()

    def restarts(self, name: str) -> int:
        """How often a service ended and was started again."""
        return self.keepers[name][0].part.restarts

    def pids(self, name: str) -> list[int]:
        """The processes of a part, the first of which is started by the others' absence."""
        if name == "kafka":
            return [] if self.broker.pid is None else [self.broker.pid]
        if name != "database":
            pid = self.keepers[name][0].part.pid if name in self.keepers else None
            return [] if pid is None else [pid]
        return self._database_pids()

    def _database_pids(self) -> list[int]:
        if self.postgres.pid is None:
            return []
        with contextlib.suppress(psutil.Error):
            postmaster = psutil.Process(self.postgres.pid)
            return [postmaster.pid, *(each.pid for each in postmaster.children())]
        return []

    def kill(self, name: str) -> None:
        """Kill a part. The servers start again at once, a service as soon as its keeper looks."""
        if name == "kafka":
            self.broker.kill()
            self.broker.start()
        elif name == "database":
            self.postgres.kill()
            self._await_end_of_database()
            self.postgres.start()
        else:
            send(self.pids(name), signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def frozen(self, name: str) -> AsyncIterator[None]:
        """A part does not run meanwhile, and does not know it."""
        pids = self.pids(name)
        # What a stopped process has forked before it stopped is found by the second look.
        send(pids, signal.SIGSTOP)
        pids = sorted({*pids, *self.pids(name)})
        send(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            send(pids, signal.SIGCONT)

    async def disk_snapshot(self, to: Path) -> None:
        """Copy the data directory as a snapshot of the disk sees it: of one moment, unprepared."""
        async with self.frozen("database"):
            await asyncio.to_thread(_copy, self._data, to)

    async def base_backup(self, to: Path) -> None:
        """Take a base backup. A server that starts on it recovers, and begins its own timeline."""
        options = ["-D", str(to), "-X", "fetch", "-c", "fast", "-d", self.dsn]
        await self._run("pg_basebackup", *options)
        _make_recoverable(to, self._data.stat())

    async def dump(self, schema: str, to: Path) -> None:
        """Take a dump of one service's rows."""
        options = ["--data-only", "--disable-triggers", "-n", schema, "-f", str(to), self.dsn]
        await self._run("pg_dump", *options)

    def put_back_server(self, backup: Path, *, kills: bool) -> None:
        """The whole server goes back to a disk snapshot or base backup."""
        (self.postgres.kill if kills else self.postgres.stop)()
        self._await_end_of_database()
        shutil.rmtree(self._data)
        _copy(backup, self._data)
        self.postgres.start()

    async def put_back_schema(self, schema: str, dump: Path) -> None:
        """One service's rows go back to a dump, in one transaction."""
        conn = await asyncpg.connect(self.dsn)
        try:
            tables = await conn.fetch(
                "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
                " WHERE schemaname = $1",
                schema,
            )
        finally:
            await conn.close()
        emptied = f"TRUNCATE {', '.join(row['name'] for row in tables)}"
        options = ["-q", "-1", "-v", "ON_ERROR_STOP=1", "-c", emptied, "-f", str(dump), self.dsn]
        while True:
            try:
                await self._run("psql", *options)
            except RuntimeError as error:  # with a transaction of the service, if that runs
                if "deadlock detected" not in str(error):
                    raise
            else:
                return

    @property
    def _data(self) -> Path:
        return self.postgres.home / "data"

    def _await_end_of_database(self) -> None:
        end_leftovers(self._data, "postgres", signal.SIGKILL, 30.0)

    async def _run(self, program: str, *options: str) -> None:
        """Raises RuntimeError with the program's output where it fails."""
        binary = readable_binaries(self.postgres.home, None) / "bin" / program
        process = await asyncio.create_subprocess_exec(
            str(binary), *options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{program} failed: {output.decode(errors='replace')[-1000:]}")

    def supervisors(self) -> list[int]:
        """Those that hold the lock of a pod's directory; all look alike, for one process forks
        them.
        """
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if "runtime_agent.supervisor" in (process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.Error):
                    files = [Path(each.path) for each in process.open_files()]
                    if any(f.is_relative_to(self.home) and "pods" in f.parts for f in files):
                        found.append(process.pid)
        return sorted(found)


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to those of these processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _copy(folder: Path, to: Path) -> None:
    """With owners and permissions, which `shutil.copytree` does not keep."""
    subprocess.run(["cp", "-a", str(folder), str(to)], check=True)


def _make_recoverable(backup: Path, owner: os.stat_result) -> None:
    """A server that starts on the backup recovers to its end, without an archive."""
    (backup / "recovery.signal").touch()
    with (backup / "postgresql.auto.conf").open("a") as settings:
        settings.write("restore_command = 'false'\nrecovery_target_timeline = 'current'\n")
    for path in (backup, *backup.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


def _programs(home: Path, parts: Parts) -> dict[str, Program]:
    """The services, and a second agent. The first withdraws its pods when it is stopped, the second
    keeps them.
    """
    ports = {name: free_port() for name in (*SERVICES, AGENTS[1])}
    choices = Choices(
        cluster_key=CLUSTER_KEY,
        webhook_key=secrets.token_urlsafe(32),
        secrets_keys=make_private_key(),
        bus_settings=EMBEDDED_BUS,
        bus_logins={},
        topic_partitions=1,
        fake_gpus=GPUS,
        keep_jobs=False,
        pods_grace_s=10.0,
        admin_password=PASSWORD,
    )
    parts.ports = ports
    found = {}
    for each in programs(home, Endpoints(parts.broker.bootstrap, parts.dsn, ports), choices):
        found[each.name] = replace(each, environment={**each.environment, **QUICK})
    first = found[AGENTS[0]]
    home.parent.chmod(0o777)  # what tasks share with the test lies there
    first = replace(first, environment={**first.environment, "MUSTER_TASK_PATHS": str(home.parent)})
    own = {"MUSTER_NODE": "node-1", "MUSTER_PORT_LAST": "24999", "MUSTER_MACHINE_ID": "machine-1"}
    found[AGENTS[0]] = replace(first, environment={**first.environment, **own})
    own = {
        "MUSTER_NODE": "node-2",
        "MUSTER_PORT_FIRST": "25000",
        "MUSTER_MACHINE_ID": "machine-2",
        "MUSTER_AGENT_HOME": str(home / "agent-2"),
        "MUSTER_AGENT_ON_STOP": "keep",
        "MUSTER_HTTP_PORT": str(ports[AGENTS[1]]),
    }
    found[AGENTS[1]] = replace(
        first,
        name=AGENTS[1],
        environment={**first.environment, **own},
        port=ports[AGENTS[1]],
        log=home / "log" / f"{AGENTS[1]}.log",
    )
    return found


def _migrate(dsn: str) -> None:
    command = [sys.executable, "-m", "muster.migrate", "--database-url", dsn]
    subprocess.run(command, check=True, capture_output=True)


@contextlib.asynccontextmanager
async def parts_up(home: Path, say: Callable[[str], None]) -> AsyncIterator[tuple[Parts, Http]]:
    """All parts, ready, and a client that is logged in."""
    (home / "log").mkdir(parents=True)
    postgres = EmbeddedPostgres(home / "postgres", fsync=False)
    broker = EmbeddedBroker(EVERY_TOPIC, partitions=1, log=home / "log" / "kafka.log")
    with postgres, broker:
        parts = Parts(home, postgres, broker, say)
        parts.programs = _programs(home, parts)
        await asyncio.to_thread(partial(_migrate, parts.dsn))
        try:
            for name in parts.programs:
                parts.start(name)
            await parts.ready(*parts.programs)
            rest = Client(f"http://127.0.0.1:{parts.ports['rest']}")
            login = await asyncio.to_thread(log_in, rest, "admin", PASSWORD)
            http = Http(parts.ports["rest"], login.token)
            yield parts, http
            await http.close()
        finally:
            agents = [name for name in AGENTS if name in parts.keepers]
            await asyncio.gather(*(parts.stop(name) for name in agents))
            await asyncio.gather(*(parts.stop(name) for name in list(parts.keepers)))
            send(parts.supervisors(), signal.SIGKILL)
