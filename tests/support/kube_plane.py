"""A real Kubernetes control plane for tests: etcd, kube-apiserver and kube-controller-manager as
processes of this machine. There are no nodes: what a kubelet does, the test does.

`kube_programs` builds the programs. Each part can be killed and started again: its port and its
data stay. No part outlives the thread that started it.
"""

import base64
import contextlib
import http.client
import json
import re
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import kube_programs
from cli.embedded.process import EmbeddedServerError, dying_with_me, end_leftovers, free_port
from cli.embedded.server import EmbeddedServer, open_log
from cli.home import write_json, write_private
from kubernetes_asyncio import client

Json = dict[str, Any]

START_TIMEOUT_S = 120.0
POLL_S = 0.05
ASK_TIMEOUT_S = 10.0
KUBECTL_TIMEOUT_S = 120.0
ADMIN, CONTROLLERS = "muster-admin", "system:kube-controller-manager"
ISSUER = "https://kubernetes.default.svc"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
EC_KEY = bytes.fromhex("30310201010420"), bytes.fromhex("a00a06082a8648ce3d030107")
"""What surrounds the 32 bytes of a P-256 key (RFC 5915)."""
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", re.DOTALL)


class KubePart(EmbeddedServer):
    """One program over its own folder. `is_ready` asks it, or its neighbours, whether it serves."""

    def __init__(
        self,
        name: str,
        home: Path,
        arguments: Callable[[], Mapping[str, object]],
        is_ready: Callable[[], bool],
        program: Path | None = None,
    ) -> None:
        super().__init__(None)
        self.name = name
        self._program = program
        self.home = home
        self.log_path = home / f"{name}.log"
        self._arguments = arguments
        self._is_ready = is_ready

    def start(self) -> None:
        """Start the program over its data; returns when it serves."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        end_leftovers(self.home, self.name, self.stop_signal, self.stop_timeout_s)
        given = [f"--{name}={value}" for name, value in self._arguments().items()]
        with open_log(self.log_path) as log:
            self._process = subprocess.Popen(
                [self._program or kube_programs.program(self.name), *given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,  # by which a later owner knows what was left over
                start_new_session=True,
                preexec_fn=dying_with_me(signal.SIGKILL),
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self.pid is None or time.monotonic() > deadline:
                self.kill()
                raise EmbeddedServerError(f"{self.name} does not serve: {self._last_output()}")
            time.sleep(POLL_S)

    def _last_output(self) -> str:
        output = self.log_path.read_bytes()[-2000:].decode(errors="replace").strip()
        return f"{output} (the whole log: {self.log_path})"


@dataclass(frozen=True)
class User:
    """Whom the administrator acts as. A kubelet is `system:node:<node>` in `system:nodes`."""

    name: str
    group: str


class KubePlane:
    """A cluster without nodes over the folder `home`, for whoever has a token of it."""

    def __init__(self, home: Path, *, host: str = "127.0.0.1") -> None:
        self.home = home.absolute()
        self.host = host
        self.etcd = KubePart("etcd", self.home / "etcd", self._etcd, self._etcd_serves)
        self._peer_port = free_port()
        self.api = KubePart("kube-apiserver", self.home / "api", self._api, self._api_serves)
        self.controllers = KubePart(
            "kube-controller-manager",
            self.home / "controllers",
            self._controllers,
            self._controllers_serve,
        )
        self.parts = (self.etcd, self.api, self.controllers)
        self.url = f"https://{host}:{self.api.port}"
        self.ca_path = self.home / "ca.pem"
        self.kubeconfig = self.home / "admin.json"
        """For kubectl: `kubectl --kubeconfig`."""
        self.token, self._controllers_token = secrets.token_hex(16), secrets.token_hex(16)

    @property
    def audit_path(self) -> Path:
        """The API server's audit log: one event a line, with the levels of AUDIT_POLICY."""
        return self.home / "audit.log"

    def start(self) -> None:
        """Start all parts; returns when the namespace `default` has its service account."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self._key, _new_key())
        write_json(self.home / "audit-policy.json", AUDIT_POLICY)
        write_private(
            self.home / "tokens.csv",
            f'{self.token},{ADMIN},{ADMIN},"system:masters"\n'
            f"{self._controllers_token},{CONTROLLERS},{CONTROLLERS}\n",
        )
        with ExitStack() as started:
            started.callback(self.kill)
            self.etcd.start()
            self.api.start()
            self.write_kubeconfig(self.kubeconfig)
            self.controllers.start()
            started.pop_all()

    def kill(self) -> None:
        """End all parts at once."""
        for part in reversed(self.parts):
            part.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @asynccontextmanager
    async def client(
        self, token: str | None = None, acting_as: User | None = None
    ) -> AsyncIterator[client.ApiClient]:
        """A client of kubernetes-asyncio: the administrator's, or the owner's of a token."""
        configuration = client.Configuration(host=self.url)
        configuration.ssl_ca_cert = str(self.ca_path)
        configuration.api_key["BearerToken"] = f"Bearer {token or self.token}"
        async with client.ApiClient(configuration) as made:
            if acting_as is not None:
                made.set_default_header("Impersonate-User", acting_as.name)
                made.set_default_header("Impersonate-Group", acting_as.group)
            yield made

    def ask(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """The administrator's request, without an event loop: status and answer."""
        request = urllib.request.Request(  # noqa: S310  the address is ours
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
                "Accept": "application/json",
            },
        )
        trusted = ssl.create_default_context(cafile=self.ca_path)
        try:
            with urllib.request.urlopen(  # noqa: S310  the address is ours
                request, timeout=ASK_TIMEOUT_S, context=trusted
            ) as answer:
                return answer.status, _json(answer.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, _json(refusal.read())

    def service_account_token(self, namespace: str, name: str, bound_to: Json | None = None) -> str:
        """A token of a service account, as kubelet gives one to a pod.

        `bound_to` is the pod or node (apiVersion, kind, name, uid) that the token names and whose
        end ends it.
        """
        status, answer = self.ask(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"boundObjectRef": bound_to, "expirationSeconds": 3600},
            },
        )
        if status != http.client.CREATED:
            raise RuntimeError(f"No token for {namespace}/{name}: {answer.get('message')}")
        return str(answer["status"]["token"])

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """What the administrator's kubectl prints; RuntimeError with its error where it fails."""
        program = kube_programs.program("kubectl")
        done = subprocess.run(
            [program, "--kubeconfig", self.kubeconfig, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=KUBECTL_TIMEOUT_S,
            check=False,
            env={"HOME": str(self.home), "PATH": "/nonexistent"},
        )
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def write_kubeconfig(
        self,
        path: Path,
        *,
        token: str | None = None,
        acting_as: User | None = None,
        url: str | None = None,
    ) -> Path:
        """A kubeconfig file for programs: the administrator's, or the owner's of a token. `url`: of
        a proxy.
        """
        user: Json = {"token": token or self.token}
        if acting_as is not None:
            user |= {"as": acting_as.name, "as-groups": [acting_as.group]}
        cluster = {"server": url or self.url, "certificate-authority": str(self.ca_path)}
        write_json(
            path,
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": user}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "current-context": "test",
            },
        )
        return path

    def audit(self) -> list[Json]:
        """The audit events up to now. An event may come a moment after its answer."""
        lines = self.audit_path.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    @property
    def _key(self) -> Path:
        """By which the service accounts' tokens are signed."""
        return self.home / "service-accounts.pem"

    def _etcd(self) -> Mapping[str, object]:
        etcd, peers = (f"http://127.0.0.1:{port}" for port in (self.etcd.port, self._peer_port))
        return {
            "data-dir": "data",
            "unsafe-no-fsync": "true",
            "listen-client-urls": etcd,
            "advertise-client-urls": etcd,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "log-level": "warn",
        }

    def _api(self) -> Mapping[str, object]:
        return {
            "etcd-servers": f"http://{self.etcd.address}",
            "bind-address": self.host,
            "advertise-address": self.host,
            "secure-port": self.api.port,
            "cert-dir": self.home / "certificates",  # it makes its own CA and certificate there
            "endpoint-reconciler-type": "none",  # endpoints can't be on the loopback interface
            "token-auth-file": self.home / "tokens.csv",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-issuer": ISSUER,
            "service-account-key-file": self._key,
            "service-account-signing-key-file": self._key,
            "audit-policy-file": self.home / "audit-policy.json",
            "audit-log-path": self.audit_path,
        }

    def _controllers(self) -> Mapping[str, object]:
        return {
            "kubeconfig": self.write_kubeconfig(
                self.home / "controllers.json", token=self._controllers_token
            ),
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self._key,
            "root-ca-file": self.ca_path,
            "leader-elect": "false",
            "secure-port": "0",
        }

    def _etcd_serves(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            url = f"http://{self.etcd.address}/readyz"
            with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as answer:
                return bool(answer.status == http.client.OK)
        return False

    def _api_serves(self) -> bool:
        made = self.home / "certificates/apiserver.crt"
        _, *authorities = CERTIFICATE.findall(made.read_text()) if made.exists() else [""]
        if not authorities:  # not yet, or half
            return False
        write_private(self.ca_path, "".join(authorities))
        return self._answers("/readyz")

    def _controllers_serve(self) -> bool:
        return self._answers("/api/v1/namespaces/default/serviceaccounts/default")

    def _answers(self, path: str) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("GET", path)[0] == http.client.OK
        return False


def _new_key() -> str:
    body = base64.encodebytes(EC_KEY[0] + secrets.token_bytes(32) + EC_KEY[1]).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{body}-----END EC PRIVATE KEY-----\n"


def _json(content: bytes) -> Json:
    try:
        read = json.loads(content)
    except ValueError:
        return {"message": content.decode(errors="replace")}
    return read if isinstance(read, dict) else {"message": content.decode()}
