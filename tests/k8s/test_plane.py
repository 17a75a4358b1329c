"""The control plane of the tests is a real one, and goes on after its parts are killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli.embedded.process import is_alive
from kube_plane import KubePlane, User
from kubernetes_asyncio import client
from kubernetes_asyncio.client.exceptions import ApiException

pytestmark = pytest.mark.k8s
WAIT_S = 60

STARTS_A_PLANE = """
import sys, time
from pathlib import Path
from kube_plane import KubePlane
plane = KubePlane(Path(sys.argv[1]))
plane.start()
print(*(part.pid for part in plane.parts), flush=True)
time.sleep(600)
"""


def a_pod(name: str, node: str) -> client.V1Pod:
    """A pod that is bound already, as an agent creates it."""
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name),
        spec=client.V1PodSpec(
            node_name=node,
            automount_service_account_token=False,
            containers=[client.V1Container(name="main", image="example/none")],
        ),
    )


async def a_namespace(core: client.CoreV1Api, name: str, labels: dict[str, str]) -> str:
    """A new namespace, once pods can be created in it."""
    await core.create_namespace(
        client.V1Namespace(metadata=client.V1ObjectMeta(name=name, labels=labels))
    )
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await core.list_namespaced_service_account(name)
            if any(each.metadata.name == "default" for each in found.items):
                return name
            await asyncio.sleep(0.05)


async def a_node(core: client.CoreV1Api, name: str) -> client.V1Node:
    """A node without a kubelet."""
    return await core.create_node(client.V1Node(metadata=client.V1ObjectMeta(name=name)))


async def test_a_pod_is_created_on_its_node(kube_plane: KubePlane) -> None:
    async with kube_plane.client() as api:
        core = client.CoreV1Api(api)
        version = await client.VersionApi(api).get_code()
        await a_node(core, "plane-1")
        await a_namespace(core, "plane-bound", {})
        await core.create_namespaced_pod("plane-bound", a_pod("one", "plane-1"))
        of_node = await core.list_pod_for_all_namespaces(field_selector="spec.nodeName=plane-1")

    assert version.git_version == "v1.35.4"
    assert [pod.metadata.name for pod in of_node.items] == ["one"]
    assert of_node.items[0].status.phase == "Pending"


async def test_pod_security_refuses_a_privileged_pod(kube_plane: KubePlane) -> None:
    pod = a_pod("one", "plane-2")
    pod.spec.containers[0].security_context = client.V1SecurityContext(privileged=True)
    async with kube_plane.client() as api:
        core = client.CoreV1Api(api)
        await a_namespace(
            core, "plane-baseline", {"pod-security.kubernetes.io/enforce": "baseline"}
        )
        with pytest.raises(ApiException) as refused:
            await core.create_namespaced_pod("plane-baseline", pod)

    assert refused.value.status == 403
    assert "violates PodSecurity" in str(refused.value.body)


def test_kubectl_refuses_what_the_server_does_not_know(kube_plane: KubePlane) -> None:
    node = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "dry"}, "spek": {}})
    with pytest.raises(RuntimeError, match=r"spek: field not declared"):
        kube_plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", given=node)

    assert kube_plane.ask("GET", "/api/v1/nodes/dry")[0] == 404


async def test_objects_outlive_every_part(kube_plane: KubePlane) -> None:
    async with kube_plane.client() as api:
        await a_namespace(client.CoreV1Api(api), "plane-kept", {})
    for part in kube_plane.parts:
        part.kill()
    for part in kube_plane.parts:
        part.start()

    async with kube_plane.client() as api:
        core = client.CoreV1Api(api)
        kept = await core.read_namespace("plane-kept")
        await a_namespace(core, "plane-after", {})

    assert kept.status.phase == "Active"


async def test_the_audit_log_names_each_call(kube_plane: KubePlane) -> None:
    kubelet = User("system:node:plane-3", "system:nodes")
    async with kube_plane.client(acting_as=kubelet) as api:
        await a_node(client.CoreV1Api(api), "plane-3")

    async with asyncio.timeout(WAIT_S):
        while not (
            calls := [
                (event["verb"], event["impersonatedUser"]["username"])
                for event in kube_plane.audit()
                if event.get("objectRef", {}).get("name") == "plane-3"
                and "impersonatedUser" in event
            ]
        ):
            await asyncio.sleep(0.05)
    assert calls == [("create", "system:node:plane-3")]


async def test_a_token_names_the_node_of_its_pod(kube_plane: KubePlane) -> None:
    async with kube_plane.client() as api:
        core = client.CoreV1Api(api)
        await a_node(core, "plane-4")
        await a_namespace(core, "plane-agents", {})
        pod = await core.create_namespaced_pod("plane-agents", a_pod("agent", "plane-4"))
    token = kube_plane.service_account_token(
        "plane-agents",
        "default",
        {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": pod.metadata.uid},
    )
    async with kube_plane.client(token) as api:
        asked = await client.AuthenticationV1Api(api).create_self_subject_review(
            client.V1SelfSubjectReview()
        )

    me = asked.status.user_info
    assert me.username == "system:serviceaccount:plane-agents:default"
    assert me.extra["authentication.kubernetes.io/node-name"] == ["plane-4"]


async def test_no_part_outlives_a_killed_owner(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STARTS_A_PLANE, str(tmp_path)),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")},
    )
    assert owner.stdout is not None
    parts = [int(pid) for pid in (await owner.stdout.readline()).split()]
    assert len(parts) == 3
    assert all(is_alive(pid) for pid in parts)

    owner.send_signal(signal.SIGKILL)
    await owner.wait()

    async with asyncio.timeout(WAIT_S):
        while any(is_alive(pid) for pid in parts):
            await asyncio.sleep(0.05)
