"""The manifests on a real API server: it accepts them, and holds each agent to its own node."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import kube_programs
import pytest
from cli.deploy.credentials import enrolment, secret_of_users, secrets_of_services
from kube_plane import KubePlane
from kubernetes_asyncio import client
from kubernetes_asyncio.client.exceptions import ApiException
from manifests import Json
from muster.contracts.images import STEP_PULL_SECRET
from rendering import COMPONENTS, K8S, OVERLAYS, render, render_with
from runtime_agent.kubernetes.api_server import ApiServer

pytestmark = [pytest.mark.k8s, pytest.mark.xdist_group("deploy")]

KEY = "k" * 64
EXAMPLES = K8S / "examples"
NODE, OTHER = "policy-a", "policy-b"
JOBS, HOST_JOBS = "muster-jobs", "muster-jobs-host"
WAIT_S = 60
KUBECTL_TIMEOUT_S = 120
STRICT = ("--warnings-as-errors",)
UNPROCESSABLE, FORBIDDEN, CREATED = 422, 403, 201
ACCOUNT = "kubernetes.io/service-account.name"


def kubectl(plane: KubePlane, *words: str, objects: Sequence[Json] = ()) -> str:
    """The administrator's kubectl. A warning of the server is an error."""
    done = subprocess.run(
        [kube_programs.program("kubectl"), "--kubeconfig", plane.kubeconfig, *STRICT, *words],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}),
        capture_output=True,
        text=True,
        timeout=KUBECTL_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def cluster(kube_plane: KubePlane) -> KubePlane:
    """A cluster with Muster's namespaces and the agents' rights, and two nodes."""
    rights = [
        each
        for each in render(K8S / "overlays/minimal")
        if each["kind"] in ("Namespace", "ServiceAccount", "PriorityClass")
        or each["kind"].endswith(("Role", "RoleBinding", "Policy", "PolicyBinding"))
    ]
    kubectl(kube_plane, "apply", "--server-side", "-f", "-", objects=rights)
    for name in (NODE, OTHER):
        kube_plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    return kube_plane


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_server_accepts_each_overlay(cluster: KubePlane, overlay: str) -> None:
    objects = render(K8S / "overlays" / overlay)
    applied = kubectl(
        cluster, "apply", "--server-side", "--dry-run=server", "-f", "-", objects=objects
    )
    assert len(applied.splitlines()) == len(objects)


def test_the_server_accepts_all_components(cluster: KubePlane, tmp_path: Path) -> None:
    of_others = "monitoring.coreos.com"  # its kinds come with the Prometheus Operator
    objects = [
        each
        for each in render_with(COMPONENTS, tmp_path)
        if not each["apiVersion"].startswith(of_others)
    ]
    kubectl(cluster, "apply", "--server-side", "--dry-run=server", "-f", "-", objects=objects)


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_the_claims_of_each_example_are_bound(cluster: KubePlane, example: str) -> None:
    file = f"--filename={EXAMPLES / example}"
    kubectl(cluster, "apply", "--server-side", file)
    bound = f"--for=jsonpath={{.status.phase}}=Bound --timeout={WAIT_S}s".split()
    try:
        for namespace in (JOBS, HOST_JOBS):
            claim = f"pvc/{example.removesuffix('.yaml')}"
            kubectl(cluster, "wait", *bound, f"--namespace={namespace}", claim)
    finally:
        kubectl(cluster, "delete", file)


def test_the_server_accepts_what_an_operator_applies(cluster: KubePlane) -> None:
    objects = [
        *secrets_of_services(KEY, "postgresql://muster:{password}@db/muster"),
        secret_of_users(KEY, [NODE]),
        *enrolment(KEY, NODE, "localhost/muster:0.1.0"),
    ]
    kubectl(cluster, "apply", "--server-side", "--dry-run=server", "-f", "-", objects=objects)


def a_pod(**changes: Any) -> Json:
    """A pod as an agent creates one."""
    spec: Json = {
        "nodeName": NODE,
        "automountServiceAccountToken": False,
        "initContainers": [a_container()[0] | {"name": "step", "image": "muster-step"}],
        "containers": a_container(),
        "volumes": [{"name": "muster", "emptyDir": {}}],
    }
    return {"metadata": {"generateName": "policy-"}, "spec": spec | changes}


def on_another_node(**changes: Any) -> Json:
    """The same, for a node that is not the agent's."""
    return a_pod(nodeName=OTHER, **changes)


def a_container(**security: Any) -> list[Json]:
    """Containers with a security context, which drops what an agent's pods drop."""
    drop = {"drop": ["NET_RAW"]} | security.pop("capabilities", {})
    context = security | {"capabilities": drop}
    return [{"name": "main", "image": "example/none", "securityContext": context}]


