"""The kubelet double does on a real API server what a kubelet does there."""

import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest
from container_shim import CGROUPS, split
from containers import shims
from kube_plane import KubePlane
from kubelet_double import Image, KubeletDouble, Settings, cgroup_of
from step_image import BEGIN, step_image
from stub_agent import PROOF, StubAgent

pytestmark = pytest.mark.k8s
WAIT_S = 60
PODS = "/api/v1/namespaces/default/pods"
Json = dict[str, Any]


class Node(KubeletDouble):
    """A node with a kubelet double, and what tests say to the API server about it."""

    def __init__(self, plane: KubePlane, home: Path, **settings: Any) -> None:
        self.name = f"node-{uuid4().hex[:8]}"
        self.plane = plane
        identity = {"server": plane.url, "ca": str(plane.ca_path), "token": plane.token}
        given = {"home": str(home / self.name), "node": self.name, **identity, **settings}
        super().__init__(Settings(**given))
        self.uids: dict[str, str] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        until(lambda: not self.ask("GET", f"/api/v1/nodes/{self.name}")["spec"].get("taints"))
        return self

    def ask(self, method: str, path: str, body: Json | None = None) -> Json:
        status, answer = self.plane.ask(method, path, body)
        assert status < 300, answer
        return answer

    def run(self, command: str | list[str], *, init: Json | None = None, **spec: Any) -> str:
        """Create a pod with one main container; keys of a container go to it."""
        words = command if isinstance(command, list) else ["sh", "-c", command]
        keys = {"image", "env", "envFrom", "resources", "volumeMounts", "workingDir"}
        keys |= {"securityContext", "readinessProbe", "ports"}
        own = {key: spec.pop(key) for key in keys & spec.keys()}
        main = {"name": "main", "image": "any/image", "command": words, **own}
        name = f"pod-{uuid4().hex[:8]}"
        created = self.ask(
            "POST",
            PODS,
            {
                "metadata": {"name": name, **spec.pop("metadata", {})},
                "spec": {
                    "nodeName": self.name,
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
                    "containers": [main],
                    "initContainers": [init] if init else [],
                    **spec,
                },
            },
        )
        self.uids[name] = created["metadata"]["uid"]
        return name

    def pod(self, name: str) -> Json:
        return self.ask("GET", f"{PODS}/{name}")

    def exists(self, name: str) -> bool:
        return self.plane.ask("GET", f"{PODS}/{name}")[0] != 404

    def until_phase(self, name: str, *phases: str) -> Json:
        """The pod's status in it."""
        status: Json = until(lambda: (s := self.pod(name)["status"])["phase"] in phases and s)
        return status

    def end(self, name: str) -> Json:
        """How its main container ended, once the pod has."""
        status = self.until_phase(name, "Succeeded", "Failed")
        terminated: Json = status["containerStatuses"][0]["state"]["terminated"]
        return terminated

    def delete(self, name: str, grace_s: int | None = None) -> None:
        self.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": grace_s})

    def waiting(self, name: str) -> Json:
        """Why its main container waits."""
        (main,) = self.pod(name)["status"].get("containerStatuses", [{"state": {}}])
        waiting: Json = main["state"].get("waiting", {})
        return waiting

    def logs(self, name: str) -> Path:
        (found,) = self.home.glob(f"log/pods/default_{name}_*/main")
        return found

    def log(self, name: str) -> list[str]:
        """The lines of its log, without their times."""
        lines = (self.logs(name) / "0.log").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines]


