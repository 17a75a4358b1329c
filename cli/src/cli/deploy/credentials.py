"""Writes the Secrets of an installation on Kubernetes, and the Job that brings each node its own:
``python -m cli.deploy.credentials --key-file KEY --node NODE … | kubectl apply -f -``.

Everything is derived from one key that the operator keeps, so the same key gives the same Secrets
and a new node changes none of the others. No service holds that key.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from muster.contracts.acls import FENCE, OPERATOR, agent_user
from muster.contracts.topics import Service
from muster.sealing import public_key_of
from muster.service_keys import ALERTING, KEY_BYTES, SCHEDULER, agent, service_key

from cli.deploy.objects import LEAST_RIGHTS, SYSTEM, Json, name_of

ADMINISTRATOR = "administrator"
"""Kafka's user that makes the topics, and sets the passwords of the others."""
SERVICES = tuple(each for each in Service if each is not Service.RUNTIME_AGENT)
IMAGE = "localhost/muster:0.1.0"
PLACEHOLDER = "{password}"
DATABASE_URL = f"postgresql://muster:{PLACEHOLDER}@postgres:5432/muster"
DATABASE_VARIABLE = "MUSTER_DEPLOY_DATABASE_URL"
"""Not the services' own: a shell may have that for another Muster."""
NO_DATABASE = (
    "The overlay has no PostgreSQL, so Muster needs the address of yours: --database-url"
    f" 'postgresql://muster:{PLACEHOLDER}@HOST/muster?sslmode=verify-full&sslrootcert=FILE', or"
    f" {DATABASE_VARIABLE} in the environment."
)
SCHEMES = ("postgresql", "postgres")
PASSWORDS = ("password", "sslpassword")
FOLDER = "/var/lib/muster"
NODE_ANNOTATION = "muster/node"
SECRETS_KEYS = "muster_secrets_keys"
USERS = "bus-users"


def derived(key: str, purpose: str) -> str:
    """A secret for one purpose. Raises ValueError where the key is too short."""
    if len(key) < KEY_BYTES:
        raise ValueError(f"the key has less than {KEY_BYTES} characters: openssl rand -hex 32")
    return hmac.new(key.encode(), f"deployment\n{purpose}".encode(), hashlib.sha256).hexdigest()


def kafka_password(key: str, user: str) -> str:
    """The password of one of Kafka's users."""
    return derived(key, f"kafka/{user}")


def key_of_secrets(key: str) -> str:
    """The Launcher's first private key for the secrets of jobs."""
    return base64.b64encode(bytes.fromhex(derived(key, "secrets of jobs"))).decode()


def secrets_of_services(key: str, database_url: str, secrets_keys: str | None = None) -> list[Json]:
    """The Secrets of all services, of the fence, and of the Jobs before them. `secrets_keys`: the
    Launcher's private keys, where an operator has changed them. Raises ValueError where the first
    is none.
    """
    secrets_keys = secrets_keys or key_of_secrets(key)
    cluster_key, webhook_key = derived(key, "cluster key"), derived(key, "webhook key")
    metrics = {"muster_metrics_token": derived(key, "metrics")}
    own: dict[str, dict[str, str]] = {
        Service.REST: {
            "muster_cluster_key": cluster_key,
            "muster_webhook_key": webhook_key,
            "muster_alertmanager_token": derived(key, "alertmanager"),
            "muster_admin_password": derived(key, "admin"),
            "muster_secrets_public_key": public_key_of(secrets_keys.split(",")[0].strip()),
        },
        Service.LAUNCHER: {SECRETS_KEYS: secrets_keys},
        Service.SCHEDULER: {"muster_service_key": service_key(cluster_key, SCHEDULER)},
        Service.ALERTING: {
            "muster_webhook_key": webhook_key,
            "muster_service_key": service_key(cluster_key, ALERTING),
        },
    }
    found = [
        _secret(
            str(each),
            {"muster_kafka_password": kafka_password(key, each), **metrics} | own.get(each, {}),
        )
        for each in (*SERVICES, FENCE)
    ]
    password = derived(key, "postgres")
    administrator = {"muster_kafka_password": kafka_password(key, ADMINISTRATOR)}
    return [
        *found,
        _secret("metrics", metrics),
        _secret("bus", administrator),
        _secret("database", {"muster_database_url": database_url.replace(PLACEHOLDER, password)}),
        _secret("postgres", {"password": password}),
        _secret("kafka", {"password": administrator["muster_kafka_password"]}),
    ]


def address_of_database(option: str | None, environment: Mapping[str, str]) -> str | None:
    """The one that the operator gives. Raises ValueError, which never has the address, where it
    can't be read, or where the option has a password.
    """
    if option:
        if any(each not in ("", PLACEHOLDER) for each in _passwords(option, "--database-url")):
            raise ValueError(
                "--database-url has a password, which every user of this machine can read."
                f" Set {DATABASE_VARIABLE} to the address instead, or write {PLACEHOLDER} in it."
            )
        return option
    if given := environment.get(DATABASE_VARIABLE):
        _passwords(given, DATABASE_VARIABLE)
    return given or None


