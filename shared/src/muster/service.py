"""What every process of Muster is: settings, logs, traces, metrics, database, bus, relay, health
endpoints, tasks; and an orderly stop. The service itself is built by its own ``app.py``.
"""

import asyncio
import contextlib
import hmac
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import structlog
import uvicorn
import uvloop
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from muster.addresses import is_loopback
from muster.aggregates import Aggregate
from muster.bus import Bus, is_cancelled
from muster.contracts.topics import Service
from muster.db import Pool, answers, is_transient, open_pool
from muster.errors import Broken
from muster.inbox import Handler, Inbox, messages_of
from muster.incarnation import Incarnations
from muster.metrics import PlumbingMetrics
from muster.migration_files import NO_ADDRESS, refuse_old
from muster.process import make_process_private
from muster.readers import Follower, OnRecord
from muster.records import Received
from muster.relay import Relay
from muster.service_keys import bearer_token
from muster.settings import DatabaseSettings, ServiceSettings
from muster.telemetry import set_up_logging, set_up_tracing

if TYPE_CHECKING:
    from muster.consumer import Consumer

_log = structlog.get_logger()

POOL_CLOSE_S = 2.0
CANCEL_AGAIN_S = 2.0


class Runtime:
    """What a service's ``app.py`` builds on. Tasks that it spawns run until the stop.

    A process that only follows topics has a ``name`` that is no service's.
    """

    def __init__(self, name: str, settings: ServiceSettings, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.registry = registry
        self.metrics = PlumbingMetrics(registry)
        self.bus = Bus(settings, name, self.metrics)
        self.routes: list[BaseRoute] = []
        self.facts: dict[str, Callable[[], bool]] = {}
        """What ``/readyz`` shows besides; it makes nothing unready."""
        self.asgi: ASGIApp | None = None
        self.stopping = asyncio.Event()
        self._pool: Pool | None = None
        self._reserved_pool: Pool | None = None
        self._incarnations: Incarnations | None = None
        self._relay: Relay | None = None
        self._tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = [("bus", self.bus.run)]

    @property
    def pool(self) -> Pool:
        """The database pool of a service that has one."""
        assert self._pool is not None, "this service has no database"
        return self._pool

    @property
    def reserved_pool(self) -> Pool:
        """A few connections of a service that has a database, which no slow statement may hold:
        readiness and authentication use it.
        """
        assert self._reserved_pool is not None, "this service has no database"
        return self._reserved_pool

    @property
    def relay(self) -> Relay:
        """The relay of a service that has a database."""
        assert self._relay is not None, "this service has no database"
        return self._relay

    @property
    def incarnations(self) -> Incarnations:
        """The incarnations of a service that has a database."""
        assert self._incarnations is not None, "this service has no database"
        return self._incarnations

    async def open_database(self) -> None:
        """Connect, however long the database is away.

        Raises Broken where no wait helps: an invalid address, a missing database or user, tables
        that are not Muster's or too old.
        """
        assert isinstance(self.settings, DatabaseSettings)
        incarnations = Incarnations(self.bus, self.settings.resync_s)
        wait = self.settings.retry_first_s
        while True:
            try:
                pool = await _open_checked_pool(self.settings, self.bus.me)
            except Exception as error:
                _refuse_hopeless(error)
                _log.warning(
                    "the database does not answer", error=str(error) or type(error).__name__
                )
                await asyncio.sleep(wait)
                wait = min(wait * 2, self.settings.retry_longest_s)
            else:
                self._pool, self._incarnations = pool, incarnations
                self._reserved_pool = await open_pool(
                    self.settings, self.bus.me.value, is_reserved=True
                )
                self._relay = Relay(self.bus, pool, incarnations)
                self.spawn("relay", self._relay.run)
                self.spawn("services started", incarnations.follower.run)
                self.spawn("incarnation", partial(incarnations.run, pool))
                return

    def spawn(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run something for as long as the service runs."""
        self._tasks.append((name, run))

    def inbox(self, handler: Handler, after: Callable[[Any], None] | None = None) -> Inbox:
        """A handler of batches, each in one transaction."""
        return Inbox(self.bus, self.relay, handler, after)

    def consumer(
        self,
        topics: Sequence[str],
        handler: Handler,
        after: Callable[[Any], None] | None = None,
        linger_s: float = 0.0,
        seat: str | None = None,
    ) -> "Consumer":
        """The member of the service's consumer group; the caller runs it. It handles nothing before
        the service knows whether its database was restored.
        """
        # Only here: FastStream is a fifth of what an agent loads, which is a member of no group.
        from muster.consumer import Consumer

        inbox = self.inbox(handler, after)
        self.metrics.expect(topics)

        async def handle(records: Sequence[Received]) -> None:
            await self.incarnations.has_begun.wait()
            await inbox.handle(records)

        return Consumer(self.bus, topics, handle, linger_s, seat)

    def consume(self, topics: Sequence[str], aggregate: Aggregate[Any]) -> None:
        """Apply the state messages on ``topics`` for as long as the service runs."""
        consumer = self.consumer(topics, messages_of(aggregate, self.bus))
        self.spawn("consumer", consumer.run)

    def follow(self, topics: Sequence[str], on_record: OnRecord) -> Follower:
        """Read whole topics without a group for as long as the service runs."""
        follower = Follower(self.bus, topics, on_record)
        self.spawn("follower", follower.run)
        return follower

    @property
    def tasks(self) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        return tuple(self._tasks)

    async def is_ready(self) -> dict[str, bool]:
        """What the service needs, and whether it answers."""
        ready = {"bus": self.bus.is_up, "bus_rights": not self.bus.refusals.reasons}
        if self._reserved_pool is not None:
            ready["database"] = await answers(self._reserved_pool)
        return ready

    async def close(self) -> None:
        """Close the bus and the database."""
        await self.bus.close()
        if self._pool is not None:
            try:
                async with asyncio.timeout(POOL_CLOSE_S):
                    async with self._pool.acquire() as conn:
                        await self.incarnations.note_loss(conn)
                    await self._pool.close()
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                _log.debug("the database was not left in order", error=str(error))
            finally:
                self._pool.terminate()
        if self._reserved_pool is not None:
            self._reserved_pool.terminate()


async def _open_checked_pool(settings: DatabaseSettings, me: Service) -> Pool:
    pool = await open_pool(settings, me.value)
    try:
        try:
            rows = await pool.fetch("SELECT revision, sha256 FROM migration_file")
        except asyncpg.UndefinedTableError:
            rows = []
        refuse_old(me.value, {row["revision"]: row["sha256"] for row in rows})
    except BaseException:
        pool.terminate()
        raise
    return pool


def _refuse_hopeless(error: Exception) -> None:
    """Raises Broken where no wait helps; any other error that is not transient as it is."""
    is_certificate = isinstance(error, OSError)  # one that does not fit is a ValueError too
    if isinstance(error, ValueError) and not is_certificate:
        raise Broken(NO_ADDRESS) from None  # its text may hold a piece of the password
    if is_transient(error):
        return
    if isinstance(error, asyncpg.PostgresError):
        raise Broken(f"the database refuses: {error}; check MUSTER_DATABASE_URL") from error
    raise error


Build = Callable[[Runtime], AbstractAsyncContextManager[None]]
"""A service's wiring: what it sets up before the tasks start, and takes down after they ended."""


METRICS_REFUSED = (
    "Send the token of MUSTER_METRICS_TOKEN (Authorization: Bearer); where it is not set, only the"
    " service's own machine may read metrics.\n"
)


def health_routes(runtime: Runtime) -> list[BaseRoute]:
    """``/healthz``: the process is alive. ``/readyz``: bus and database answer. Both are public and
    show nothing else but the service's facts. ``/metrics`` has names of virtual clusters, topics
    and nodes, of an agent also of users and jobs, of the Launcher also of users: only this
    machine's processes may read it, or, where it is set, senders of MUSTER_METRICS_TOKEN.
    """
    token = runtime.settings.metrics_token.get_secret_value()

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_request: Request) -> Response:
        ready = await runtime.is_ready()
        facts = {name: fact() for name, fact in runtime.facts.items()}
        return JSONResponse(ready | facts, 200 if all(ready.values()) else 503)

    async def metrics(request: Request) -> Response:
        if token:
            given = bearer_token(request.headers.get("authorization", ""))
            is_allowed = hmac.compare_digest(given.encode(), token.encode())
        else:
            is_allowed = request.client is not None and is_loopback(request.client.host)
        if not is_allowed:
            return PlainTextResponse(METRICS_REFUSED, 401, {"WWW-Authenticate": "Bearer"})
        return Response(generate_latest(runtime.registry), media_type=CONTENT_TYPE_LATEST)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the service's own stop ends it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    """The service's listening socket. Raises Broken where the address can't be bound: uvicorn
    itself would end the process from within a task.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _taken(f"{host}:{port}", error) from error
    return bound


def _taken(address: str, error: OSError) -> Broken:
    return Broken(f"{address} can't be listened on: {error.strerror}; set MUSTER_HTTP_PORT")


async def _serve(runtime: Runtime, bound: socket.socket) -> None:
    app = runtime.asgi or Starlette(routes=[*health_routes(runtime), *runtime.routes])
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(runtime.settings.shutdown_s),
        timeout_keep_alive=30,
        proxy_headers=bool(runtime.settings.http_trusted_proxies),
        forwarded_allow_ips=runtime.settings.http_trusted_proxies,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([bound]))
    try:
        await asyncio.shield(serving)
    except OSError as error:  # another was bound to it too, and has listened before
        raise _taken(":".join(map(str, bound.getsockname()[:2])), error) from error
    finally:
        server.should_exit = True
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(runtime.settings.shutdown_s):
                await serving


