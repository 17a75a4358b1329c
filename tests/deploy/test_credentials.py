"""The Secrets of an installation on Kubernetes."""

import json
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from cli.client import CommandError
from cli.deploy.credentials import (
    address_of_database,
    derived,
    enrolment,
    secret_of_users,
    secrets_of_services,
)
from cli.deploy.key import secrets_of
from cli.deploy.objects import decoded, encoded, name_of
from manifests import Json
from muster.sealing import make_private_key, public_key_of, seal, unseal
from muster.service_keys import SCHEDULER, agent, service_key

KEY = "k" * 64
KEY_BEFORE = make_private_key()
URL = "postgresql://muster:{password}@postgres:5432/muster"


def by_name(key: str = KEY) -> dict[str, dict[str, str]]:
    return {each["metadata"]["name"]: each["stringData"] for each in secrets_of_services(key, URL)}


def test_each_service_has_only_its_own() -> None:
    made = by_name()
    assert made["rest"].keys() == {
        "muster_kafka_password",
        "muster_metrics_token",
        "muster_cluster_key",
        "muster_webhook_key",
        "muster_admin_password",
        "muster_alertmanager_token",
        "muster_secrets_public_key",
    }
    of_all = {"muster_kafka_password", "muster_metrics_token"}
    assert made["launcher"].keys() == of_all | {"muster_secrets_keys"}
    assert "muster_cluster_key" not in made["scheduler"]
    passwords = [
        made[name]["muster_kafka_password"]
        for name in ("rest", "launcher", "scheduler", "alerting", "fence", "bus")
    ]
    assert len(set(passwords)) == len(passwords)


def test_keys_of_services_are_those_that_rest_derives() -> None:
    made = by_name()
    cluster_key = made["rest"]["muster_cluster_key"]
    assert made["scheduler"]["muster_service_key"] == service_key(cluster_key, SCHEDULER)
    secret, _ = enrolment(KEY, "gpu-1", "image")
    assert secret["stringData"]["muster_service_key"] == service_key(cluster_key, agent("gpu-1"))


def test_the_launcher_alone_opens_what_rest_seals() -> None:
    made = by_name()
    sealed = seal("of a job", made["rest"]["muster_secrets_public_key"])
    key = made["launcher"]["muster_secrets_keys"]
    assert unseal(sealed, [key]) == "of a job"
    holders = {name for name, entries in made.items() if key in entries.values()}
    assert holders == {"launcher"}


def test_keys_of_an_installation_stay() -> None:
    new = make_private_key()
    live = an_installation(f"{new},{KEY_BEFORE}")
    for wanted, before in (({"launcher": f"{new},{KEY_BEFORE}"}, live), ({}, [])):
        made = {name_of(each): each for each in secrets_of(KEY, before, ["gpu-1"], None)}
        keys = decoded(made["launcher"], "muster_secrets_keys") or ""
        assert keys == wanted.get("launcher", by_name()["launcher"]["muster_secrets_keys"])
        public = decoded(made["rest"], "muster_secrets_public_key")
        assert public == public_key_of(keys.split(",")[0])
    with pytest.raises(CommandError, match="Secret launcher, entry muster_secrets_keys: the first"):
        secrets_of(KEY, an_installation("no-key"), [], None)


def an_installation(secrets_keys: str) -> list[Json]:
    """The Secret of the Launcher as it is in the cluster."""
    content = {"muster_secrets_keys": secrets_keys}
    return [encoded({"kind": "Secret", "metadata": {"name": "launcher"}, "stringData": content})]


def test_a_node_learns_nothing_of_another_node_or_service() -> None:
    one, _ = enrolment(KEY, "gpu-1", "image")
    other, _ = enrolment(KEY, "gpu-2", "image")
    shared = {"muster_metrics_token"}  # it opens /metrics alone
    for name in one["stringData"].keys() - shared:
        assert one["stringData"][name] != other["stringData"][name]
    assert "muster_cluster_key" not in one["stringData"]


def test_a_new_node_changes_nothing_else() -> None:
    before = secret_of_users(KEY, ["gpu-1"])["stringData"]
    after = secret_of_users(KEY, ["gpu-1", "gpu-2"])["stringData"]
    assert after.keys() - before.keys() == {"agent-gpu-2"}
    assert before.items() <= after.items()


