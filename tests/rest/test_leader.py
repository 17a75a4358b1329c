"""REST finds the Scheduler that leads among several, whatever becomes of the others."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.process import free_port
from muster.errors import Transient
from plain_http import NO_TLS
from pydantic import ValidationError
from rest.leader import NONE_LEADS, Leader, Question
from rest.settings import RestSettings
from scheduler_process import quick_settings, scheduler_process

QUEUE = "/api/v2/cluster/queue"
PATIENT_S = 120.0
DROPPED = 30
"""More connections than a full backlog of a socket takes."""


async def ready(port: int) -> dict[str, Any] | None:
    """What a process shows of itself; None while it can't be reached."""
    async with httpx2.AsyncClient(trust_env=False, timeout=PATIENT_S, verify=NO_TLS) as client:
        try:
            answer = await client.get(f"http://127.0.0.1:{port}/readyz")
        except httpx2.TransportError:
            return None
    content: dict[str, Any] = answer.json()
    return content | {"status": answer.status_code}


async def until_ready(port: int, *, leading: bool) -> None:
    wanted = {"bus": True, "bus_rights": True, "database": True, "status": 200}
    async with asyncio.timeout(PATIENT_S):
        while await ready(port) != wanted | {"leading": leading}:
            await asyncio.sleep(0.05)


async def until_answered(rest: Any) -> Any:
    """Ask until the answer is no 503; then it must be the leader's."""
    async with asyncio.timeout(PATIENT_S):
        while (answer := await rest.client.get(QUEUE)).status_code == 503:
            await asyncio.sleep(0.05)
    assert (answer.status_code, answer.json()["gangs"]) == (200, [])


@pytest.mark.postgres
@pytest.mark.kafka
async def test_the_one_of_two_schedulers_answers_that_leads(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path, start_rest: Any
) -> None:
    """Both are ready. The leader is frozen, then killed; the other one answers, until it stops."""
    quick = quick_settings(database_url, fresh_broker.bootstrap)
    ports = [free_port()]
    while len(ports) < 2:
        ports = list({*ports, free_port()})
    async with AsyncExitStack() as stack:
        schedulers = []
        for number, port in enumerate(ports):
            settings = quick.model_copy(update={"http_port": port, "catch_up_s": 0.1})
            process = scheduler_process(settings, tmp_path / f"{port}.log")
            schedulers.append(await stack.enter_async_context(process))
            await until_ready(port, leading=number == 0)
        leader, standby = schedulers
        urls = ",".join(f"http://127.0.0.1:{port}" for port in reversed(ports))
        async with start_rest(scheduler_url=urls, peer_timeout_s=1.0) as rest:
            await until_answered(rest)
            leader.send_signal(signal.SIGSTOP)
            await until_ready(ports[1], leading=True)
            await until_answered(rest)
            leader.kill()
            await leader.wait()
            await until_answered(rest)
            standby.terminate()
            await standby.wait()
            answer = await rest.client.get(QUEUE)
            assert (answer.status_code, answer.json()["code"]) == (503, "UnavailableError")


