"""REST as it runs: over HTTP, on a real PostgreSQL and a Kafka-protocol broker."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import cheap_passwords  # noqa: F401
import httpx2
import pytest
from cli.embedded.process import free_port
from muster.contracts.jobs import JobRequest, JobState, JobStatus
from muster.contracts.model import Model
from muster.contracts.topics import Service
from muster.inbox import messages_of
from muster.records import Received
from muster.service import Runtime, running
from plain_http import NO_TLS
from rest.app import build
from rest.handlers.updates import jobs_aggregate
from rest.settings import RestSettings
from service_auth import CLUSTER_KEY

PASSWORD = "correct-horse"
WAIT_S = 60

JOB = """\
protocolVersion: 2
name: {name}
type: job
prerequisites:
  - {{name: image, type: dockerimage, uri: 'example/image:1'}}
taskRoles:
  worker:
    instances: 2
    dockerImage: image
    resourcePerInstance: {{cpu: 1, memoryMB: 512, gpu: 1}}
    commands: [python train.py]
"""


@dataclass
class Rest:
    """A running REST and a client that is logged in as the admin."""

    runtime: Runtime
    url: str
    client: httpx2.AsyncClient
    token: str = ""
    offset: int = field(default=0)

    def job_file(self, name: str) -> str:
        return JOB.format(name=name)

    async def submit(self, name: str, **headers: str) -> httpx2.Response:
        content = self.job_file(name)
        return await self.client.post("/api/v2/jobs", content=content, headers=headers)

    async def job_id(self, name: str, user: str = "admin") -> str:
        answer = await self.client.get(f"/api/v2/jobs/{user}~{name}")
        return str(answer.json()["debugId"])

    async def shown(self, name: str) -> dict[str, Any]:
        """A job of the admin's, as it is shown."""
        answer = await self.client.get(f"/api/v2/jobs/admin~{name}")
        assert answer.status_code == 200
        content: dict[str, Any] = answer.json()
        return content

    async def messages(self, job: str) -> list[JobRequest]:
        """REST's stored messages about a job."""
        rows = await self.runtime.pool.fetch("SELECT message FROM subject WHERE subject = $1", job)
        return [JobRequest.model_validate_json(row["message"]) for row in rows]

    def status(self, job: str, revision: int, state: JobState, **more: Any) -> JobStatus:
        """A message of the Launcher's."""
        return JobStatus(
            **{"name": "j", "user": "admin", "virtual_cluster": "default"} | more,
            revision=revision,
            seen=1,
            job=job,
            state=state,
            submitted_at=datetime(2026, 1, 1, 12, tzinfo=UTC),
        )

    async def receive(self, topic: str, key: str, model: Model) -> None:
        """Handle a record as if it had come from the bus."""
        self.offset += 1
        value = model.model_dump_json().encode()
        record = Received(topic, 0, self.offset, key, {}, value)
        inbox = self.runtime.inbox(messages_of(jobs_aggregate(), self.runtime.bus))
        await inbox.handle([record])

    async def log_in(self, username: str, password: str) -> str:
        body = {"username": username, "password": password}
        answer = await self.client.post("/api/v2/authn/basic/login", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["token"])

    async def make_user(self, username: str, **more: Any) -> httpx2.AsyncClient:
        """A client that is logged in as a new user."""
        body = {"username": username, "password": PASSWORD} | more
        answer = await self.client.post("/api/v2/users", json=body)
        assert answer.status_code == 201, answer.text
        return self.with_token(await self.log_in(username, PASSWORD))

    def with_token(self, token: str) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=WAIT_S, verify=NO_TLS)

    async def eventually(self, question: Callable[[], Any], wanted: object) -> None:
        answer: object = None
        try:
            async with asyncio.timeout(WAIT_S):
                while (answer := await question()) != wanted:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"wanted {wanted!r}, got {answer!r}")


Start = Callable[..., Any]


