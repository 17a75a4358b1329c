"""Plays a node's kubelet on a real API server, and really runs the pods' containers.

`KubeletDouble` starts it as a program of its own, which tests kill and start again: containers run
on meanwhile, as below containerd. A container is processes of this machine in a view of their own
(`container_shim.py`), so it needs root. Below `home`, `pods` is laid out as `/var/lib/kubelet/pods`
and `log/pods` as `/var/log/pods`.

An image is a name. `Settings.images` tells what some are, by the beginning of their last part.
`missing/…`, `forbidden/…` and `unreachable/…` can't be pulled. All others are this machine.

There is no network but the machine's. A pod has the node's address, or one of
`Settings.pod_addresses`.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import aiohttp
from container_shim import Container, Mount, write_json
from containers import Attempt, attempts, end_shims, remove_groups, seconds
from pod_inputs import Inputs
from pod_status import (
    Facts,
    Start,
    is_restarted,
    is_terminal,
    policy_of_init,
    quantity,
    requests,
    status,
    tolerates,
    verdict,
)
from probes import Readiness

Json = dict[str, Any]
VERSION = "v1.35.4"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
API_RETRY_S = 0.5
SOURCE = "127.0.0.1"
TIMEOUT_S = 30
"""How long tests wait for the program, at most."""
PULL_PROBLEMS = {
    "missing": "not found",
    "forbidden": "pull access denied, repository does not exist or may require authorization",
    "unreachable": "failed to do request: Head: dial tcp 192.0.2.1:443: i/o timeout",
}
PULL_DOUBLINGS = 8
DISRUPTIONS = {
    "evict": verdict(
        "Evicted",
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ",
        is_disruption=True,
    ),
    "preempt": verdict(
        "Preempting", "Preempted in order to admit critical pod", is_disruption=True
    ),
}
CAPABILITIES = {"DAC_READ_SEARCH": 2, "KILL": 5, "IPC_LOCK": 14}
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True)
class Image:
    """What a container gets from its image."""

    root: str = "/"
    entry_point: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    user: int = 0
    directory: str = "/"
    files: dict[str, str] = field(default_factory=dict)
    """What lies elsewhere on this machine, by its place in the image."""


@dataclass(frozen=True)
class Settings:
    """How the node is. `server` has its authority in the file `ca`. `token` is of someone who may
    act as the node.
    """

    home: str
    node: str
    server: str
    ca: str
    token: str
    images: dict[str, Image] = field(default_factory=dict)
    address: str = "127.0.0.1"
    allocatable: dict[str, str] = field(
        default_factory=lambda: {"cpu": "8", "memory": "16Gi", "pods": "110", "rdma/hca": "8"}
    )
    labels: dict[str, str] = field(default_factory=dict)
    heartbeat_s: float = 5.0
    pod_addresses: str = ""
    """Those of pods that offer ports, and are not on the host's network, begin so: `127.1.1.`. The
    others then have `127.0.0.1`, from which all connections come.
    """
    names: str = ""
    """The file of host names that all containers see; none: that of their image."""
    host_folder: str = ""
    """Where the node has `/var/lib/muster`; none: where the machine has it."""
    pull_backoff_s: float = 1.0
    restart_backoff_s: float = 1.0
    log_bytes: int = 10 * 1024 * 1024
    log_files: int = 5
    log_check_s: float = 10.0

    @classmethod
    def read(cls, path: Path) -> Self:
        """What the test gave."""
        given = json.loads(path.read_text())
        images = {name: Image(**image) for name, image in given.pop("images").items()}
        return cls(images=images, **given)

    def image(self, name: str) -> Image:
        """What is behind an image's name."""
        last = name.rpartition("/")[2]
        known = [image for start, image in self.images.items() if last.startswith(start)]
        return known[0] if known else Image()


