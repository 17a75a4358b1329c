"""The fence on a real API server: the processes of lost pods end, and no other pod is touched."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bare_bus import a_bus
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.process import free_port
from kube_muster import JOBS, NODE, a_kube_muster, grant
from kube_plane import KubePlane
from muster.contracts.acls import FENCE
from muster.contracts.nodes import NodeLost
from muster.contracts.topics import Service
from muster.service import Runtime, running
from runtime_agent.fence import FenceSettings, build
from scheduler_watched import measured, until
from whole_muster import a_job, until_there

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(600)]

Json = dict[str, Any]
HOST_JOBS = "muster-jobs-host"
RIGHTS = Path(__file__).parents[2] / "deploy/k8s/components/fence/rights.yaml"
MUSTERS = {"app.kubernetes.io/managed-by": "muster"}
OWN_GRACE_S = 77
QUICK = {"retry_backoff_first_s": 0.1, "stop_grace_s": 2.0}
SHORT_LEASES = {
    "lease_timeout_s": 8.0,
    "watch_s": 0.2,
    "stall_s": 1.0,
    "probe_s": 0.2,
    "probe_window_s": 1.0,
}


@pytest.fixture
def config(kube_plane: KubePlane, tmp_path: Path) -> Path:
    """The fence's kubeconfig, with no rights but those of its manifests."""
    grant(kube_plane)
    kube_plane.kubectl("apply", "--server-side", f"--filename={RIGHTS}")
    token = kube_plane.service_account_token("muster-system", "muster-fence")
    return kube_plane.write_kubeconfig(tmp_path / "fence.json", token=token)


@asynccontextmanager
async def a_fence(config: Path, bootstrap: str) -> AsyncIterator[Runtime]:
    settings = FenceSettings(
        kafka_bootstrap=bootstrap, kube_config=config, fetch_wait_busy_ms=10, bus_watch_s=0.2
    )
    async with running(FENCE, settings, free_port(), build) as runtime:
        yield runtime


def count(fence: Runtime, name: str) -> float | None:
    return fence.registry.get_sample_value(f"muster_fence_{name}")


async def create(
    plane: KubePlane,
    name: str,
    *,
    pod: str = "",
    node: str = NODE,
    namespace: str = JOBS,
    labels: Json = MUSTERS,
) -> str:
    """A pod's address, once the namespace has its service account."""
    body = {
        "metadata": {"name": name, "labels": labels, "annotations": {"muster/pod": pod or name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": OWN_GRACE_S,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "example/any", "command": ["/bin/sleep", "3600"]}
            ],
        },
    }
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await until(lambda: plane.ask("POST", pods, body)[0] == 201)
    return f"{pods}/{name}"


def is_deleted(plane: KubePlane, pod: str) -> bool:
    status, body = plane.ask("GET", pod)
    return status == 404 or "deletionTimestamp" in body["metadata"]


