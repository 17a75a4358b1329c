"""Any part of Muster or of Kubernetes is killed at any moment, amid jobs: nothing runs twice."""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kube_muster import NODE, a_kubelet, agent_token, grant, size
from kube_plane import KubePlane
from kubelet_double import KubeletDouble
from muster_up import Up, states_of_jobs, up
from scheduler_watched import until

pytestmark = [pytest.mark.k8s, pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(3600)]

JOBS = size(20, 50)
KILLS = size(10, 100)
WAIT_S = 900.0
SERVICES = ("runtime-agent", "launcher", "scheduler")
PARTS = (*SERVICES, "kubelet", "api", "etcd")

JOB = """protocolVersion: 2
name: {name}
type: job
prerequisites: [{{type: dockerimage, name: i, uri: an/image}}]
taskRoles:
  worker:
    dockerImage: i
    instances: {instances}
    resourcePerInstance: {{cpu: 0, memoryMB: 32, gpu: {gpus}}}
    commands:
      - 'echo "$MUSTER_POD" >> {marks}; sleep {seconds}'
"""


def kill(part: str, one: Up, plane: KubePlane, kubelet: KubeletDouble) -> None:
    """SIGKILL; what is not restarted by `muster up` starts again at once."""
    match part:
        case "kubelet":
            kubelet.kill()
            kubelet.start()
        case "api":
            plane.api.kill()
            plane.api.start()
        case "etcd":
            plane.etcd.kill()
            plane.etcd.start()
        case service:
            one.send(service, signal.SIGKILL)


def objects(plane: KubePlane, kind: str) -> list[Any]:
    """Of Muster, in all namespaces."""
    query = "labelSelector=app.kubernetes.io/managed-by%3Dmuster"
    return list(plane.ask("GET", f"/api/v1/{kind}?{query}")[1].get("items", ["?"]))


async def test_each_command_runs_once_and_each_job_ends_right_whatever_is_killed(
    kube_plane: KubePlane, tmp_path: Path
) -> None:
    seed = int(os.environ.get("MUSTER_TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    marks = tmp_path / "marks"
    grant(kube_plane)
    with a_kubelet(kube_plane, tmp_path / "kubelet") as kubelet:
        config = kube_plane.write_kubeconfig(tmp_path / "kube.json", token=agent_token(kube_plane))
        agent = {
            "MUSTER_NODE": NODE,
            "MUSTER_RUNNER": "kubernetes",
            "MUSTER_KUBE_CONFIG": str(config),
            "MUSTER_KUBE_STEP_IMAGE": "muster-step:test",
            "MUSTER_KUBE_HOST_NETWORK": "default",
            "MUSTER_KUBE_LOGS": str(kubelet.home / "log" / "pods"),
            "MUSTER_KUBE_PODS": str(kubelet.home / "pods"),
        }
        async with up(tmp_path / "home", **agent) as (one, http):
            wanted: dict[str, str] = {}
            for number in range(JOBS):
                name = f"job-{number}"
                text = JOB.format(
                    name=name, instances=1 + number % 3, gpus=number % 2, marks=marks,
                    seconds=number % 4,
                )  # fmt: skip
                answer = await http.call("POST", "/api/v2/jobs", text.encode(), "text/yaml")
                assert answer.status == 202, answer.body
                wanted[name] = "SUCCEEDED"
            for _ in range(KILLS):
                await asyncio.sleep(rng.uniform(0.2, 3.0))
                part = rng.choice(PARTS)
                print(f"killed {part}", end="; ")
                kill(part, one, kube_plane, kubelet)
            states: dict[str, str] = {}
            try:
                async with asyncio.timeout(WAIT_S):
                    while states != wanted:
                        await asyncio.sleep(0.5)
                        states = await states_of_jobs(http, JOBS * 2) or states
            except TimeoutError:
                print(one.account())
                wrong = {
                    name: states.get(name) for name in wanted if states.get(name) != "SUCCEEDED"
                }
                pytest.fail(f"seed {seed}: not as they should be: {wrong}")
            await until(lambda: not objects(kube_plane, "pods"))
            assert not objects(kube_plane, "secrets")
    runs = Counter(marks.read_text().split())
    assert not [pod for pod, count in runs.items() if count > 1], f"seed {seed}: a pod ran twice"
