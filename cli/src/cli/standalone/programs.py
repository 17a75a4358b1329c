"""The five services of a machine's own Muster: how each is run, and with which settings.

Services differ from a cluster's in these variables alone.
"""

import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.sealing import public_key_of
from muster.service_keys import ALERTING, SCHEDULER, agent, service_key
from muster.settings import PREFIX

from cli.standalone.processes import Program

SERVICES = ("rest", "launcher", "scheduler", "runtime-agent", "alerting")
WITHOUT_DATABASE = ("runtime-agent",)
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
FAKE_GPUS = 8
CPUS_PER_FAKE_GPU = 4
HEARTBEAT_S, LEASE_S = 3, 30  # one machine: its network does not stall
STOP_GRACE_S = 15.0
EMBEDDED_BUS: dict[str, str] = {
    # The embedded broker answers a fetch when its wait is over, real Kafka when there is a record.
    "MUSTER_FETCH_WAIT_BUSY_MS": "4",
    "MUSTER_FETCH_WAIT_IDLE_MS": "100",
    # It keeps a member's place until its session is over, also where the member left in order.
    "MUSTER_GROUP_SESSION_S": "3",
}
KEPT_BACK = frozenset(
    {
        "PYTHONDONTWRITEBYTECODE",  # without bytecode every start would compile every library anew
        "MUSTER_ADMIN_PASSWORD",  # secrets are given to those services that need them
        "MUSTER_CLUSTER_KEY",
        "MUSTER_DATABASE_URL",
        "MUSTER_SECRETS_KEYS",
        "MUSTER_SERVICE_KEY",
        "MUSTER_SMTP_PASSWORD",
        "MUSTER_TOKEN",
        "MUSTER_WEBHOOK_KEY",
    }
)


@dataclass(frozen=True)
class Endpoints:
    """Where everything is on this machine."""

    kafka_bootstrap: str
    database_url: str
    ports: Mapping[str, int]

    def url(self, service: str) -> str:
        """The HTTP address of a service."""
        return f"http://127.0.0.1:{self.ports[service]}"


@dataclass(frozen=True)
class Choices:
    """What a person or an earlier start decided."""

    cluster_key: str
    webhook_key: str
    secrets_keys: str
    bus_settings: dict[str, str]
    bus_logins: Mapping[str, Mapping[str, str]]  # by service; none: the bus knows no users
    topic_partitions: int
    fake_gpus: int
    keep_jobs: bool
    pods_grace_s: float
    admin_password: str | None
    metrics_token: str | None = None


def has_gpu_driver() -> bool:
    """Whether a driver is loaded; without one GPUs can only be pretended."""
    return any(Path(file).exists() for file in DRIVER_FILES)


def node_name() -> str:
    """The name of this machine as a node."""
    return os.environ.get("MUSTER_NODE") or socket.gethostname()


def programs(home: Path, endpoints: Endpoints, choices: Choices) -> list[Program]:
    """The five services, in the order in which they are shown."""
    return [_program(name, home, endpoints, choices) for name in SERVICES]


def child_environment() -> dict[str, str]:
    """This process's environment for its children; jobs find the same `python` as Muster."""
    kept = {name: value for name, value in os.environ.items() if name not in KEPT_BACK}
    scripts = str(Path(sys.executable).parent)
    return kept | {"PATH": f"{scripts}:{kept.get('PATH', os.defpath)}", "PYTHONUNBUFFERED": "1"}


def _program(name: str, home: Path, endpoints: Endpoints, choices: Choices) -> Program:
    module = name.replace("-", "_")
    is_agent = name in WITHOUT_DATABASE
    return Program(
        name=name,
        command=(sys.executable, "-m", module),
        environment=_environment(name, home, endpoints, choices),
        port=endpoints.ports[name],
        log=home / "log" / f"{name}.log",
        stop_grace_s=choices.pods_grace_s + STOP_GRACE_S if is_agent else STOP_GRACE_S,
        # An agent that is merely killed leaves its pods to their supervisors.
        signal_if_orphaned=signal.SIGKILL if is_agent else signal.SIGTERM,
    )


def _environment(
    name: str, home: Path, endpoints: Endpoints, choices: Choices
) -> Mapping[str, str]:
    settings = {
        "MUSTER_HOME": str(home),
        "MUSTER_KAFKA_BOOTSTRAP": endpoints.kafka_bootstrap,
        "MUSTER_TOPIC_PARTITIONS": str(choices.topic_partitions),
        "MUSTER_HTTP_HOST": "127.0.0.1",
        "MUSTER_HTTP_PORT": str(endpoints.ports[name]),
    }
    settings |= {
        PREFIX + key.upper(): value for key, value in choices.bus_logins.get(name, {}).items()
    }
    settings |= _if_set("MUSTER_METRICS_TOKEN", choices.metrics_token)
    if name not in WITHOUT_DATABASE:
        settings["MUSTER_DATABASE_URL"] = endpoints.database_url
    if name == "rest":
        settings["MUSTER_SCHEDULER_URL"] = endpoints.url("scheduler")
        settings["MUSTER_ALERTING_URL"] = endpoints.url("alerting")
        settings["MUSTER_CLUSTER_KEY"] = choices.cluster_key
        settings |= _if_set("MUSTER_ADMIN_PASSWORD", choices.admin_password)
        present, *_ = choices.secrets_keys.split(",")
        settings["MUSTER_SECRETS_PUBLIC_KEY"] = public_key_of(present.strip())
    if name == "launcher":
        settings["MUSTER_SECRETS_KEYS"] = choices.secrets_keys
    if name in ("rest", "alerting"):
        settings["MUSTER_WEBHOOK_KEY"] = choices.webhook_key
    if name == "alerting":
        settings["MUSTER_SERVICE_KEY"] = service_key(choices.cluster_key, ALERTING)
        settings |= _if_set("MUSTER_SMTP_PASSWORD", os.environ.get("MUSTER_SMTP_PASSWORD"))
    if name == "scheduler":
        settings["MUSTER_SERVICE_KEY"] = service_key(choices.cluster_key, SCHEDULER)
    if name == "runtime-agent":
        node = node_name()
        settings["MUSTER_NODE"] = node
        settings["MUSTER_SERVICE_KEY"] = service_key(choices.cluster_key, agent(node))
        settings["MUSTER_AGENT_HOME"] = str(home / "agent")
        settings["MUSTER_AGENT_ON_STOP"] = "keep" if choices.keep_jobs else "withdraw"
        settings["MUSTER_FAKE_GPUS"] = str(choices.fake_gpus)
        settings |= _if_set("MUSTER_CPU", _offered_cpus(choices.fake_gpus))
    return _defaults(choices) | child_environment() | settings


def _defaults(choices: Choices) -> dict[str, str]:
    """What fits one machine, unless this process's environment sets another value."""
    defaults = {"MUSTER_LEASE_TIMEOUT_S": str(LEASE_S), "MUSTER_HEARTBEAT_S": str(HEARTBEAT_S)}
    return defaults | choices.bus_settings


def _offered_cpus(fake_gpus: int) -> str | None:
    """CPUs that go with simulated GPUs, so that jobs written for a real node can be tried."""
    if not fake_gpus or "MUSTER_CPU" in os.environ:
        return None
    return str(max(os.cpu_count() or 1, CPUS_PER_FAKE_GPU * fake_gpus))


def _if_set(name: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {name: value}
