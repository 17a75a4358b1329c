"""Jobs as pods of a Kubernetes node, through all five services."""

import contextlib
import hashlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from cli.embedded.broker import EmbeddedBroker
from kube_muster import (
    BASE,
    NODE,
    KubeMuster,
    a_kube_muster,
    bind_a_claim,
    size,
    until_nothing_is_left,
    with_pull_secret,
)
from kube_plane import KubePlane
from scheduler_watched import until
from whole_muster import a_job, eventually, until_there, with_data

pytestmark = [pytest.mark.k8s, pytest.mark.system, pytest.mark.timeout(size(600, 3600))]

QUICK = {"retry_backoff_first_s": 0.1}
PACKED_JOBS = size(20, 200)
PLACEMENTS = size(12, 500)


@pytest.fixture
async def kube(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> AsyncIterator[KubeMuster]:
    async with a_kube_muster(kube_plane, database_url, fresh_broker.bootstrap, tmp_path) as running:
        yield running


async def test_jobs_run_as_pods_show_how_they_end_and_leave_nothing(kube: KubeMuster) -> None:
    name = await kube.muster.submit(
        a_job("hello", "echo hello from $PAI_TASK_INDEX; test ! -e /muster/run/reply")
    )
    bad = await kube.muster.submit(a_job("bad", "echo oops >&2; exit 7"))
    assert await kube.muster.end_of(name) == "SUCCEEDED"
    assert await kube.muster.end_of(bad) == "FAILED"
    task = (await kube.muster.job(bad))["taskRoles"]["worker"]["taskStatuses"][0]
    assert task["containerExitCode"] == 7
    assert await kube.log_of(bad, "stderr") == "oops\n"
    await eventually(kube.muster.unsettled, lambda count: count == 0)
    await until(lambda: not kube.pods())


async def test_kubectl_shows_and_finds_whose_a_pod_is(kube: KubeMuster, tmp_path: Path) -> None:
    """Also where a label can't hold the job's name."""
    long = "n" * 80 + "_"
    for name in ("plain", long):
        await kube.muster.submit(a_job(name, until_there(tmp_path / "gate")))
    await until(lambda: len(kube.pods()) == 2)
    columns = ("user", "job-name", "virtual-cluster", "task-role", "task-index", "job-attempt")
    shown = [f"--label-columns={','.join(f'muster/{each}' for each in columns)}", "--no-headers"]
    select = ("get", "pods", "--namespace=muster-jobs", "--selector")
    line = kube.plane.kubectl(*select, "muster/user=admin,muster/job-name=plain", *shown)
    assert line.split()[-6:] == ["admin", "plain", "default", "worker", "0", "0"]
    others = kube.plane.kubectl(
        *select, "muster/user=admin,muster/job-name!=plain", "--output=json"
    )
    ((metadata),) = [each["metadata"] for each in json.loads(others)["items"]]
    assert metadata["annotations"]["muster/job-name"] == long
    (tmp_path / "gate").touch()


async def test_the_agent_did_what_its_rights_name_and_nothing_else(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """With a private image and a storage; somebody deletes the job's first pod by force."""
    ran, gate = tmp_path / "ran", tmp_path / "gate"
    job = with_pull_secret(a_job("audited", f"echo >> {ran}; {until_there(gate)}"))
    of_other_tests = len(kube_plane.audit())
    async with a_kube_muster(
        kube_plane, database_url, fresh_broker.bootstrap, tmp_path, launcher=QUICK
    ) as kube:
        await bind_a_claim(kube.plane, "audited", tmp_path)
        storage = {"claim": "audited"}
        made = await kube.muster.call("PUT", "/api/v2/storages/audited", json=storage)
        assert made.status_code == 201, made.text
        name = await kube.muster.submit(job + "extras: {storages: [{name: audited}]}\n")
        await until(ran.exists)
        (pod,) = kube.pods()
        path = f"/api/v1/namespaces/muster-jobs/pods/{pod['metadata']['name']}"
        kube.plane.ask("DELETE", path, {"gracePeriodSeconds": 0})
        await until(lambda: len(ran.read_text()) == 2)
        gate.touch()
        assert await kube.muster.end_of(name) == "SUCCEEDED"
        await until_nothing_is_left(kube.plane)
    account = "system:serviceaccount:muster-system:muster-agent"
    events = [
        event
        for event in kube_plane.audit()[of_other_tests:]
        if event["user"]["username"] == account
    ]
    assert {event["responseStatus"]["code"] for event in events} <= {200, 201, 404}
    asked = {(event["verb"], event["objectRef"]["resource"]) for event in events}
    # One right is for an admission plug-in that this API server does not have, and one for pods
    # whose volumes are not mounted in half a minute.
    unused = {("delete", "secrets"), ("list", "events")}
    assert asked == named_in(BASE / "agent-rights.yaml") - unused


def named_in(rights: Path) -> set[tuple[str, str]]:
    """The verbs of all roles in a file, each with its resource."""
    return {
        (verb, resource)
        for each in yaml.safe_load_all(rights.read_text())
        for rule in each.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def test_images_are_pulled_as_the_job_and_the_operator_say(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    pulls = {"kube_image_pull_policy": "IfNotPresent", "kube_step_pull_secret": True}
    gate = tmp_path / "gate"
    own = "extras: {muster: {taskRoles: {worker: {imagePullPolicy: Never}}}}\n"
    async with a_kube_muster(
        kube_plane, database_url, fresh_broker.bootstrap, tmp_path, runtime_agent=pulls
    ) as kube:
        jobs = [
            await kube.muster.submit(job)
            for job in (
                a_job("as-usual", until_there(gate)),
                a_job("as-written", until_there(gate)) + own,
                with_pull_secret(a_job("private", until_there(gate))),
            )
        ]
        await until(lambda: len(kube.pods()) == len(jobs))
        found = {}
        for pod in kube.pods():
            (main,) = pod["spec"]["containers"]
            secrets = [each["name"] for each in pod["spec"]["imagePullSecrets"]]
            assert secrets[-1] == "muster-step"
            found[main["imagePullPolicy"]] = secrets[:-1] == [pod["metadata"]["name"]]
        assert found == {"IfNotPresent": False, "Never": False, "Always": True}
        gate.touch()
        for job in jobs:
            assert await kube.muster.end_of(job) == "SUCCEEDED"


async def test_gangs_and_infiniband_get_the_network_and_the_cards_of_the_node(
    kube: KubeMuster, tmp_path: Path
) -> None:
    command = f"echo $PAI_HOST_IP_worker_0 >> {tmp_path}/addresses; sleep 1"
    name = await kube.muster.submit(a_job("gang", command, instances=3, gpus=2))
    assert await kube.muster.end_of(name) == "SUCCEEDED"
    assert (tmp_path / "addresses").read_text().split() == ["127.0.0.1"] * 3
    await until(lambda: not kube.pods())

    job = a_job("ib", until_there(tmp_path / "go"))
    options = "gpu: 0}\n    extraContainerOptions: {infiniband: true}"
    name = await kube.muster.submit(job.replace("gpu: 0}", options))
    await until(kube.pods)
    (pod,) = kube.pods()
    (main,) = pod["spec"]["containers"]
    (tmp_path / "go").touch()
    assert await kube.muster.end_of(name) == "SUCCEEDED"
    assert main["resources"]["limits"]["rdma/hca"] == "1"
    assert main["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert pod["metadata"]["namespace"] == "muster-jobs-host"


async def test_containers_get_the_gpus_that_the_scheduler_chose(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """NVIDIA's container runtime reads the variable of the container."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    mode = {"kube_gpu_mode": "visible-devices", "kube_runtime_class": ""}
    async with a_kube_muster(
        kube_plane, database_url, fresh_broker.bootstrap, tmp_path, runtime_agent=mode
    ) as kube:
        command = "tr \\\\0 \\\\n < /proc/1/environ | grep ^NVIDIA_VISIBLE_DEVICES="
        jobs = [
            await kube.muster.submit(a_job(f"j{n}", command, gpus=rng.choice((0, 1, 2, 4))))
            for n in range(PLACEMENTS)
        ]
        for job in jobs:
            assert await kube.muster.end_of(job) == "SUCCEEDED"
            task = (await kube.muster.job(job))["taskRoles"]["worker"]["taskStatuses"][0]
            mask = task["containerGpus"] or 0
            chosen = [f"SIMULATED-{NODE}-{gpu}" for gpu in range(8) if mask >> gpu & 1]
            given = ",".join(chosen) or "void"
            assert await kube.log_of(job) == f"NVIDIA_VISIBLE_DEVICES={given}\n"


async def test_a_stop_reaches_grandchildren_within_the_grace(
    kube: KubeMuster, tmp_path: Path
) -> None:
    on_term = f'trap "touch {tmp_path}/ended; exit 0" TERM'
    inner = f"{on_term}; touch {tmp_path}/began; while :; do sleep 0.1; done"
    script = tmp_path / "inner.sh"
    script.write_text(inner)
    name = await kube.muster.submit(a_job("long", f"trap : TERM; bash {script} & wait || wait"))
    await until((tmp_path / "began").exists)
    answer = await kube.muster.call(
        "PUT", f"/api/v2/jobs/{name}/executionType", json={"value": "STOP"}
    )
    assert answer.status_code == 202
    assert await kube.muster.end_of(name) == "STOPPED"
    assert (tmp_path / "ended").exists()


async def test_a_job_mounts_folders_of_its_user_and_project_and_one_of_all(
    kube: KubeMuster, tmp_path: Path
) -> None:
    files, at = tmp_path / "volume", tmp_path / "at"
    (files / "sets" / "digits").mkdir(parents=True)
    (files / "sets" / "digits" / "one").write_text("hello")
    await bind_a_claim(kube.plane, "shared", files)
    for name, folder, is_read_only in (
        ("home", "users/{user}", False),
        ("project", "projects/{virtualCluster}", False),
        ("all", "sets", True),
    ):
        storage = {"claim": "shared", "subPath": folder, "readOnly": is_read_only}
        made = await kube.muster.call("PUT", f"/api/v2/storages/{name}", json=storage)
        assert made.status_code == 201, made.text
    mounts = "".join(f"{{name: {n}, mountPath: {at}/{n}}}, " for n in ("home", "project", "all"))
    one = "<% $data.uri[0] %>/one"
    command = f"cp {one} {at}/home; cp {one} {at}/project; ! touch {at}/all/x"
    file = with_data(a_job("store", command), "storage://all/digits")
    name = await kube.muster.submit(file + f"extras: {{storages: [{mounts}]}}\n")
    assert await kube.muster.end_of(name) == "SUCCEEDED"
    for folder in ("users/admin", "projects/default"):
        assert (files / folder / "one").read_text() == "hello"


async def test_a_claim_that_is_not_bound_ends_the_task_where_rest_reads_none(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with a_kube_muster(
        kube_plane, database_url, fresh_broker.bootstrap, tmp_path, rest={"kube_api_url": None}
    ) as kube:
        storage = {"claim": "nowhere"}
        made = await kube.muster.call("PUT", "/api/v2/storages/lost", json=storage)
        assert made.status_code == 201, made.text
        extras = "extras: {storages: [{name: lost}]}\n"
        name = await kube.muster.submit(a_job("lost", "true") + extras)
        assert await kube.muster.end_of(name) == "FAILED"
        task = (await kube.muster.job(name))["taskRoles"]["worker"]["taskStatuses"][0]
        assert "The claim nowhere does not exist" in str(task)


async def test_a_secret_reaches_its_task_and_neither_etcd_nor_the_audit_log(
    kube: KubeMuster, tmp_path: Path
) -> None:
    token, go = "marker-90c1fe-token", tmp_path / "go"
    command = f'printf %s "<% $secrets.token %>" | sha256sum; {until_there(go)}'
    name = await kube.muster.submit(a_job("secret", command) + f"secrets: {{token: {token}}}\n")
    await eventually(lambda: kube.muster.state(name), lambda state: state == "RUNNING")
    assert token not in json.dumps(kube.pods())
    processes = of_all_processes("cmdline")
    go.touch()
    assert await kube.muster.end_of(name) == "SUCCEEDED"
    assert hashlib.sha256(token.encode()).hexdigest() in await kube.log_of(name)
    plane = kube.plane.home
    kept = [path for path in plane.rglob("*") if path.is_file() and _has(path, token)]
    assert not kept
    assert token.encode() not in processes


def of_all_processes(what: str) -> bytes:
    """A file of /proc, of every process of the machine."""
    found = b""
    for path in Path("/proc").glob(f"[0-9]*/{what}"):
        with contextlib.suppress(OSError):
            found += path.read_bytes()
    return found


def _has(path: Path, text: str) -> bool:
    return text.encode() in path.read_bytes()


async def test_jobs_beside_other_peoples_pods_never_ask_for_more_than_is_free(
    kube_plane: KubePlane, database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """kubelet refuses a pod that asks for more than its node has; here it never has to."""
    async with a_kube_muster(
        kube_plane,
        database_url,
        fresh_broker.bootstrap,
        tmp_path,
        runtime_agent={"cpu": None, "fake_gpus": 0},
    ) as kube:
        requests = {"cpu": "2500m", "memory": "1Gi"}
        container = {"name": "c", "image": "an/image", "command": ["sleep", "3600"]}
        spec = {
            "nodeName": kube.kubelet.settings.node,
            "containers": [container | {"resources": {"requests": requests}}],
        }
        foreign = {"metadata": {"name": "foreign"}, "spec": spec}
        pods = "/api/v1/namespaces/default/pods"
        assert kube.plane.ask("POST", pods, foreign)[0] == 201

        async def held() -> int:
            (node,) = (await kube.muster.call("GET", "/api/v2/cluster/nodes")).json()["nodes"]
            return int(node["cpuForeign"])

        await eventually(held, lambda cpus: cpus > 0)
        jobs = [await kube.muster.submit(a_job(f"j{n}", "true")) for n in range(PACKED_JOBS)]
        for job in jobs:
            assert await kube.muster.end_of(job) == "SUCCEEDED"
            retries = (await kube.muster.job(job))["jobStatus"]["retryDetails"]
            assert retries == {"user": 0, "platform": 0, "resource": 0}

        async def drained() -> str:
            order = f"/api/v2/cluster/nodes/{NODE}/order"
            return str((await kube.muster.call("PUT", order, json={"value": "drain"})).json())

        await eventually(drained, lambda answer: "no pod is there" in answer)
        kube.plane.ask("DELETE", f"{pods}/foreign?gracePeriodSeconds=0")
