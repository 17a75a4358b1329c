"""Jobs as pods of a real kubelet and containerd, through all five services."""

import json
import statistics
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cli.embedded.broker import EmbeddedBroker
from kube_muster import NODE, OnCluster, grant, muster_on
from kube_plane import KubePlane
from real_kubelet import BUSYBOX, USER_1000, USER_NOBODY, RealKubelet
from runtime_agent.domain.kubernetes.manifest import WORK_DIR
from scheduler_watched import until
from whole_muster import a_job, eventually, until_there

pytestmark = [pytest.mark.kubelet, pytest.mark.system, pytest.mark.timeout(600)]

GATE_FILE = Path(WORK_DIR) / "gate"
"""As the container has it."""
GATE = until_there(GATE_FILE)
"""Part of a command that waits for `open_gate`."""
MEASURED = 20


@pytest.fixture(scope="session")
def kubelet(
    kube_plane: KubePlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealKubelet]:
    """One node for all tests."""
    grant(kube_plane)
    with RealKubelet(tmp_path_factory.mktemp("kubelet"), kube_plane, NODE) as running:
        yield running


@pytest.fixture
async def cluster(
    kubelet: RealKubelet, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> AsyncIterator[OnCluster]:
    async with muster_on(kubelet, database_url, fresh_broker.bootstrap, tmp_path) as running:
        yield running


@pytest.fixture
def empty_registry() -> Iterator[str]:
    """A registry that has no image; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"localhost:{server.server_port}"
        server.shutdown()


def in_image(name: str, command: str, image: str = BUSYBOX) -> str:
    """A job file with one task."""
    return a_job(name, command).replace('uri: "none"', f'uri: "{image}"')


async def exit_code(cluster: OnCluster, job: str) -> int:
    task = (await cluster.muster.job(job))["taskRoles"]["worker"]["taskStatuses"][0]
    return int(task["containerExitCode"])


async def begun(cluster: OnCluster, job: str) -> None:
    """Its command, which writes a line first, has begun."""
    await eventually(lambda: cluster.muster.state(job), lambda state: state == "RUNNING", 60)
    await eventually(lambda: cluster.log_of(job), lambda text: text == "began\n", 60)


def open_gate(cluster: OnCluster, kubelet: RealKubelet) -> None:
    (pod,) = cluster.pods()
    volumes = kubelet.home / "pods" / pod["metadata"]["uid"] / "volumes"
    (volumes / "kubernetes.io~empty-dir/work" / GATE_FILE.name).touch()


async def stop(cluster: OnCluster, job: str) -> None:
    path = f"/api/v2/jobs/{job}/executionType"
    answer = await cluster.muster.call("PUT", path, json={"value": "STOP"})
    assert answer.status_code == 202, answer.text


async def test_a_job_shows_its_exit_code_and_output_and_no_gpu(cluster: OnCluster) -> None:
    given = r'tr "\0" "\n" < /proc/1/environ | grep NVIDIA'  # what NVIDIA's runtime would read
    command = f"{given}; echo oops >&2; exit 3"
    name = await cluster.muster.submit(in_image("first", command))
    assert await cluster.muster.end_of(name) == "FAILED"
    assert await exit_code(cluster, name) == 3
    assert await cluster.log_of(name) == "NVIDIA_VISIBLE_DEVICES=void\n"
    assert await cluster.log_of(name, "stderr") == "oops\n"
    await eventually(cluster.muster.unsettled, lambda count: count == 0)
    await until(lambda: not cluster.pods())


async def test_an_image_needs_no_shell_and_may_name_any_user(cluster: OnCluster) -> None:
    name = await cluster.muster.submit(in_image("static", "/bin/id -u; exit 4", USER_1000))
    assert await cluster.muster.end_of(name) == "FAILED"
    assert await exit_code(cluster, name) == 4
    assert await cluster.log_of(name) == "1000\n"


async def test_an_image_that_names_a_user_without_having_any_fails_at_once(
    cluster: OnCluster,
) -> None:
    name = await cluster.muster.submit(in_image("nobody", "/bin/id -u", USER_NOBODY))
    assert await cluster.muster.end_of(name) == "FAILED"
    status = (await cluster.muster.job(name))["jobStatus"]
    assert (status["appExitCode"], status["retries"]) == (-1024, 0)


async def test_output_arrives_byte_for_byte_over_rotation(
    cluster: OnCluster, kubelet: RealKubelet
) -> None:
    write = "seq $((n * 20000)) $((n * 20000 + 19999))"
    command = f"n=0; until test -e {GATE_FILE}; do {write}; n=$((n + 1)); sleep 1; done"
    name = await cluster.muster.submit(in_image("much", command))
    await until(lambda: len(list(kubelet.home.glob("log/pods/*/main/0.log.*"))) > 2)
    open_gate(cluster, kubelet)
    assert await cluster.muster.end_of(name) == "SUCCEEDED"
    lines = (await cluster.log_of(name)).splitlines()
    assert lines == [str(number) for number in range(len(lines))]


async def test_a_stop_reaches_grandchildren_within_the_grace(cluster: OnCluster) -> None:
    inner = 'sh -c "trap \\"echo ended; exit 0\\" TERM; echo began; while :; do sleep 0.1; done"'
    name = await cluster.muster.submit(in_image("long", f"trap : TERM; {inner} & wait || wait"))
    await begun(cluster, name)
    await stop(cluster, name)
    assert await cluster.muster.end_of(name) == "STOPPED"
    assert await cluster.log_of(name) == "began\nended\n"


async def test_what_ignores_a_stop_is_killed_after_the_grace(cluster: OnCluster) -> None:
    command = 'trap "" TERM; echo began; while :; do sleep 0.1; done'
    name = await cluster.muster.submit(in_image("deaf", command))
    await begun(cluster, name)
    await stop(cluster, name)
    assert await cluster.muster.end_of(name) == "STOPPED"
    assert await exit_code(cluster, name) == 137
    await until(lambda: not cluster.pods())


async def test_a_job_runs_on_and_once_while_kubelet_and_containerd_are_killed(
    cluster: OnCluster, kubelet: RealKubelet
) -> None:
    name = await cluster.muster.submit(in_image("long", f"echo began; {GATE}; exit 9"))
    await begun(cluster, name)
    kubelet.close()
    open_gate(cluster, kubelet)
    kubelet.start()
    assert await cluster.muster.end_of(name) == "FAILED"
    assert await exit_code(cluster, name) == 9
    assert await cluster.log_of(name) == "began\n"


async def test_an_image_that_the_registry_does_not_have_fails_its_job_for_good(
    cluster: OnCluster, empty_registry: str
) -> None:
    name = await cluster.muster.submit(in_image("typo", "true", f"{empty_registry}/typo:1"))
    assert await cluster.muster.end_of(name) == "FAILED"
    status = (await cluster.muster.job(name))["jobStatus"]
    assert status["appExitCode"] == 254
    assert "not found" in json.dumps(status)


async def test_jobs_start_one_after_the_other(
    cluster: OnCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints how long each takes, with its image present."""
    took_ms = []
    for number in range(MEASURED):
        name = await cluster.muster.submit(in_image(f"job-{number}", "true"))
        assert await cluster.muster.end_of(name) == "SUCCEEDED"
        status = (await cluster.muster.job(name))["jobStatus"]
        took_ms.append(status["launchedTime"] - status["createdTime"])
    median_s = statistics.median(took_ms) / 1000
    with capsys.disabled():
        print(f"\naccepted to running, p50 of {MEASURED} jobs: {median_s:.1f} s")
