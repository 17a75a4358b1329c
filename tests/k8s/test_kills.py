"""Any part of Muster or of Kubernetes is killed at any moment, amid jobs: nothing runs twice."""

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web
from job_stream import a_seed
from kube_muster import (
    NODE,
    a_kubelet,
    agent_token,
    grant,
    size,
    until_nothing_is_left,
    with_pull_secret,
)
from kube_plane import KubePlane
from kube_proxy import KubeProxy, Pass, passed
from kubelet_double import KubeletDouble
from muster_up import Http, Up, states_of_jobs, up
from scheduler_watched import until
from whole_muster import a_job, eventually, until_there

pytestmark = [pytest.mark.k8s, pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(3600)]

JOBS = size(20, 50)
KILLS = size(10, 100)
GANG = 3
LONG_S = size(1, 20)
"""With 100 kills, jobs are to last as long as these."""
WAIT_S = 900.0
SERVICES = ("runtime-agent", "launcher", "scheduler")
PARTS = (*SERVICES, "kubelet", "api", "etcd")

JOB = """protocolVersion: 2
name: {name}
type: job
prerequisites: [{{type: dockerimage, name: i, uri: an/image}}]
taskRoles:
  worker:
    dockerImage: i
    instances: {instances}
    resourcePerInstance: {{cpu: 0, memoryMB: 32, gpu: {gpus}}}
    extraContainerOptions: {{shmMB: 16}}
    commands:
      - 'echo "$MUSTER_POD" >> {marks}; sleep {seconds}'
"""


def kill(part: str, one: Up, plane: KubePlane, kubelet: KubeletDouble) -> None:
    """SIGKILL; what is not restarted by `muster up` starts again at once."""
    match part:
        case "kubelet":
            kubelet.kill()
            kubelet.start()
        case "api":
            plane.api.kill()
            plane.api.start()
        case "etcd":
            plane.etcd.kill()
            plane.etcd.start()
        case service:
            one.send(service, signal.SIGKILL)


@contextlib.asynccontextmanager
async def up_on(
    plane: KubePlane, home: Path, api_url: str | None = None
) -> AsyncIterator[tuple[Up, Http, KubeletDouble]]:
    """`muster up` whose node is one of the cluster. `api_url`: of the agent's proxy."""
    grant(plane)
    with a_kubelet(plane, home / "kubelet") as kubelet:
        token = agent_token(plane)
        agent = {
            "MUSTER_NODE": NODE,
            "MUSTER_RUNNER": "kubernetes",
            "MUSTER_KUBE_CONFIG": str(
                plane.write_kubeconfig(home / "kube.json", token=token, url=api_url)
            ),
            "MUSTER_KUBE_STEP_IMAGE": "muster-step:test",
            "MUSTER_KUBE_HOST_NETWORK": "default",
            "MUSTER_KUBE_LOGS": str(kubelet.home / "log" / "pods"),
            "MUSTER_KUBE_PODS": str(kubelet.home / "pods"),
        }
        async with up(home / "home", **agent) as (one, http):
            yield one, http, kubelet


async def submit(http: Http, text: str) -> None:
    answer = await http.call("POST", "/api/v2/jobs", text.encode(), "text/yaml")
    assert answer.status == 202, answer.body


