"""Settings of a log-in at Kafka: a wrong combination is an error in one line, with the fix."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from muster.bus import Bus
from muster.contracts.topics import Service
from muster.metrics import PlumbingMetrics
from muster.settings import KafkaSettings, ServiceSettings
from prometheus_client import CollectorRegistry
from pydantic import SecretStr, ValidationError

LOGIN: dict[str, Any] = {
    "kafka_security_protocol": "SASL_SSL",
    "kafka_user": "rest",
    "kafka_password": "marker-secret",
}
DEADLINE_S = 30.0
CERTIFICATES = Path(__file__).parents[1] / "alerting" / "tls"
CERTIFICATE, KEY = CERTIFICATES / "cert.pem", CERTIFICATES / "key.pem"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**LOGIN, "kafka_user": ""}, "MUSTER_KAFKA_USER is missing: SASL_SSL needs it"),
        ({**LOGIN, "kafka_password": ""}, "MUSTER_KAFKA_PASSWORD is missing: SASL_SSL needs it"),
        (
            {**LOGIN, "kafka_security_protocol": "PLAINTEXT"},
            "MUSTER_KAFKA_USER has no effect with PLAINTEXT:"
            " set MUSTER_KAFKA_SECURITY_PROTOCOL=SASL_SSL",
        ),
        (
            {**LOGIN, "kafka_security_protocol": "SASL_PLAINTEXT", "kafka_ca_file": CERTIFICATE},
            "have no effect with SASL_PLAINTEXT: set MUSTER_KAFKA_SECURITY_PROTOCOL=SASL_SSL",
        ),
        ({**LOGIN, "kafka_key_file": KEY}, "need each other: set both"),
        (
            {**LOGIN, "kafka_ca_file": "/no/where.pem"},
            "MUSTER_KAFKA_CA_FILE can't be used: /no/where.pem: No such file or directory;"
            " name a PEM file",
        ),
        (
            {**LOGIN, "kafka_certificate_file": CERTIFICATE, "kafka_key_file": CERTIFICATE},
            "MUSTER_KAFKA_CERTIFICATE_FILE or MUSTER_KAFKA_KEY_FILE can't be used",
        ),
    ],
)
def test_a_wrong_combination_names_the_setting_and_the_fix(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        KafkaSettings(**given)
    (problem,) = caught.value.errors()
    assert message in problem["msg"]
    assert "\n" not in problem["msg"]
    assert "marker-secret" not in str(caught.value)


def test_a_service_ends_at_its_start_with_one_line() -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "MUSTER_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "MUSTER_KAFKA_PASSWORD": "marker-secret",
    }
    done = subprocess.run(
        [sys.executable, "-m", "launcher"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "MUSTER_KAFKA_USER is missing: SASL_SSL needs it\n"
    assert done.stdout == ""


def test_the_password_comes_from_the_secrets_directory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "muster_kafka_password"
    secret.write_text("of-a-file\n")
    secret.chmod(stat.S_IRUSR)
    monkeypatch.setitem(ServiceSettings.model_config, "secrets_dir", tmp_path)
    settings = ServiceSettings(kafka_security_protocol="SASL_SSL", kafka_user="rest")  # type: ignore[arg-type]
    assert settings.kafka_password == SecretStr("of-a-file")
    assert "of-a-file" not in repr(settings.model_dump(mode="json"))


def test_a_client_has_tls_log_in_and_its_own_certificate() -> None:
    files = {"kafka_ca_file": CERTIFICATE, "kafka_certificate_file": CERTIFICATE}
    options = KafkaSettings(**LOGIN, **files, kafka_key_file=KEY).kafka_client()
    context = options.pop("ssl_context")
    assert options == {
        "bootstrap_servers": "127.0.0.1:9092",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "rest",
        "sasl_plain_password": "marker-secret",
    }
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


def test_a_file_that_is_away_while_it_is_renewed_ends_no_running_service(tmp_path: Path) -> None:
    authority = Path(shutil.copy(CERTIFICATE, tmp_path))
    settings = ServiceSettings(**LOGIN, kafka_ca_file=authority, bus_watch_s=0.01)
    authority.unlink()
    assert f"MUSTER_KAFKA_CA_FILE can't be used: {authority}" in asyncio.run(complaint(settings))


async def complaint(settings: ServiceSettings) -> str:
    """What is first logged of the bus, which is watched on."""
    bus = Bus(settings, Service.REST, PlumbingMetrics(CollectorRegistry()))
    with structlog.testing.capture_logs() as lines:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            watching = group.create_task(bus.run())
            while not lines:
                await asyncio.sleep(0.01)
            assert watching.cancel()
    return str(lines)


def test_without_settings_a_client_is_plain() -> None:
    assert KafkaSettings().kafka_client() == {
        "bootstrap_servers": "127.0.0.1:9092",
        "security_protocol": "PLAINTEXT",
    }