@pytest.fixture
def start_rest(database_url: str) -> Start:
    """Start a REST with these settings; an async context manager.

    Its bus is away unless a test names one: what is asked over HTTP needs none.
    """

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Rest]:
        port = free_port()
        given = {
            "database_url": database_url,
            "kafka_bootstrap": "127.0.0.1:1",
            "admin_password": PASSWORD,
            "webhook_key": "a-key-of-this-test",
            "cluster_key": CLUSTER_KEY,
            "peer_timeout_s": WAIT_S,
            "peer_connect_s": WAIT_S,
            "fetch_wait_busy_ms": 10,
            "fetch_wait_idle_ms": 50,
        }
        rest_settings = RestSettings(**{**given, **settings})
        url = f"http://127.0.0.1:{port}"
        async with (
            running(Service.REST, rest_settings, port, build) as runtime,
            httpx2.AsyncClient(base_url=url, timeout=WAIT_S, verify=NO_TLS) as client,
        ):
            rest = Rest(runtime, url, client)
            await _until_up(client)
            rest.token = await rest.log_in("admin", PASSWORD)
            client.headers["Authorization"] = f"Bearer {rest.token}"
            yield rest

    return start


async def _until_up(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await client.get("/healthz")
            except httpx2.HTTPError:
                await asyncio.sleep(0.01)
            else:
                return


@pytest.fixture
async def rest(start_rest: Start) -> AsyncIterator[Rest]:
    """A REST with the usual settings."""
    async with start_rest() as running_rest:
        yield running_rest


@dataclass
class FakeAgent:
    """An agent's log server. ``logs``: what it has; ``more`` is sent after it to followers (to all
    where it is slow), and None ends them.
    """

    url: str
    logs: dict[str, bytes]
    more: "asyncio.Queue[bytes | None]"
    asked: list[tuple[str, Mapping[str, str], str]]
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    is_slow: bool = False
    redirect: str = ""

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        target = lines[0].split(" ")[1]
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.asked.append((parts.path, query, headers.get("authorization", "")))
        log = self.logs.get(parts.path)
        if self.redirect:
            head = f"HTTP/1.1 302 Found\r\nLocation: {self.redirect}\r\nContent-Length: 0\r\n\r\n"
            writer.write(head.encode())
        elif log is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            start = int(query.get("offset", 0))
            if "tail" in query:
                start = max(0, len(log) - int(query["tail"]))
            writer.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
                + f"X-Log-Offset: {start}\r\nX-Log-End: {len(log)}\r\n\r\n".encode()
            )
            _chunk(writer, log[start:])
            while (query.get("follow") or self.is_slow) and (
                piece := await self.more.get()
            ) is not None:
                _chunk(writer, piece)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()


def _chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    if content:
        writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")


@pytest.fixture
async def agent() -> AsyncIterator[FakeAgent]:
    """An agent that has no logs yet."""
    port = free_port()
    fake = FakeAgent(f"http://127.0.0.1:{port}", {}, asyncio.Queue(), [])
    server = await asyncio.start_server(fake.answer, "127.0.0.1", port)
    try:
        yield fake
    finally:
        server.close()
        for _ in range(10):
            fake.more.put_nowait(None)
        await server.wait_closed()


@dataclass
class FakeScheduler:
    """A Scheduler that answers these paths; ``seen`` are the paths that it was asked for,
    ``bodies`` what it was sent.
    """

    url: str
    answers: dict[str, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def last(self) -> str:
        """What somebody asked last; REST itself asks for the names of virtual clusters at times."""
        return [path for path in self.seen if path != "/virtual-clusters"][-1]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = lines[0].split(" ")[1]
        self.seen.append(path)
        for line in lines:
            if line.lower().startswith("content-length:"):
                self.bodies.append(await reader.readexactly(int(line.split(":")[1])))
        content = self.answers.get(path.split("?")[0])
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        code = "404 Not Found" if content is None else "200 OK"
        if content == b"standby":
            code = "421 Misdirected Request"
        head = f"HTTP/1.1 {code}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        writer.write(f"{head}X-As-Of: 7\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def scheduler() -> AsyncIterator[FakeScheduler]:
    """A Scheduler that knows nothing yet, and has recorded nothing."""
    port = free_port()
    fake = FakeScheduler(f"http://127.0.0.1:{port}")
    fake.answers["/configuration/what-if"] = {"state": "none", "reason": "Nothing was recorded."}
    async with await asyncio.start_server(fake.answer, "127.0.0.1", port):
        yield fake