async def test_each_command_runs_once_and_each_job_ends_right_whatever_is_killed(
    kube_plane: KubePlane, tmp_path: Path
) -> None:
    seed = a_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    marks = tmp_path / "marks"
    async with up_on(kube_plane, tmp_path) as (one, http, kubelet):
        wanted: dict[str, str] = {}
        for number in range(JOBS):
            name = f"job-{number}"
            text = JOB.format(
                name=name, instances=1 + number % 3, gpus=number % 2, marks=marks,
                seconds=number % 4 * LONG_S,
            )  # fmt: skip
            await submit(http, with_pull_secret(text) if number % 5 < 2 else text)
            wanted[name] = "SUCCEEDED"
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0.2, 3.0))
            part = rng.choice(PARTS)
            print(f"killed {part}", end="; ")
            kill(part, one, kube_plane, kubelet)
        states: dict[str, str] = {}
        try:
            async with asyncio.timeout(WAIT_S):
                while states != wanted:
                    await asyncio.sleep(0.5)
                    states = await states_of_jobs(http, JOBS * 2) or states
        except TimeoutError:
            print(one.account())
            wrong = {name: states.get(name) for name in wanted if states.get(name) != "SUCCEEDED"}
            pytest.fail(f"seed {seed}: not as they should be: {wrong}")
        await until_nothing_is_left(kube_plane)
    runs = Counter(marks.read_text().split())
    assert not [pod for pod, count in runs.items() if count > 1], f"seed {seed}: a pod ran twice"


@dataclass
class Held:
    """The first create of a pod is answered before the others go on, and these are held up: on
    their way to the API server, or their answers where it `is_taken`.
    """

    is_taken: bool
    creates: int = 0
    held: int = 0
    first: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def treat(self, request: web.BaseRequest, answer: Pass) -> web.StreamResponse:
        """All other requests pass."""
        if request.method != "POST" or not request.path.endswith("/pods"):
            return await answer()
        self.creates += 1
        if self.creates == 1:
            answered = await answer()
            self.first.set()
            return answered
        await self.first.wait()
        taken = await answer() if self.is_taken else None
        self.held += 1
        await self.released.wait()
        return taken or await answer()


def answers_to_creates(plane: KubePlane, since: int) -> list[int]:
    """Of pods, by the audit log, with the lowest first."""
    events = [event for event in plane.audit()[since:] if event["verb"] == "create"]
    return sorted(
        event["responseStatus"]["code"]
        for event in events
        if event.get("objectRef", {}).get("resource") == "pods"
    )


async def test_a_gang_whose_agent_is_killed_between_two_creates_runs_whole_and_once(
    kube_plane: KubePlane, tmp_path: Path
) -> None:
    """Creates that were held up on their way arrive when the gang runs already."""
    async with (
        KubeProxy(kube_plane).running() as proxy,
        up_on(kube_plane, tmp_path, proxy.url) as (one, http, _),
    ):
        for is_taken in (True, False):
            await _killed_between_two_creates(kube_plane, proxy, one, http, tmp_path, is_taken)


async def _killed_between_two_creates(
    plane: KubePlane, proxy: KubeProxy, one: Up, http: Http, home: Path, is_taken: bool
) -> None:
    name = "taken" if is_taken else "held"
    marks, gate, held = home / f"{name}-marks", home / f"{name}-gate", Held(is_taken)
    before = len(plane.audit())
    proxy.treat = held.treat
    command = f"echo $MUSTER_POD >> {marks}; {until_there(gate)}"
    await submit(http, a_job(name, command, instances=GANG))
    await until(lambda: held.held == GANG - 1)
    proxy.treat = passed
    assert one.send("runtime-agent", signal.SIGKILL)
    await until(lambda: marks.exists() and len(marks.read_text().split()) == GANG)
    held.released.set()
    late = 0 if is_taken else GANG - 1
    wanted = [*[HTTPStatus.CREATED] * GANG, *[HTTPStatus.CONFLICT] * late]
    await until(lambda: answers_to_creates(plane, before) == wanted)
    gate.touch()
    await eventually(lambda: states_of_jobs(http, 2), lambda s: s.get(name) == "SUCCEEDED")
    detail = (await http.call("GET", f"/api/v2/jobs/admin~{name}")).json()
    assert set(detail["jobStatus"]["retryDetails"].values()) == {0}
    await until_nothing_is_left(plane)
    assert answers_to_creates(plane, before) == wanted
    ran = marks.read_text().split()
    assert len(set(ran)) == len(ran) == GANG
