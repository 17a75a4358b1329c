"""docs/install.md, step by step, on a real control plane with two nodes that run every pod: Muster
from its images, Apache Kafka, PostgreSQL and people's jobs.
"""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import kube_programs
import pytest
from cli.home import read_credentials
from cluster_double import ClusterDouble
from kube_plane import KubePlane
from kubelet_double import KubeletDouble, Settings
from own_network import own_network
from played_images import images_of_this_checkout, kafka_image, postgres_image
from rest_double import Ran, run_cli

pytestmark = [pytest.mark.installation, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/install.md"
NODES = {"gpu-1": "127.0.0.2", "gpu-2": "127.0.0.3"}
NETWORKS = "MUSTER_AGENT_NETWORKS=10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
JOBS = 20
KINDS = ("initContainers", "containers")
COMMAND_S = 600
WAIT_S = 240
PASSING = ("events", "leases")
"""Kinds that Kubernetes itself makes and takes away."""
JOB = """
protocolVersion: 2
name: {name}
type: job
prerequisites: [{{type: dockerimage, name: image, uri: "debian:12"}}]
taskRoles:
  worker:
    dockerImage: image
    resourcePerInstance: {{cpu: 1, memoryMB: 64, gpu: 0}}
    commands: ['{command}']
"""


@dataclass
class Operator:
    """An administrator at a checkout, where `kubectl` leads to the cluster."""

    plane: KubePlane
    names: Path
    home: Path

    @property
    def overlay(self) -> tuple[str, str]:
        return "--overlay", str(self.home / "deploy/k8s/overlays/minimal")

    @property
    def key(self) -> tuple[str, str]:
        return "--key-file", str(self.home / "muster.key")

    def edit(self, file: str, old: str, new: str) -> None:
        """A file of the checkout."""
        path = self.home / "deploy/k8s" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def deploy(self, *words: str) -> Ran:
        kubectl = str(kube_programs.program("kubectl"))
        known = ("--kubectl", kubectl, "--kubeconfig", str(self.plane.kubeconfig))
        return self.muster("deploy", *words, *known)

    def muster(self, *words: str, text: str = "") -> Ran:
        """In place of `kubectl port-forward`, which kubelet doubles don't have, it uses the address
        of REST's pod.
        """
        environment = {"HOME": str(self.home), "MUSTER_URL": self._rest()}
        if token := read_credentials(self.home, {}).token:
            environment |= {"MUSTER_TOKEN": token}
        return run_cli(self.home, *words, text=text, timeout_s=COMMAND_S, **environment)

    def _rest(self) -> str:
        found = re.findall(r"(?m)^(\S+) rest ", self.names.read_text())
        return f"http://{found[0]}:8080" if found else ""

    def jobs(self, names: set[str]) -> dict[str, tuple[str, int]]:
        """The state and the retries of each."""
        listed = self.muster("jobs", "-o", "json")
        assert listed.code == 0, listed.err
        found = {each["name"]: each for each in json.loads(listed.out)}
        return {name: (found[name]["state"], found[name]["retries"]) for name in names}

    def images_of_muster(self) -> set[str]:
        """Those of its pods that are to stay."""
        _, found = self.plane.ask("GET", "/api/v1/namespaces/muster-system/pods")
        specs = [
            each["spec"]
            for each in found["items"]
            if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]
        ]
        used = [each for spec in specs for kind in KINDS for each in spec.get(kind, [])]
        return {each["image"] for each in used if "/muster" in each["image"]}

    def everything(self) -> set[str]:
        """All objects of the cluster, and the labels of nodes."""
        kinds = self.plane.kubectl("api-resources", "--verbs=list", "-o", "name").split()
        wanted = ",".join(kind for kind in kinds if not kind.startswith(PASSING))
        names = "{range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name} {end}"
        found = self.plane.kubectl("get", wanted, "-A", "-o", f"jsonpath={names}").split()
        labels = self.plane.kubectl("get", "nodes", "--show-labels", "--no-headers").split()
        return {*found, *(each for each in labels if "=" in each)}


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """A cluster of two nodes with a storage class, and nothing else."""
    images = images_of_this_checkout(tmp_path / "images")
    images |= {
        "kafka": kafka_image(tmp_path / "kafka"),
        "postgres": postgres_image(tmp_path / "postgres"),
    }
    with ExitStack() as running:
        running.enter_context(own_network())
        plane = running.enter_context(KubePlane(tmp_path / "plane"))
        double = ClusterDouble(plane, tmp_path / "cluster", list(NODES))
        double.start()
        running.callback(double.stop)
        for number, (node, address) in enumerate(NODES.items(), start=1):
            settings = Settings(
                home=str(tmp_path / node),
                node=node,
                server=plane.url,
                ca=str(plane.ca_path),
                token=plane.token,
                images=images,
                address=address,
                allocatable={"cpu": "64", "memory": "64Gi", "pods": "110"},
                pod_addresses=f"127.1.{number}.",
                names=str(double.names),
                host_folder=str(tmp_path / node / "var-lib-muster"),
            )
            running.enter_context(KubeletDouble(settings))
        home = tmp_path / "operator"
        shutil.copytree(REPOSITORY / "deploy/k8s", home / "deploy/k8s")
        yield Operator(plane, double.names, home)