class KubeletDouble:
    """A kubelet for tests: `kill` and `start` it at will; `close` ends its containers too."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.home = Path(settings.home)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once the node is registered."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o755)
        write_json(self.home / "settings.json", asdict(self.settings))
        with (self.home / "kubelet.log").open("ab") as log:
            command = [sys.executable, __file__, str(self.home / "settings.json")]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError((self.home / "kubelet.log").read_text()[-2000:])

    def kill(self) -> None:
        """SIGKILL: its containers run on."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=TIMEOUT_S)
            self._process = None

    def close(self) -> None:
        """Nothing of it is left but files."""
        self.kill()
        end_shims(self.home)
        remove_groups(cgroup_of(self.settings.home))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def evict(self, pod: str) -> None:
        """As for want of memory on the node."""
        self._tell("evict", pod=pod)

    def preempt(self, pod: str) -> None:
        """As for a critical pod."""
        self._tell("preempt", pod=pod)

    def forget(self, pod: str, *, kill: bool = True) -> None:
        """The runtime has lost its metadata: containers start again; `kill`: the old ones die."""
        self._tell("forget", pod=pod, kill=kill)

    def set_ready(self, is_ready: bool) -> None:
        """While it is not ready, the node starts, ends and reports no container."""
        self._tell("ready", is_ready=is_ready)

    def hold(self, seconds: float) -> None:
        """Pods start so long after they were seen; 0 starts those that wait."""
        self._tell("hold", seconds=seconds)

    def refuse(self, reason: str | None) -> None:
        """The node refuses each new pod with this reason, or none any more."""
        self._tell("refuse", reason=reason)

    def reboot(self) -> None:
        """No process survives, and the boot id is another."""
        self._tell("reboot")

    def _tell(self, what: str, **arguments: Any) -> None:
        port = int((self.home / "port").read_text())
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as link:
            link.sendall(json.dumps({"what": what, **arguments}).encode() + b"\n")
            answer = json.loads(link.makefile().readline())
        if answer:
            raise RuntimeError(answer)


class Unavailable(Exception):
    """The API server gives no answer, or asks for patience."""


class Api:
    """The few calls that a kubelet makes."""

    def __init__(self, settings: Settings) -> None:
        self._server = settings.server
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=ssl.create_default_context(cafile=settings.ca), limit=0
            ),
            headers={
                "Authorization": f"Bearer {settings.token}",
                "Impersonate-User": f"system:node:{settings.node}",
                "Impersonate-Group": "system:nodes",
            },
            timeout=aiohttp.ClientTimeout(total=30),
            read_bufsize=2**22,
        )

    async def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """Status and answer; a patch is a strategic merge."""
        is_patch = method == "PATCH"
        kind = "application/strategic-merge-patch+json" if is_patch else "application/json"
        try:
            async with self._session.request(
                method, self._server + path, json=body, headers={"Content-Type": kind}
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}: {error!r}") from error
        if answer.status == 429 or answer.status >= 500:
            raise Unavailable(f"{method} {path}: {answer.status} {text}")
        if answer.status not in (200, 201, 202, 404, 409):
            print(method, path, answer.status, text, file=sys.stderr, flush=True)
        return answer.status, json.loads(text)

    async def get(self, path: str) -> Json:
        """An object that is there."""
        status, body = await self.call("GET", path)
        if status != 200:
            raise Unavailable(f"GET {path}: {status}")
        return body

    async def post(self, path: str, body: Json) -> Json:
        """What the server made of it."""
        status, answer = await self.call("POST", path, body)
        if status != 201:
            raise Unavailable(f"POST {path}: {status} {answer.get('message')}")
        return answer

    async def follow(self, path: str) -> AsyncIterator[tuple[str, Any]]:
        """`LISTED` with all objects, then each change; and so again after a gap."""
        while True:
            try:
                listed = await self.get(path)
                yield "LISTED", listed["items"]
                version = listed["metadata"]["resourceVersion"]
                while version is not None:
                    async for change, body in self._watch(path, version):
                        version = None if body is None else body["metadata"]["resourceVersion"]
                        if body is not None and change != "BOOKMARK":
                            yield change, body
            except Unavailable as error:
                print(error, file=sys.stderr, flush=True)
                await asyncio.sleep(API_RETRY_S * random.uniform(0.5, 1.5))

    async def _watch(self, path: str, version: str) -> AsyncIterator[tuple[str, Json | None]]:
        """No body: the version is too old."""
        address = f"{self._server}{path}&watch=1&allowWatchBookmarks=1&timeoutSeconds=240"
        patience = aiohttp.ClientTimeout(total=None, sock_read=330)
        try:
            async with self._session.get(
                f"{address}&resourceVersion={version}", timeout=patience
            ) as answer:
                if answer.status == 410:
                    yield "ERROR", None
                    return
                if answer.status != 200:
                    raise Unavailable(f"watch: {answer.status}")
                async for line in answer.content:
                    change = json.loads(line)
                    if change["type"] == "ERROR":
                        yield "ERROR", None
                        return
                    yield change["type"], change["object"]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"watch: {error!r}") from error


