"""Logs over HTTP: whole, in part, and followed while the pod writes and the log is rotated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest
from muster.metrics import PlumbingMetrics
from muster.service_keys import agent, make_token, service_key
from muster.token_guard import TokenGuard
from prometheus_client import CollectorRegistry, Gauge
from runtime_agent.api.logs import LogServer
from runtime_agent.logreader import LogReader, extent
from runtime_agent.pods import PodDirectories
from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor.logs import BoundedFile, PodLogs
from runtime_agent.supervisor.records import PodSpec
from service_auth import CLUSTER_KEY, ServiceAuth
from starlette.applications import Starlette
from starlette.requests import Request

NODE = "node-1"
KEY = service_key(CLUSTER_KEY, agent(NODE))


PATH = "/logs/pod-1/stdout"


def a_token(path: str, *, node: str = NODE, key: str = KEY, later_s: float = 0) -> dict[str, str]:
    """The header of a request that REST makes `later_s` from now."""
    token = make_token(key, agent(node), path, now_s=time.time() + later_s)
    return {"Authorization": f"Bearer {token}"}


class Served:
    """A node with one pod whose logs are served in this process."""

    def __init__(self, root: Path) -> None:
        self.pods = PodDirectories(root)
        self.pods.prepare(PodSpec("pod-1", {}), "true")
        self.logs = PodLogs(self.pods.logs_path("pod-1"), 1000)
        self.stopping = asyncio.Event()
        settings = AgentSettings(node=NODE, service_key=KEY, follow_look_s=0.01)
        guard = TokenGuard(agent(NODE), settings.service_key, PlumbingMetrics(CollectorRegistry()))
        gauge = Gauge("x", "x", registry=None)
        self.live = {"pod-1"}
        self.server = LogServer(
            self.pods, self.live.__contains__, settings, gauge, guard, self.stopping
        )
        self.app = Starlette(routes=self.server.routes())

    def end(self) -> None:
        self.logs.finish(0.0)
        self.live.clear()


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=served.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://node") as client:
        yield client


async def test_a_log_is_given_whole_by_its_tail_and_in_a_range(
    served: Served, http: httpx2.AsyncClient
) -> None:
    served.logs.take("stdout", b"one\ntwo\nthree\n", 0.0)
    for query, text, offset in (
        ("", "one\ntwo\nthree\n", "0"),
        ("?tail=6", "three\n", "8"),
        ("?tail=600", "one\ntwo\nthree\n", "0"),
        ("?offset=4&limit=3", "two", "4"),
        ("?offset=400", "", "14"),
    ):
        answer = await http.get(f"/logs/pod-1/stdout{query}", headers=a_token(PATH))
        assert (answer.status_code, answer.text) == (200, text)
        assert (answer.headers["x-log-offset"], answer.headers["x-log-end"]) == (offset, "14")


async def test_offsets_count_also_what_is_no_longer_kept(
    served: Served, http: httpx2.AsyncClient
) -> None:
    for number in range(1000):
        served.logs.take("stdout", b"line %04d\n" % number, 0.0)
    answer = await http.get("/logs/pod-1/stdout?offset=9000", headers=a_token(PATH))
    assert answer.text.splitlines()[0] == "line 0900"
    whole = await http.get("/logs/pod-1/stdout", headers=a_token(PATH))
    first = int(whole.headers["x-log-offset"])
    assert first > 0
    assert whole.text.splitlines()[0] == f"line {first // 10:04d}"
    assert whole.headers["x-log-end"] == "10000"


async def test_a_followed_log_goes_on_until_the_pod_has_ended_and_misses_nothing(
    served: Served,
) -> None:
    path = served.pods.logs_path("pod-1") / "stdout.log"
    follow = served.server._follow("pod-1", path, 0)
    got = b""
    for number in range(300):
        served.logs.take("stdout", b"line %03d\n" % number, 0.0)
        if number % 50 == 0:
            got += await anext(follow)
    served.end()
    async for chunk in follow:
        got += chunk
    assert got.splitlines() == [b"line %03d" % number for number in range(300)]


async def test_a_followed_log_ends_when_the_agent_stops(served: Served) -> None:
    path = served.pods.logs_path("pod-1") / "stdout.log"
    served.logs.take("stdout", b"one\n", 0.0)
    served.stopping.set()
    follow = served.server._follow("pod-1", path, 0)
    assert [chunk async for chunk in follow] == [b"one\n"]


async def test_a_client_that_goes_away_before_the_first_piece_is_no_follower(
    served: Served,
) -> None:
    request = Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/logs/pod-1/stdout",
            "path_params": {"pod": "pod-1", "name": "stdout"},
            "query_string": b"follow=1",
            "headers": [(b"authorization", a_token(PATH)["Authorization"].encode())],
        }
    )
    assert (await served.server.read_log(request)).status_code == 200
    assert served.server.open_streams == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/logs/pod-2/stdout", 404),
        ("/logs/pod-1/secrets", 404),
        ("/logs/..%2F..%2Fetc/all", 404),
        ("/logs/.hidden/all", 404),
        ("/logs/pod-1/stdout?tail=many", 400),
        ("/logs/pod-1/stdout?offset=-1", 400),
    ],
)
async def test_what_cannot_be_read_is_refused(
    http: httpx2.AsyncClient, path: str, status: int
) -> None:
    auth = ServiceAuth(agent(NODE))
    assert (await http.get(path, auth=auth)).status_code == status


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (dict, "missing"),
        (lambda: {"Authorization": "Bearer guess"}, "missing"),
        (lambda: {"Authorization": f"Bearer {KEY}"}, "missing"),
        (lambda: a_token("/logs/pod-2/stdout"), "another path"),
        (lambda: a_token(PATH, node="node-2"), "another audience"),
        (lambda: a_token(PATH, key=service_key(CLUSTER_KEY, "agent/node-2")), "derive"),
        (lambda: a_token(PATH, later_s=-300), "clock"),
        (lambda: a_token(PATH, later_s=300), "clock"),
    ],
)
async def test_a_client_without_a_token_for_this_node_and_pod_reads_nothing(
    served: Served, http: httpx2.AsyncClient, headers: Callable[[], dict[str, str]], words: str
) -> None:
    served.logs.take("stdout", b"one", 0.0)
    answer = await http.get("/logs/pod-1/stdout", headers=headers())
    assert (answer.status_code, words in answer.json()["message"]) == (401, True), answer.text
    assert (await http.get("/logs/pod-1/stdout", headers=a_token(PATH))).status_code == 200


@pytest.mark.parametrize("off_s", [-80, 25])
async def test_a_clock_may_differ_a_little(http: httpx2.AsyncClient, off_s: float) -> None:
    headers = a_token("/logs/pod-1/stdout", later_s=off_s)
    assert (await http.get("/logs/pod-1/stdout", headers=headers)).status_code == 200


async def test_the_logs_of_a_pod_are_listed(served: Served, http: httpx2.AsyncClient) -> None:
    served.logs.take("stderr", b"oh\n", 0.0)
    listed = (await http.get("/logs/pod-1", headers=a_token("/logs/pod-1"))).json()["logs"]
    assert {each["name"]: each["end"] for each in listed}["stderr"] == 3


def test_a_slow_reader_that_holds_the_older_half_misses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = BoundedFile(path, 100)
    file.append(b"a" * 100)
    reader = LogReader(path, 0)
    assert reader.read() == b"a" * 100
    file.append(b"b" * 50)
    assert reader.read() == b"b" * 50
    file.append(b"c" * 60)
    file.append(b"d" * 10)
    assert reader.read() + reader.read() == b"c" * 60 + b"d" * 10
    reader.close()
    file.close()
    assert extent(path).end == 220