def install(operator: Operator) -> None:
    """First installation, steps 2 to 5."""
    operator.edit("base/settings.env", NETWORKS, "MUSTER_AGENT_NETWORKS=127.0.0.0/8")
    nodes = [word for node in NODES for word in ("--node", node)]
    checked = operator.deploy("check", *nodes, *operator.overlay)
    assert checked.code == 0, checked.out + checked.err
    applied = operator.deploy("apply", "--yes", *nodes, *operator.key, *operator.overlay)
    assert applied.code == 0, applied.out + applied.err
    shown = operator.deploy("status")
    assert shown.code == 0, shown.out
    assert "nodes, agent ready: 2 (gpu-1, gpu-2)" in shown.out
    (password,) = re.findall("password, shown once: (.*)", applied.out)
    logged_in = operator.muster("login", "admin", text=f"{password}\n")
    assert logged_in.code == 0, logged_in.err
    assert {"gpu-1", "gpu-2"} <= set(operator.muster("nodes").out.split())


def submit(operator: Operator, text: str, *words: str) -> Ran:
    """A job file, by the command line."""
    file = operator.home / "job.yaml"
    file.write_text(text)
    return operator.muster("submit", str(file), *words)


def job_in_the_page() -> str:
    """First installation, step 6."""
    (found,) = re.findall(r"(?s)```yaml\n( *protocolVersion.*?)```", PAGE.read_text())
    return dedent(found)


def pods_of_jobs(operator: Operator) -> dict[str, tuple[str, str]]:
    """Their uids and phases."""
    _, found = operator.plane.ask("GET", "/api/v1/namespaces/muster-jobs/pods")
    return {
        each["metadata"]["name"]: (each["metadata"]["uid"], each["status"]["phase"])
        for each in found["items"]
    }


def errors(home: Path) -> list[str]:
    """What Muster's own containers have logged as an error."""
    logs = [log for node in NODES for log in home.glob(f"{node}/log/pods/muster-system_*/*/*.log")]
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return [line for line in lines if '"level": "error"' in line]


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "what the test waited for has not come"
        time.sleep(0.2)


def test_muster_is_installed_runs_jobs_through_an_upgrade_and_is_removed(
    operator: Operator, tmp_path: Path
) -> None:
    nothing, began = operator.everything(), time.monotonic()
    install(operator)
    ran = submit(operator, job_in_the_page(), "--wait")
    assert ran.code == 0, ran.out + ran.err
    print(f"from nothing to a finished job: {time.monotonic() - began:.0f} s")
    assert operator.muster("logs", "hello").out == "hello from worker\n"

    marks, gate = tmp_path / "marks", tmp_path / "gate"
    marks.mkdir()
    names = {f"through-{number}" for number in range(JOBS)}
    for name in names:
        command = f"echo began >> {marks}/{name}; until test -e {gate}; do sleep 0.2; done"
        submitted = submit(operator, JOB.format(name=name, command=command))
        assert submitted.code == 0, submitted.err
    until(lambda: {each.name for each in marks.iterdir()} == names)
    until(lambda: operator.jobs(names) == dict.fromkeys(names, ("RUNNING", 0)))
    before = pods_of_jobs(operator)
    assert len(before) == JOBS
    assert errors(tmp_path) == []

    operator.edit("overlays/minimal/kustomization.yaml", "newTag: 0.1.0", "newTag: 0.2.0")
    upgraded = operator.deploy("upgrade", "--yes", *operator.key, *operator.overlay)
    assert upgraded.code == 0, upgraded.out + upgraded.err
    assert operator.images_of_muster() == {"localhost/muster:0.2.0", "localhost/muster-step:0.2.0"}
    assert pods_of_jobs(operator) == before
    rolled_back = operator.deploy("rollback", "--yes", *operator.overlay)
    assert rolled_back.code == 0, rolled_back.out + rolled_back.err
    assert operator.images_of_muster() == {"localhost/muster:0.1.0", "localhost/muster-step:0.1.0"}
    assert pods_of_jobs(operator) == before
    assert operator.jobs(names) == dict.fromkeys(names, ("RUNNING", 0))
    gate.touch()
    until(lambda: operator.jobs(names) == dict.fromkeys(names, ("SUCCEEDED", 0)))
    assert {each.name: each.read_text() for each in marks.iterdir()} == dict.fromkeys(
        names, "began\n"
    )

    removed = operator.deploy("remove", "--yes")
    assert removed.code == 0, removed.out + removed.err
    until(lambda: not any(each.startswith("PersistentVolume/") for each in operator.everything()))
    assert operator.everything() - nothing == set()