class Agent:
    """The agent of a node, by its token: the statuses and texts that it gets."""

    def __init__(self, api: client.ApiClient) -> None:
        self._core = client.CoreV1Api(api)
        self.events = ApiServer(NODE, api).events

    async def create(self, pod: Json, namespace: str = JOBS) -> tuple[int, str]:
        """Status and text; 201 also has the pod's name as text."""
        try:
            made = await self._core.create_namespaced_pod(namespace, pod)
        except ApiException as error:
            return error.status, json.loads(error.body)["message"]
        return CREATED, made.metadata.name

    async def create_secret(
        self, node: str, name: str, kind: str = "dockerconfigjson"
    ) -> tuple[int, str]:
        """The same of a Secret that names a node."""
        body = {
            "metadata": {"name": name, "annotations": {"muster/node": node, ACCOUNT: "default"}},
            "type": f"kubernetes.io/{kind}",
            "stringData": {".dockerconfigjson": "{}"},
        }
        try:
            await self._core.create_namespaced_secret(JOBS, body)
        except ApiException as error:
            return error.status, json.loads(error.body)["message"]
        return CREATED, name

    async def delete(self, name: str, namespace: str = JOBS) -> tuple[int, str]:
        """The status of a deletion."""
        try:
            await self._core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)
        except ApiException as error:
            return error.status, json.loads(error.body)["message"]
        return 200, name


@pytest.fixture
async def agents(cluster: KubePlane) -> AsyncIterator[Callable[[Json | None], Any]]:
    """Makes agents: by the node that their token names, or none. They wait until the policy and the
    namespaces' service accounts are there.
    """
    async with AsyncExitStack() as opened:

        async def made(node: str | None) -> Agent:
            bound = None
            if node is not None:
                _, found = cluster.ask("GET", f"/api/v1/nodes/{node}")
                bound = {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": node,
                    "uid": found["metadata"]["uid"],
                }
            token = cluster.service_account_token("muster-system", "muster-agent", bound)
            return Agent(await opened.enter_async_context(cluster.client(token)))

        probe = await made(NODE)
        async with asyncio.timeout(WAIT_S):
            while (await probe.create(on_another_node()))[0] != UNPROCESSABLE:
                await asyncio.sleep(0.1)
        yield made


async def test_an_agent_creates_and_deletes_pods_of_its_node(agents: Any) -> None:
    agent = await agents(NODE)
    status, name = await agent.create(a_pod())
    assert status == CREATED, name
    assert (await agent.delete(name))[0] == 200
    on_host = a_pod(hostNetwork=True, containers=a_container(capabilities={"add": ["IPC_LOCK"]}))
    status, name = await agent.create(on_host, HOST_JOBS)
    assert status == CREATED, name
    assert (await agent.create_secret(NODE, "pull-secret-of-a"))[0] == CREATED
    private_step = a_pod(imagePullSecrets=[{"name": STEP_PULL_SECRET}])
    assert (await agent.create(private_step))[0] == CREATED


async def test_an_agent_reads_the_events_of_a_pod(cluster: KubePlane, agents: Any) -> None:
    agent = await agents(NODE)
    for uid in ("of-a-pod", "of-another"):
        about = {"kind": "Pod", "namespace": JOBS, "name": "p", "uid": uid}
        event = {"metadata": {"name": f"event-{uid}"}, "involvedObject": about, "message": uid}
        assert cluster.ask("POST", f"/api/v1/namespaces/{JOBS}/events", event)[0] == CREATED
    assert [each["message"] for each in await agent.events(JOBS, "of-a-pod")] == ["of-a-pod"]


async def test_an_agent_can_do_nothing_on_another_node(agents: Any) -> None:
    own, other = await agents(NODE), await agents(OTHER)
    for namespace in (JOBS, HOST_JOBS):
        status, text = await own.create(on_another_node(), namespace)
        assert (status, "of the agent's own node" in text) == (UNPROCESSABLE, True), text
    status, name = await other.create(on_another_node())
    assert status == CREATED, name
    status, text = await own.delete(name)
    assert (status, "of the agent's own node" in text) == (UNPROCESSABLE, True), text
    status, text = await own.create_secret(OTHER, "pull-secret-of-b")
    assert (status, "of the agent's own node" in text) == (UNPROCESSABLE, True), text
    assert (await other.delete(name))[0] == 200


async def test_an_agent_makes_no_token_of_an_account(agents: Any) -> None:
    """Kubernetes puts one into each Secret of that type."""
    secret = (NODE, "token-of-default", "service-account-token")
    status, text = await (await agents(NODE)).create_secret(*secret)
    assert (status, "no secret but for pulling images" in text) == (UNPROCESSABLE, True), text