@asynccontextmanager
async def running(
    name: str, settings: ServiceSettings, port: int, build: Build
) -> AsyncIterator[Runtime]:
    """A service, running in this process while the block runs: for ``run`` and for tests."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    runtime = Runtime(name, settings, registry)
    bound = _bind(settings.http_host, port)
    try:
        if isinstance(settings, DatabaseSettings):
            await runtime.open_database()
        async with build(runtime), asyncio.TaskGroup() as group:
            tasks = [group.create_task(_named(name, run), name=name) for name, run in runtime.tasks]
            serve = partial(_serve, runtime, bound)
            tasks.append(group.create_task(_named("http", serve), name="http"))
            try:
                yield runtime
            finally:
                runtime.stopping.set()
                await _end(tasks)
    finally:
        bound.close()
        await runtime.close()


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel until they have ended: some libraries occasionally swallow a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)


async def _named(name: str, run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        # By a library's own task: a TaskGroup would treat it as a regular end, and continue.
        raise RuntimeError(f"the task '{name}' was cancelled from within") from error
    except Broken:  # `run` logs the reason
        raise
    except Exception:
        _log.exception("a task of the service failed", task=name)
        raise


async def _until_stopped(name: str, settings: ServiceSettings, port: int, build: Build) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    started = time.monotonic()
    is_up = False

    async def serve() -> None:
        nonlocal is_up
        async with running(name, settings, port, build) as runtime:
            is_up = True
            _log.info("started", port=port, seconds=round(time.monotonic() - started, 3))
            await stop.wait()
            _log.info("stopping")
            runtime.stopping.set()

    serving = asyncio.create_task(serve())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not is_up and not serving.done():  # it still waits for its database
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        return
    await serving


def run_service(name: str, settings: ServiceSettings, port: int, build: Build) -> None:
    """Run a service until SIGTERM or SIGINT; exits with 1 where a task of it failed."""
    make_process_private()
    set_up_logging(name, settings.log_level)
    provider: TracerProvider = set_up_tracing(name, settings.otlp_endpoint)
    _log.info("settings", **settings.model_dump(mode="json"))
    reasons: list[str] = []
    try:
        uvloop.run(_until_stopped(name, settings, port, build))
    except* Broken as errors:
        reasons += _reasons(errors)
    finally:
        provider.shutdown()
    for reason in reasons:
        _log.critical("can't run", reason=reason)  # the reason is enough, without a traceback
    if reasons:
        sys.exit(1)


def _reasons(errors: BaseExceptionGroup) -> list[str]:
    """The texts of all errors in a group, with the names of those that runbooks explain."""
    found: list[str] = []
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found += _reasons(error)
        else:
            found.append(
                str(error) if type(error) is Broken else f"{type(error).__name__}: {error}"
            )
    return found
