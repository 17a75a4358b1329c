"""A service that can't run logs the reason in one line, and ends."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import asyncpg
import httpx2
import pytest
from cli.embedded.process import free_port
from forked import Programs
from muster.contracts.topics import Service
from muster.errors import Broken
from muster.service import Runtime, health_routes, running
from muster.settings import ServiceSettings
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

pytestmark = pytest.mark.xdist_group("programs")
TIMEOUT_S = 60

Ends = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    """They start at once."""
    with Programs() as running:
        yield running


@pytest.fixture
def ends(programs: Programs) -> Ends:
    """The exit status of a program that ends by itself, and all that it wrote."""

    def run(program: str, **settings: str) -> tuple[int, str]:
        return programs.run(program, {"MUSTER_HTTP_PORT": "0"} | settings)

    return run


def database_of(url: str, name: str) -> str:
    return f"{url.rpartition('/')[0]}/{name}"


def test_a_database_that_was_not_migrated_is_an_error(ends: Ends, empty_database_url: str) -> None:
    code, log = ends("rest", MUSTER_DATABASE_URL=empty_database_url)
    assert code == 1
    assert "has not run 0000_exchange, 0001_rest" in log
    assert "python -m muster.migrate" in log
    assert "Traceback" not in log


async def test_a_database_of_another_product_is_an_error(
    ends: Ends, empty_database_url: str
) -> None:
    conn = await asyncpg.connect(empty_database_url)
    await conn.execute("CREATE SCHEMA rest; CREATE TABLE rest.job (strange text)")
    await conn.close()
    code, log = ends("rest", MUSTER_DATABASE_URL=empty_database_url)
    assert (code, "not Muster's" in log, "Traceback" in log) == (1, True, False)


async def test_a_database_with_other_migrations_is_an_error(ends: Ends, database_url: str) -> None:
    conn = await asyncpg.connect(database_url)
    await conn.execute("UPDATE rest.migration_file SET sha256 = 'x' WHERE revision = '0001'")
    await conn.close()
    code, log = ends("rest", MUSTER_DATABASE_URL=database_url)
    assert (code, "changed after it ran" in log, "Traceback" in log) == (1, True, False)


def test_a_port_that_is_taken_is_an_error(ends: Ends, database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, log = ends("rest", MUSTER_DATABASE_URL=database_url, MUSTER_HTTP_PORT=port)
    assert (code, f"127.0.0.1:{port} can't be listened on" in log) == (1, True)
    assert "Traceback" not in log


async def test_a_port_on_which_another_has_listened_first_is_an_error() -> None:
    """Both may take it while neither listens."""
    port = free_port()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        @asynccontextmanager
        async def build(_runtime: Runtime) -> AsyncIterator[None]:
            other.bind(("127.0.0.1", port))
            other.listen()
            yield

        settings = ServiceSettings(kafka_bootstrap="127.0.0.1:1", http_host="127.0.0.1")
        with pytest.raises(ExceptionGroup) as caught:
            async with running(Service.ALERTING, settings, port, build):
                await asyncio.sleep(TIMEOUT_S)
    assert caught.group_contains(Broken, match=f"127.0.0.1:{port} can't be listened on")


@pytest.mark.parametrize("program", ["rest", "muster.migrate"])
def test_a_database_that_is_not_there_is_an_error(
    ends: Ends, program: str, database_url: str
) -> None:
    code, log = ends(program, MUSTER_DATABASE_URL=database_of(database_url, "nowhere"))
    assert (code, "nowhere" in log, "Traceback" in log) == (1, True, False)


@pytest.mark.parametrize("program", ["rest", "muster.migrate"])
@pytest.mark.parametrize("url", ["nonsense", "postgresql://me:marker#two@127.0.0.1:5432/muster"])
def test_an_invalid_address_is_an_error_without_its_password(
    ends: Ends, program: str, url: str
) -> None:
    code, log = ends(program, MUSTER_DATABASE_URL=url)
    assert (code, "MUSTER_DATABASE_URL is no address" in log) == (1, True)
    assert "Traceback" not in log
    assert "marker" not in log


def test_wrong_settings_are_named_without_their_values(ends: Ends) -> None:
    code, log = ends(
        "rest", MUSTER_ADMIN_PASSWORD="a1b2", MUSTER_REST_PORT="-1", MUSTER_SUBMIT_BATCH="many"
    )
    assert code == 2
    for name in ("MUSTER_ADMIN_PASSWORD", "MUSTER_REST_PORT", "MUSTER_SUBMIT_BATCH"):
        assert f"{name}: " in log
    assert "a1b2" not in log
    assert "Traceback" not in log


def test_the_migrations_understand_what_the_services_understand(
    ends: Ends, empty_database_url: str
) -> None:
    url = empty_database_url.replace("postgresql://", "postgres://") + "?sslmode=prefer"
    code, log = ends("muster.migrate", MUSTER_DATABASE_URL=url)
    assert code == 0, log
    assert "0001_rest" in log


@pytest.mark.parametrize("program", ["rest", "launcher", "scheduler", "alerting"])
def test_every_service_tells_wrong_settings_by_name(ends: Ends, program: str) -> None:
    code, log = ends(program, MUSTER_BATCH_RECORDS="many")
    assert (code, "MUSTER_BATCH_RECORDS: " in log, "Traceback" in log) == (2, True, False)


@pytest.mark.parametrize("program", ["scheduler", "runtime_agent"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "a-name.example"])
def test_a_service_without_its_key_does_not_listen_for_other_machines(
    ends: Ends, program: str, host: str
) -> None:
    code, log = ends(program, MUSTER_HTTP_HOST=host)
    assert code == 2
    (line,) = log.splitlines()
    assert line.startswith("MUSTER_SERVICE_KEY is not set, and MUSTER_HTTP_HOST")
    assert "python -m muster.derive_key" in line


def test_a_short_cluster_key_is_an_error_but_not_shown(ends: Ends) -> None:
    code, log = ends("rest", MUSTER_CLUSTER_KEY="hunter2")
    assert (code, "MUSTER_CLUSTER_KEY: " in log, "hunter2" in log) == (2, True, False)


async def test_metrics_are_for_this_machine_or_those_with_the_token() -> None:
    for token, peer, sent, status in (
        ("", "127.0.0.1", "", 200),
        ("", "::1", "", 200),
        ("", "10.0.0.1", "", 401),
        ("", "10.0.0.1", "Bearer ", 401),
        ("t0ken", "127.0.0.1", "", 401),
        ("t0ken", "10.0.0.1", "Bearer guess", 401),
        ("t0ken", "10.0.0.1", "Bearer t0ken", 200),
    ):
        settings = ServiceSettings(kafka_bootstrap="127.0.0.1:1", metrics_token=token)
        runtime = Runtime(Service.LAUNCHER, settings, CollectorRegistry())
        app = Starlette(routes=health_routes(runtime))
        door = httpx2.ASGITransport(app=app, client=(peer, 1))
        async with httpx2.AsyncClient(transport=door, base_url="http://launcher") as client:
            answer = await client.get("/metrics", headers={"Authorization": sent})
            assert (token, peer, sent, answer.status_code) == (token, peer, sent, status)
            assert (await client.get("/healthz")).status_code == 200
