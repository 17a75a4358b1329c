"""The tests' receivers: a real HTTP server, whose answer a test sets, and a real mail server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import cheap_passwords  # noqa: F401
import httpx2
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiosmtpd.smtp import AuthResult, LoginPassword
from alerting.app import build
from alerting.settings import AlertingSettings
from bus_logins import bus_settings, kafka_client
from cli.embedded.process import free_port
from cli.embedded.server import EmbeddedKafka
from mail_server import Mailbox, running_mailbox
from muster.contracts.jobs import JobState, JobStatus
from muster.contracts.model import Model
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import Subscription
from muster.contracts.topics import Service
from muster.service import Runtime, running
from muster.service_keys import ALERTING, service_key
from plain_http import NO_TLS
from rest.app import build as rest_build
from rest.settings import RestSettings
from service_auth import CLUSTER_KEY

TLS = Path(__file__).parent / "tls"
DEADLINE_S = 60.0
PASSWORD = "correct-horse"
GROUP_SESSION_S = 0.5
"""The embedded broker keeps a member's place for this time, also after the member left."""


@dataclass(frozen=True)
class Request:
    """A request as it came in."""

    path: str
    headers: dict[str, str]
    body: str


@dataclass
class HttpReceiver:
    """Answers with ``status`` and ``extra`` headers, once ``go_on`` is set where there is one;
    hangs while ``is_hanging``; never ends its answer where ``is_endless``. Takes ``answers``
    requests on a connection, and closes it at the next one.
    """

    port: int = 0
    go_on: asyncio.Event | None = None
    status: int = 204
    extra: str = ""
    body: bytes = b""
    is_hanging: bool = False
    is_endless: bool = False
    answers: int = 1
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    sent_bytes: int = 0
    server_names: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            for _ in range(self.answers):
                await self._answer(reader, writer)
            if self.answers > 1:
                await self._read(reader)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(Request(first.split(" ")[1], headers, body.decode()))
        self.arrived.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._read(reader)
        if self.go_on is not None:
            await self.go_on.wait()
        if self.is_hanging:
            await reader.read()  # until the other side hangs up
            return
        length = "" if self.is_endless else f"content-length: {len(self.body)}\r\n"
        writer.write(f"HTTP/1.1 {self.status} X\r\n{length}{self.extra}\r\n".encode() + self.body)
        while self.is_endless:
            writer.write(b"x" * 1024)
            self.sent_bytes += 1024
            await writer.drain()
        await writer.drain()

    async def wait_for(self, count: int) -> list[Request]:
        """The requests, when there are so many."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.requests) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.requests


@pytest.fixture
async def start_receiver() -> AsyncIterator[Callable[..., object]]:
    """Starts a receiver: ``receiver = await start_receiver(status=500)``."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*, tls: bool = False, **how: object) -> HttpReceiver:
            receiver = HttpReceiver(**how)  # type: ignore[arg-type]
            context = _server_tls(receiver) if tls else None
            server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
            stack.callback(server.close)
            receiver.port = server.sockets[0].getsockname()[1]
            return receiver

        yield start


def _server_tls(receiver: HttpReceiver) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    def note_name(_: object, name: str | None, __: object) -> None:
        receiver.server_names.append(name or "")

    context.sni_callback = note_name
    return context


@pytest.fixture
def trusting() -> ssl.SSLContext:
    """TLS that trusts the tests' certificate."""
    return ssl.create_default_context(cafile=str(TLS / "cert.pem"))