async def test_only_the_named_pods_of_the_lost_node_are_deleted(
    kube_plane: KubePlane, config: Path, fresh_broker: EmbeddedBroker
) -> None:
    plane, of_other_tests = kube_plane, len(kube_plane.audit())
    for node in ("fenced", "living"):
        plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    on = {"node": "fenced"}
    lost = [
        await create(plane, "lost", **on),
        await create(plane, "lost-on-host", namespace=HOST_JOBS, **on),
        await create(plane, "lost-later", **on),
    ]
    over = await create(plane, "over", **on)
    phase = {"status": {"phase": "Succeeded"}}
    body = plane.ask("GET", over)[1] | phase
    assert plane.ask("PUT", f"{over}/status", body)[0] == 200
    others = [
        over,
        await create(plane, "not-named", **on),
        await create(plane, "namesake", pod="lost", node="living"),
        await create(plane, "elsewhere", pod="lost", namespace="default", **on),
        await create(plane, "foreign", pod="lost", labels={}, **on),
    ]
    bus = a_bus(fresh_broker.bootstrap)

    async def lose(*pods: str) -> None:
        since = datetime(2026, 1, 1, tzinfo=UTC)
        message = NodeLost(node="fenced", lease=1, since=since, silent_s=60, pods=pods)
        await bus.broadcast("node-lost", "fenced", message, event_id="x", at=0.0)

    async with AsyncExitStack() as opened:
        opened.push_async_callback(bus.close)
        await lose("lost", "lost-on-host", "over")  # before the fence starts
        fence = await opened.enter_async_context(a_fence(config, fresh_broker.bootstrap))
        await until(lambda: count(fence, "pods_deleted_total") == 2)
        graces = [plane.ask("GET", each)[1]["metadata"] for each in lost[:2]]
        assert [each["deletionGracePeriodSeconds"] for each in graces] == [OWN_GRACE_S] * 2
        await lose("lost", "lost-later")
        await until(lambda: is_deleted(plane, lost[2]))
        await until(lambda: count(fence, "nodes_waiting") == 0)
        assert count(fence, "pods_deleted_total") == 3
    assert not any(is_deleted(plane, each) for each in others)
    account = "system:serviceaccount:muster-system:muster-fence"
    since = plane.audit()[of_other_tests:]
    events = [each for each in since if each["user"]["username"] == account]
    assert {each["responseStatus"]["code"] for each in events} <= {200, 404}
    asked = {(each["verb"], each["objectRef"]["resource"]) for each in events}
    assert asked == {("list", "pods"), ("delete", "pods")}  # as in RIGHTS
    for pod in (*lost, *others):
        plane.ask("DELETE", f"{pod}?gracePeriodSeconds=0")
    for node in ("fenced", "living"):
        plane.ask("DELETE", f"/api/v1/nodes/{node}")


@pytest.mark.system
async def test_the_processes_of_a_lost_node_end_although_its_agent_is_away(
    kube_plane: KubePlane,
    config: Path,
    database_url: str,
    fresh_broker: EmbeddedBroker,
    tmp_path: Path,
) -> None:
    """At first the API server is away too. The job runs again once the agent returns."""
    runs, asked, gate = (tmp_path / name for name in ("runs", "asked", "gate"))
    script = tmp_path / "task.sh"
    script.write_text(
        f"trap 'touch {asked}; exit 0' TERM; echo $MUSTER_POD >> {runs}; {until_there(gate)}"
    )
    async with a_kube_muster(
        kube_plane,
        database_url,
        fresh_broker.bootstrap,
        tmp_path,
        launcher=QUICK,
        scheduler=SHORT_LEASES,
        runtime_agent={"heartbeat_s": 0.4},
    ) as kube:
        job = await kube.muster.submit(a_job("long", f"exec bash {script}"))
        await until(runs.exists)
        scheduler = kube.muster.runtimes[Service.SCHEDULER]
        await kube.muster.stop(Service.RUNTIME_AGENT)
        other = await create(kube.plane, "not-musters", labels={})
        await until(lambda: measured(scheduler, "nodes_lost_total") == 1)
        kube.plane.api.kill()
        async with a_fence(config, fresh_broker.bootstrap) as fence:
            await until(lambda: count(fence, "nodes_waiting") == 1)
            assert not asked.exists()
            kube.plane.api.start()
            await until(asked.exists)
            await until(lambda: not kube.pods())
            assert not is_deleted(kube.plane, other)
            await kube.muster.start(Service.RUNTIME_AGENT)
            await until(lambda: len(runs.read_text().split()) == 2)
            gate.touch()
            assert await kube.muster.end_of(job) == "SUCCEEDED"
            status = (await kube.muster.job(job))["jobStatus"]
            assert status["retryDetails"]["user"] == 0
            assert len(set(runs.read_text().split())) == 2
            assert count(fence, "pods_deleted_total") == 1
        kube.plane.ask("DELETE", f"{other}?gracePeriodSeconds=0")