def until(what: Callable[[], Any]) -> Any:
    """Ask again until it is so; what it is."""
    deadline = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def node(kube_plane: KubePlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One for many tests, each with pods of its own."""
    with Node(kube_plane, tmp_path_factory.mktemp("node"), pull_backoff_s=0.3) as node:
        yield node


@pytest.fixture
def own_node(kube_plane: KubePlane, tmp_path: Path) -> Iterator[Node]:
    """For this test alone."""
    with Node(kube_plane, tmp_path) as node:
        yield node


def a_flag(path: Path, then: str) -> str:
    """A command that waits for a file before it goes on."""
    return f"until test -e {path}; do sleep 0.05; done; {then}"


def test_a_node_is_ready_and_renews_its_lease(kube_plane: KubePlane, tmp_path: Path) -> None:
    with Node(kube_plane, tmp_path, heartbeat_s=0.1, labels={"rack": "r1"}) as node:
        lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node.name}"
        times: set[str] = set()

        def is_renewed() -> bool:
            times.add(node.ask("GET", lease)["spec"]["renewTime"])
            return len(times) > 3

        until(is_renewed)
        assert ready(node) == "True"
        found = node.ask("GET", f"/api/v1/nodes/{node.name}")
        assert found["metadata"]["labels"]["rack"] == "r1"
        assert found["status"]["allocatable"]["cpu"] == "8"


def test_a_pod_runs_its_containers_in_turn(node: Node) -> None:
    field = {"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    place = [{"name": "place", "mountPath": "/muster"}]
    name = node.run(
        "cat /muster/word; echo $HOST_IP >&2; pwd; id -u; cat /proc/self/cgroup; exit 3",
        init={
            "name": "step",
            "image": "any/image",
            "command": ["sh", "-c", "echo hello > /muster/word"],
            "volumeMounts": place,
        },
        volumes=[{"name": "place", "emptyDir": {}}],
        volumeMounts=place,
        env=[{"name": "HOST_IP", **field}],
        workingDir="/made/up",
        securityContext={"runAsUser": 1000},
    )
    status = node.until_phase(name, "Failed")
    assert status["hostIP"] == "127.0.0.1"
    (step,) = status["initContainerStatuses"]
    (main,) = status["containerStatuses"]
    assert step["state"]["terminated"]["reason"] == "Completed"
    ended = main["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert ended["startedAt"] <= ended["finishedAt"]
    log = node.log(name)
    assert {"stdout F hello", "stderr F 127.0.0.1", "stdout F /made/up"} <= set(log)
    assert "stdout F 1000" in log
    assert any(f"pod{node.pod(name)['metadata']['uid']}" in line for line in log)
    assert not Path("/muster").exists()
    assert not Path("/made").exists()


def test_a_pod_begins_by_its_permit_in_an_image_without_files(
    kube_plane: KubePlane, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    images = {
        "muster-step": step_image(),
        "scratch": Image(str(tmp_path / "empty"), user=1000, directory="/srv"),
    }
    run = "exec /muster/bin/busybox sh -c '/muster/bin/busybox ls /; pwd; exit 7'"
    with Node(kube_plane, tmp_path, images=images) as node, StubAgent((200, run)) as agent:
        muster = {"name": "muster", "mountPath": "/muster"}
        field = {"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
        name = node.run(
            BEGIN,
            image="mine/scratch:1",
            init={
                "name": "step",
                "image": "registry/muster-step:1",
                "volumeMounts": [muster],
            },
            volumes=[
                {"name": "muster", "emptyDir": {}},
                {"name": "run", "emptyDir": {"medium": "Memory"}},
            ],
            volumeMounts=[{"name": "run", "mountPath": "/muster/run"}, muster],
            env=[
                {"name": "MUSTER_POD", "value": "a-pod"},
                {"name": "MUSTER_TICKET", "value": "abcd"},
                {"name": "MUSTER_PROOF", "value": PROOF},
                {"name": "MUSTER_AGENT_PORT", "value": str(agent.server_port)},
                {"name": "MUSTER_HOST_IP", **field},
            ],
            securityContext={"readOnlyRootFilesystem": True},
        )
        assert node.end(name)["exitCode"] == 7
        shown = ("dev", "muster", "proc", "srv", "/srv")
        assert node.log(name) == [f"stdout F {entry}" for entry in shown]
        assert [path for path, _ in agent.asked] == ["/start-permit/a-pod"]


def test_long_lines_are_cut_and_a_last_line_without_end_stays_a_part() -> None:
    long = b"x" * (16 * 1024)
    assert split(long + b"\n" + long + b"yz\nrest", is_end=False) == (
        [("F", long), ("P", long), ("F", b"yz")],
        b"rest",
    )
    assert split(b"a\n\nrest", is_end=True) == ([("F", b"a"), ("F", b""), ("P", b"rest")], b"")


def test_rotation_loses_no_line(kube_plane: KubePlane, tmp_path: Path) -> None:
    with Node(kube_plane, tmp_path, log_bytes=2000, log_check_s=0.2, log_files=50) as node:
        writes = "i=0; while ! test -e %s; do i=$((i+1)); echo $i; sleep 0.005; done"
        name = node.run(writes % (tmp_path / "go"))
        node.until_phase(name, "Running")
        until(lambda: len(list(node.logs(name).glob("*.gz"))) >= 2)
        (tmp_path / "go").touch()
        assert node.end(name)["exitCode"] == 0
        present, *older = sorted(node.logs(name).iterdir())
        assert [path.suffix == ".gz" for path in older] == [True] * (len(older) - 1) + [False]
        packed = b"".join(gzip.decompress(path.read_bytes()) for path in older[:-1])
        lines = (packed + older[-1].read_bytes() + present.read_bytes()).splitlines()
        assert [int(line.split()[3]) for line in lines] == list(range(1, len(lines) + 1))


def test_only_so_many_log_files_are_kept(kube_plane: KubePlane, tmp_path: Path) -> None:
    with Node(kube_plane, tmp_path, log_bytes=100, log_check_s=0.1, log_files=2) as node:
        name = node.run("while :; do echo $((i+=1)) of many; sleep 0.01; done")
        node.until_phase(name, "Running")
        until(lambda: len(list(node.logs(name).iterdir())) == 2)
        (rotated,) = node.logs(name).glob("0.log.*")
        until(lambda: not rotated.exists())
        assert len(list(node.logs(name).iterdir())) <= 2


@pytest.mark.parametrize(("trap", "code"), [("exit 5", 5), ("", 137)])
def test_deletion_ends_a_pod_within_its_grace(node: Node, trap: str, code: int) -> None:
    kept = {"finalizers": ["muster.test/look"]}
    forever = f"trap '{trap}' TERM; echo up; while :; do sleep 0.1; done"
    name = node.run(forever, metadata=kept)
    node.until_phase(name, "Running")
    until(lambda: node.log(name) == ["stdout F up"])
    node.delete(name, grace_s=1)
    assert node.end(name)["exitCode"] == code
    node.ask("PUT", f"{PODS}/{name}", node.pod(name) | {"metadata": without_finalizers(node, name)})
    until(lambda: not node.exists(name))
    uid = node.uids[name]
    until(lambda: not [*node.home.glob(f"*/{uid}"), *node.home.glob(f"log/pods/*_{uid}")])


def without_finalizers(node: Node, name: str) -> Json:
    metadata: Json = node.pod(name)["metadata"]
    return metadata | {"finalizers": []}


def test_a_deleted_pod_goes_away_when_its_containers_have_ended(node: Node) -> None:
    name = node.run("exec sleep 1000", terminationGracePeriodSeconds=1)
    node.until_phase(name, "Running")
    node.delete(name)
    until(lambda: not node.exists(name))
    assert containers_of(node, name) == []


def test_a_pod_that_is_deleted_by_force_is_killed(node: Node) -> None:
    name = node.run("exec sleep 1000", terminationGracePeriodSeconds=1)
    node.until_phase(name, "Running")
    node.delete(name, grace_s=0)
    assert not node.exists(name)
    until(lambda: containers_of(node, name) == [])


def test_containers_survive_the_kubelet_and_their_ends_are_told_late(
    node: Node, tmp_path: Path
) -> None:
    ends, stays, gone = (
        node.run(
            f"echo run >> {tmp_path}/{n}; " + a_flag(tmp_path / f"go-{n}", f"exit {n}"),
            terminationGracePeriodSeconds=1,
        )
        for n in (4, 5, 6)
    )
    for name in (ends, stays, gone):
        node.until_phase(name, "Running")
    node.kill()
    (tmp_path / "go-4").touch()
    until(lambda: containers_of(node, ends) == [])
    node.delete(gone, grace_s=0)
    late = node.run("exit 8")
    assert node.pod(ends)["status"]["phase"] == "Running"
    node.start()
    assert node.end(ends)["exitCode"] == 4
    assert node.end(late)["exitCode"] == 8
    assert node.pod(stays)["status"]["phase"] == "Running"
    (tmp_path / "go-5").touch()
    assert node.end(stays)["exitCode"] == 5
    until(lambda: containers_of(node, gone) == [])
    assert [(tmp_path / name).read_text() for name in "456"] == ["run\n"] * 3


@pytest.mark.parametrize("stage", ["pod.json", "main/0/container.json", "main/0/running.json"])
def test_a_kubelet_that_is_killed_in_a_start_starts_a_container_once(
    node: Node, tmp_path: Path, stage: str
) -> None:
    name = node.run(f"echo run >> {tmp_path}/runs; exit 3")
    until((node.home / "runtime" / node.uids[name] / stage).exists)
    node.kill()
    node.start()
    assert node.end(name)["exitCode"] == 3
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("image", "text"), [("missing/one", "not found"), ("forbidden/one", "pull access denied")]
)
def test_an_image_that_cannot_be_pulled_is_told(node: Node, image: str, text: str) -> None:
    name = node.run("true", image=image)
    told = until(lambda: (w := node.waiting(name)).get("reason") == "ImagePullBackOff" and w)
    assert text in told["message"]
    until(lambda: node.waiting(name)["reason"] == "ErrImagePull")
    assert node.pod(name)["status"]["phase"] == "Pending"
    node.delete(name)
    until(lambda: not node.exists(name))


def test_a_pod_beyond_what_is_left_is_refused(own_node: Node) -> None:
    node = own_node
    first = node.run("sleep 1000", resources={"requests": {"cpu": "7500m"}})
    node.until_phase(first, "Running")
    second = node.run("true", resources={"requests": {"cpu": "1"}})
    status = node.until_phase(second, "Failed")
    assert status["reason"] == "OutOfcpu"
    assert "requested: 1000, used: 7500, capacity: 8000" in status["message"]
    third = node.run("true", resources={"requests": {"memory": "17Gi"}})
    assert node.until_phase(third, "Failed")["reason"] == "OutOfmemory"


def test_of_taints_only_no_execute_matters(own_node: Node) -> None:
    node = own_node
    path = f"/api/v1/nodes/{node.name}"

    def taint(effect: str) -> None:
        def is_taken() -> bool:  # the kubelet double writes to the node, too
            body = node.ask("GET", path)
            body["spec"]["taints"] = [{"key": "keep-out", "effect": effect}]
            status, answer = node.plane.ask("PUT", path, body)
            assert status in (200, 409), answer
            return status == 200

        until(is_taken)

    taint("NoSchedule")
    assert node.end(node.run("true", tolerations=[]))["exitCode"] == 0
    taint("NoExecute")
    name = node.run("true")

    def is_refused() -> bool:
        # The controller-manager deletes such a pod, too: the refusal may be seen or not.
        status, body = node.plane.ask("GET", f"{PODS}/{name}")
        return status == 404 or body["status"].get("reason") == "TaintToleration"

    until(is_refused)
    assert not list(node.home.glob(f"log/pods/default_{name}_*"))


def test_a_node_refuses_pods_as_it_is_told_to(node: Node) -> None:
    node.refuse("UnexpectedAdmissionError")
    assert node.until_phase(node.run("true"), "Failed")["reason"] == "UnexpectedAdmissionError"
    node.refuse(None)
    assert node.end(node.run("true"))["exitCode"] == 0


@pytest.mark.parametrize(("how", "reason"), [("evict", "Evicted"), ("preempt", "Preempting")])
def test_the_node_may_end_a_pod_itself(node: Node, how: str, reason: str) -> None:
    name = node.run("exec sleep 1000")
    node.until_phase(name, "Running")
    getattr(node, how)(name)
    status = node.until_phase(name, "Failed")
    assert status["reason"] == reason
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    disruption = {"DisruptionTarget": "True"}
    assert disruption.items() <= {c["type"]: c["status"] for c in status["conditions"]}.items()
    assert containers_of(node, name) == []


def test_a_runtime_without_its_metadata_starts_containers_again(node: Node, tmp_path: Path) -> None:
    name = node.run(f"echo run >> {tmp_path}/runs; " + a_flag(tmp_path / "go", "exit 9"))
    node.until_phase(name, "Running")
    node.forget(name, kill=False)
    until(lambda: (tmp_path / "runs").read_text() == "run\n" * 2)
    assert len(containers_of(node, name)) == 2
    (tmp_path / "go").touch()
    assert node.end(name)["exitCode"] == 9
    assert node.pod(name)["status"]["containerStatuses"][0]["restartCount"] == 1


def test_a_node_that_is_not_ready_starts_and_reports_nothing(node: Node, tmp_path: Path) -> None:
    runs = node.run(a_flag(tmp_path / "go", "true"))
    node.until_phase(runs, "Running")
    node.set_ready(False)
    until(lambda: ready(node) == "False")
    waits = node.run("true")
    (tmp_path / "go").touch()
    until(lambda: containers_of(node, runs) == [])
    phases = [node.pod(name)["status"]["phase"] for name in (runs, waits)]
    assert phases == ["Running", "Pending"]
    node.set_ready(True)
    until(lambda: ready(node) == "True")
    assert [node.end(name)["exitCode"] for name in (runs, waits)] == [0, 0]


def test_pods_that_are_held_start_later(node: Node) -> None:
    node.hold(1000)
    name = node.run("true")
    until(lambda: node.waiting(name).get("reason") == "ContainerCreating")
    assert containers_of(node, name) == []
    node.hold(0)
    assert node.end(name)["exitCode"] == 0


def test_a_reboot_ends_all_and_changes_the_boot_id(own_node: Node) -> None:
    node = own_node
    boot = boot_id(node)
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    name = node.run("exec sleep 1000")
    node.until_phase(name, "Running")
    node.reboot()
    assert boot_id(node) != boot
    ended = node.end(name)
    assert (ended["exitCode"], ended["reason"]) == (255, "Unknown")


def test_a_container_beyond_its_memory_is_killed(node: Node) -> None:
    eat = "tail /dev/zero"
    limits = {"limits": {"memory": "32Mi"}, "requests": {"memory": "32Mi"}}
    ended = node.end(node.run(eat, resources=limits))
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_a_container_that_failed_starts_again_where_its_policy_says_so(
    node: Node, tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    name = node.run(f"test -e {tried} && exit 0; touch {tried}; exit 3", restartPolicy="OnFailure")
    status = node.until_phase(name, "Succeeded", "Failed")
    assert status["phase"] == "Succeeded"
    assert status["containerStatuses"][0]["restartCount"] == 1


def test_a_pod_is_ready_once_its_probe_has_passed(node: Node, tmp_path: Path) -> None:
    probe = {"exec": {"command": ["test", "-e", str(tmp_path / "ready")]}, "periodSeconds": 1}
    name = node.run("sleep 1000", readinessProbe=probe)
    node.until_phase(name, "Running")
    assert not node.pod(name)["status"]["containerStatuses"][0]["ready"]
    (tmp_path / "ready").touch()
    until(lambda: node.pod(name)["status"]["containerStatuses"][0]["ready"])
    node.delete(name, grace_s=0)


def test_a_pod_gets_secrets_settings_and_a_token_of_its_own(
    kube_plane: KubePlane, tmp_path: Path
) -> None:
    objects = "/api/v1/namespaces/default"
    with Node(kube_plane, tmp_path, pod_addresses="127.9.9.") as node:
        name = node.name
        secret = {"metadata": {"name": name}, "stringData": {"password": "hush"}}
        node.ask("POST", f"{objects}/secrets", secret)
        settings = {"metadata": {"name": name}, "data": {"LISTEN": "0.0.0.0"}}
        node.ask("POST", f"{objects}/configmaps", settings)
        token = {"path": "token", "expirationSeconds": 3600}
        sources = [{"secret": {"name": name}}, {"serviceAccountToken": token}]
        pod = node.run(
            "id -u; cat /given/password; echo; cut -d. -f2 /given/token | tr _- /+ | base64 -d;"
            " echo; echo $LISTEN $AT; touch /tmp/x || grep CapEff /proc/self/status",
            volumes=[{"name": "given", "projected": {"sources": sources, "defaultMode": 0o440}}],
            volumeMounts=[{"name": "given", "mountPath": "/given"}],
            ports=[{"containerPort": 80}],
            envFrom=[{"configMapRef": {"name": name}}],
            env=[{"name": "AT", "value": "$(LISTEN):80"}],
            securityContext={"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        )
        assert node.end(pod)["exitCode"] == 0
        _, password, claims, listen, rights = (
            line.partition(" F ")[2] for line in node.log(pod) if line.startswith("stdout")
        )
    assert (password, listen) == ("hush", "127.9.9.2 0.0.0.0:80")
    assert f'"name":"{pod}"' in claims
    assert int(rights.split()[1], 16) == 0


def test_a_command_that_is_not_there_is_told(node: Node) -> None:
    ended = node.end(node.run(["/no/such/command"]))
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "/no/such/command" in ended["message"]


def test_the_node_goes_on_when_the_api_server_is_back(
    kube_plane: KubePlane, node: Node, tmp_path: Path
) -> None:
    name = node.run(a_flag(tmp_path / "go", "exit 6"))
    node.until_phase(name, "Running")
    kube_plane.api.kill()
    (tmp_path / "go").touch()
    until(lambda: containers_of(node, name) == [])
    kube_plane.api.start()
    assert node.end(name)["exitCode"] == 6
    assert node.end(node.run("true"))["exitCode"] == 0


def test_nothing_is_left(kube_plane: KubePlane, tmp_path: Path) -> None:
    with Node(kube_plane, tmp_path) as node:
        name = node.run("sleep 1000")
        node.until_phase(name, "Running")
        assert groups_of(node)
    assert containers_of(node, name) == []
    assert groups_of(node) == []
    assert node.name not in Path("/proc/mounts").read_text()


def containers_of(node: Node, *pods: str) -> list[int]:
    """The shims of the pods' containers."""
    ours = [node.home / "runtime" / node.uids[pod] for pod in pods]
    return [pid for pid, place in shims() if any(map(place.is_relative_to, ours))]


def groups_of(node: Node) -> list[Path]:
    name = cgroup_of(str(node.home))
    return [*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")]


def ready(node: Node) -> str:
    conditions = node.ask("GET", f"/api/v1/nodes/{node.name}")["status"]["conditions"]
    return str(next(each["status"] for each in conditions if each["type"] == "Ready"))


def boot_id(node: Node) -> str:
    return str(node.ask("GET", f"/api/v1/nodes/{node.name}")["status"]["nodeInfo"]["bootID"])
