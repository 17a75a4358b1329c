"""Nodes that KWOK plays on a control plane: they are ready, and pods on them seem to run."""

import asyncio
import contextlib
import http.client
import urllib.request
from collections.abc import Iterator

import kube_programs
from cli.embedded.process import free_port
from kube_plane import ASK_TIMEOUT_S, Json, KubePart, KubePlane
from runtime_agent.kubernetes.api_server import ApiServer

STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
NODES_PER_RACK = 8
CPUS_PER_GPU, MEMORY_MB_PER_GPU = 12, 96_000
LEASE_S = 40
"""As a kubelet's."""
READY_S = 300.0
AT_ONCE = 32


@contextlib.contextmanager
def kwok(plane: KubePlane) -> Iterator[KubePart]:
    """KWOK, which plays every node of the cluster."""
    home, port = plane.home / "kwok", free_port()
    home.mkdir()
    program = kube_programs.program("kwok")
    data = program.with_name("kwok.data")
    files = sorted(file for stage in STAGES for file in (data / stage).glob("*.yaml"))
    stages = [file.read_text() for file in files if file.name != "kustomization.yaml"]
    (home / "stages.yaml").write_text("\n---\n".join(stages))

    def serves() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            url = f"http://127.0.0.1:{port}/healthz"
            with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as answer:
                return bool(answer.status == http.client.OK)
        return False

    part = KubePart(
        "kwok",
        home,
        lambda: {
            "kubeconfig": plane.kubeconfig,
            "config": home / "stages.yaml",
            "manage-all-nodes": "true",
            "node-lease-duration-seconds": LEASE_S,
            "node-ip": "127.0.0.1",
            "server-address": f"127.0.0.1:{port}",
        },
        serves,
    )
    part.start()
    try:
        yield part
    finally:
        part.kill()


def a_node(number: int, gpus: int) -> Json:
    """A Node object, in a rack of eight."""
    amounts = {
        "cpu": str(CPUS_PER_GPU * gpus),
        "memory": f"{MEMORY_MB_PER_GPU * gpus}Mi",
        "nvidia.com/gpu": str(gpus),
        "pods": "110",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"node-{number}",
            "labels": {"topology.kubernetes.io/rack": f"rack-{number // NODES_PER_RACK}"},
        },
        "status": {"allocatable": amounts, "capacity": amounts},
    }


async def make_nodes(plane: KubePlane, count: int, gpus: int) -> list[Json]:
    """The nodes, once all are ready."""
    slots = asyncio.Semaphore(AT_ONCE)
    async with plane.client() as client:
        api = ApiServer("", client)

        async def make(number: int) -> None:
            async with slots:
                status, answer, _ = await api._ask("POST", "/api/v1/nodes", a_node(number, gpus))
                assert status == http.client.CREATED, answer

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(make(number))
        async with asyncio.timeout(READY_S):
            while True:
                _, answer, _ = await api._ask("GET", "/api/v1/nodes")
                if sum(map(is_ready, answer["items"])) == count:
                    return list(answer["items"])
                await asyncio.sleep(1)


def is_ready(node: Json) -> bool:
    """As KWOK has it."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def agent_tokens(plane: KubePlane, nodes: list[Json]) -> dict[str, str]:
    """As kubelet gives them to the pods of the nodes' agents."""
    path = "/api/v1/namespaces/muster-system/serviceaccounts/muster-agent/token"
    slots, found = asyncio.Semaphore(AT_ONCE), dict[str, str]()
    async with plane.client() as client:
        api = ApiServer("", client)

        async def make(name: str, uid: str) -> None:
            bound = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"boundObjectRef": bound, "expirationSeconds": 6 * 3600},
            }
            async with slots:
                status, answer, _ = await api._ask("POST", path, body)
                assert status == http.client.CREATED, answer
            found[name] = answer["status"]["token"]

        async with asyncio.TaskGroup() as group:
            for node in nodes:
                group.create_task(make(node["metadata"]["name"], node["metadata"]["uid"]))
    return found