def _passwords(address: str, where: str) -> list[str]:
    """All that the address has. Raises ValueError where services would read it otherwise."""
    try:
        login, options = _parts(address)
    except ValueError:
        raise ValueError(
            f"{where} is no address of PostgreSQL:"
            " postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTIONS."
            " Write @ / ? # % in a user or password as %40 %2F %3F %23 %25."
        ) from None
    return [login.partition(":")[2], *(value for name, value in options if name in PASSWORDS)]


def _parts(address: str) -> tuple[str, list[tuple[str, str]]]:
    """Login and options. Raises ValueError, whose words may have the password."""
    parts = urlsplit(address)
    login, _, hosts = parts.netloc.rpartition("@")
    for host in hosts.split(","):  # services try each
        _ = urlsplit(f"//{host}").port
    options = parse_qsl(parts.query, strict_parsing=True) if parts.query else []
    # What follows a sign that is not encoded ends up in these.
    others = [login, parts.path, *(value for name, value in options if name != "user")]
    if parts.scheme not in SCHEMES or "#" in address or any("@" in each for each in others):
        raise ValueError("it is another one's, or its password is not encoded")
    return login, options


def secret_of_users(key: str, nodes: Sequence[str]) -> Json:
    """The passwords of Kafka's users, which `muster.bus_admin` sets."""
    users = [*(each.value for each in SERVICES), OPERATOR, FENCE, *map(agent_user, nodes)]
    return _secret(USERS, {user: kafka_password(key, user) for user in users})


def names_of_secrets() -> list[str]:
    """Of those that services and setup Jobs need, which are the same for each key."""
    key = "0" * KEY_BYTES
    return [name_of(each) for each in (*secrets_of_services(key, ""), secret_of_users(key, ()))]


def enrolment(key: str, node: str, image: str) -> list[Json]:
    """The Secret of a node's agent, and the Job that stores it on the node."""
    credentials = {
        "muster_kafka_password": kafka_password(key, agent_user(node)),
        "muster_service_key": service_key(derived(key, "cluster key"), agent(node)),
        "muster_metrics_token": derived(key, "metrics"),
    }
    text = json.dumps([node, credentials, image], sort_keys=True)
    name = f"enrol-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    labels = {
        "app.kubernetes.io/part-of": "muster",
        "app.kubernetes.io/name": "enrol",
        "app.kubernetes.io/component": "enrolment",
    }
    pod = {
        "nodeName": node,
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "enrol",
                "image": image,
                "args": ["runtime_agent.enrolment", "store", "/run/node", f"{FOLDER}/credentials"],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "32Mi"},
                    "limits": {"cpu": "1", "memory": "128Mi"},
                },
                "securityContext": LEAST_RIGHTS,
                "volumeMounts": [
                    {"name": "secret", "mountPath": "/run/node", "readOnly": True},
                    {"name": "home", "mountPath": FOLDER},
                ],
            }
        ],
        "volumes": [
            {"name": "secret", "secret": {"secretName": agent_user(node), "defaultMode": 0o400}},
            {"name": "home", "hostPath": {"path": FOLDER, "type": "DirectoryOrCreate"}},
        ],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": SYSTEM,
            "labels": labels,
            "annotations": {NODE_ANNOTATION: node},
        },
        "spec": {
            "ttlSecondsAfterFinished": 600,
            "template": {
                "metadata": {"labels": labels, "annotations": {NODE_ANNOTATION: node}},
                "spec": pod,
            },
        },
    }
    return [_secret(agent_user(node), credentials), job]


def _secret(name: str, content: Mapping[str, str]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": SYSTEM,
            "labels": {"app.kubernetes.io/part-of": "muster"},
        },
        "stringData": dict(content),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m cli.deploy.credentials", description=__doc__)
    parser.add_argument("--key-file", type=Path, required=True, help="`openssl rand -hex 32`")
    parser.add_argument("--node", action="append", default=[], help="a node; may be given again")
    parser.add_argument("--image", default=IMAGE, help="Muster's image, for the nodes' Jobs")
    parser.add_argument(
        "--database-url",
        help=f"{PLACEHOLDER} stands for the one of the overlay `minimal`; else {DATABASE_VARIABLE}",
    )
    arguments = parser.parse_args()
    try:
        database_url = address_of_database(arguments.database_url, os.environ) or DATABASE_URL
    except ValueError as error:
        parser.error(str(error))
    try:
        key = arguments.key_file.read_text().strip()
        found = [
            *secrets_of_services(key, database_url),
            secret_of_users(key, arguments.node),
        ]
        for node in arguments.node:
            found += enrolment(key, node, arguments.image)
    except (OSError, ValueError) as error:
        sys.exit(f"{arguments.key_file}: {error}")
    json.dump({"apiVersion": "v1", "kind": "List", "items": found}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