async def test_a_token_without_a_node_can_do_nothing(agents: Any) -> None:
    status, text = await (await agents(None)).create(a_pod())
    assert (status, "the token names no node" in text) == (UNPROCESSABLE, True), text


OF_SECRET = {"secretRef": {"name": "of-another-pod"}}
FROM_SECRET = {
    "name": "V",
    "valueFrom": {"secretKeyRef": {"name": "of-another-pod", "key": ".dockerconfigjson"}},
}
TOKEN = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hostPID": True}, "no host namespace but the network"),
        ({"hostIPC": True}, "no host namespace but the network"),
        ({"containers": a_container(privileged=True)}, "no privileged containers"),
        ({"initContainers": [{**a_container(privileged=True)[0], "name": "i"}]}, "no privileged"),
        ({"containers": a_container(capabilities={"add": ["SYS_ADMIN"]})}, "no capability but"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "only emptyDir and"),
        ({"volumes": [{"name": "v", **TOKEN}]}, "only emptyDir and"),
        ({"containers": a_container(capabilities={"drop": []})}, "drops NET_RAW"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, "only emptyDir and"),
        ({"imagePullSecrets": [{"name": "of-another-pod"}]}, "only the pull secret"),
        ({"automountServiceAccountToken": True}, "no service account token"),
        ({"containers": [{**a_container()[0], "envFrom": [OF_SECRET]}]}, "no variable of a Secret"),
        ({"containers": [{**a_container()[0], "env": [FROM_SECRET]}]}, "no variable of a Secret"),
    ],
)
async def test_an_agents_pod_gets_nothing_of_the_host(agents: Any, changes: Json, why: str) -> None:
    status, text = await (await agents(NODE)).create(a_pod(**changes), HOST_JOBS)
    assert (status, why in text) == (UNPROCESSABLE, True), text


async def test_memory_is_locked_in_one_namespace_only(agents: Any, cluster: KubePlane) -> None:
    """Also where an operator has loosened Pod Security."""
    level = "pod-security.kubernetes.io/enforce"
    kubectl(cluster, "label", "--overwrite", "namespace", JOBS, f"{level}=privileged")
    try:
        locking = a_pod(containers=a_container(capabilities={"add": ["IPC_LOCK"]}))
        agent = await agents(NODE)
        status, text = await agent.create(locking)
        assert (status, "no capability but" in text) == (UNPROCESSABLE, True), text
        assert (await agent.create(locking, HOST_JOBS))[0] == CREATED
    finally:
        kubectl(cluster, "label", "--overwrite", "namespace", JOBS, f"{level}=baseline")


async def test_jobs_get_no_host_network_without_permission(agents: Any) -> None:
    status, text = await (await agents(NODE)).create(a_pod(hostNetwork=True), JOBS)
    assert (status, "violates PodSecurity" in text) == (FORBIDDEN, True), text


@pytest.mark.parametrize(
    ("verb", "what", "namespace"),
    [
        ("get", "secrets", JOBS),
        ("list", "secrets", JOBS),
        ("get", "secrets", "muster-system"),
        ("create", "pods", "muster-system"),
        ("create", "pods", "default"),
        ("update", "pods", JOBS),
        ("patch", "pods", JOBS),
        ("create", "serviceaccounts", JOBS),
        ("patch", "nodes", ""),
        ("delete", "nodes", ""),
    ],
)
def test_an_agent_has_no_other_rights(
    cluster: KubePlane, verb: str, what: str, namespace: str
) -> None:
    assert not may(cluster, verb, what, namespace)


@pytest.mark.parametrize("subresource", ["exec", "attach", "portforward", "ephemeralcontainers"])
def test_an_agent_enters_no_pod(cluster: KubePlane, subresource: str) -> None:
    for verb in ("get", "create", "update", "patch"):
        assert not may(cluster, verb, "pods", JOBS, subresource)


def test_an_agent_reads_pods_and_nodes(cluster: KubePlane) -> None:
    for verb in ("list", "watch"):
        assert may(cluster, verb, "pods", "")
        assert may(cluster, verb, "nodes", "")


def may(plane: KubePlane, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
    """Whether the agents' service account has a right."""
    status, answer = plane.ask(
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "spec": {
                "user": "system:serviceaccount:muster-system:muster-agent",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": {
                    "verb": verb,
                    "resource": resource,
                    "namespace": namespace,
                    "subresource": subresource,
                },
            }
        },
    )
    assert status == CREATED, answer
    return bool(answer["status"]["allowed"])