@contextmanager
def dead_address() -> Iterator[str]:
    """A URL where connections are neither accepted nor refused, as at the address of a pod that is
    gone: the socket's backlog is full.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        host, port = listening.getsockname()
        others = [socket.socket() for _ in range(DROPPED)]
        for other in others:
            other.setblocking(False)
            other.connect_ex((host, port))
        yield f"http://{host}:{port}"
        for other in others:
            other.close()


async def test_a_dead_address_costs_only_the_wait_for_a_connection(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers["/queue"] = {"asOf": 7, "gangs": []}
    with dead_address() as dead:
        urls = f"{dead}, {scheduler.url}/"
        async with start_rest(scheduler_url=urls, peer_connect_s=0.2) as rest:
            assert (await rest.client.get(QUEUE)).json() == {"asOf": 7, "gangs": []}


async def test_where_none_leads_the_answer_says_so(start_rest: Any, scheduler: Any) -> None:
    """Whatever else is wrong: one of them is a standby, which will lead."""
    scheduler.answers |= {"/queue": b"standby", "/export": b"standby"}
    urls = f"{scheduler.url},http://127.0.0.1:1"
    async with start_rest(scheduler_url=urls) as rest:
        for path in (QUEUE, "/api/v2/cluster/export?since=0"):
            answer = await rest.client.get(path)
            assert (answer.status_code, answer.json()["message"]) == (503, NONE_LEADS)
            assert answer.headers["retry-after"]


class Played:
    """Schedulers at several addresses of one name. ``leads``: the address of the leader;
    ``hangs``: of one that never answers.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://scheduler.example:{port}"
        self.addresses: list[str] = []
        self.leads = ""
        self.hangs = ""
        self.asked: list[str] = []
        self.looked_up: list[tuple[str, int]] = []
        self._port = port

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.looked_up.append((host, port))
        if not self.addresses:
            raise OSError("no such name")
        return self.addresses

    @asynccontextmanager
    async def running(self, *addresses: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for address in addresses:
                server = await asyncio.start_server(self._answer, address, self._port)
                await stack.enter_async_context(server)
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert f"host: {self.url.removeprefix('http://')}\r\n" in head
        address = writer.get_extra_info("sockname")[0]
        self.asked.append(address)
        if address == self.hangs:
            await reader.read()  # until the client goes away
        else:
            status = "200 OK" if address == self.leads else "421 Misdirected Request"
            answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(address)}\r\n"
            writer.write(f"{answer}Connection: close\r\n\r\n{address}".encode())
            await writer.drain()
        writer.close()


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    found = Played(free_port())
    async with found.running("127.0.0.1", "127.0.0.2"):
        yield found


@pytest.fixture
async def leader(played: Played) -> AsyncIterator[Leader]:
    found = Leader((played.url,), played.resolve, PATIENT_S)
    yield found
    await found.close()


async def answer_of(leader: Leader, within_s: float = PATIENT_S) -> str:
    async with asyncio.timeout(within_s), leader.asked(Question("/queue", {})) as answer:
        assert answer.status_code == 200
        return (await answer.aread()).decode()


async def test_the_leader_is_found_among_the_addresses_of_a_name(
    played: Played, leader: Leader
) -> None:
    """And looked for again only when it leads no longer."""
    played.addresses, played.leads = ["127.0.0.1", "127.0.0.2"], "127.0.0.2"
    for _ in range(2):
        assert await answer_of(leader) == "127.0.0.2"
    assert played.asked == ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
    assert len(played.looked_up) == 1
    played.leads = "127.0.0.1"
    assert await answer_of(leader) == "127.0.0.1"
    assert len(played.looked_up) == 2


async def test_a_name_leads_to_new_addresses_after_a_roll_out(
    played: Played, leader: Leader
) -> None:
    played.addresses, played.leads = ["127.0.0.1"], "127.0.0.1"
    assert await answer_of(leader) == "127.0.0.1"
    async with played.running("127.0.0.3"):
        played.addresses, played.leads = ["127.0.0.3"], "127.0.0.3"
        assert await answer_of(leader) == "127.0.0.3"


async def test_known_addresses_count_while_a_name_cannot_be_looked_up(
    played: Played, leader: Leader
) -> None:
    with pytest.raises(httpx2.ConnectError):
        await answer_of(leader)
    played.addresses, played.leads = ["127.0.0.1", "127.0.0.2"], "127.0.0.1"
    assert await answer_of(leader) == "127.0.0.1"
    played.addresses, played.leads = [], "127.0.0.2"
    assert await answer_of(leader) == "127.0.0.2"
    played.leads = ""
    with pytest.raises(Transient, match="No Scheduler leads"):
        await answer_of(leader)


async def test_one_that_hangs_is_asked_last_the_next_time(played: Played, leader: Leader) -> None:
    played.addresses, played.leads = ["127.0.0.1", "127.0.0.2"], "127.0.0.1"
    assert await answer_of(leader) == "127.0.0.1"
    played.hangs, played.leads = "127.0.0.1", "127.0.0.2"
    with pytest.raises(TimeoutError):
        await answer_of(leader, 0.2)
    assert await answer_of(leader) == "127.0.0.2"


@pytest.mark.parametrize(
    "url",
    [
        "scheduler:8082",
        "ftp://a",
        "http://",
        "http://a:x",
        "http://a?b",
        "http://u@a",
        "http://a,b",
    ],
)
def test_what_is_no_url_of_a_scheduler_ends_rest_at_its_start(url: str) -> None:
    with pytest.raises(ValidationError, match="scheduler_url"):
        RestSettings(scheduler_url=url)