class Kubelet:
    """The node, and a worker for each of its pods."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.api = Api(settings)
        self.home = Path(settings.home)
        self.pods: dict[str, Pod] = {}
        self.admitting = asyncio.Lock()
        self.is_ready = True
        self.hold_s = 0.0
        self.refusal: str | None = None
        self.began = now()
        self._workers = asyncio.TaskGroup()
        self._boot = self.home / "boot"
        self.host_paths = {
            "/var/log/pods": str(self.home / "log/pods"),
            "/var/lib/kubelet/pods": str(self.home / "pods"),
        }
        if settings.host_folder:
            self.host_paths["/var/lib/muster"] = settings.host_folder
        if not self._boot.exists():
            self._boot.write_text(BOOT_ID.read_text())

    async def run(self) -> None:
        """For ever."""
        server = await asyncio.start_server(self._obey, "127.0.0.1", 0)
        (self.home / "port").write_text(str(server.sockets[0].getsockname()[1]))
        while not await self._beats(is_first=True):
            await asyncio.sleep(API_RETRY_S)
        print("ready", flush=True)
        async with self._workers:
            self._workers.create_task(self._follow())
            self._workers.create_task(self._rotate())
            while True:
                await self._beats()
                await asyncio.sleep(self.settings.heartbeat_s)

    async def _follow(self) -> None:
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.settings.node}"
        async for change, body in self.api.follow(path):
            if change != "LISTED":
                self._see(body, is_removed=change == "DELETED")
                continue
            for pod in body:
                self._see(pod, is_removed=False)
            known = {uid: pod.body for uid, pod in self.pods.items()}
            for memo in (self.home / "runtime").glob("*/pod.json"):
                known.setdefault(memo.parent.name, json.loads(memo.read_text())["body"])
            for uid in known.keys() - {pod["metadata"]["uid"] for pod in body}:
                self._see(known[uid], is_removed=True)

    def _see(self, body: Json, *, is_removed: bool) -> None:
        uid = body["metadata"]["uid"]
        if (pod := self.pods.get(uid)) is None:
            pod = self.pods[uid] = Pod(self, body)
            self._workers.create_task(pod.work())
        pod.body, pod.is_removed = body, is_removed
        pod.changed.set()

    async def _beats(self, *, is_first: bool = False) -> bool:
        """Renew the node's lease and status. As kubelet it registers the node only at its start."""
        node, lease = f"/api/v1/nodes/{self.settings.node}", lease_path(self.settings.node)
        try:
            status, _ = await self.api.call("PATCH", f"{node}/status", self._node_status())
            if status == 404 and is_first:
                await self.api.call("POST", "/api/v1/nodes", self._node())
                await self.api.call("PATCH", f"{node}/status", self._node_status())
            at, rest = divmod(time.time_ns() // 1000, 10**6)
            renewal = {"spec": {"renewTime": f"{seconds(at * 10**9)[:-1]}.{rest:06d}Z"}}
            status, _ = await self.api.call("PATCH", lease, renewal)
            if status == 404:
                await self.api.call("POST", lease.rpartition("/")[0], self._lease(renewal))
        except Unavailable as error:
            print(error, file=sys.stderr, flush=True)
            return False
        return True

    def _lease(self, renewal: Json) -> Json:
        holder = {"holderIdentity": self.settings.node, "leaseDurationSeconds": 40}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.settings.node},
            "spec": {**renewal["spec"], **holder},
        }

    def _node(self) -> Json:
        labels = {
            "kubernetes.io/hostname": self.settings.node,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.settings.node, "labels": labels | self.settings.labels},
        }

    def _node_status(self) -> Json:
        def condition(kind: str, status: bool, reason: str) -> Json:
            times = {"lastHeartbeatTime": self.began, "lastTransitionTime": self.began}
            return {"type": kind, "status": str(status), "reason": reason, "message": "", **times}

        uname = os.uname()
        machine = Path("/etc/machine-id")
        machine_id = machine.read_text().strip() if machine.exists() else "double"
        return {
            "status": {
                "capacity": self.settings.allocatable,
                "allocatable": self.settings.allocatable,
                "addresses": [
                    {"type": "InternalIP", "address": self.settings.address},
                    {"type": "Hostname", "address": self.settings.node},
                ],
                "conditions": [
                    condition("MemoryPressure", False, "KubeletHasSufficientMemory"),
                    condition("DiskPressure", False, "KubeletHasNoDiskPressure"),
                    condition("PIDPressure", False, "KubeletHasSufficientPID"),
                    condition("Ready", True, "KubeletReady")
                    if self.is_ready
                    else condition("Ready", False, "KubeletNotReady"),
                ],
                "nodeInfo": {
                    "machineID": machine_id,
                    "systemUUID": machine_id,
                    "bootID": self._boot.read_text().strip(),
                    "kernelVersion": uname.release,
                    "osImage": "kubelet double",
                    "containerRuntimeVersion": "containerd://2.0.0",
                    "kubeletVersion": VERSION,
                    "kubeProxyVersion": VERSION,
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                },
            }
        }

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(self.settings.log_check_s)
            for pod in list(self.pods.values()):
                for attempt in pod.all_attempts():
                    if attempt.is_alive():
                        attempt.rotate(self.settings.log_bytes, self.settings.log_files)

    async def _obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        answer = ""
        try:
            await self._do(asked.pop("what"), **asked)
        except (KeyError, Unavailable) as error:
            answer = repr(error)
        writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    async def _do(self, what: str, **given: Any) -> None:
        match what:
            case "evict" | "preempt":
                self._named(given["pod"]).condemn(DISRUPTIONS[what])
            case "forget":
                self._named(given["pod"]).forget(kill=given["kill"])
            case "ready":
                self.is_ready = given["is_ready"]
                self.began = now()
            case "hold":
                self.hold_s = given["seconds"]
            case "refuse":
                self.refusal = given["reason"]
            case "reboot":
                self._boot.write_text(str(uuid.uuid4()))
                end_shims(self.home)
                for pod in self.pods.values():
                    pod.lose_memory()
        await self._beats()
        for pod in self.pods.values():
            pod.changed.set()

    def free_address(self) -> str:
        """For a new pod: the lowest that no pod has."""
        start = self.settings.pod_addresses
        used = {pod.address for pod in self.pods.values()}
        return next(each for n in range(2, 255) if (each := f"{start}{n}") not in used)

    def _named(self, name: str) -> "Pod":
        named = {pod.body["metadata"]["name"]: pod for pod in self.pods.values()}
        return named[name]

    async def problem_with(self, pod: "Pod") -> Json | None:
        """Why the node refuses a pod: like kubelet it looks at NoExecute taints only."""
        if self.refusal is not None:
            return verdict(self.refusal, "Pod was rejected: Allocate failed due to a test")
        node = await self.api.get(f"/api/v1/nodes/{self.settings.node}")
        tolerations = pod.body["spec"].get("tolerations", [])
        for taint in node["spec"].get("taints", []):
            if taint["effect"] == "NoExecute" and not tolerates(tolerations, taint):
                text = "node(s) had taints that the pod didn't tolerate"
                return verdict("TaintToleration", f"Predicate TaintToleration failed: {text}")
        others = [each for each in self.pods.values() if each is not pod and each.takes_room()]
        for name, asked in requests(pod.body).items():
            used = sum(requests(other.body).get(name, Decimal(0)) for other in others)
            room = quantity(self.settings.allocatable.get(name, "0"))
            if used + asked > room:
                scale = 1000 if name == "cpu" else 1
                numbers = [int(number * scale) for number in (asked, used, room)]
                text = "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}"
                return verdict(f"OutOf{name}", "Pod was rejected: " + text.format(name, *numbers))
        return None


