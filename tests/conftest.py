"""The servers that tests stand on: one PostgreSQL and one broker for each test process.

`database_url` is a fresh, migrated database for each test; `bootstrap` the shared broker (take
topic and group names of your own, or keys that no other test uses); `fresh_broker` a broker that a
test may kill and start again on the same port. `kube_plane` is a Kubernetes cluster without nodes.
"""

import asyncio
import gc
import os
import secrets
import subprocess
import sys
from collections.abc import Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
import structlog
from bus_logins import running_closed, set_up
from cli.embedded import process
from cli.embedded.apache import ApacheKafka
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.postgres import EmbeddedPostgres
from hypothesis import settings
from muster.contracts.topics import EVERY_TOPIC

if TYPE_CHECKING:
    from kube_plane import KubePlane

# Each test process has ports of its own: between the look for a free one and the start of a server
# on it another process could find it too. A `muster up` that a test starts chooses among all.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
process.SERVER_PORTS = process.SERVER_PORTS[WORKER::WORKERS]

# The databases lie in memory where that is large enough: to copy one of a thousand files on a disk
# takes ten times as long, and each test does. Not all that tests keep: a pod has a /dev/shm of its
# own, and would not see it.
MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 4 * 2**30
FOR_DATABASES = MEMORY if MEMORY.is_dir() and disk_usage(MEMORY).free >= ENOUGH_BYTES else None

TEMPLATE = "migrated"
MIGRATE_TIMEOUT_S = 120
PARTITIONS = 4

# How long an example takes is the machine's matter: no property fails by the clock.
settings.register_profile("muster", deadline=None)
settings.load_profile("muster")

# As the services themselves tell an exception: structlog's own way draws every frame with its
# variables, and so holds up for seconds all that runs in the test's process.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--broker apache`: the tests with a broker of their own run on a real Apache Kafka.
    `--backend kubernetes`: tests of the whole run tasks as pods of a real control plane.
    """
    parser.addoption("--broker", choices=("embedded", "apache"), default="embedded")
    parser.addoption("--backend", choices=("processes", "kubernetes"), default="processes")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live as long as the process: the garbage collector looks at them neither
    now nor later. Half a million objects, of each test process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server without fsync, for this test process."""
    with (
        TemporaryDirectory(dir=FOR_DATABASES) as folder,
        EmbeddedPostgres(Path(folder), fsync=False) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres_server: EmbeddedPostgres) -> str:
    """The name of a database on which every service's migrations ran; nobody may stay connected to
    it.
    """
    _execute(postgres_server.dsn, f"CREATE DATABASE {TEMPLATE}")
    url = database_named(postgres_server, TEMPLATE)
    migrate = [sys.executable, "-m", "muster.migrate", "--database-url", url]
    done = subprocess.run(
        migrate, capture_output=True, text=True, timeout=MIGRATE_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"The migrations failed: {done.stderr[-2000:]}", pytrace=False)
    return TEMPLATE


@pytest.fixture
def database_url(postgres_server: EmbeddedPostgres, migrated_template: str) -> Iterator[str]:
    """A database of this test's own, migrated and empty."""
    yield from _database(postgres_server, f"TEMPLATE {migrated_template}")


@pytest.fixture
def empty_database_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database of this test's own without any table."""
    yield from _database(postgres_server, "")


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker for this test process, with Muster's topics."""
    with EmbeddedBroker(EVERY_TOPIC, partitions=PARTITIONS) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(broker: EmbeddedBroker) -> str:
    """The shared broker's address."""
    return broker.bootstrap


@pytest.fixture
def fresh_broker(
    request: pytest.FixtureRequest, tmp_path: Path, apache_installation: Path
) -> Iterator[EmbeddedBroker | ApacheKafka]:
    """A broker of this test's own: `kill()` and `start()` it at will, its port stays.

    The embedded one forgets all records when it is killed; with `--broker apache` it is a real
    Apache Kafka, which keeps them.
    """
    if request.config.getoption("--broker") == "apache":
        with running_closed(ApacheKafka(tmp_path / "kafka", apache_installation)) as kafka:
            set_up(kafka, PARTITIONS)
            yield kafka
    else:
        with EmbeddedBroker(EVERY_TOPIC, partitions=PARTITIONS) as broker:
            yield broker


@pytest.fixture(scope="session")
def apache_installation() -> Path:
    """The jars and what was prepared of them, by `make kafka`."""
    return Path(__file__).parents[1] / ".kafka"


@pytest.fixture
def apache_kafka(apache_installation: Path, tmp_path: Path) -> Iterator[ApacheKafka]:
    """A real Apache Kafka of this test's own, without topics and rights; only for tests marked
    `apache`.
    """
    with running_closed(ApacheKafka(tmp_path / "kafka", apache_installation)) as running:
        yield running


@pytest.fixture(scope="session")
def kube_plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[KubePlane]":
    """A Kubernetes control plane for this test process; only for tests marked `k8s`.

    Take names of your own. A test may kill its parts, and starts them again before it ends.
    """
    from kube_plane import KubePlane  # it loads a large client, which few tests need

    with KubePlane(tmp_path_factory.mktemp("kube")) as running:
        yield running


def database_named(server: EmbeddedPostgres, name: str) -> str:
    """The URL of another database of the same server."""
    return f"{server.dsn.rpartition('/')[0]}/{name}"


def _database(server: EmbeddedPostgres, how: str) -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    _execute(server.dsn, f"CREATE DATABASE {name} {how}")
    try:
        yield database_named(server, name)
    finally:
        _execute(server.dsn, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(dsn: str, statement: str) -> None:
    """Run one statement; in a thread, so that it works whether or not a loop runs here."""

    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    _in_thread(run())


def _in_thread(work: Coroutine[Any, Any, None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()
