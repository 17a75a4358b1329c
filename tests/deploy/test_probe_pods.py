"""`muster deploy check` tries on a real control plane whether containers get GPUs. Kubelet doubles
run its pods, in which the agent's own library of NVIDIA sees what the test says.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import kube_programs
import pytest
import yaml
from kube_muster import grant
from kube_plane import KubePlane
from kubelet_double import Image, KubeletDouble, Settings
from rendering import K8S
from rest_double import OURS, Ran, run_cli

pytestmark = [pytest.mark.k8s, pytest.mark.xdist_group("gpu-probe")]

SUPPORT = Path(__file__).parents[1] / "support"
JOBS = "/api/v1/namespaces/muster-jobs/pods"
WAIT_S = 60
INSTALL = """
import os, pathlib, nvml_double
seen = pathlib.Path(__file__).with_name(os.environ["NVIDIA_VISIBLE_DEVICES"] + ".json")
nvml_double.install(seen)
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubePlane]:
    """A cluster of this module alone, since a check looks at all nodes. It has all but Muster."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    storage = {"metadata": {"name": "standard", "annotations": default}, "provisioner": "a/none"}
    with KubePlane(tmp_path_factory.mktemp("gpu-probe")) as running:
        grant(running)
        running.ask("POST", "/apis/storage.k8s.io/v1/storageclasses", storage)
        nvidia = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
        running.ask("POST", "/apis/node.k8s.io/v1/runtimeclasses", nvidia)
        yield running


Join = Callable[..., KubeletDouble]


@pytest.fixture
def join(plane: KubePlane, tmp_path: Path) -> Iterator[Join]:
    """Has a node with two GPUs, whose pods see of them what is given, by what they ask for."""
    with ExitStack() as running:

        def joined(name: str, **sees: Sequence[str]) -> KubeletDouble:
            library = tmp_path / f"{name}-library"
            library.mkdir()
            (library / "sitecustomize.py").write_text(INSTALL)
            for asked, gpus in sees.items():
                cards = {"cards": dict.fromkeys(gpus)}
                (library / f"{asked.replace('_', '-')}.json").write_text(json.dumps(cards))
            image = Image(
                entry_point=[sys.executable, "-P", "-m"],
                environment={"PYTHONPATH": f"{library}{os.pathsep}{SUPPORT}"},
            )
            settings = Settings(
                home=str(tmp_path / name),
                node=name,
                server=plane.url,
                ca=str(plane.ca_path),
                token=plane.token,
                images={"muster": image},
                labels={"nvidia.com/gpu.product": f"NVIDIA-{name}"},
                allocatable={"cpu": "8", "memory": "16Gi", "pods": "9", "nvidia.com/gpu": "2"},
            )
            kubelet = running.enter_context(KubeletDouble(settings))
            running.callback(plane.ask, "DELETE", f"/api/v1/nodes/{name}")
            return kubelet

        yield joined


def check(plane: KubePlane, home: Path, *words: str, image: str = "localhost/muster") -> list[str]:
    """The command, with an overlay that has the component `nvidia`."""
    k8s = os.path.relpath(K8S, home)
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{k8s}/overlays/minimal"],
        "components": [f"{k8s}/components/nvidia"],
        "images": [{"name": "localhost/muster", "newName": image, "newTag": "1"}],
    }
    (home / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    program = str(kube_programs.program("kubectl"))
    known = ("--kubectl", program, "--kubeconfig", str(plane.kubeconfig), "--overlay", str(home))
    return ["deploy", "check", *known, *words]


def ran(plane: KubePlane, home: Path, *words: str, image: str = "localhost/muster") -> Ran:
    return run_cli(home, *check(plane, home, *words, image=image), HOME=str(plane.home))


def pods(plane: KubePlane) -> list[str]:
    """Those where jobs run."""
    return [each["metadata"]["name"] for each in plane.ask("GET", JOBS)[1]["items"]]


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "what the test waited for has not come"
        time.sleep(0.1)


def test_each_kind_of_node_shows_whether_pods_get_its_gpus(
    plane: KubePlane, join: Join, tmp_path: Path
) -> None:
    join("a100", all=["GPU-a", "GPU-b"], GPU_a=["GPU-a"])
    join("b200", all=[])
    join("c300", all=["GPU-c", "GPU-d"], GPU_c=["GPU-c", "GPU-d"])
    join("d400")

    found = ran(plane, tmp_path)
    assert found.code == 1, found.err
    lines = [line for line in found.out.splitlines() if "GPU pods" in line]
    assert lines == [
        "ok       GPU pods: a100 (2 a100): a pod saw all of them, and a pod that got one saw that"
        " one only",
        "refusal  GPU pods: b200 (2 b200): a pod that got all GPUs saw none",
        "refusal  GPU pods: c300 (2 c300): a pod that got GPU-c saw GPU-c, GPU-d",
        "warning  GPU pods: d400 (2 d400): not tried: at most 3 nodes are tried",
    ]
    assert "accept-nvidia-visible-devices-envvar-when-unprivileged = true" in found.out
    until(lambda: pods(plane) == [])

    named = ran(plane, tmp_path, "--node", "a100")
    assert named.code == 0, named.out
    assert "b200" not in named.out
    assert "GPU pods" not in ran(plane, tmp_path, "--no-gpu-pods").out


def test_a_pod_that_does_not_start_gives_its_reason(
    plane: KubePlane, join: Join, tmp_path: Path
) -> None:
    join("a100")
    found = ran(plane, tmp_path, image="missing/muster")
    assert found.code == 0, found.out + found.err
    reason = r"(ErrImagePull|ImagePullBackOff): .*missing/muster:1"  # kubelet alternates
    assert re.search(rf"warning  GPU pods: a100 \(2 a100\): not tried: {reason}", found.out)
    assert "Load Muster's image there" in found.out
    until(lambda: pods(plane) == [])


def test_a_check_that_is_interrupted_leaves_no_pod(
    plane: KubePlane, join: Join, tmp_path: Path
) -> None:
    join("a100").hold(WAIT_S * 10)
    command = [sys.executable, "-m", "cli", *check(plane, tmp_path)]
    environment = {**OURS, "MUSTER_HOME": str(tmp_path), "HOME": str(plane.home)}
    with subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        # A shell's background job, such as these tests may be, passes on that it ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        until(lambda: pods(plane))
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(WAIT_S) == 130
    until(lambda: pods(plane) == [])
