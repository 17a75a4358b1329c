"""`muster deploy` on a real control plane. The test plays Kubernetes' scheduler and the kubelets:
it makes pods ready, or ends them.
"""

import base64
import contextlib
import http.client
import json
import os
import re
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kube_programs
import pytest
from cli.deploy.objects import decoded
from kube_plane import KubePlane
from manifests import Json
from muster.sealing import public_key_of
from rest_double import Ran, run_cli

pytestmark = [pytest.mark.k8s, pytest.mark.xdist_group("deploy-command")]

NODE, OTHER = "deploy-a", "deploy-b"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ROOT = Path(__file__).parents[2]
PRODUCTION = str(ROOT / "deploy/k8s/overlays/production")
SYSTEM = "muster-system"
NEW, NEW_STEP = "registry.example/muster@sha256:" + "a" * 64, "registry.example/muster-step:2"
OLD = "localhost/muster:0.1.0"
VOLUMES = "/api/v1/persistentvolumes"
APIS = "/apis/apiregistration.k8s.io/v1/apiservices"
AWAY: Json = {
    "metadata": {"name": "v1.away.example"},
    "spec": {
        "group": "away.example",
        "version": "v1",
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"name": "away", "namespace": "default"},
    },
}
IS_AWAY = {"type": "Ready", "status": "False"}
MAKE_KEY, ADD_KEYS = "1. **Make a key**", "2. **Add the keys to the cluster**"
"""Steps of docs/install.md."""
APP = "app.kubernetes.io/name"
AGAIN_S = 0.1


