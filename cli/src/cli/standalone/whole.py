"""The whole of a machine's own Muster: servers, then the schema, then the services; and back."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.contracts.topics import EVERY_TOPIC, Service
from muster.errors import Broken
from muster.sealing import make_private_key
from muster.settings import ServiceSettings

from cli.embedded.apache import ADMINISTRATOR, AGENT, NODE, ApacheKafka
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.process import EmbeddedServerError
from cli.standalone.monitoring import (
    FOLDER,
    PROMETHEUS_PORT,
    configure,
    find_prometheus,
    prometheus,
)
from cli.standalone.processes import Part, Program, ServiceProcess, State
from cli.standalone.programs import (
    EMBEDDED_BUS,
    FAKE_GPUS,
    SERVICES,
    Choices,
    Endpoints,
    child_environment,
    has_gpu_driver,
    programs,
)
from cli.standalone.servers import ServerRunner
from cli.standalone.settings import Options, UpSettings
from cli.standalone.state import HomeState, make_secret

REST_PORT, KAFKA_PORT, DATABASE_PORT = 8080, 9092, 15432
MIGRATION_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Notes:
    """What the screen shows about the running parts. `kafka_is_closed`: services log in to it
    with what `muster up` has made. `addresses`: of the services, by name.
    """

    rest: str
    kafka: str
    kafka_is_own: bool
    kafka_is_closed: bool
    database: str
    database_is_own: bool
    simulated_gpus: int
    addresses: Mapping[str, str]


class Whole:
    """Starts, keeps and stops all parts. `show` takes a line for people."""

    def __init__(
        self,
        home: Path,
        settings: UpSettings,
        state: HomeState,
        options: Options,
        *,
        show: Callable[[str], None],
    ) -> None:
        self.home = home
        self._settings = settings
        self._state = state
        self._options = options
        self._show = show
        self._runners: list[ServerRunner] = []
        self._services: list[ServiceProcess] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._apache: ApacheKafka | None = None
        self._kafka = state.choice("kafka", settings.kafka, "embedded")
        self.notes: Notes | None = None

    @property
    def parts(self) -> list[Part]:
        """Everything that was started, for the screen."""
        return [runner.part for runner in self._runners] + [each.part for each in self._services]

    async def start(self, admin_password: str | None) -> None:
        """Start everything; returns when all services are ready. Prometheus is not waited for.

        Raises EmbeddedServerError where a part can't be started or is not ready in time.
        """
        binary = (
            find_prometheus(self._settings.prometheus, os.environ)
            if self._options.monitoring
            else None
        )
        (self.home / "log").mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = self._settings.port or self._state.last_port("rest") or REST_PORT
        rest_port = self._state.fixed_port("rest", wanted, "MUSTER_PORT")
        database_url = self._start_database()
        bootstrap = self._start_broker()
        if self._apache is not None:
            await self._set_up_bus(self._apache)
        ports = {"rest": rest_port}
        for name in SERVICES[1:]:
            ports[name] = self._state.port(name)
        endpoints = Endpoints(bootstrap, database_url, ports)
        choices = self._choices(admin_password)
        watching = [] if binary is None else [self._prometheus(binary, ports, choices)]
        self._state.save()
        self.notes = Notes(
            rest=endpoints.url("rest"),
            kafka=bootstrap,
            kafka_is_own=self._settings.kafka_bootstrap is None,
            kafka_is_closed=self._apache is not None,
            database=_without_password(database_url),
            database_is_own=self._settings.database_url is None,
            simulated_gpus=choices.fake_gpus,
            addresses={name: endpoints.url(name) for name in SERVICES}
            | {each.name: f"http://127.0.0.1:{each.port}" for each in watching},
        )
        self._tasks = [asyncio.create_task(runner.run()) for runner in self._runners]
        await self._migrate(database_url)
        for program in (*programs(self.home, endpoints, choices), *watching):
            service = ServiceProcess(program, self._show)
            self._services.append(service)
            self._tasks.append(asyncio.create_task(service.run()))
        await self._await_ready([each for each in self._services if each.program not in watching])

    async def stop(self) -> None:
        """Stop in the order in which nothing is lost: the agent while all others still listen."""
        agent = [each for each in self._services if each.program.name == "runtime-agent"]
        others = [each for each in self._services if each not in agent]
        await asyncio.gather(*(each.stop() for each in agent))
        await asyncio.gather(*(each.stop() for each in others))
        for runner in reversed(self._runners):
            runner.stop()
        await asyncio.gather(*self._tasks)

    def kill(self) -> None:
        """End everything at once; the next start finds the state again."""
        for service in self._services:
            service.kill()
        for runner in self._runners:
            runner.kill()

    def _prometheus(self, binary: Path, ports: Mapping[str, int], choices: Choices) -> Program:
        assert choices.metrics_token is not None
        reads_gpus = not choices.fake_gpus and has_gpu_driver()
        configure(self.home / FOLDER, ports, choices.metrics_token, has_gpu_driver=reads_gpus)
        return prometheus(binary, self.home, self._state.port("prometheus", PROMETHEUS_PORT))

    def _choices(self, admin_password: str | None) -> Choices:
        fake_gpus = self._settings.fake_gpus
        if fake_gpus is None:
            fake_gpus = 0 if has_gpu_driver() else FAKE_GPUS
        return Choices(
            cluster_key=self._secret("cluster_key"),
            webhook_key=self._secret("webhook_key"),
            secrets_keys=self._secret("secrets_keys", make_private_key),
            bus_settings=EMBEDDED_BUS if self._brings_embedded_broker() else {},
            bus_logins=self._bus_logins(),
            topic_partitions=self._settings.topic_partitions,
            fake_gpus=fake_gpus,
            keep_jobs=self._options.keep_jobs,
            pods_grace_s=self._settings.pods_grace_s,
            admin_password=admin_password,
            metrics_token=self._secret("metrics_token") if self._options.monitoring else None,
        )

    def _bus_logins(self) -> dict[str, dict[str, str]]:
        if self._apache is None:
            return {}
        return {
            name: self._apache.login(AGENT if name == Service.RUNTIME_AGENT else name)
            for name in SERVICES
        }

    async def _set_up_bus(self, kafka: ApacheKafka) -> None:
        # Only here: the embedded broker needs no setup, and the bus is a third of what is loaded.
        from muster.bus_admin import set_up_bus
        from muster.publisher import BUS_ERRORS

        login: dict[str, Any] = kafka.login(ADMINISTRATOR)
        partitions = self._settings.topic_partitions
        settings = ServiceSettings(**login, topic_partitions=partitions)
        try:
            await set_up_bus(settings, [NODE])
        except (Broken, *BUS_ERRORS) as error:
            raise EmbeddedServerError(f"Apache Kafka was not set up: {error}") from error

    def _secret(self, name: str, make: Callable[[], str] = make_secret) -> str:
        """One that the environment gives, else this installation's own."""
        return os.environ.get(f"MUSTER_{name.upper()}") or self._state.secret(name, make)

    def _brings_embedded_broker(self) -> bool:
        return self._settings.kafka_bootstrap is None and self._kafka == "embedded"

    def _start_database(self) -> str:
        if self._settings.database_url is not None:
            return self._settings.database_url.get_secret_value()
        wanted = self._settings.database_port
        port = (
            self._state.port("database", DATABASE_PORT)
            if wanted is None
            else self._state.fixed_port("database", wanted, "MUSTER_DATABASE_PORT")
        )
        server = EmbeddedPostgres(self.home / "postgres", port=port)
        server.start()
        self._runners.append(ServerRunner("database", server, self._show))
        return server.dsn

    def _start_broker(self) -> str:
        if self._settings.kafka_bootstrap is not None:
            return self._settings.kafka_bootstrap
        wanted = self._settings.kafka_port
        port = (
            self._state.port("kafka", KAFKA_PORT)
            if wanted is None
            else self._state.fixed_port("kafka", wanted, "MUSTER_KAFKA_PORT")
        )
        server = self._broker(port)
        server.start()
        self._runners.append(ServerRunner("kafka", server, self._show))
        return server.bootstrap

    def _broker(self, port: int) -> EmbeddedBroker | ApacheKafka:
        if self._kafka == "apache":
            installation = self._settings.kafka_installation()
            self._apache = ApacheKafka(self.home / "kafka", installation, port=port)
            return self._apache
        return EmbeddedBroker(
            EVERY_TOPIC,
            port=port,
            partitions=self._settings.topic_partitions,
            log=self.home / "log" / "kafka.log",
        )

    async def _migrate(self, database_url: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "muster.migrate",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=child_environment() | {"MUSTER_DATABASE_URL": database_url},
        )
        try:
            async with asyncio.timeout(MIGRATION_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise EmbeddedServerError(
                f"The database's migrations took longer than {MIGRATION_TIMEOUT_S:.0f} s."
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            output_lines = output.decode(errors="replace").strip().splitlines()[-3:]
            raise EmbeddedServerError(
                "The database's migrations failed: " + " / ".join(output_lines)
            )

    async def _await_ready(self, services: Sequence[ServiceProcess]) -> None:
        try:
            async with asyncio.timeout(self._settings.ready_timeout_s):
                await asyncio.gather(*(each.ready.wait() for each in services))
        except TimeoutError:
            late = [each for each in services if each.part.state is not State.READY]
            names = ", ".join(f"{each.program.name} (log: {each.program.log})" for each in late)
            raise EmbeddedServerError(
                f"Not ready after {self._settings.ready_timeout_s:.0f} s: {names}."
            ) from None


def _without_password(url: str) -> str:
    """A database's address that may be shown."""
    before, at, after = url.rpartition("@")
    if not at:
        return url
    scheme, _, login = before.rpartition("//")
    return f"{scheme}//{login.partition(':')[0]}@{after}"