class Pod:
    """One pod's worker: after each change it brings what runs in line with the object."""

    def __init__(self, kubelet: Kubelet, body: Json) -> None:
        self._kubelet = kubelet
        self.body = body
        self.is_removed = False
        self.changed = asyncio.Event()
        self._uid = str(body["metadata"]["uid"])
        self._runtime = kubelet.home / "runtime" / self._uid
        self._files = kubelet.home / "pods" / self._uid
        self._seen_at = time.monotonic()
        self._waiting: dict[str, Json] = {}
        self._pulls: dict[str, tuple[int, float]] = {}
        self._kill_at: float | None = None
        self._written: Json | None = None
        self._watched: set[Path] = set()
        self._readiness: dict[Path, Readiness] = {}
        self._verdict: Json | None = None
        self._is_admitted = False
        self._is_over = False
        self._policy = body["spec"].get("restartPolicy", "Always")
        self.address = kubelet.settings.address
        if (self._runtime / "pod.json").exists():
            memo = json.loads((self._runtime / "pod.json").read_text())
            self._verdict, self._is_admitted = memo["verdict"], memo["is_admitted"]
            self.address = memo["address"]
        elif kubelet.settings.pod_addresses and not body["spec"].get("hostNetwork"):
            offers = any(each.get("ports") for each in body["spec"]["containers"])
            self.address = kubelet.free_address() if offers else SOURCE

    async def work(self) -> None:
        """Until nothing of it is left."""
        while True:
            self.changed.clear()
            try:
                wait_s = await self._step()
            except Unavailable as error:
                print(error, file=sys.stderr, flush=True)
                wait_s = API_RETRY_S
            if self._is_over:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.changed.wait()

    async def _step(self) -> float | None:
        """Do what is due; return after how long to look again at the latest."""
        if not self._kubelet.is_ready:
            return None
        if not self._is_admitted and not self._is_ending and not is_terminal(self._status):
            async with self._kubelet.admitting:
                self._verdict = await self._kubelet.problem_with(self)
                self._is_admitted = True
            self._remember()
        if self._is_ending:
            wait_s = self._end_containers()
        else:
            if self._written is None:
                await self._write_status()
            wait_s = await self._start_next()
        await self._write_status()
        is_alive = any(attempt.is_alive() for attempt in self.all_attempts())
        if self._is_ending and not is_alive:
            if self.is_removed:
                self._clean_up()
            elif "deletionTimestamp" in self.body["metadata"]:
                await self._delete()
        return wait_s

    @property
    def _is_ending(self) -> bool:
        is_deleted = "deletionTimestamp" in self.body["metadata"]
        return self.is_removed or is_deleted or self._verdict is not None

    @property
    def _status(self) -> Json:
        """The latest one, seen or written."""
        status: Json = self.body["status"] | (self._written or {})
        return status

    @property
    def _path(self) -> str:
        metadata = self.body["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    def takes_room(self) -> bool:
        """Whether admission counts it."""
        return self._is_admitted and self._verdict is None and not is_terminal(self._status)

    def condemn(self, verdict: Json) -> None:
        """The kubelet itself ends the pod."""
        if not is_terminal(self._status):
            self._verdict = self._verdict or verdict
            self._remember()

    def forget(self, *, kill: bool) -> None:
        """The runtime knows nothing of its containers any more."""
        for attempt in self.all_attempts():
            attempt.lose()
            if kill:
                attempt.send(signal.SIGKILL)

    def lose_memory(self) -> None:
        """After a reboot a pod whose main container did not start begins anew."""
        for volume in self.body["spec"].get("volumes", []):
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                path = self._inputs().empty_directory(volume["name"])
                shutil.rmtree(path, ignore_errors=True)
        if not any(self._attempts(each) for each in self.body["spec"]["containers"]):
            self.forget(kill=False)

    def _remember(self) -> None:
        self._runtime.mkdir(parents=True, exist_ok=True)
        memo = {"body": self.body, "verdict": self._verdict, "is_admitted": self._is_admitted}
        write_json(self._runtime / "pod.json", memo | {"address": self.address})

    def all_attempts(self) -> list[Attempt]:
        """Each start of each of its containers."""
        spec = self.body["spec"]
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        return [attempt for each in containers for attempt in attempts(self._place(each))]

    def _place(self, container: Json) -> Path:
        return self._runtime / str(container["name"])

    def _attempts(self, container: Json) -> list[Attempt]:
        return [each for each in attempts(self._place(container)) if not each.is_lost]

    async def _start_next(self) -> float | None:
        if is_terminal(self._status):
            return None
        for init in self.body["spec"].get("initContainers", []):
            wait_s = await self._have_started(init, policy_of_init(self._policy))
            if not self._attempts(init):
                return wait_s
            state = self._attempts(init)[-1].state() or {}
            if state.get("terminated", {}).get("exitCode") != 0:
                self._watch(self._attempts(init)[-1])
                return wait_s
        waits = []
        for main in self.body["spec"]["containers"]:
            waits.append(await self._have_started(main, self._policy))
            for attempt in self._attempts(main):
                self._watch(attempt)
                waits.append(await self._probe(main, attempt))
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    async def _have_started(self, container: Json, policy: str) -> float | None:
        """Start it if it did not start, or is to start again; return how long that has to wait."""
        if not (tries := self._attempts(container)):
            return await self._start(container)
        state = tries[-1].state() or {}
        if not is_restarted(policy, state):
            return None
        settings, last = self._kubelet.settings, tries[-1]
        again_s = settings.restart_backoff_s - last.age_s()
        return again_s if again_s > 0 else await self._start(container)

    async def _probe(self, container: Json, attempt: Attempt) -> float | None:
        """Ask whether it is ready; return after how long to ask again."""
        if "running" not in (attempt.state() or {}):
            return None
        place = attempt.directory
        if place not in self._readiness:
            self._readiness[place] = Readiness(container, place, self.address)
        return await self._readiness[place].look()

    async def _start(self, container: Json) -> float | None:
        held_s = self._seen_at + self._kubelet.hold_s - time.monotonic()
        if held_s > 0:
            return held_s
        if (wait_s := self._pull(container)) is not None:
            return wait_s
        attempt = Attempt(self._place(container) / str(len(attempts(self._place(container)))))
        try:
            specification = await self._specify(container, attempt)
        except (FileNotFoundError, NotImplementedError) as problem:
            reason = {"reason": "CreateContainerConfigError", "message": str(problem)}
            self._waiting[container["name"]] = reason
            return API_RETRY_S
        await asyncio.to_thread(attempt.start, specification)
        return None

    def _pull(self, container: Json) -> float | None:
        """Let the image be there, or say why not and when to try again."""
        name, image = container["name"], container["image"]
        problem = PULL_PROBLEMS.get(image.partition("/")[0])
        if problem is None:
            return None
        tries, due_s = self._pulls.get(name, (0, 0.0))
        if (left_s := due_s - time.monotonic()) > 0:
            return left_s
        text = f'failed to pull and unpack image "{image}": {problem}'
        if tries % 2 == 0:
            wait_s, reason = 0.1, {"reason": "ErrImagePull", "message": text}
        else:
            wait_s = self._kubelet.settings.pull_backoff_s * 2 ** min(tries // 2, PULL_DOUBLINGS)
            text = f'Back-off pulling image "{image}": ErrImagePull: {text}'
            reason = {"reason": "ImagePullBackOff", "message": text}
        self._waiting[name] = reason
        self._pulls[name] = (tries + 1, time.monotonic() + wait_s)
        return wait_s

    async def _specify(self, container: Json, attempt: Attempt) -> Container:
        """What the shim gets. An attempt's log is named by its number, as in kubelet."""
        spec, metadata = self.body["spec"], self.body["metadata"]
        settings, inputs = self._kubelet.settings, self._inputs()
        security = spec.get("securityContext", {}) | container.get("securityContext", {})
        image = settings.image(container["image"])
        log = self._logs / container["name"] / f"{attempt.number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        limit = container.get("resources", {}).get("limits", {}).get("memory")
        user = security.get("runAsUser", image.user)
        home = {"HOME": "/" if user else "/root", "HOSTNAME": metadata["name"]}
        rights = security.get("capabilities", {})
        added = [CAPABILITIES[each] for each in rights.get("add", [])]
        files = image.files | ({"/etc/hosts": settings.names} if settings.names else {})
        return Container(
            argv=[*container.get("command", image.entry_point), *container.get("args", [])],
            environment=ENVIRONMENT | home | image.environment | await inputs.variables(container),
            directory=container.get("workingDir", image.directory),
            uid=user,
            gid=security.get("runAsGroup", 0),
            root=image.root,
            read_only_root=security.get("readOnlyRootFilesystem", False),
            mounts=[
                *(Mount(source, target, read_only=True) for target, source in files.items()),
                Mount(str(attempt.last_words()), container["terminationMessagePath"]),
                *[
                    Mount(
                        str(await inputs.mounted(mount)),
                        mount["mountPath"],
                        mount.get("readOnly", False),
                    )
                    for mount in sorted(
                        container.get("volumeMounts", []),
                        key=lambda mount: mount["mountPath"].count("/"),
                    )
                ],
            ],
            log=str(log),
            cgroup=f"{cgroup_of(settings.home)}/pod{self._uid}/{container['name']}-{attempt.number}",
            memory_bytes=int(quantity(limit)) if limit else None,
            capabilities=added if "ALL" in rights.get("drop", []) else None,
            host_pids=spec.get("hostPID", False),
        )

    def _inputs(self) -> Inputs:
        """What its containers are given."""
        settings, api = self._kubelet.settings, self._kubelet.api
        return Inputs(
            get=api.get,
            post=api.post,
            server=settings.server,
            files=self._files,
            host_paths=self._kubelet.host_paths,
            body=self.body,
            host_address=settings.address,
            address=self.address,
        )

    def _watch(self, attempt: Attempt) -> None:
        """Look again when it ends."""
        if attempt.directory in self._watched:
            return
        loop = asyncio.get_running_loop()
        handle = attempt.exit_handle()
        if handle is None and attempt.state() is None:
            # Its kubelet was killed in its start, before or after the shim's.
            if not attempt.is_alive():
                attempt.lose()
            loop.call_later(API_RETRY_S, self.changed.set)
            return
        self._watched.add(attempt.directory)
        if handle is None:
            self.changed.set()
            return

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            self.changed.set()

        loop.add_reader(handle, ended)

    def _end_containers(self) -> float | None:
        """SIGTERM, and SIGKILL after the grace; a later deletion may shorten it."""
        alive = [attempt for attempt in self.all_attempts() if attempt.is_alive()]
        if not alive:
            return None
        metadata, now_s = self.body["metadata"], time.monotonic()
        grace_s = metadata.get(
            "deletionGracePeriodSeconds", self.body["spec"].get("terminationGracePeriodSeconds", 30)
        )
        if self._verdict is not None:
            grace_s = 0
        kill_at = now_s + max(1, grace_s)
        if self._kill_at is None:
            for attempt in alive:
                attempt.send(signal.SIGTERM)
            self._kill_at = kill_at
        self._kill_at = min(self._kill_at, kill_at)
        for attempt in alive:
            self._watch(attempt)
            if now_s >= self._kill_at:
                attempt.send(signal.SIGKILL)
        return max(API_RETRY_S, self._kill_at - now_s)

    @property
    def _logs(self) -> Path:
        metadata = self.body["metadata"]
        name = f"{metadata['namespace']}_{metadata['name']}_{self._uid}"
        return self._kubelet.home / "log" / "pods" / name

    async def _write_status(self) -> None:
        if self.is_removed:
            return
        spec, starts = self.body["spec"], {}
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            for attempt in self._attempts(container):
                if (state := attempt.state()) is not None:
                    starts[container["name"]] = Start(state, attempt.number, attempt.identity())
        facts = Facts(
            starts=starts,
            waiting=self._waiting,
            verdict=self._verdict,
            is_ending=self._is_ending,
            is_alive=any(attempt.is_alive() for attempt in self.all_attempts()),
            host_address=self._kubelet.settings.address,
            address=self.address,
            now=now(),
            unready=frozenset(
                each["name"] for each in spec["containers"] if not self._is_ready(each)
            ),
        )
        wanted = status(self.body | {"status": self._status}, facts)
        if wanted != self._written:
            patch = {"metadata": {"uid": self._uid}, "status": wanted}
            code, answer = await self._kubelet.api.call("PATCH", f"{self._path}/status", patch)
            if code not in (200, 404, 409):
                raise Unavailable(f"status of {self._path}: {code} {answer.get('message')}")
            self._written = wanted

    def _is_ready(self, container: Json) -> bool:
        latest = self._attempts(container)[-1:]
        return any(
            found.is_ready for each in latest if (found := self._readiness.get(each.directory))
        )

    async def _delete(self) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self._uid}}
        await self._kubelet.api.call("DELETE", self._path, options)

    def _clean_up(self) -> None:
        for directory in (self._files, self._logs, self._runtime):
            shutil.rmtree(directory, ignore_errors=True)
        remove_groups(f"{cgroup_of(self._kubelet.settings.home)}/pod{self._uid}")
        del self._kubelet.pods[self._uid]
        self._is_over = True


def now() -> str:
    """In Kubernetes' objects."""
    return seconds(time.time_ns())


def lease_path(node: str) -> str:
    """By which the controller-manager knows that the node lives."""
    return f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"


def cgroup_of(home: str) -> str:
    """Below which a double's containers are. Doubles that run at the same time may play nodes of
    the same name, and each removes its groups.
    """
    return f"kubepods-{hashlib.sha256(home.encode()).hexdigest()[:12]}"


async def main(settings: Settings) -> None:
    """The program."""
    await Kubelet(settings).run()


if __name__ == "__main__":
    asyncio.run(main(Settings.read(Path(sys.argv[1]))))