def test_a_key_gives_the_same_secrets_and_another_gives_others() -> None:
    assert by_name() == by_name()
    assert not set(by_name()["rest"].values()) & set(by_name("j" * 64)["rest"].values())


def test_the_job_runs_on_its_node_and_mounts_its_secret_alone() -> None:
    secret, job = enrolment(KEY, "gpu-1", "registry/muster:2")
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeName"] == "gpu-1"
    assert pod["containers"][0]["image"] == "registry/muster:2"
    mounted = [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each]
    assert mounted == [secret["metadata"]["name"]]
    assert (
        enrolment(KEY, "gpu-2", "registry/muster:2")[1]["metadata"]["name"]
        != job["metadata"]["name"]
    )


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="openssl rand -hex 32"):
        derived("short", "admin")


def test_the_command_writes_one_list_and_the_key_is_not_in_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    command = [sys.executable, "-m", "cli.deploy.credentials", "--key-file", tmp_path / "key"]
    done = subprocess.run(
        [*command, "--node", "gpu-1", "--database-url", "postgresql://m:{password}@db/muster"],
        capture_output=True,
        text=True,
        check=True,
    )
    items = json.loads(done.stdout)["items"]
    kinds = [each["kind"] for each in items]
    assert (kinds.count("Job"), set(kinds)) == (1, {"Job", "Secret"})
    assert KEY not in done.stdout
    (database,) = [each for each in items if each["metadata"]["name"] == "database"]
    (postgres,) = [each for each in items if each["metadata"]["name"] == "postgres"]
    password = postgres["stringData"]["password"]
    assert database["stringData"]["muster_database_url"] == f"postgresql://m:{password}@db/muster"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://m:hunter2@db/muster",
        "postgresql://:hunter2@db/muster",
        "postgresql://m@db/muster?sslmode=verify-full&password=hunter2",
        "postgresql://m@db/muster?p%61ssword=hunter2",
        "postgresql://m@db/muster?sslkey=/k&sslpassword=hunter2",
        "postgresql://m:{password}@db/muster?password=hunter2",
        "postgresql://m:hunter2@db-1:5432,db-2:5433/muster",
    ],
)
def test_no_option_takes_a_password_of_the_database(address: str) -> None:
    with pytest.raises(ValueError, match="Set MUSTER_DEPLOY_DATABASE_URL") as refused:
        address_of_database(address, {})
    assert "hunter2" not in str(refused.value)
    assert address_of_database(None, {"MUSTER_DEPLOY_DATABASE_URL": address}) == address


@pytest.mark.parametrize(
    "address",
    [
        *(f"postgresql://m:{raw}@db/muster" for raw in ("hun/ter2", "hun?ter2", "hun#ter2")),
        *(f"postgresql://m:{raw}@db/muster" for raw in ("12/ter2", "12?ter2", "12?a=ter2")),
        *(f"postgresql://m:{raw}@db/muster" for raw in ("12#ter2", "hun@ter2", "hun[ter2")),
        "postgresql://m:hunter2",
        "mysql://m:hunter2@db/muster",
        "host=db password=hunter2",
    ],
)
def test_an_address_that_can_not_be_read_is_refused_and_not_shown(address: str) -> None:
    for option, where in ((address, "--database-url"), (None, "MUSTER_DEPLOY_DATABASE_URL")):
        with pytest.raises(ValueError, match=f"^{where} is no address of PostgreSQL") as refused:
            address_of_database(option, {"MUSTER_DEPLOY_DATABASE_URL": address})
        shown = "".join(traceback.format_exception(refused.value))
        assert "ter2" not in shown
    assert "%2F" in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://m:{password}@db:5432/muster?sslmode=verify-full",
        "postgresql://m@db:5432/muster",
        "postgresql://db:5432/muster?user=m@n",
        "postgresql://m:{password}@db-1,db-2:5433,[::1]:5434/muster",
        "postgresql:///muster?host=/run/postgresql",
    ],
)
def test_an_address_without_a_password_may_be_an_option(address: str) -> None:
    assert (
        address_of_database(address, {"MUSTER_DEPLOY_DATABASE_URL": "postgresql://other"})
        == address
    )


def test_a_password_of_the_operators_own_may_have_braces() -> None:
    address = "postgresql://m:{x}@db/muster"
    found = {each["metadata"]["name"]: each for each in secrets_of_services(KEY, address)}
    assert found["database"]["stringData"]["muster_database_url"] == address
