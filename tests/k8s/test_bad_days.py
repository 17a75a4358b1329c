"""What can go wrong on a Kubernetes node, through all five services: nothing is lost or doubled."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cli.embedded.broker import EmbeddedBroker
from job_stream import a_seed
from kube_muster import (
    JOBS,
    KubeMuster,
    a_kube_muster,
    size,
    until_nothing_is_left,
    with_pull_secret,
)
from kube_plane import KubePlane
from kube_proxy import KubeProxy, Pass, lost, passed
from muster.contracts.topics import Service
from scheduler_watched import until
from tcp_proxy import Proxy
from whole_muster import a_job, eventually, until_there

pytestmark = [pytest.mark.k8s, pytest.mark.system, pytest.mark.timeout(size(600, 1800))]

QUICK = {"retry_backoff_first_s": 0.1, "stop_grace_s": 2.0}
STORM_JOBS = size(9, 60)
OUTPUT_KB = size(20_000, 100_000)
AWAY_S = size(0, 600)
"""How long the API server is away, and how long a request to it is held up."""
HELD_S = size(0, 30)


@pytest.fixture
async def kube(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> AsyncIterator[KubeMuster]:
    bootstrap = fresh_broker.bootstrap
    async with a_kube_muster(
        kube_plane, database_url, bootstrap, tmp_path, launcher=QUICK
    ) as running:
        yield running


def marked(folder: Path, then: str) -> str:
    """A command that notes its pod, and then goes on so."""
    return f"echo $MUSTER_POD >> {folder}/ran; {then}"


def runs(folder: Path) -> list[str]:
    """The pods whose commands have begun."""
    file = folder / "ran"
    return file.read_text().split() if file.exists() else []


async def running(kube: KubeMuster, folder: Path, name: str, then: str, **more: Any) -> str:
    """A job whose command has begun."""
    before = len(runs(folder))
    job = await kube.muster.submit(a_job(name, marked(folder, then), **more))
    await until(lambda: len(runs(folder)) > before)
    return job


async def retries(kube: KubeMuster, job: str) -> dict[str, int]:
    found = (await kube.muster.job(job))["jobStatus"]["retryDetails"]
    assert isinstance(found, dict)
    return found


async def stop(kube: KubeMuster, job: str) -> None:
    path = f"/api/v2/jobs/{job}/executionType"
    answer = await kube.muster.call("PUT", path, json={"value": "STOP"})
    assert answer.status_code == 202, answer.text


async def test_without_the_api_server_pods_run_new_ones_wait_and_stops_are_done(
    kube: KubeMuster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    long = await running(kube, tmp_path, "long", until_there(gate))
    script = tmp_path / "stubborn.sh"
    script.write_text("trap 'touch $1; exit 0' TERM; while :; do sleep 0.1; done")
    asked, later = tmp_path / "asked", tmp_path / "later"
    stopped = await running(kube, tmp_path, "stopped", f"exec bash {script} {asked}")
    of_new_agent = await running(kube, tmp_path, "later", f"exec bash {script} {later}")
    kube.plane.api.kill()
    late = await kube.muster.submit(a_job("late", marked(tmp_path, "true")))
    await stop(kube, stopped)
    await until(asked.exists)
    await kube.muster.stop(Service.RUNTIME_AGENT)
    await kube.muster.start(Service.RUNTIME_AGENT)
    await stop(kube, of_new_agent)
    await until(later.exists)
    gate.touch()
    await asyncio.sleep(AWAY_S)
    assert len(runs(tmp_path)) == 3
    kube.plane.api.start()
    ends = {long: "SUCCEEDED", late: "SUCCEEDED", stopped: "STOPPED", of_new_agent: "STOPPED"}
    for job, state in ends.items():
        assert await kube.muster.end_of(job) == state
        assert set((await retries(kube, job)).values()) == {0}
    await until(lambda: not kube.pods())
    assert len(runs(tmp_path)) == 4


async def test_an_agent_that_was_away_learns_the_end_and_reads_the_rest_of_the_log(
    kube: KubeMuster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = await running(kube, tmp_path, "long", f"echo one; {until_there(gate)}; echo two; exit 7")
    await kube.muster.stop(Service.RUNTIME_AGENT)
    gate.touch()
    (pod,) = kube.pods()
    path = f"/api/v1/namespaces/{JOBS}/pods/{pod['metadata']['name']}"
    await until(lambda: kube.plane.ask("GET", path)[1]["status"]["phase"] == "Failed")
    await kube.muster.start(Service.RUNTIME_AGENT)
    assert await kube.muster.end_of(job) == "FAILED"
    task = (await kube.muster.job(job))["taskRoles"]["worker"]["taskStatuses"][0]
    assert task["containerExitCode"] == 7
    assert await kube.log_of(job) == "one\ntwo\n"
    assert len(runs(tmp_path)) == 1


async def test_a_create_that_is_held_up_until_its_job_is_stopped_runs_nothing(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with (
        Proxy(kube_plane.url).running() as proxy,
        a_kube_muster(
            kube_plane,
            database_url,
            fresh_broker.bootstrap,
            tmp_path,
            proxy.url,
            launcher=QUICK,
        ) as kube,
    ):
        await kube.muster.end_of(await kube.muster.submit(a_job("first", "true")))
        proxy.freeze()
        job = await kube.muster.submit(a_job("held", marked(tmp_path, "true")))
        await eventually(lambda: pods_of(kube, job), lambda found: len(found) == 1)
        await stop(kube, job)
        assert await kube.muster.end_of(job) == "STOPPED"
        await asyncio.sleep(HELD_S)
        proxy.thaw()
        again = await kube.muster.submit(a_job("again", marked(tmp_path, "true")))
        assert await kube.muster.end_of(again) == "SUCCEEDED"
        await until(lambda: not kube.pods())
        (ran,) = runs(tmp_path)
        assert ran == (await pods_of(kube, again))[0]


async def pods_of(kube: KubeMuster, job: str) -> list[str]:
    """Those that the job's tasks have been given."""
    roles = (await kube.muster.job(job))["taskRoles"].values()
    found = [task["containerId"] for role in roles for task in role["taskStatuses"]]
    return [str(each) for each in found if each]