@pytest.fixture
def start_mailbox() -> Iterator[Callable[..., Mailbox]]:
    """Starts a mail server: ``mailbox = start_mailbox(starttls=True, password="…")``."""
    with contextlib.ExitStack() as stack:

        def start(
            *, tls: bool = False, starttls: bool = False, password: str | None = None
        ) -> Mailbox:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

            def check(*call: object) -> AuthResult:
                login = call[-1]
                assert isinstance(login, LoginPassword)
                is_right = login.password == (password or "").encode()
                return AuthResult(success=is_right, handled=False)

            mailbox = running_mailbox(
                ssl_context=context if tls else None,
                tls_context=context if starttls else None,
                require_starttls=starttls,
                authenticator=check if password else None,
                auth_required=password is not None,
                auth_require_tls=starttls,
            )
            return stack.enter_context(mailbox)

        yield start


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Cluster:
    """A database and a broker of the test's own. It publishes records as other services would, and
    runs Alerting as its process would.
    """

    database_url: str
    broker: EmbeddedKafka
    producer: AIOKafkaProducer | None = None

    @asynccontextmanager
    async def alerting(self, port: int = 0, **settings: Any) -> AsyncIterator[Runtime]:
        """Alerting, while the block runs; quick, and allowed to reach this machine."""
        quick: dict[str, Any] = {
            "database_url": self.database_url,
            **bus_settings(self.broker.bootstrap),
            "http_port": 0,
            "fetch_wait_busy_ms": 10,
            "fetch_wait_idle_ms": 10,
            "group_session_s": GROUP_SESSION_S,
            "bus_watch_s": 0.1,
            "alert_timer_poll_s": 0.1,
            "alert_settle_s": 0.1,
            "delivery_poll_s": 0.05,
            "webhook_key": "key",
            "webhook_allow_networks": "127.0.0.0/8",
            "webhook_timeout_s": DEADLINE_S,
            "smtp_tls": "none",
        }
        made = AlertingSettings(**{**quick, **settings})
        async with running(Service.ALERTING, made, port, build) as runtime:
            yield runtime

    async def publish(
        self, topic: str, key: str, model: Model | None, traceparent: str | None = None
    ) -> None:
        """Publish a record."""
        if self.producer is None:
            self.producer = AIOKafkaProducer(**kafka_client(self.broker.bootstrap))
            await self.producer.start()
        value = None if model is None else model.model_dump_json().encode()
        headers = [("traceparent", traceparent.encode())] if traceparent else []
        await self.producer.send_and_wait(topic, value, key=key.encode(), headers=headers)

    async def publish_raw(self, topic: str, key: str, value: bytes) -> None:
        """Publish anything."""
        await self.publish("node-heartbeat", "", None)
        assert self.producer is not None
        await self.producer.send_and_wait(topic, value, key=key.encode())

    async def subscribe(self, revision: int = 1, **fields: Any) -> None:
        """What REST publishes when somebody subscribes."""
        notice = {"id": "s1", "owner": "ada", "events": ("job-failed",), **fields}
        subscription = Subscription(**notice)
        setting = f"subscription/{subscription.id}"
        value = subscription.model_dump(mode="json", by_alias=True)
        changed = SettingChanged(setting=setting, revision=revision, value=value)
        await self.publish("receivers-changed", setting, changed)

    async def job(
        self,
        job: str,
        revision: int,
        state: JobState,
        traceparent: str | None = None,
        key: str | None = None,
        **fields: Any,
    ) -> None:
        """The Launcher's message about a job."""
        notice: dict[str, Any] = {"name": "train", "user": "ada", "virtual_cluster": "default"}
        notice |= {"submitted_at": NOW, "revision": revision, "state": state}
        message = JobStatus(job=job, **{**notice, **fields})
        await self.publish("job-updated", key or job, message, traceparent)

    async def rows(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """Rows of Alerting's schema."""
        conn = await asyncpg.connect(self.database_url, server_settings={"search_path": "alerting"})
        try:
            return [tuple(row) for row in await conn.fetch(sql, *args)]
        finally:
            await conn.close()

    async def until(self, sql: str, wanted: list[tuple[Any, ...]]) -> None:
        """Wait until a query has these rows."""
        found: object = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (found := await self.rows(sql)) != wanted:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"{sql}: {found}, not {wanted}")

    async def received(self, topic: str, count: int) -> list[dict[str, Any]]:
        """The first records of a topic, as JSON."""
        consumer = AIOKafkaConsumer(
            topic, **kafka_client(self.broker.bootstrap), auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                return [json.loads((await consumer.getone()).value) for _ in range(count)]
        finally:
            await consumer.stop()


@pytest.fixture
def make_cluster(
    database_url: str,
) -> Callable[[EmbeddedKafka], AbstractAsyncContextManager[Cluster]]:
    """Makes a cluster over a broker, in which only Alerting runs."""

    @asynccontextmanager
    async def make(broker: EmbeddedKafka) -> AsyncIterator[Cluster]:
        made = Cluster(database_url, broker)
        yield made
        if made.producer is not None:
            await made.producer.stop()

    return make


@pytest.fixture
async def cluster(
    make_cluster: Callable[..., AbstractAsyncContextManager[Cluster]], fresh_broker: EmbeddedKafka
) -> AsyncIterator[Cluster]:
    """A cluster on the embedded broker."""
    async with make_cluster(fresh_broker) as made:
        yield made


@dataclass
class Api:
    """REST beside Alerting, and a client that is logged in as the admin."""

    url: str
    admin: httpx2.AsyncClient
    rest: Runtime

    async def log_in(self, username: str, **more: Any) -> httpx2.AsyncClient:
        """A new user's client."""
        body = {"username": username, "password": PASSWORD} | more
        (await self.admin.post("/api/v2/users", json=body)).raise_for_status()
        return _client(self.url, await _token(self.url, username))

    async def subscribe(self, url: str, *events: str) -> None:
        """A webhook of the admin's."""
        body = {"events": events, "webhookUrl": url}
        answer = await self.admin.post("/api/v2/alerts/subscriptions", json=body)
        answer.raise_for_status()
        loaded = "SELECT count(*) FROM alerting.subscription WHERE setting = $1"
        setting = f"subscription/{answer.json()['id']}"
        async with asyncio.timeout(DEADLINE_S):
            while not await self.rest.pool.fetchval(loaded, setting):
                await asyncio.sleep(0.02)

    async def alerts(self, **query: Any) -> list[dict[str, Any]]:
        """The alerts as the admin sees them."""
        answer = await self.admin.get("/api/v2/alerts", params=query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["alerts"]
        return found

    async def until_alerts(self, wanted: list[Any], *fields_: str, **query: Any) -> None:
        """Wait until the alerts have these values of these fields."""
        found: object = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (found := await self._values(fields_, query)) != wanted:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"{found}, not {wanted}")

    async def until_fails_fire(self, rule: str, cluster: Cluster, **job: Any) -> None:
        """Let jobs fail until a rule about them fires: Alerting may not have read it yet."""
        number = 0
        async with asyncio.timeout(DEADLINE_S):
            while not await self.alerts(name=rule):
                number += 1
                await cluster.job(f"fails-{number}", 1, JobState.FAILED, **job)
                await asyncio.sleep(0.05)

    async def _values(self, names: Sequence[str], query: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [tuple(each[it] for it in names) for each in await self.alerts(**query)]


def _client(url: str, token: str) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=DEADLINE_S, verify=NO_TLS)


async def _token(url: str, username: str) -> str:
    async with _client(url, "") as client:
        body = {"username": username, "password": PASSWORD}
        answer = await client.post("/api/v2/authn/basic/login", json=body)
        return str(answer.json()["token"])


@pytest.fixture
def with_rest(cluster: Cluster) -> Callable[..., AbstractAsyncContextManager[Api]]:
    """Starts Alerting and REST, which reads it: ``async with with_rest() as api:``."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Api]:
        port, rest_port = free_port(), free_port()
        rest_names = RestSettings.model_fields.keys() - AlertingSettings.model_fields.keys()
        of_rest = {name: settings.pop(name) for name in rest_names & settings.keys()}
        rest_settings = RestSettings(
            **{
                "database_url": cluster.database_url,
                **bus_settings(cluster.broker.bootstrap),
                "fetch_wait_busy_ms": 10,
                "fetch_wait_idle_ms": 10,
                "group_session_s": GROUP_SESSION_S,
                "admin_password": PASSWORD,
                "cluster_key": CLUSTER_KEY,
                "webhook_key": "key",
                "alerting_url": f"http://127.0.0.1:{port}",
                **of_rest,
            }
        )
        url = f"http://127.0.0.1:{rest_port}"
        key = service_key(CLUSTER_KEY, ALERTING)
        async with (
            cluster.alerting(port=port, service_key=key, **settings),
            running(Service.REST, rest_settings, rest_port, rest_build) as rest,
        ):
            async with httpx2.AsyncClient(base_url=url, verify=NO_TLS) as probe:
                async with asyncio.timeout(DEADLINE_S):
                    while not await _is_up(probe):
                        await asyncio.sleep(0.02)
            async with _client(url, await _token(url, "admin")) as admin:
                yield Api(url, admin, rest)

    return start


async def _is_up(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/healthz")).status_code == 200
    except httpx2.HTTPError:
        return False
