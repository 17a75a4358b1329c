"""A whole Muster in one process: the five services, over a real PostgreSQL and a broker.

Tests that kill processes start `muster up` instead; here records can be lost and spans collected.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cheap_passwords  # noqa: F401
import httpx2
import pytest
from alerting.app import build as build_alerting
from alerting.settings import AlertingSettings
from bus_logins import bus_settings, user_of
from cli.embedded.process import free_port
from launcher.app import build as build_launcher
from launcher.settings import LauncherSettings
from muster.contracts.topics import Service
from muster.sealing import make_private_key, public_key_of
from muster.service import Runtime, running
from muster.service_keys import ALERTING, SCHEDULER, agent, service_key
from plain_http import NO_TLS
from rest.app import build as build_rest
from rest.settings import RestSettings
from runtime_agent.app import build as build_agent
from runtime_agent.settings import AgentSettings
from scheduler.app import build as build_scheduler
from scheduler.settings import SchedulerSettings

PASSWORD = "a-password-for-tests"
# A machine that runs other tests at the same time may stand still for half a minute.
WAIT_S = 240.0

FINAL = ("SUCCEEDED", "FAILED", "STOPPED")

JOB = """
protocolVersion: 2
name: {name}
type: job
jobRetryCount: {retries}
prerequisites:
  - {{type: dockerimage, name: image, uri: "none"}}
taskRoles:
  worker:
    instances: {instances}
    dockerImage: image
    resourcePerInstance: {{cpu: 1, memoryMB: 64, gpu: {gpus}}}
    commands:
      - '{command}'