@dataclass
class Player:
    """Makes all pods ready and ends those of Jobs, but not those whose image has `broken` in it, or
    whose name begins so.
    """

    plane: KubePlane
    held: tuple[str, ...] = ()
    stopped: threading.Event = field(default_factory=threading.Event)

    def play(self) -> None:
        """Until it is stopped."""
        while not self.stopped.wait(AGAIN_S):
            with contextlib.suppress(OSError, http.client.HTTPException):
                _, found = self.plane.ask("GET", f"/api/v1/namespaces/{SYSTEM}/pods")
                for pod in found.get("items", []):
                    self._see(pod)

    def _see(self, pod: Json) -> None:
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}"
        if "deletionTimestamp" in pod["metadata"]:
            self.plane.ask("DELETE", path, {"gracePeriodSeconds": 0})
        elif "affinity" in pod["spec"] and "nodeName" not in pod["spec"]:  # of the DaemonSet
            required = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]
            [name] = required["nodeSelectorTerms"][0]["matchFields"][0]["values"]
            target = {"kind": "Node", "name": name}
            body = {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
            self.plane.ask("POST", f"{path}/binding", body)
        else:
            self._make_ready(pod, path)

    def _make_ready(self, pod: Json, path: str) -> None:
        is_broken = any("broken" in each["image"] for each in pod["spec"]["containers"])
        is_held = pod["metadata"]["name"].startswith(self.held)
        if is_broken or is_held or pod.get("status", {}).get("phase") not in ("Pending", None):
            return
        is_of_job = "job-name" in pod["metadata"].get("labels", {})
        pod["status"] = {
            "phase": "Succeeded" if is_of_job else "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.plane.ask("PUT", f"{path}/status", pod)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """Of a cluster of this module alone: it is installed into and emptied."""
    with KubePlane(tmp_path_factory.mktemp("deploy")) as running:
        player = Player(running)
        thread = threading.Thread(target=player.play)
        thread.start()
        try:
            yield player
        finally:
            player.stopped.set()
            thread.join()


@pytest.fixture(scope="module")
def plane(player: Player) -> KubePlane:
    """That cluster."""
    return player.plane


Deploy = Callable[..., Ran]


def muster(plane: KubePlane, home: Path, *words: str, **environment: str) -> Ran:
    """A command on this cluster."""
    program = str(kube_programs.program("kubectl"))
    known = ("--kubectl", program, "--kubeconfig", str(plane.kubeconfig))
    return run_cli(home, *words, *known, HOME=str(plane.home), **environment)


@pytest.fixture
def deploy(plane: KubePlane, tmp_path: Path) -> Deploy:
    """The command."""

    def run(*words: str, **environment: str) -> Ran:
        return muster(plane, tmp_path, "deploy", *words, **environment)

    return run


@pytest.fixture
def ready(plane: KubePlane) -> KubePlane:
    """A cluster with a default storage class and a node."""
    storage = {
        "metadata": {
            "name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "example/none",
    }
    plane.ask("POST", "/apis/storage.k8s.io/v1/storageclasses", storage)
    plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
    return plane


@pytest.fixture
def key(plane: KubePlane) -> tuple[str, str]:
    """The option that names the cluster's key. It outlives a test, as the installation does."""
    return "--key-file", str(plane.home / "muster.key")


@pytest.fixture
def empty(ready: KubePlane, deploy: Deploy) -> KubePlane:
    """That cluster without Muster."""
    if is_there(ready):
        removed = deploy("remove", "--yes")
        assert removed.code == 0, removed.err
    (ready.home / "muster.key").unlink(missing_ok=True)
    return ready


@pytest.fixture
def installed(ready: KubePlane, deploy: Deploy, key: tuple[str, str]) -> KubePlane:
    """That cluster with Muster. An installation takes long, so one test leaves it to the next."""
    if not is_there(ready) or images(ready) != {OLD}:
        assert applied(deploy, *key).code == 0
    return ready


def is_there(plane: KubePlane) -> bool:
    """Whether anything is installed."""
    return plane.ask("GET", f"/api/v1/namespaces/{SYSTEM}")[0] == http.client.OK


def applied(deploy: Deploy, *words: str, **environment: str) -> Ran:
    """Muster, installed."""
    return deploy("apply", "--yes", "--node", NODE, *words, **environment)


def left(plane: KubePlane) -> list[str]:
    """All that belongs to Muster in the cluster."""
    kinds = plane.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    of = "app.kubernetes.io/part-of=muster"
    found = plane.kubectl("get", ",".join(kinds), "-A", "-l", of, "-o", "name").split()
    namespaces = plane.kubectl("get", "namespaces", "-o", "name").split()
    labelled = plane.kubectl("get", "nodes", "-l", "muster/agent", "-o", "name").split()
    return [*found, *(each for each in namespaces if "muster" in each), *labelled]


def a_volume(name: str, policy: str) -> Json:
    """Of a storage for jobs."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": policy,
        "nfs": {"server": "nfs.example.org", "path": f"/{name}"},
        "claimRef": {"namespace": "muster-jobs", "name": name},
    }
    return {"metadata": {"name": name}, "spec": spec}


def images(plane: KubePlane) -> set[str]:
    """The images of Muster that all workloads use."""
    template = (
        "{range .items[*]}{range .spec.template.spec.containers[*]}{.image}"
        "{'\\n'}{end}{end}".replace("'", '"')
    )
    kinds = "deployments,daemonsets"
    return set(plane.kubectl("get", kinds, "-n", SYSTEM, "-o", f"jsonpath={template}").split())


def test_a_cluster_whose_namespace_default_takes_no_object_is_checked(
    ready: KubePlane, deploy: Deploy
) -> None:
    """A usual policy."""
    stem = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["configmaps", "pods"],
    }
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "request.namespace != 'default'"}],
    }
    binding = {"policyName": "not-default", "validationActions": ["Deny"]}
    name = {"metadata": {"name": "not-default"}}
    for path, spec in ((f"{stem}ies", policy), (f"{stem}ybindings", binding)):
        assert ready.ask("POST", path, name | {"spec": spec})[0] == http.client.CREATED
    dry_run = "/api/v1/namespaces/default/configmaps?dryRun=All"
    try:
        while ready.ask("POST", dry_run, name)[0] == http.client.CREATED:
            pass
        ran = deploy("check", "--node", NODE)
    finally:
        ready.ask("DELETE", f"{stem}ies/not-default")
    assert ran.code == 0, ran.err


def test_a_check_refuses_and_says_what_to_do(
    empty: KubePlane, deploy: Deploy, tmp_path: Path
) -> None:
    empty.kubectl("delete", "storageclass", "standard")
    ran = deploy("check", "--node", "absent")
    assert ran.code == 1, ran.err
    assert "refusal  storage: no default storage class" in ran.out
    assert "refusal  nodes: no node is named absent" in ran.out
    assert "ok       rights: you may make" in ran.out
    assert "Annotate a storage class" in ran.out
    refused = deploy("apply", "--yes", "--node", "absent")
    assert (refused.code, left(empty)) == (1, [])
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{os.path.relpath(ROOT / 'deploy/k8s/overlays/minimal', tmp_path)}]\n"
        f"components: [{os.path.relpath(ROOT / 'deploy/k8s/components/monitoring', tmp_path)}]\n"
    )
    unknown = deploy("apply", "--yes", "--overlay", str(tmp_path))
    assert (unknown.code, left(empty)) == (1, [])
    assert "Install the Prometheus Operator" in unknown.out
    nowhere = deploy("apply", "--yes", "--overlay", PRODUCTION)
    assert (nowhere.code, left(empty)) == (2, [])
    assert "ConfigMap authorities is neither in the overlay nor in muster-system" in nowhere.out
    assert "Muster needs the address of yours: --database-url" in nowhere.err
    no_way_back = deploy("rollback", "--yes")
    assert (no_way_back.code, "not installed" in no_way_back.err) == (4, True)


def test_an_installation_that_is_cut_off_has_shown_the_password(
    empty: KubePlane, deploy: Deploy, key: tuple[str, str]
) -> None:
    """The password of the database comes by the environment, and stays."""
    address = "postgresql://muster:hunter2@db.example/muster"
    refused = applied(deploy, *key, "--database-url", address)
    assert (refused.code, "Set MUSTER_DEPLOY_DATABASE_URL" in refused.err) == (2, True)
    assert left(empty) == []

    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    empty.ask("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM, "labels": labels}})
    empty.kubectl("create", "configmap", "authorities", "-n", SYSTEM)
    checked = deploy("check", "--overlay", PRODUCTION)
    assert (checked.code, "authorities" in checked.out) == (1, False), checked.out
    low = applied(deploy, *key)
    assert (low.code, Path(key[1]).exists()) == (1, False), low.err
    (fix,) = re.findall("`kubectl (label .*)` sets it", low.out)
    empty.kubectl(*fix.split())
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"count/secrets": "1"}}}
    empty.ask("POST", f"/api/v1/namespaces/{SYSTEM}/resourcequotas", quota)
    counted = ("get", "resourcequota", "few", "-n", SYSTEM, "-o", "jsonpath={.status.hard}")
    while not empty.kubectl(*counted):
        pass
    words = (*key, "--no-wait")
    cut_off = applied(deploy, *words, MUSTER_DEPLOY_DATABASE_URL=address)
    assert (cut_off.code, "exceeded quota" in cut_off.err) == (4, True), cut_off.err
    assert "shown once" in cut_off.out
    empty.kubectl("delete", "resourcequota", "few", "-n", SYSTEM)
    again = applied(deploy, *words, MUSTER_DEPLOY_DATABASE_URL=address)
    assert (again.code, "shown once" in again.out) == (0, False), again.err
    assert "database: that of MUSTER_DEPLOY_DATABASE_URL" in again.out
    assert "hunter2" not in again.out + again.err

    assert applied(deploy, *words).code == 0
    secret = json.loads(empty.kubectl("get", "secret", "database", "-n", SYSTEM, "-o", "json"))
    assert decoded(secret, "muster_database_url") == address


def test_muster_is_removed_once_kubernetes_can_end_its_namespaces(
    installed: KubePlane, deploy: Deploy
) -> None:
    """An API of the cluster that does not answer keeps every namespace."""
    pod = {
        "metadata": {"name": "a-job", "labels": {"app.kubernetes.io/managed-by": "muster"}},
        "spec": {"containers": [{"name": "main", "image": "example/none"}]},
    }
    installed.ask("POST", "/api/v1/namespaces/muster-jobs/pods", pod)
    for name, policy in (("scratch", "Delete"), ("home", "Retain")):
        installed.ask("POST", VOLUMES, a_volume(name, policy))
    refused = deploy("remove")
    assert (refused.code, "This ends 1 pod of running jobs." in refused.err) == (4, True)
    assert "storages: the claims scratch in muster-jobs.\n" in refused.err
    for name in ("scratch", "home"):
        installed.ask("DELETE", f"{VOLUMES}/{name}")
    assert installed.ask("POST", APIS, AWAY)[0] == http.client.CREATED
    words = ("remove", "--yes", "--timeout", "1s")
    assert deploy(*words).code == 7
    said = ("get", "namespace", SYSTEM, "-o", "jsonpath={.status.conditions}")
    while "away.example/v1" not in installed.kubectl(*said):
        pass
    stuck = deploy(*words)
    installed.ask("DELETE", f"{APIS}/v1.away.example")
    assert (stuck.code, "kubectl get apiservices" in stuck.err) == (7, True), stuck.err
    assert "away.example/v1" in stuck.err

    removed = deploy("remove", "--yes")
    assert removed.code == 0, removed.err
    assert "/var/lib/muster" in removed.out
    assert left(installed) == []
    assert deploy("status").code == 4
    again = deploy("remove")
    assert (again.code, "nothing of Muster to remove" in again.out) == (0, True), again.err


def test_muster_is_installed(
    empty: KubePlane, deploy: Deploy, key: tuple[str, str], tmp_path: Path
) -> None:
    assert deploy("check", "--node", NODE).code == 0
    asked = deploy("apply", "--node", NODE)
    assert (asked.code, left(empty)) == (4, [])

    ran = applied(deploy, *key)
    assert ran.code == 0, ran.err
    assert "shown once" in ran.out
    made = Path(key[1])
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert made.read_text().strip() not in ran.out + ran.err
    ready_at = [line.partition(":")[0] for line in ran.err.splitlines() if line.endswith(" ready")]
    services = [each for each in ready_at if each.startswith(("Deployment", "DaemonSet"))]
    assert list(dict.fromkeys(services)) == [
        *("Deployment scheduler", "Deployment launcher", "Deployment alerting"),
        *("Deployment rest", "DaemonSet runtime-agent"),
    ]

    shown = deploy("status")
    assert shown.code == 0, shown.out
    assert "nodes, agent ready: 1 (deploy-a)" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80

    again = applied(deploy, *key)
    assert again.code == 0, again.err
    assert "No object changes. The Jobs `bus` and `migrate` run again.\n" in again.out
    assert "shown once" not in again.out
    (tmp_path / "other.key").write_text("b" * 64)
    other = applied(deploy, "--key-file", str(tmp_path / "other.key"))
    assert (other.code, "is not the key" in other.err) == (2, True)
    assert deploy("rollback", "--yes").code == 4


def test_an_overlay_that_was_applied_has_to_be_named(
    installed: KubePlane, deploy: Deploy, key: tuple[str, str], tmp_path: Path
) -> None:
    mine, minimal = tmp_path / "mine", ROOT / "deploy/k8s/overlays/minimal"
    mine.mkdir()
    resources = f"resources: [{os.path.relpath(minimal, mine)}]"
    own = "{name: settings, namespace: muster-system, behavior: merge, literals: [%s]}"
    setting = own % "MUSTER_KUBE_HOST_NETWORK=mine"
    image = "images: [{name: localhost/muster, newName: registry.example/muster, newTag: mine}]"
    content = f"{resources}\nconfigMapGenerator: [{setting}]\n"
    kafka = "images: [{name: apache/kafka, newName: registry.example/broken}]"
    (mine / "kustomization.yaml").write_text(f"{content}{kafka}\n")
    words = (*key, "--overlay", str(mine))
    mistyped = applied(deploy, *words, "--timeout", "1s")
    assert (mistyped.code, "StatefulSet kafka" in mistyped.err) == (8, True), mistyped.err
    image_of = ("-o", "jsonpath={.spec.containers[0].image}")
    while "broken" not in installed.kubectl("get", "pods", "kafka-0", "-n", SYSTEM, *image_of):
        pass
    (mine / "kustomization.yaml").write_text(f"{content}{image}\n")
    corrected = applied(deploy, *words)
    assert corrected.code == 0, corrected.err

    for words in (("rollback", "--yes"), ("upgrade", "--yes", *key), ("check",)):
        refused = deploy(*words)
        assert (refused.code, f"overlay is {mine}. Name it by --overlay" in refused.err) == (
            2,
            True,
        )
    assert images(installed) == {"registry.example/muster:mine"}
    assert deploy("rollback", "--yes", "--overlay", str(mine)).code == 0
    assert images(installed) == {OLD}

    assert applied(deploy, *key, "--overlay", str(minimal)).code == 0
    assert deploy("check").code == 0


def test_keys_and_passwords_in_secrets_come_and_stay(
    installed: KubePlane, deploy: Deploy, key: tuple[str, str], tmp_path: Path
) -> None:
    """The keys for secrets of jobs, and the password of a mail server."""
    first, public = keys_for_secrets(installed)
    assert public == public_key_of(first)
    begun = generations(installed)

    older = json.loads(installed.kubectl("get", "secret", "launcher", "-n", SYSTEM, "-o", "json"))
    del older["data"]["muster_secrets_keys"]
    installed.ask("PUT", f"/api/v1/namespaces/{SYSTEM}/secrets/launcher", older)
    upgraded = deploy("upgrade", "--yes", *key)
    assert upgraded.code == 0, upgraded.err
    assert keys_for_secrets(installed) == (first, public)
    assert generations(installed) == begun  # the content is what they began with

    (tmp_path / "smtp-password").write_text("hunter2\n")
    follow(installed, tmp_path, MAKE_KEY, ADD_KEYS, "## Mail")
    rotated = applied(deploy, *key)
    assert rotated.code == 0, rotated.err
    both, new_public = keys_for_secrets(installed)
    new, old = both.split(",")
    assert (old, new_public) == (first, public_key_of(new))
    changed = {name for name, found in generations(installed).items() if found != begun[name]}
    assert changed == {"alerting", "launcher", "rest"}

    upgraded = deploy("upgrade", "--yes", *key)
    assert upgraded.code == 0, upgraded.err
    assert keys_for_secrets(installed) == (both, new_public)
    secret = json.loads(installed.kubectl("get", "secret", "alerting", "-n", SYSTEM, "-o", "json"))
    assert decoded(secret, "muster_smtp_password") == "hunter2"


def test_keys_of_rotations_are_kept_and_restored(
    installed: KubePlane, deploy: Deploy, key: tuple[str, str], tmp_path: Path
) -> None:
    first, _ = keys_for_secrets(installed)
    follow(installed, tmp_path, MAKE_KEY, ADD_KEYS)
    [made] = tmp_path.glob("secrets-*.key")
    (tmp_path / "date").write_text("#!/bin/sh\necho 2999-01-01-000000\n")  # the next, in file order
    (tmp_path / "date").chmod(0o700)
    follow(installed, tmp_path, MAKE_KEY, ADD_KEYS)
    newest = tmp_path / "secrets-2999-01-01-000000.key"
    before = newest.read_text()
    with pytest.raises(subprocess.CalledProcessError):
        follow(installed, tmp_path, MAKE_KEY)
    assert (newest.read_text(), stat.S_IMODE(newest.stat().st_mode)) == (before, 0o600)
    wanted = ",".join([*(private_key_in(each) for each in (newest, made)), first])
    assert keys_for_secrets(installed)[0] == wanted

    secret = json.loads(installed.kubectl("get", "secret", "launcher", "-n", SYSTEM, "-o", "json"))
    del secret["metadata"]["resourceVersion"]
    for there in (first, f"{private_key_in(newest)},{first}", wanted):
        secret["data"]["muster_secrets_keys"] = base64.b64encode(there.encode()).decode()
        installed.ask("PUT", f"/api/v1/namespaces/{SYSTEM}/secrets/launcher", secret)
        assert keys_for_secrets(installed)[0] == there
        follow(installed, tmp_path, ADD_KEYS)
        assert keys_for_secrets(installed)[0] == wanted
    assert applied(deploy, *key).code == 0
    assert keys_for_secrets(installed) == (wanted, public_key_of(private_key_in(newest)))


def test_a_node_is_added_and_removed(
    player: Player, installed: KubePlane, deploy: Deploy, key: tuple[str, str], tmp_path: Path
) -> None:
    begun, alone = generations(installed), users(installed)
    installed.ask("POST", "/api/v1/nodes", {"metadata": {"name": OTHER}})
    player.held = ("enrol-",)
    for words in (("deploy", "apply", "--yes", "--node", OTHER), ("nodes", "add", OTHER)):
        late = muster(installed, tmp_path, *words, "--timeout", "1s", *key)
        said = f" on {OTHER}: its container has not started. It did not"
        assert (late.code, said in late.err) == (8, True), late.err
        # The agent would read what an earlier installation has stored there.
        assert f"node/{OTHER}" not in of_node(installed, OTHER)
    player.held = ()
    added = muster(installed, tmp_path, "nodes", "add", OTHER, *key)
    assert added.code == 0, added.err
    assert (generations(installed), users(installed)) == (begun, alone | {f"agent-{OTHER}"})
    assert "nodes, agent ready: 2 (deploy-a, deploy-b)" in deploy("status").out

    jobs = enrolments(installed, OTHER)
    again = muster(
        installed, tmp_path, "nodes", "add", OTHER, *key
    )  # its disk may have been erased
    assert again.code == 0, again.err
    assert len(jobs) == len(enrolments(installed, OTHER)) == 1
    assert jobs != enrolments(installed, OTHER)

    pod = {
        "metadata": {"name": "a-job", "labels": {"app.kubernetes.io/managed-by": "muster"}},
        "spec": {"nodeName": OTHER, "containers": [{"name": "main", "image": "example/none"}]},
    }
    installed.ask("POST", "/api/v1/namespaces/muster-jobs/pods", pod)
    busy = muster(installed, tmp_path, "nodes", "remove", OTHER)
    assert (busy.code, "`muster nodes drain deploy-b`: 1 pod\n" in busy.err) == (4, True)
    assert of_node(installed, OTHER) != []
    installed.ask("DELETE", "/api/v1/namespaces/muster-jobs/pods/a-job", {"gracePeriodSeconds": 0})
    removed = muster(installed, tmp_path, "nodes", "remove", OTHER)
    assert removed.code == 0, removed.err
    assert (generations(installed), users(installed), of_node(installed, OTHER)) == (
        begun,
        alone,
        [],
    )
    job = json.loads(installed.kubectl("get", "job", "bus", "-n", SYSTEM, "-o", "json"))
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-2:] == ["--remove", OTHER]
    installed.kubectl("delete", "node", OTHER)


def test_services_that_are_not_there_are_missing(
    installed: KubePlane, deploy: Deploy, key: tuple[str, str]
) -> None:
    """As after the second step of a restore."""
    installed.kubectl("scale", "deployment", "rest", "-n", SYSTEM, "--replicas=0")
    others = f"app.kubernetes.io/component=service,{APP}!=rest"
    installed.kubectl("delete", "deployment", "-n", SYSTEM, "-l", others)
    shown = deploy("status")
    lines = [line.split() for line in shown.out.splitlines()]
    missing = {line[0]: " ".join(line[2:4]) for line in lines if line[1:2] == ["missing"]}
    gone = dict.fromkeys(("alerting", "launcher", "scheduler"), "no Deployment")
    assert (shown.code, missing) == (8, gone | {"rest": "0 replicas"}), shown.out
    assert applied(deploy, *key).code == 0
    assert deploy("status").code == 0


def test_a_node_that_is_away_holds_up_no_apply(
    player: Player, installed: KubePlane, deploy: Deploy, key: tuple[str, str]
) -> None:
    away = {"metadata": {"name": OTHER}, "status": {"conditions": [IS_AWAY]}}
    installed.ask("POST", "/api/v1/nodes", away)
    player.held = ("enrol-",)
    ran = deploy("apply", "--yes", "--node", OTHER, "--timeout", "30s", *key)
    assert ran.code == 0, ran.err
    assert f"node/{OTHER}" in of_node(installed, OTHER)
    player.held = ()
    installed.kubectl("delete", "node", OTHER)


def test_a_node_that_is_gone_is_removed(
    installed: KubePlane, key: tuple[str, str], tmp_path: Path
) -> None:
    installed.ask("POST", "/api/v1/nodes", {"metadata": {"name": OTHER}})
    assert muster(installed, tmp_path, "nodes", "add", OTHER, *key).code == 0
    installed.kubectl("delete", "node", OTHER)
    for pod in of_node(installed, OTHER, "pods"):  # as Kubernetes' garbage collector, in a minute
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}"
        installed.ask("DELETE", path, {"gracePeriodSeconds": 0})
    removed = muster(installed, tmp_path, "nodes", "remove", OTHER)
    assert removed.code == 0, removed.err
    assert of_node(installed, OTHER) == []
    again = muster(installed, tmp_path, "nodes", "remove", OTHER)
    assert (again.code, "no node of Muster" in again.err) == (4, True)


def test_an_upgrade_stops_at_what_does_not_become_ready(
    installed: KubePlane, deploy: Deploy, key: tuple[str, str], tmp_path: Path
) -> None:
    lost = deploy("upgrade", "--yes", "--image", NEW)
    assert (lost.code, "Name that file by --key-file" in lost.err) == (2, True)
    (tmp_path / "short.key").write_text("too short\n")
    short = deploy("upgrade", "--yes", "--image", NEW, "--key-file", str(tmp_path / "short.key"))
    said = "short.key is not the key with which Muster was installed here. Name that file"
    assert (short.code, said in short.err, "openssl" in short.err) == (2, True, False)
    ran = deploy("upgrade", "--yes", "--image", NEW, "--step-image", NEW_STEP, *key)
    assert ran.code == 0, ran.err
    assert images(installed) == {NEW}
    assert max(map(len, deploy("status").out.splitlines())) <= 80

    assert applied(deploy, *key).code == 0
    assert images(installed) == {OLD}
    assert deploy("rollback", "--yes").code == 0
    assert images(installed) == {NEW}

    broken = deploy("upgrade", "--yes", "--image", "muster:broken", "--timeout", "3s", *key)
    assert (broken.code, "The step image stays" in broken.err) == (8, True)
    assert "Job bus: its container has not started. It did not become ready" in broken.err
    assert "describe pods -l batch.kubernetes.io/job-name=bus. " in broken.err
    assert "muster deploy rollback" in broken.err
    assert images(installed) == {NEW}

    back = deploy("rollback", "--yes")
    assert back.code == 0, back.err
    assert images(installed) == {NEW}
    assert "Job bus" not in back.err
    setup = "The Jobs `bus` and `migrate` are deleted and do not run."
    assert f"No object changes. {setup}\n" in back.out
    jobs = ("get", "jobs", "bus", "migrate", "-n", SYSTEM, "--ignore-not-found", "-o", "name")
    assert installed.kubectl(*jobs) == ""


def enrolments(plane: KubePlane, node: str) -> set[str]:
    """The uids of the Jobs that bring a node its credentials."""
    found = json.loads(plane.kubectl("get", "jobs", "-n", SYSTEM, "-o", "json"))["items"]
    return {
        each["metadata"]["uid"]
        for each in found
        if each["metadata"].get("annotations", {}).get("muster/node") == node
    }


def users(plane: KubePlane) -> set[str]:
    """Kafka's users."""
    found = json.loads(plane.kubectl("get", "secret", "bus-users", "-n", SYSTEM, "-o", "json"))
    return set(found["data"])


def of_node(plane: KubePlane, node: str, kinds: str = "secrets,jobs,pods") -> list[str]:
    """What Muster keeps of a node: its Secret, label, agent and Jobs."""
    labelled = plane.kubectl("get", "nodes", "-l", "muster/agent", "-o", "name").split()
    of_system = ("-n", SYSTEM, "-o", "json")
    found = json.loads(plane.kubectl("get", kinds, *of_system))["items"]
    return [
        *(each for each in labelled if each == f"node/{node}"),
        *(
            each["metadata"]["name"]
            for each in found
            if each["metadata"]["name"] == f"agent-{node}"
            or each["metadata"].get("annotations", {}).get("muster/node") == node
            or each["spec" if "spec" in each else "metadata"].get("nodeName") == node
        ),
    ]


def private_key_in(file: Path) -> str:
    """The new key of a rotation."""
    return file.read_text().splitlines()[0].removeprefix("MUSTER_SECRETS_KEYS=")


def keys_for_secrets(plane: KubePlane) -> tuple[str, str]:
    """The Launcher's private keys, and REST's public one."""
    found = []
    for name, entry in (("launcher", "muster_secrets_keys"), ("rest", "muster_secrets_public_key")):
        secret = json.loads(plane.kubectl("get", "secret", name, "-n", SYSTEM, "-o", "json"))
        found.append(decoded(secret, entry) or "")
    keys, public = found
    return keys, public


def generations(plane: KubePlane) -> dict[str, int]:
    """The number of changes of each Deployment, which starts its pods anew."""
    found = json.loads(plane.kubectl("get", "deployments", "-n", SYSTEM, "-o", "json"))["items"]
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}


def follow(plane: KubePlane, home: Path, *headings: str) -> None:
    """The commands below headings of docs/install.md, to the letter."""
    page = (ROOT / "docs/install.md").read_text()
    for name, program in (("kubectl", kube_programs.program("kubectl")), (".venv", ROOT / ".venv")):
        if not (home / name).exists():
            (home / name).symlink_to(program)
    known = {"PATH": f"{home}:{os.environ['PATH']}", "KUBECONFIG": str(plane.kubeconfig)}
    for heading in headings:
        commands = page.partition(heading)[2].partition("```sh\n")[2].partition("```")[0]
        subprocess.run(["bash", "-euc", commands], cwd=home, env=os.environ | known, check=True)