@dataclass
class Storm:
    """Most requests fail: the API server is overloaded, or takes them and its answer is lost."""

    rng: random.Random
    met: Counter[str] = field(default_factory=Counter)

    async def treat(self, request: web.BaseRequest, answer: Pass) -> web.StreamResponse:
        """As the weather is."""
        kind = self.rng.choice(("passed", "passed", "429", "500", "503", "lost"))
        if kind == "lost" and request.method == "GET":
            kind = "passed"
        self.met[kind] += 1
        match kind:
            case "429":
                body = {"kind": "Status", "reason": "TooManyRequests", "message": "too many"}
                return web.json_response(body, status=429, headers={"Retry-After": "2"})
            case "500":
                body = {"kind": "Status", "reason": "InternalError", "message": "etcd: no leader"}
                return web.json_response(body, status=500)
            case "503":  # of a load balancer
                return web.Response(status=503, text="no healthy upstream")
            case "lost":
                await answer()
                return lost(request)
        return await answer()


async def test_a_storm_of_refusals_and_lost_answers_loses_and_doubles_nothing(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    seed = a_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    for_ever = until_there(tmp_path / "never")
    async with (
        KubeProxy(kube_plane).running() as proxy,
        a_kube_muster(
            kube_plane,
            database_url,
            fresh_broker.bootstrap,
            tmp_path,
            proxy.url,
            launcher=QUICK,
        ) as kube,
    ):
        wanted = {await running(kube, tmp_path, "before", for_ever): "STOPPED"}
        storm = Storm(rng)
        proxy.treat = storm.treat
        proxy.cut()
        for number in range(STORM_JOBS):
            is_stopped = number % 3 == 0
            command = marked(tmp_path, for_ever if is_stopped else "true")
            text = a_job(f"job-{number}", command, instances=1 + number % 2)
            text = text.replace("cpu: 1", "cpu: 0")  # kubelet frees late what was never permitted
            job = await kube.muster.submit(with_pull_secret(text) if number % 4 < 2 else text)
            wanted[job] = "STOPPED" if is_stopped else "SUCCEEDED"
        for job in (job for job, state in wanted.items() if state == "STOPPED"):
            await stop(kube, job)
        await until(lambda: all(storm.met[kind] > 2 for kind in ("429", "500", "503", "lost")))
        proxy.treat = passed
        for job, state in wanted.items():
            assert await kube.muster.end_of(job) == state
            assert set((await retries(kube, job)).values()) == {0}
        await until_nothing_is_left(kube_plane)
        given = {job: await pods_of(kube, job) for job in wanted}
    ran = runs(tmp_path)
    assert len(ran) == len(set(ran))
    assert set(ran) <= {pod for pods in given.values() for pod in pods}
    finished = (job for job, state in wanted.items() if state == "SUCCEEDED")
    assert set(ran) >= {pod for job in finished for pod in given[job]}


async def test_a_container_that_kubelet_starts_again_runs_nothing(
    kube: KubeMuster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = await running(kube, tmp_path, "long", until_there(gate))
    (pod,) = kube.pods()
    gate.touch()
    kube.kubelet.forget(pod["metadata"]["name"])
    assert await kube.muster.end_of(job) == "SUCCEEDED"
    found = runs(tmp_path)
    assert len(found) == len(set(found))


async def test_what_kubernetes_ends_runs_again_at_no_cost(kube: KubeMuster, tmp_path: Path) -> None:
    """kubelet evicts one pod and ends one for a critical one; somebody deletes another."""
    gate = tmp_path / "gate"
    path = f"/api/v1/namespaces/{JOBS}/pods"
    troubles = (
        kube.kubelet.evict,
        kube.kubelet.preempt,
        lambda pod: kube.plane.ask("DELETE", f"{path}/{pod}"),
    )
    jobs = [
        await running(kube, tmp_path, f"long-{n}", until_there(gate)) for n in range(len(troubles))
    ]
    pods = kube.pods()
    for trouble, pod in zip(troubles, pods, strict=True):
        trouble(pod["metadata"]["name"])
    await until(lambda: len(runs(tmp_path)) == 2 * len(jobs))
    gate.touch()
    for job in jobs:
        assert await kube.muster.end_of(job) == "SUCCEEDED"
        assert (await retries(kube, job))["user"] == 0
    await until(lambda: not kube.pods())


async def test_a_task_over_a_quota_says_so_and_runs_once_the_quota_is_raised(
    kube: KubeMuster, tmp_path: Path
) -> None:
    quotas = f"/api/v1/namespaces/{JOBS}/resourcequotas"
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    assert kube.plane.ask("POST", quotas, quota)[0] == 201
    try:
        await until(lambda: kube.plane.ask("GET", f"{quotas}/few")[1].get("status", {}).get("hard"))
        job = await kube.muster.submit(a_job("over", marked(tmp_path, "true")))
        shown = await eventually(
            lambda: kube.muster.job(job), lambda found: held_up(found) is not None
        )
        why = await kube.muster.call("GET", f"/api/v2/jobs/{job}/why")
        for reason in (held_up(shown), shown["jobStatus"]["reason"], why.json()["reason"]):
            assert reason["code"] == "not-taken"
            assert "exceeded quota: few" in reason["text"]
        assert shown["jobStatus"]["state"] == "WAITING"
    finally:
        assert kube.plane.ask("DELETE", f"{quotas}/few")[0] == 200
    assert await kube.muster.end_of(job) == "SUCCEEDED"
    assert held_up(await kube.muster.job(job)) is None
    assert len(runs(tmp_path)) == 1


async def test_a_task_without_what_a_quota_counts_fails_for_good(kube: KubeMuster) -> None:
    counts = f"/api/v1/namespaces/{JOBS}/resourcequotas/counts"
    quota = {"metadata": {"name": "counts"}, "spec": {"hard": {"cpu": "100"}}}
    assert kube.plane.ask("POST", counts.rpartition("/")[0], quota)[0] == 201
    try:
        await until(lambda: kube.plane.ask("GET", counts)[1].get("status", {}).get("hard"))
        job = await kube.muster.submit(a_job("no-cpu").replace("cpu: 1", "cpu: 0"))
        shown = await eventually(
            lambda: kube.muster.job(job),
            lambda found: held_up(found) or found["jobStatus"]["state"] == "FAILED",
        )
    finally:
        assert kube.plane.ask("DELETE", counts)[0] == 200
    assert held_up(shown) is None
    assert (shown["jobStatus"]["appExitCode"], shown["jobStatus"]["retries"]) == (-200, 0)
    assert "must specify cpu" in str(shown)


def held_up(job: dict[str, Any]) -> Any:
    """Why the job's first task does not run yet."""
    return job["taskRoles"]["worker"]["taskStatuses"][0]["reason"]


async def test_an_image_that_no_registry_has_fails_its_job_for_good(kube: KubeMuster) -> None:
    text = a_job("typo", "true").replace('uri: "none"', 'uri: "missing/image:1"')
    job = await kube.muster.submit(text)
    assert await kube.muster.end_of(job) == "FAILED"
    status = (await kube.muster.job(job))["jobStatus"]
    assert status["appExitCode"] == 254
    assert "not found" in json.dumps(status)


async def test_a_kubelet_that_was_killed_tells_the_end_late(
    kube: KubeMuster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = await running(kube, tmp_path, "long", f"{until_there(gate)}; exit 9")
    kube.kubelet.kill()
    gate.touch()
    kube.kubelet.start()
    assert await kube.muster.end_of(job) == "FAILED"
    task = (await kube.muster.job(job))["taskRoles"]["worker"]["taskStatuses"][0]
    assert task["containerExitCode"] == 9
    assert len(runs(tmp_path)) == 1


async def test_much_output_arrives_byte_for_byte(kube: KubeMuster, tmp_path: Path) -> None:
    """More than kubelet keeps in one file, with long lines and bytes that are no text."""
    rng = random.Random(5)
    content = b"".join(rng.randbytes(1000) + rng.choice((b"", b"\n")) for _ in range(OUTPUT_KB))
    (tmp_path / "output").write_bytes(content)
    job = await kube.muster.submit(a_job("much", f"cat {tmp_path}/output"))
    assert await kube.muster.end_of(job, size(240, 1200)) == "SUCCEEDED"
    found = b""
    while len(found) < len(content):  # an answer has 16 MiB at the most
        params = {"offset": str(len(found))}
        answer = await kube.muster.call("GET", kube.log_path(job), params=params)
        assert answer.content, f"{len(found)} of {len(content)} bytes"
        found += answer.content
    assert found == content


async def test_a_cordon_shows_and_is_obeyed(kube: KubeMuster) -> None:
    path = f"/api/v1/nodes/{kube.kubelet.settings.node}"
    status, node = kube.plane.ask("GET", path)
    node["spec"]["unschedulable"] = True
    status, answer = kube.plane.ask("PUT", path, node)
    assert status == 200, answer

    async def problem() -> str:
        answer = await kube.muster.call("GET", "/api/v2/cluster/nodes")
        return json.dumps(answer.json())

    await eventually(problem, lambda text: "cordoned in Kubernetes" in text)
    job = await kube.muster.submit(a_job("waits", "true", gpus=1))
    await eventually(lambda: kube.muster.state(job), lambda state: state == "WAITING")
    _, node = kube.plane.ask("GET", path)
    node["spec"].pop("unschedulable")
    kube.plane.ask("PUT", path, node)
    assert await kube.muster.end_of(job) == "SUCCEEDED"