"""


def a_job(
    name: str, command: str = "true", *, instances: int = 1, gpus: int = 0, retries: int = 0
) -> str:
    """A job file with one task role."""
    return JOB.format(name=name, command=command, instances=instances, gpus=gpus, retries=retries)


def with_data(job: str, uri: str) -> str:
    """The job file, whose tasks use data at this uri."""
    data = f'  - {{type: data, name: set, uri: ["{uri}"]}}\ntaskRoles:'
    role = "    data: set\n    resourcePerInstance:"
    return job.replace("taskRoles:", data, 1).replace("    resourcePerInstance:", role, 1)


async def eventually(
    question: Callable[[], Awaitable[Any]], is_right: Callable[[Any], bool], wait_s: float = WAIT_S
) -> Any:
    """Ask until the answer is right; fails with the last answer."""
    answer: object = None
    try:
        async with asyncio.timeout(wait_s):
            while not is_right(answer := await question()):
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"after {wait_s} s the answer is still {answer!r}")
    return answer


def until_there(file: Path) -> str:
    """A command that runs until the file is there."""
    return f"until test -e {file}; do sleep 0.1; done"


@dataclass
class Muster:
    """The services that run, and a client that is logged in as the admin."""

    database_url: str
    bootstrap: str
    home: Path
    settings: dict[Service, dict[str, Any]] = field(default_factory=dict)
    ports: dict[Service, int] = field(default_factory=dict)
    runtimes: dict[Service, Runtime] = field(default_factory=dict)
    stacks: dict[Service, contextlib.AsyncExitStack] = field(default_factory=dict)
    token: str = ""
    cluster_key: str = field(default_factory=lambda: secrets.token_hex(16))
    secrets_key: str = field(default_factory=make_private_key)

    def _keys(self, service: Service) -> dict[str, str]:
        """What a service gets of the keys: no other's."""
        match service:
            case Service.REST:
                public = public_key_of(self.secrets_key)
                return {"cluster_key": self.cluster_key, "secrets_public_key": public}
            case Service.LAUNCHER:
                return {"secrets_keys": self.secrets_key}
            case Service.SCHEDULER:
                return {"service_key": service_key(self.cluster_key, SCHEDULER)}
            case Service.ALERTING:
                return {"service_key": service_key(self.cluster_key, ALERTING)}
            case Service.RUNTIME_AGENT:
                node = self.settings[service]["node"]
                return {"service_key": service_key(self.cluster_key, agent(node))}
        return {}

    def choose_port(self, service: Service) -> None:
        """One that no other has, where it has none."""
        while service not in self.ports:
            port = free_port()
            if port not in self.ports.values():
                self.ports[service] = port

    async def start(self, service: Service) -> Runtime:
        """Start one service in this process."""
        maker, build = _SERVICES[service]
        self.choose_port(service)
        common = {
            **bus_settings(self.bootstrap, user_of(service)),
            "database_url": self.database_url,
            "http_port": self.ports[service],
            **self._keys(service),
            "fetch_wait_busy_ms": 10,
            "fetch_wait_idle_ms": 20,
            "bus_watch_s": 0.2,
            "shutdown_s": 3.0,
            "database_connections": 4,
        }
        settings = maker(**(common | self.settings.get(service, {})))
        own = contextlib.AsyncExitStack()
        runtime = await own.enter_async_context(
            running(service, settings, self.ports[service], build)
        )
        self.stacks[service] = own
        self.runtimes[service] = runtime
        return runtime

    async def stop(self, service: Service) -> None:
        """Stop one service in order."""
        self.runtimes.pop(service)
        await self.stacks.pop(service).aclose()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[Service.REST]}"

    async def call(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """One request to REST, logged in."""
        headers = {"Authorization": f"Bearer {self.token}"} | more.pop("headers", {})
        async with httpx2.AsyncClient(
            base_url=self.url, timeout=WAIT_S, trust_env=False, verify=NO_TLS
        ) as client:
            return await client.request(method, path, headers=headers, **more)

    async def log_in(self) -> None:
        async def try_it() -> int:
            try:
                answer = await self.call(
                    "POST",
                    "/api/v2/authn/basic/login",
                    json={"username": "admin", "password": PASSWORD},
                    headers={"Authorization": ""},
                )
            except httpx2.TransportError:
                return 0
            if answer.status_code == 200:
                self.token = answer.json()["token"]
            return answer.status_code

        await eventually(try_it, lambda status: status == 200)

    async def submit(self, text: str) -> str:
        """Submit a job file; returns its name as `user~job`."""
        answer = await self.call(
            "POST", "/api/v2/jobs", content=text, headers={"Content-Type": "text/yaml"}
        )
        assert answer.status_code == 202, answer.text
        name = answer.json()["name"]
        assert isinstance(name, str)
        return name

    async def job(self, name: str) -> dict[str, Any]:
        answer = await self.call("GET", f"/api/v2/jobs/{name}")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert isinstance(found, dict)
        return found

    async def state(self, name: str) -> str:
        return str((await self.job(name))["jobStatus"]["state"])

    async def end_of(self, name: str, wait_s: float = WAIT_S) -> str:
        """Wait for a job's end; returns its final state."""
        return str(await eventually(lambda: self.state(name), lambda s: s in FINAL, wait_s))

    async def states(self) -> dict[str, str]:
        answer = await self.call("GET", "/api/v2/jobs")
        assert answer.status_code == 200, answer.text
        return {item["name"]: item["state"] for item in answer.json()}

    async def unsettled(self) -> int:
        """Words that wait to be published, acknowledged or answered, in all databases."""
        pool = self.runtimes[Service.REST].pool
        count = 0
        for schema in ("rest", "launcher", "scheduler"):
            count += await pool.fetchval(
                f"SELECT (SELECT count(*) FROM {schema}.notice) + (SELECT count(*)"
                f" FROM {schema}.subject WHERE repeat_at IS NOT NULL OR answer_at IS NOT NULL)"
            )
        return count


_SERVICES: dict[Service, tuple[Any, Any]] = {
    Service.REST: (RestSettings, build_rest),
    Service.LAUNCHER: (LauncherSettings, build_launcher),
    Service.SCHEDULER: (SchedulerSettings, build_scheduler),
    Service.RUNTIME_AGENT: (AgentSettings, build_agent),
    Service.ALERTING: (AlertingSettings, build_alerting),
}


AGENT_BACKEND: dict[str, Any] = {}
"""Settings of every agent: of what pods are, where not processes. A fixture sets them."""


@contextlib.asynccontextmanager
async def with_cluster(
    database_url: str, bootstrap: str, home: Path, cluster: str, **settings: dict[str, Any]
) -> AsyncIterator[Muster]:
    """All, with this file of a cluster, whose node has four GPUs; REST soon receives changes."""
    file = home / "cluster.yaml"
    file.write_text(cluster)
    quick = {"virtual_clusters_every_s": 0.2, "virtual_clusters_again_s": 0.01}
    own = {"scheduler": {"cluster_file": file}, "runtime_agent": {"fake_gpus": 4}, "rest": quick}
    whole = {name: own.get(name, {}) | settings.get(name, {}) for name in {*own, *settings}}
    async with a_muster(database_url, bootstrap, home, **whole) as muster:
        yield muster


@contextlib.asynccontextmanager
async def a_muster(
    database_url: str, bootstrap: str, home: Path, **settings: dict[str, Any]
) -> AsyncIterator[Muster]:
    """All five services; `settings` by service name, with `_` for `-`."""
    home.chmod(0o777)  # noqa: ASYNC240  what tasks share with the test lies there
    muster = Muster(database_url, bootstrap, home)
    muster.choose_port(Service.SCHEDULER)
    muster.choose_port(Service.ALERTING)
    muster.settings = {
        Service.REST: {
            "admin_password": PASSWORD,
            "scheduler_url": f"http://127.0.0.1:{muster.ports[Service.SCHEDULER]}",
            "alerting_url": f"http://127.0.0.1:{muster.ports[Service.ALERTING]}",
        },
        Service.LAUNCHER: {},
        Service.SCHEDULER: {"lease_timeout_s": 30.0},
        Service.RUNTIME_AGENT: {
            "node": "node-1",
            "agent_home": home / "agent",
            "task_paths": str(home),
            "fake_gpus": 8,
            "cpu": 64,
            "heartbeat_s": 1.0,
            "report_s": 5.0,
            "withdraw_grace_s": 1.0,
            "memory_limits": False,
            **AGENT_BACKEND,
        },
        Service.ALERTING: {},
    }
    for name, more in settings.items():
        muster.settings[Service(name.replace("_", "-"))].update(more)
    try:
        for service in _SERVICES:
            await muster.start(service)
        await muster.log_in()
        yield muster
    finally:
        # Where one has failed, its stop raises the reason; the others are stopped all the same.
        async with contextlib.AsyncExitStack() as stops:
            for service in reversed(list(muster.runtimes)):
                stops.push_async_callback(muster.stop, service)
