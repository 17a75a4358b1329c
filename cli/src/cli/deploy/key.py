"""The operator's key file, and the Secrets that an apply writes from it."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cli.client import CommandError, Exit
from cli.deploy.credentials import (
    DATABASE_URL,
    SECRETS_KEYS,
    derived,
    enrolment,
    secret_of_users,
    secrets_of_services,
)
from cli.deploy.objects import LAUNCHER, Json, decoded, encoded, find, name_of
from cli.home import PRIVATE_FILE

CLUSTER_KEY = "muster_cluster_key"
DATABASE = "database"
POSTGRES = "postgres"


def key_for(path: Path, rest: Json | None) -> str:
    """The key. It is made where there is none, unless the cluster has a Secret `rest` already:
    another key would change every password. Raises CommandError.
    """
    try:
        if rest is None and not path.exists():
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            with os.fdopen(file, "w") as made:
                made.write(secrets.token_hex(32) + "\n")
        key = path.read_text().strip()
        cluster_key: str | None = derived(key, "cluster key")
    except FileNotFoundError:
        raise CommandError(
            Exit.USAGE,
            f"There is no key {path}, but Muster is installed here with one."
            " Name that file by --key-file: another key would change every password.",
        ) from None
    except OSError as error:
        raise CommandError(Exit.USAGE, f"{path}: {error}") from error
    except ValueError as error:
        if rest is None:
            raise CommandError(Exit.USAGE, f"{path}: {error}") from error
        cluster_key = None
    if rest is not None and decoded(rest, CLUSTER_KEY) != cluster_key:
        raise CommandError(
            Exit.USAGE,
            f"{path} is not the key with which Muster was installed here."
            " Name that file by --key-file: another key would change every password.",
        )
    return key


def secrets_of(
    key: str, live: Sequence[Json], nodes: Sequence[str], database_url: str | None
) -> list[Json]:
    """The Secrets of the services and of Kafka's users. Of `live`, an existing installation's, the
    keys for the secrets of jobs stay, and without an address that of the database. Raises
    CommandError.
    """
    before = {name_of(each): each for each in live}
    secrets_keys = decoded(before.get(LAUNCHER, {}), SECRETS_KEYS)
    try:
        made = secrets_of_services(key, database_url or DATABASE_URL, secrets_keys)
    except ValueError as error:
        where = f"Secret {LAUNCHER}, entry {SECRETS_KEYS}: the first key"
        raise CommandError(Exit.REFUSED, f"{where} {error}") from error
    if database_url is None and DATABASE in before:
        made = [each for each in made if name_of(each) != DATABASE]
    return [*map(encoded, made), users_of(key, nodes)]


def has_database(objects: Sequence[Json], live: Sequence[Json]) -> bool:
    """Whether the address is known without the operator: the overlay `minimal` brings the database,
    or the installation has its address.
    """
    brought = find(objects, "Service", POSTGRES)
    return brought is not None or find(live, "Secret", DATABASE) is not None


def users_of(key: str, nodes: Sequence[str]) -> Json:
    """The Secret of Kafka's users."""
    return encoded(secret_of_users(key, nodes))


def enrolments(key: str, nodes: Sequence[str], image: str) -> list[Json]:
    """The Secret of each node's agent, and the Job that brings it there."""
    return [encoded(each) for node in nodes for each in enrolment(key, node, image)]


def first_password(key: str) -> str:
    """The first administrator's."""
    return derived(key, "admin")
