"""A node of a Kubernetes cluster on this machine: a real kubelet over Debian's containerd.

`python real_kubelet.py` fetches and builds what it needs, once. It runs in namespaces of its own
(`tests/kubelet/enclosed`), so nothing of it is left on the machine but what lies below its folder.
"""

import contextlib
import http.client
import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import debian
import kube_programs
from files import File, Link, Tree, from_folder
from kube_plane import KubePart, KubePlane, User
from oci import Image, archive
from runtime_agent.domain.kubernetes.node import problem_of
from step_image import COPY, step_image

LOCK = Path(__file__).parents[1] / "kubelet/packages.lock"
STEP_IMAGE = "localhost/muster-step:test"
BUSYBOX, USER_1000, SANDBOX = "localhost/busybox:1", "localhost/user-1000:1", "localhost/sandbox:1"
USER_NOBODY = "localhost/user-nobody:1"
SOCKET = "/run/containerd/containerd.sock"
LOG_MAX = "256Ki"
"""kubelet rotates a container's log beyond this size, within LOG_LOOK of seconds."""
LOG_LOOK = "3s"
IMPORT_TIMEOUT_S = 60

CONTAINERD = """
version = 2
root = "{home}/containerd/data"
state = "/run/containerd"
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox}"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{programs}/usr/lib/cni"
conf_dir = "{home}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{programs}/usr/sbin/runc"
SystemdCgroup = false
"""
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.1.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


class RealKubelet:
    """The node `node` of a control plane. `kill` and `start` kubelet at will: containers run on.

    Its folder is laid out as that of the kubelet double.
    """

    def __init__(self, home: Path, plane: KubePlane, node: str) -> None:
        self.home = home
        self.node = node
        self.plane = plane
        if "MUSTER_KUBELET_ADDRESS" not in os.environ:
            raise RuntimeError("A kubelet runs in namespaces of its own: `make test-kubelet`.")
        self.address = os.environ["MUSTER_KUBELET_ADDRESS"]
        self.kubelet = KubePart("kubelet", home, self._kubelet, self._is_ready)
        self.containerd = KubePart(
            "containerd",
            home / "containerd",
            lambda: {"config": home / "containerd.toml"},
            lambda: self._ctr("version").returncode == 0,
            program=programs() / "usr/bin/containerd",
        )

    def start(self) -> None:
        """Return once the node is ready."""
        self._prepare()
        if self.containerd.pid is None:
            self.containerd.start()
            for image in images():
                path = self.home / "image.tar"
                path.write_bytes(archive(image)[0])
                done = self._ctr("--namespace", "k8s.io", "images", "import", str(path))
                assert done.returncode == 0, done.stderr
        self.kubelet.start()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            started.callback(self.close)
            self.start()
            started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End both. What they left running ends with the namespaces."""
        self.kubelet.kill()
        self.containerd.kill()

    def _prepare(self) -> None:
        (self.home / "cni").mkdir(parents=True, exist_ok=True)
        (self.home / "cni/pods.conflist").write_text(json.dumps(NETWORK))
        text = CONTAINERD.format(
            home=self.home, socket=SOCKET, sandbox=SANDBOX, programs=programs()
        )
        (self.home / "containerd.toml").write_text(text)
        (self.home / "config.json").write_text(json.dumps(self._configuration()))

    def _configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{os.environ['MUSTER_KUBELET_GROUP']}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self.home / "log/pods"),
            "containerLogMaxSize": LOG_MAX,
            "containerLogMonitorInterval": LOG_LOOK,
            "resolvConf": "",
            "healthzPort": self.kubelet.port,
            "port": 10250,
        }

    def _kubelet(self) -> Mapping[str, object]:
        acting_as = User(f"system:node:{self.node}", "system:nodes")
        return {
            "config": self.home / "config.json",
            "kubeconfig": self.plane.write_kubeconfig(
                self.home / "kubeconfig.json", acting_as=acting_as
            ),
            "hostname-override": self.node,
            "node-ip": self.address,
            "root-dir": self.home,
            "cert-dir": self.home / "certificates",
        }

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            url = f"http://127.0.0.1:{self.kubelet.port}/healthz"
            with urllib.request.urlopen(url, timeout=1):
                status, found = self.plane.ask("GET", f"/api/v1/nodes/{self.node}")
                return status == http.client.OK and problem_of(found) is None
        return False

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [programs() / "usr/bin/ctr", "--address", SOCKET, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )


def images() -> list[Image]:
    """Muster's own for the step, one with a shell, one with a static program only, which runs as
    user 1000 or as a user that it lacks, and the one that holds a pod's namespaces.
    """
    step = Path(step_image().root)
    busybox = File((step / "bin/busybox").read_bytes(), 0o755)
    names = subprocess.run(
        [step / "bin/busybox", "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    links: Tree = {f"bin/{name}": Link("busybox") for name in names}
    return [
        _image(STEP_IMAGE, from_folder(step / "bin", "bin"), *COPY, user="65532:65532"),
        _image(BUSYBOX, links | {"bin/busybox": busybox}),
        _image(USER_1000, {"bin/id": busybox}, user="1000"),
        _image(USER_NOBODY, {"bin/id": busybox}, user="nobody"),
        _image(SANDBOX, {"bin/sleep": busybox}, "/bin/sleep", "infinity"),
    ]


def _image(name: str, tree: Tree, *entrypoint: str, user: str = "") -> Image:
    return Image(
        name=name,
        created="2026-01-01T00:00:00Z",
        layers=[tree],
        entrypoint=entrypoint,
        user=user,
        environment={"PATH": "/bin"},
    )


def programs() -> Path:
    """Where `fetch` has unpacked containerd, runc and the network plug-ins."""
    return debian.place_of(LOCK, _cache())


def fetch() -> None:
    """All that needs a network or time; ends the program where the machine can't."""
    kube_programs.build([*kube_programs.CONTROL_PLANE, "kubelet"])
    step_image()
    debian.laid_out(LOCK, _cache())


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster/kubelet"


if __name__ == "__main__":
    fetch()
