"""Each service gets its own settings, and no other service's secrets."""

from pathlib import Path

import pytest
from cli.standalone.programs import SERVICES, Choices, Endpoints, programs
from muster.sealing import make_private_key, public_key_of
from muster.service_keys import service_key

ENDPOINTS = Endpoints(
    "127.0.0.1:9092",
    "postgresql://muster:marker-secret@127.0.0.1:15432/muster",
    {name: 18080 + place for place, name in enumerate(SERVICES)},
)
CHOICES = Choices(
    cluster_key="the-cluster-key-of-this-test-is-long",
    webhook_key="webhook-key",
    secrets_keys=f"{make_private_key()},{make_private_key()}",
    bus_settings={},
    bus_logins={name: {"kafka_password": f"password-of-{name}"} for name in SERVICES},
    topic_partitions=4,
    fake_gpus=8,
    keep_jobs=False,
    pods_grace_s=60,
    admin_password=None,
)


def _environments() -> dict[str, dict[str, str]]:
    made = programs(Path("/home"), ENDPOINTS, CHOICES)
    return {program.name: dict(program.environment) for program in made}


def test_the_agent_gets_neither_database_nor_webhook_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_DATABASE_URL", ENDPOINTS.database_url)
    monkeypatch.setenv("MUSTER_WEBHOOK_KEY", "webhook-key")
    monkeypatch.setenv("MUSTER_ADMIN_PASSWORD", "admin-password")
    agent = " ".join(_environments()["runtime-agent"].values())
    for secret in ("marker-secret", "webhook-key", "admin-password"):
        assert secret not in agent


def test_only_rest_has_the_cluster_key_and_each_other_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUSTER_CLUSTER_KEY", CHOICES.cluster_key)
    monkeypatch.setenv("MUSTER_SERVICE_KEY", "a-key-of-another-service")
    monkeypatch.setenv("MUSTER_NODE", "gpu-7")
    made = _environments()
    holders = {name for name, each in made.items() if CHOICES.cluster_key in each.values()}
    assert holders == {"rest"}
    keys = {name: each.get("MUSTER_SERVICE_KEY") for name, each in made.items()}
    assert keys == {
        "rest": None,
        "launcher": None,
        "scheduler": service_key(CHOICES.cluster_key, "scheduler"),
        "runtime-agent": service_key(CHOICES.cluster_key, "agent/gpu-7"),
        "alerting": service_key(CHOICES.cluster_key, "alerting"),
    }


def test_only_the_launcher_opens_secrets_and_rest_seals_to_its_present_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUSTER_SECRETS_KEYS", CHOICES.secrets_keys)
    made = _environments()
    holders = {name for name, each in made.items() if CHOICES.secrets_keys in each.values()}
    assert holders == {"launcher"}
    present = CHOICES.secrets_keys.split(",")[0]
    assert made["rest"]["MUSTER_SECRETS_PUBLIC_KEY"] == public_key_of(present)


def test_the_mail_servers_password_is_for_alerting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SMTP_PASSWORD", "mail-password")
    holders = {name for name, each in _environments().items() if "mail-password" in each.values()}
    assert holders == {"alerting"}


def test_each_service_gets_its_own_log_in_at_the_bus_alone() -> None:
    for name, environment in _environments().items():
        given = {value for value in environment.values() if value.startswith("password-of-")}
        assert given == {f"password-of-{name}"}


def test_a_persons_settings_reach_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("MUSTER_HEARTBEAT_S", "1")
    for environment in _environments().values():
        assert environment["MUSTER_LOG_LEVEL"] == "DEBUG"
        assert environment["MUSTER_HEARTBEAT_S"] == "1"


def test_services_compile_what_they_import_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert all("PYTHONDONTWRITEBYTECODE" not in each for each in _environments().values())


def test_an_orphaned_agent_is_killed_so_that_its_pods_go_on() -> None:
    signals = {
        program.name: program.signal_if_orphaned.name
        for program in programs(Path("/home"), ENDPOINTS, CHOICES)
    }
    assert signals.pop("runtime-agent") == "SIGKILL"
    assert set(signals.values()) == {"SIGTERM"}
