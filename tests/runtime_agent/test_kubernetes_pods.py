"""The Kubernetes runner over an API server in memory: the table of what can become of a pod."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import shlex
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kube_world import JOB, OTHER_NONCE, World, a_run
from muster.contracts.pods import PodRun
from muster.contracts.secrets import PodSecrets, PullCredentials
from muster.contracts.storages import StorageMount
from muster.sealing import seal
from pod_api_double import PodApiDouble
from runtime_agent.domain.kubernetes.manifest import Given, Identity, manifest
from runtime_agent.domain.kubernetes.node import offer_of, requests_of
from runtime_agent.domain.kubernetes.status import ending, observed
from runtime_agent.domain.pods import Phase, Pod
from runtime_agent.domain.verdict import judge
from runtime_agent.kubernetes.api import Change, Refused, Unavailable
from runtime_agent.supervisor.records import SPEC_FILE


@pytest.fixture
def api() -> PodApiDouble:
    return PodApiDouble()


@pytest.fixture
async def world(tmp_path: Path, api: PodApiDouble) -> AsyncIterator[World]:
    world = World(tmp_path, api)
    yield world
    await world.stop()


async def test_a_task_runs_to_its_end_with_two_calls(world: World, api: PodApiDouble) -> None:
    body = await world.running()
    assert world.pod().phase is Phase.RUNNING
    api.ended(body, 0)
    await world.until(lambda: world.rule() == "succeeded" and not api.objects)
    assert [verb for verb, _name in api.calls] == ["create", "delete"]


async def test_the_object_has_no_command_and_waits_for_its_own_node_only(world: World) -> None:
    body = await world.created()
    assert "echo" not in str(body)
    assert body["spec"]["nodeName"] == "n"
    assert body["metadata"]["namespace"] == "jobs"
    assert body["spec"]["automountServiceAccountToken"] is False


async def test_tasks_with_peers_are_on_the_host_network(world: World, api: PodApiDouble) -> None:
    world.accept(run=a_run(instances=2))
    await world.until(lambda: api.objects)
    assert api.only()["metadata"]["namespace"] == "jobs-host"
    assert api.only()["spec"]["hostNetwork"] is True


async def test_storages_are_folders_of_their_claims(world: World, api: PodApiDouble) -> None:
    home = StorageMount(name="h", mount_path="/mnt/h", claim="all", sub_path="users/u")
    data = StorageMount(name="d", mount_path="/data", claim="all", host_path="/srv", read_only=True)
    api.claims["jobs", "all"] = "Bound"
    world.accept(run=a_run(mounts=(home, data)))
    await world.until(lambda: api.objects)
    spec = api.only()["spec"]
    (volume,) = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
    assert volume["persistentVolumeClaim"] == {"claimName": "all"}
    of = volume["name"]
    assert [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == of] == [
        {"name": of, "mountPath": "/mnt/h", "readOnly": False, "subPath": "users/u"},
        {"name": of, "mountPath": "/data", "readOnly": True},
    ]


@pytest.mark.parametrize(
    ("storage", "claims", "why"),
    [
        ({"host_path": "/srv"}, {}, "The storage s has no claim for Kubernetes nodes"),
        ({"claim": "c"}, {}, "The claim c does not exist in the namespace jobs"),
        ({"claim": "c"}, {("jobs", "c"): "Pending"}, "is Pending, not Bound"),
        ({"claim": "c"}, {("jobs-host", "c"): "Bound"}, "does not exist"),
    ],
)
async def test_a_storage_that_can_not_be_mounted_fails_the_pod_at_once(
    world: World,
    api: PodApiDouble,
    storage: dict[str, str],
    claims: dict[tuple[str, str], str],
    why: str,
) -> None:
    api.claims = claims
    world.accept(run=a_run(mounts=(StorageMount(name="s", mount_path="/mnt/s", **storage),)))
    await world.until(lambda: world.rule() == "no-storage")
    assert why in world.verdict()["cause"]
    assert not api.objects


async def test_a_virtual_cluster_without_permission_gets_no_host_network(
    world: World, api: PodApiDouble
) -> None:
    world.accept(run=a_run(instances=2).model_copy(update={"virtual_cluster": "strangers"}))
    await world.until(lambda: world.rule() == "no-host-network")
    assert not api.objects
    assert world.verdict()["fault"] == "platform"  # REST accepted it: an operator changed a setting
    said = "MUSTER_KUBE_HOST_NETWORK of the node's agent does not name strangers."
    assert f"{said} Virtual clusters that may: default." in world.verdict()["cause"]
    world.accept("pod-2", a_run().model_copy(update={"virtual_cluster": "strangers"}))
    await world.until(lambda: api.objects)


CARDS = {"rdma/hca_a": "4", "rdma/hca_b": "6", "example.com/fpga": "2", "nvidia.com/gpu": "8"}


async def test_a_task_with_rdma_gets_one_of_each_card_and_may_lock_memory(
    world: World, api: PodApiDouble
) -> None:
    api.node["status"]["allocatable"] |= CARDS
    resources = {"rdma": 1, "example.com/fpga": 2, "licence": 5}
    world.accept(run=a_run(resources=resources))
    await world.until(lambda: api.objects)
    body = api.only()
    (main,), (step,) = body["spec"]["containers"], body["spec"]["initContainers"]
    assert main["resources"]["limits"] == main["resources"]["requests"] == {
        "rdma/hca_a": "1", "rdma/hca_b": "1", "example.com/fpga": "2", "cpu": "1", "memory": "64Mi",
    }  # fmt: skip
    assert step["resources"]["limits"] == {"cpu": "1", "memory": "64Mi"}
    assert main["securityContext"]["capabilities"] == {"drop": ["NET_RAW"], "add": ["IPC_LOCK"]}
    assert step["securityContext"]["capabilities"] == {"drop": ["NET_RAW"]}
    assert (body["metadata"]["namespace"], body["spec"]["hostNetwork"]) == ("jobs-host", False)
    assert world.runner.offer().resources == {"rdma": 4, "example.com/fpga": 2}


async def test_a_task_without_rdma_locks_no_memory(world: World, api: PodApiDouble) -> None:
    api.node["status"]["allocatable"] |= CARDS
    world.accept(run=a_run(resources={"example.com/fpga": 1, "rdma": 0}))
    await world.until(lambda: api.objects)
    assert "add" not in api.only()["spec"]["containers"][0]["securityContext"]["capabilities"]
    assert api.only()["metadata"]["namespace"] == "jobs"


@pytest.mark.parametrize("name", ["rdma", "example.com/other", "nvidia.com/gpu"])
async def test_a_resource_that_the_node_has_nothing_of_sends_the_task_elsewhere(
    world: World, api: PodApiDouble, name: str
) -> None:
    api.node["status"]["allocatable"] |= {"nvidia.com/gpu": "8"}
    world.accept(run=a_run(resources={name: 1}))
    await world.until(lambda: world.rule() == "out-of-resources")
    assert f"has no resource {name}." in world.verdict()["cause"]
    assert not api.objects


async def test_a_virtual_cluster_without_permission_gets_no_rdma(world: World) -> None:
    run = a_run(resources={"rdma": 1}).model_copy(update={"virtual_cluster": "others"})
    world.accept(run=run)
    await world.until(lambda: world.rule() == "no-host-network")


async def test_the_answer_to_a_permit_has_environment_and_command(world: World) -> None:
    await world.created()
    text = (await world.permit()).text
    assert "export MUSTER_POD=pod-1\n" in text
    assert f" {shlex.quote(a_run().command)} > /muster/run/command" in text
    assert "PAI_TASK_ROLE_TASK_COUNT_w-1=1" in text  # no shell exports such a name
    assert "export PAI_TASK_ROLE_TASK_COUNT_w-1" not in text


async def begin(world: World, folder: Path, **environment: str) -> tuple[bytes, int | None]:
    """Output and exit code of the permitted command, in a container with this environment."""
    text = (await world.permit()).text.replace("/muster/bin/busybox ", "")
    begun = await asyncio.create_subprocess_exec(
        *("sh", "-c", text.replace("/muster/run", str(folder))),
        env={"PATH": os.environ["PATH"], **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await begun.communicate()
    return output, begun.returncode


async def test_the_commands_options_do_not_bind_what_the_images_bash_reads_first(
    world: World, tmp_path: Path
) -> None:
    """NVIDIA's images have bash read a file that uses variables that may not be set."""
    first = tmp_path / "bashrc"
    first.write_text("PATHS=$UNSET:/opt\nfalse | true\nexport NAME=value\n")
    command = "echo $NAME\nfalse | echo on\necho over"
    await world.created(run=a_run().model_copy(update={"command": command}))
    assert await begin(world, tmp_path, BASH_ENV=str(first)) == (b"value\non\n", 1)


async def test_the_command_sees_nothing_of_what_asked_for_its_permit(
    world: World, tmp_path: Path
) -> None:
    pod = await world.created(run=a_run().model_copy(update={"command": "env"}))
    (main,) = pod["spec"]["containers"]
    of_image = {"HOST_IP": "of the image", "MINE": "of the image"}
    of_pod = {variable["name"]: "of the pod" for variable in main["env"]}
    output, _ = await begin(world, tmp_path, **of_image | of_pod)
    assert output.count(b"=of the image\n") == 2
    assert b"=of the pod\n" not in output


async def test_one_nonce_gets_the_same_answer_and_another_one_none(world: World) -> None:
    await world.created()
    first = await world.permit()
    assert first.status_code == 200
    assert (await world.permit()).text == first.text
    assert (await world.permit(OTHER_NONCE)).status_code == 410
    await world.restart()
    await world.until(world.runner._mirror.pods_known.is_set)
    assert (await world.permit()).text == first.text
    assert (await world.permit(OTHER_NONCE)).status_code == 410


@pytest.mark.parametrize("ticket", ["", "0" * 32])
async def test_a_wrong_ticket_gets_no_permit(world: World, ticket: str) -> None:
    await world.created()
    assert (await world.permit(ticket=ticket)).status_code == 410
    assert world.pod().phase is Phase.ACCEPTED


@pytest.mark.parametrize("name", ["pod-2", ".", "%00", "a%2Fb"])
async def test_an_unknown_pod_gets_no_permit(world: World, name: str) -> None:
    assert (await world.permit(name=name, ticket="x")).status_code in (404, 410)


async def test_no_container_begins_while_the_bus_may_have_a_stop_for_it(world: World) -> None:
    await world.created()
    world.caught_up.clear()
    assert (await world.permit()).status_code == 503
    assert world.pod().phase is Phase.ACCEPTED
    world.caught_up.set()
    assert (await world.permit()).status_code == 200


async def test_a_boot_between_ends_the_permit(world: World, api: PodApiDouble) -> None:
    body = await world.running()
    record = world.runner.record("pod-1")
    assert record is not None
    world.runner.keep(replace(record, boot="an earlier one"))
    assert (await world.permit()).status_code == 410
    await world.until(lambda: world.rule() == "node-rebooted")
    await world.until(lambda: "deletionTimestamp" in body["metadata"])


async def test_a_create_whose_answer_is_lost_makes_one_object(
    world: World, api: PodApiDouble
) -> None:
    await world.until(world.runner._mirror.pods_known.is_set)
    api.is_deaf = api.is_paused = True
    world.accept()
    await world.until(lambda: [verb for verb, _name in api.calls] == ["create", "create", "read"])
    assert len(api.objects) == 1
    assert (await world.permit()).status_code == 200


async def test_a_late_create_of_a_stopped_pod_never_runs(world: World, api: PodApiDouble) -> None:
    late: list[dict[str, Any]] = []

    def hold(verb: str) -> Exception | None:
        return Unavailable("no answer") if verb == "create" else None

    api.failing = hold
    world.accept()
    await world.until(lambda: api.calls)
    record = world.runner.record("pod-1")
    world.ask_to_stop()
    await world.until(lambda: world.rule() == "stopped")
    api.failing = lambda _verb: None
    assert record is not None
    pod = Pod("pod-1", JOB, f"{JOB}-0", Phase.ACCEPTED, a_run())
    who = Identity("n", "id", record.ticket)
    late.append(await api.create(manifest(pod, a_run(), who, world.runner.rules, Given())))
    assert (await world.permit(ticket=record.ticket)).status_code == 410
    await world.until(
        lambda: "deletionTimestamp" in api.only()["metadata"]
    )  # kubelet ends the waiting container


async def test_a_stop_ends_with_the_containers_own_code(world: World, api: PodApiDouble) -> None:
    body = await world.running()
    world.ask_to_stop(grace_s=7.0)
    await world.until(lambda: "deletionTimestamp" in api.only()["metadata"])
    assert body["metadata"]["deletionGracePeriodSeconds"] == 7
    api.ended(body, 143)
    api.drop(("jobs", body["metadata"]["name"]))
    await world.until(lambda: world.rule() == "stopped")


async def test_a_shorter_grace_is_asked_for_again(world: World, api: PodApiDouble) -> None:
    body = await world.running()
    for grace_s in (60.0, 3.0, 60.0):
        world.ask_to_stop(grace_s=grace_s)
        await world.until(
            lambda: api.only()["metadata"].get("deletionGracePeriodSeconds", 99) <= grace_s  # noqa: B023
        )
    assert body["metadata"]["deletionGracePeriodSeconds"] == 3


@pytest.mark.parametrize(
    ("error", "rule"),
    [(Refused("Pod is invalid"), "rejected"), (Refused("violates PodSecurity"), "rejected")],
)
async def test_what_the_server_refuses_fails_with_its_words(
    world: World, api: PodApiDouble, error: Exception, rule: str
) -> None:
    api.failing = lambda verb: error if verb == "create" else None
    world.accept()
    await world.until(lambda: world.rule() == rule)
    assert str(error) in str(world.journal.load(["pod-1"])["pod-1"].subject.message)


async def test_while_the_server_is_away_launches_wait_and_nothing_fails(
    world: World, api: PodApiDouble
) -> None:
    await world.running("pod-0")
    api.failing = lambda _verb: Unavailable("away", 0.01)
    world.accept("pod-1")
    await world.until(lambda: ("create", api.calls[-1][1]) in api.calls[1:])
    assert (world.pod("pod-0").phase, world.pod("pod-1").phase) == (Phase.RUNNING, Phase.ACCEPTED)
    api.failing = lambda _verb: None
    await world.until(lambda: len(api.objects) == 2)


async def test_what_holds_a_pod_up_is_published_once_and_until_it_is_over(
    world: World, api: PodApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime_agent.kubernetes.runner.RETRY_S", 0.001)
    api.failing = lambda _verb: Unavailable("exceeded quota: few, limited: pods=1")
    world.accept()
    await world.until(world.reason)
    assert world.message()["state"] == "accepted"
    words = "exceeded quota: few, limited: pods=1"
    why = f"not-taken: The pod can't be created in Kubernetes yet: {words}"
    assert world.reason() == why
    await world.until(lambda: len(api.calls) > 5)
    assert (world.reason(), world.revision()) == (why, 1)
    api.failing = lambda _verb: Unavailable("too many requests")
    await world.until(lambda: world.reason().endswith("too many requests"))
    await world.restart()
    api.failing = lambda _verb: None
    await world.until(lambda: not world.reason())
    assert (world.message()["state"], world.revision()) == ("accepted", 3)


async def test_a_request_is_not_made_again_before_the_server_allows_it(
    world: World, api: PodApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime_agent.kubernetes.runner.RETRY_S", 0.001)
    monkeypatch.setattr("runtime_agent.kubernetes.runner.LONGEST_RETRY_S", 0.001)
    api.failing = lambda _verb: Unavailable("too many requests", 3600.0)
    world.accept("pod-1")
    await world.until(lambda: api.calls)
    api.failing = lambda _verb: Unavailable("away")
    world.accept("pod-2")
    await world.until(lambda: len(api.calls) > 10)
    first, *others = [name for _verb, name in api.calls]
    assert first not in others


async def test_a_pod_whose_gpu_has_gone_runs_elsewhere(world: World, api: PodApiDouble) -> None:
    world.accept(run=a_run().model_copy(update={"gpus": (0, 64)}))
    await world.until(lambda: world.rule() == "out-of-resources")
    assert world.verdict()["cause"].endswith("The node has no GPU 64 any more.")
    assert (world.verdict()["behavior"], api.objects) == ("transient", {})


async def test_a_pod_that_starts_at_once_has_one_message(world: World) -> None:
    await world.running()
    assert (world.message()["state"], world.revision()) == ("running", 1)


async def test_an_image_that_is_not_pulled_yet_is_told_until_the_pod_runs(
    world: World, api: PodApiDouble
) -> None:
    body = await world.created()
    error = "dial tcp: no such host"
    for _ in range(3):
        api.waiting(body, "ErrImagePull", error)
        await world.until(lambda: world.observed(body).text)
        api.waiting(body, "ImagePullBackOff", f"Back-off: {error}")
        await world.until(world.reason)
    assert world.reason() == f"image-not-pulled: ImagePullBackOff: Back-off: {error}"
    assert world.revision() == 1
    api.running(body)
    await world.permit()
    assert (world.message()["state"], world.reason()) == ("running", "")


@pytest.mark.parametrize(
    ("is_running", "why"),
    [(False, "its image may still be pulled"), (True, "a firewall or a network policy")],
)
async def test_a_start_that_takes_long_is_told(
    world: World,
    api: PodApiDouble,
    monkeypatch: pytest.MonkeyPatch,
    is_running: bool,
    why: str,
) -> None:
    body = await world.created()
    monkeypatch.setattr("runtime_agent.domain.kubernetes.status.SLOW_S", -60.0)
    api.running(body) if is_running else api.waiting(body, "ContainerCreating")
    await world.until(lambda: why in world.reason())
    assert world.reason().startswith("not-started: ")


async def test_what_is_told_of_a_wait_has_no_secret(world: World, api: PodApiDouble) -> None:
    api.failing = lambda _verb: Unavailable("the webhook did not like s3cr3t")
    world.accept(run=sealed(world))
    await world.until(world.reason)
    assert world.reason().endswith("the webhook did not like ******")


async def test_another_object_of_that_name_fails_the_pod_for_good(
    world: World, api: PodApiDouble
) -> None:
    body = await world.created()
    await world.restart()
    other = {**body, "metadata": {**body["metadata"], "annotations": {}, "uid": "other"}}
    api.put(other)
    await world.until(lambda: world.rule() == "name-taken")


@pytest.mark.parametrize(
    ("reason", "message", "rule"),
    [
        ("OutOfcpu", "Node didn't have enough resource: cpu", "out-of-resources"),
        ("OutOfmemory", "", "out-of-resources"),
        ("TaintToleration", "", "not-admitted"),
        ("UnexpectedAdmissionError", "", "not-admitted"),
    ],
)
async def test_what_kubelet_does_not_take_is_tried_elsewhere(
    world: World, api: PodApiDouble, reason: str, message: str, rule: str
) -> None:
    api.failed(await world.created(), reason, message)
    await world.until(lambda: world.rule() == rule and not api.objects)


@pytest.mark.parametrize(
    ("reason", "rule"),
    [("Evicted", "evicted"), ("Preempting", "displaced"), ("NodeShutdown", "node-shutdown"),
     ("Terminated", "node-shutdown")],
)  # fmt: skip
async def test_what_kubernetes_ends_costs_no_retry(
    world: World, api: PodApiDouble, reason: str, rule: str
) -> None:
    api.failed(await world.running(), reason)
    await world.until(lambda: world.rule() == rule and not api.objects)


SHORT = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 46993491787, available:"
    " 45494108Ki. "
)
LARGER = "has larger consumption of ephemeral-storage. "


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ('Container main exceeded its local ephemeral storage limit "10Gi". ', "disk-limit"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. ",
         "disk-limit"),
        (f"{SHORT}Container main was using 45100Mi, request is 0, {LARGER}", "disk-filled"),
        (f"{SHORT}Container main was using 108Ki, request is 0, {LARGER}", "evicted"),
        (f"{SHORT}Container step was using 45100Mi, request is 0, {LARGER}", "evicted"),
        (f"{SHORT}Container main was using much, request is 0, {LARGER}", "evicted"),
        (SHORT, "evicted"),
    ],
)  # fmt: skip
async def test_an_eviction_for_the_pods_own_use_of_disk_is_told_apart(
    world: World, api: PodApiDouble, message: str, rule: str
) -> None:
    api.failed(await world.running(), "Evicted", message)
    await world.until(lambda: world.rule() == rule and not api.objects)


async def test_a_pod_that_is_deleted_by_hand_is_lost(world: World, api: PodApiDouble) -> None:
    body = await world.running()
    api.drop(("jobs", body["metadata"]["name"]))
    await world.until(lambda: world.rule() == "deleted")


async def test_a_deletion_that_no_watch_has_shown_is_found_by_the_next_list(
    world: World, api: PodApiDouble
) -> None:
    body = await world.running()
    del api.objects["jobs", body["metadata"]["name"]]
    api.relist()
    await world.until(lambda: world.rule() == "deleted")


async def test_an_object_that_an_older_list_lacks_is_not_lost(
    world: World, api: PodApiDouble
) -> None:
    body = await world.running()
    key = ("jobs", body["metadata"]["name"])
    kept = api.objects.pop(key)
    api.relist()
    api.objects[key] = kept
    await world.until(lambda: ("read", key[1]) in api.calls and key in world.runner._mirror.objects)
    assert world.pod().phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("reason", "message", "rule"),
    [
        ("InvalidImageName", "couldn't parse image name", "image-denied"),
        ("ImagePullBackOff", "manifest for x not found", "image-denied"),
        ("ImagePullBackOff", "pull access denied", "image-denied"),
    ],
)
async def test_an_image_that_no_registry_gives_is_the_users(
    world: World, api: PodApiDouble, reason: str, message: str, rule: str
) -> None:
    api.waiting(await world.created(), reason, message)
    await world.until(lambda: world.rule() == rule)


async def test_an_image_that_can_not_be_pulled_for_long_is_the_platforms(
    world: World, api: PodApiDouble
) -> None:
    body = await world.created()
    api.waiting(body, "ImagePullBackOff", 'image "x/denied": dial tcp: no such host')
    for _ in range(3):
        world.watch.look(None)
        await asyncio.sleep(0)
    assert world.rule() is None
    body["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    api.waiting(body, "ErrImagePull", "dial tcp: i/o timeout")
    await world.until(lambda: world.rule() == "image-not-pulled")


IN_USE = 'Multi-Attach error for volume "pv-all" Volume is already used by pod(s) other'
HANGS = "Unable to attach or mount volumes: unmounted volumes=[storage-0]: timed out"


async def hanging(world: World, api: PodApiDouble, *told: tuple[str, str]) -> dict[str, Any]:
    """A pod with a storage that does not start for a minute, of which Kubernetes tells this."""
    api.claims["jobs", "all"] = "Bound"
    home = StorageMount(name="home", mount_path="/mnt/h", claim="all")
    body = await world.created(run=a_run(mounts=(home,)))
    about = {"involvedObject": {"uid": body["metadata"]["uid"]}}
    api.told = [
        about | {"reason": reason, "message": text, "lastTimestamp": f"2026-01-01T00:00:0{at}Z"}
        for at, (reason, text) in enumerate(told)
    ]
    a_minute_ago = datetime.fromtimestamp(time.time() - 60, UTC)
    body["metadata"]["creationTimestamp"] = a_minute_ago.isoformat()
    api.waiting(body, "ContainerCreating")
    return body


@pytest.mark.parametrize(
    ("reason", "text"), [("FailedAttachVolume", IN_USE), ("FailedMount", HANGS)]
)
async def test_a_volume_that_is_not_mounted_is_named_while_the_pod_waits_and_at_its_end(
    world: World, api: PodApiDouble, reason: str, text: str
) -> None:
    await hanging(world, api, (reason, "an older word"), (reason, text))
    await world.until(world.reason)
    why = world.reason()
    assert why.startswith(f"storage-not-mounted: {reason}: {text}. ")
    assert "pv-all is the claim all of the storage home." in why
    assert "ReadWriteOnce" in why  # so that the user knows what to change
    world.runner.settings = world.settings.model_copy(update={"image_wait_s": 1.0})
    await world.until(lambda: world.rule() == "storage-not-mounted")
    assert why.removeprefix("storage-not-mounted: ") in world.verdict()["cause"]


async def test_a_volume_that_is_mounted_by_now_is_no_reason(
    world: World, api: PodApiDouble
) -> None:
    await hanging(world, api, ("FailedAttachVolume", IN_USE), ("Pulling", "Pulling image"))
    await world.until(world.reason)
    assert world.reason().startswith("not-started: ")


async def test_a_pod_waits_on_where_its_events_can_not_be_read(
    world: World, api: PodApiDouble
) -> None:
    api.failing = lambda verb: Unavailable("forbidden") if verb == "events" else None
    await hanging(world, api, ("FailedAttachVolume", IN_USE))
    await world.until(world.reason)
    assert world.reason().startswith("not-started: ")
    world.ask_to_stop()
    await world.until(lambda: world.rule() == "stopped")
    await world.until(lambda: "deletionTimestamp" in api.only()["metadata"])


async def test_a_pod_is_not_given_up_for_the_time_without_the_api_server(
    world: World, api: PodApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def a_look() -> None:
        for _ in range(3):
            world.watch.look(None)
            await asyncio.sleep(0)

    silence = "runtime_agent.kubernetes.mirror.WATCH_SILENCE_S"
    body = await world.created()
    monkeypatch.setattr(silence, -1.0)  # so the last list is long ago
    body["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    api.waiting(body, "ContainerCreating")
    await a_look()
    assert world.rule() is None
    api.relist()
    await a_look()
    monkeypatch.setattr(silence, 330.0)  # it is back, and kubelet has time again
    await a_look()
    assert world.rule() is None
    world.runner.settings = world.settings.model_copy(update={"image_wait_s": 0.01})
    await world.until(lambda: world.rule() == "launch-failed")


async def test_a_task_of_less_than_a_second_has_not_ended_before_it_began(
    world: World, api: PodApiDouble
) -> None:
    body = await world.running()
    api.ended(body, 0)  # at a second that is over
    await world.until(lambda: world.rule() == "succeeded")
    assert world.message()["endedAt"] >= world.message()["startedAt"]


@pytest.mark.parametrize(
    ("code", "reason", "rule"),
    [
        (3, "", "unrecognised"),
        (137, "OOMKilled", "out-of-memory"),
        (250, "", "unrecognised"),
        (137, "ContainerStatusUnknown", "container-lost"),
    ],
)
async def test_exit_codes_have_their_verdicts(
    world: World, api: PodApiDouble, code: int, reason: str, rule: str
) -> None:
    api.ended(await world.running(), code, reason)
    await world.until(lambda: world.rule() == rule)


async def test_a_second_container_without_a_permit_is_a_loss_and_no_fault_of_the_user(
    world: World, api: PodApiDouble
) -> None:
    body = await world.running()
    assert (await world.permit(OTHER_NONCE)).status_code == 410
    api.ended(body, 250)
    await world.until(lambda: world.rule() == "container-lost")


async def test_a_permit_is_for_the_pods_own_address(world: World, api: PodApiDouble) -> None:
    body = await world.created()
    body["status"]["podIP"] = ""
    api.put(body)
    await world.until(lambda: not world.observed(body).address)
    assert (await world.permit()).status_code == 503
    body["status"]["podIP"] = "10.0.0.9"
    api.put(body)
    await world.until(lambda: world.observed(body).address)
    assert (await world.permit()).status_code == 410
    assert world.pod().phase is Phase.ACCEPTED
    await world.restart()
    api.ended(body, 250)
    await world.until(lambda: world.rule() == "launch-failed")
    came = "Its container's request came from 127.0.0.1, but the pod has 10.0.0.9"
    assert came in world.verdict()["cause"]


async def test_a_request_from_elsewhere_ends_no_pod_and_changes_no_verdict(
    world: World, api: PodApiDouble
) -> None:
    """Its sender has the pod's ticket."""
    body = await world.created()
    own = body["status"]["podIP"]

    async def ask_from_elsewhere() -> None:
        body["status"]["podIP"] = "10.0.0.9"
        api.put(body)
        await world.until(lambda: world.observed(body).address == "10.0.0.9")
        assert (await world.permit()).status_code == 410
        body["status"]["podIP"] = own
        api.put(body)
        await world.until(lambda: world.observed(body).address == own)

    await ask_from_elsewhere()
    assert (await world.permit()).status_code == 200
    await ask_from_elsewhere()
    api.ended(body, 250)
    await world.until(lambda: world.rule() == "unrecognised")


async def test_the_log_has_why_a_container_gets_no_permit_and_no_ticket(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.created()
    assert (await world.permit(ticket="f" * 32)).status_code == 410
    said = "".join(capsys.readouterr())
    assert "pod=pod-1" in said
    assert "The ticket or the nonce is wrong" in said
    assert "f" * 32 not in said


async def test_our_annotations_in_another_namespace_mean_nothing(
    world: World, api: PodApiDouble
) -> None:
    body = await world.running()
    forged = json.loads(json.dumps(body))
    forged["metadata"] |= {"namespace": "elsewhere", "uid": "forged"}
    api.put(forged)
    await world.until(lambda: world.runner.offer().others)
    assert world.runner.names() == ["pod-1"]
    api.ended(body, 0)
    await world.until(lambda: world.rule() == "succeeded" and len(api.objects) == 1)
    assert ("elsewhere", forged["metadata"]["name"]) in api.objects


async def test_an_end_is_journalled_though_the_disk_takes_no_record(
    world: World, api: PodApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await world.running()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runtime_agent.kubernetes.runner.write_record", full)
    api.ended(body, 0)
    await world.until(lambda: world.rule() == "succeeded")


async def test_a_node_that_kubernetes_no_longer_has_takes_no_pods(
    world: World, api: PodApiDouble
) -> None:
    await world.until(lambda: world.runner.offer().problem is None)
    api.tell_node(Change("gone", api.node))
    await world.until(lambda: world.runner.offer().problem is not None)


async def test_a_container_that_does_not_reach_the_agent_is_not_waited_for_without_end(
    world: World, api: PodApiDouble
) -> None:
    body = await world.created()
    api.running(body)
    await world.until(lambda: world.observed(body).is_running)
    world.runner.settings = world.settings.model_copy(update={"image_wait_s": 0.05})
    await world.until(lambda: world.rule() == "launch-failed")
    assert "did not reach the agent" in json.dumps(world.verdict())


async def test_lists_that_fail_are_counted(world: World, api: PodApiDouble) -> None:
    name = "muster_agent_kube_requests_total"
    assert world.registry.get_sample_value(name, {"outcome": "unlisted"}) == 0
    api.tell_node(Change("unlisted"))
    await world.until(lambda: world.registry.get_sample_value(name, {"outcome": "unlisted"}) == 1)


async def test_a_taint_keeps_tasks_away_unless_it_is_tolerated(
    world: World, api: PodApiDouble
) -> None:
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    api.tell_node(Change("put", {**api.node, "spec": {"taints": taints}}))
    await world.until(lambda: world.runner.offer().problem is None)
    taints += [{"key": "team", "effect": "NoSchedule"}]
    api.tell_node(Change("put", {**api.node, "spec": {"taints": taints}}))
    await world.until(lambda: world.runner.offer().problem is not None)
    problem = world.runner.offer().problem
    assert problem is not None
    assert "team:NoSchedule" in problem


async def test_a_private_image_is_pulled_anew(world: World, api: PodApiDouble) -> None:
    world.accept(run=sealed(world))
    await world.until(lambda: api.objects)
    (main,) = api.only()["spec"]["containers"]
    assert main["imagePullPolicy"] == "Always"


@pytest.mark.parametrize(
    ("asked", "of_the_site", "is_private", "policy"),
    [
        ("", "", False, None),  # Kubernetes decides by the tag
        ("Never", "", False, "Never"),
        ("", "IfNotPresent", False, "IfNotPresent"),
        ("Always", "IfNotPresent", False, "Always"),
        ("Never", "Always", False, "Always"),
        ("", "Never", True, "Always"),
        ("IfNotPresent", "", True, "Always"),
    ],
)
def test_when_an_image_is_pulled(
    world: World, asked: str, of_the_site: str, is_private: bool, policy: str | None
) -> None:
    run = a_run().model_copy(update={"image_pull_policy": asked})
    pod = Pod("pod-1", JOB, f"{JOB}-0", Phase.ACCEPTED, run)
    who = Identity("n", "id", "t", pull=PullCredentials() if is_private else None)
    rules = replace(world.runner.rules, image_pull_policy=of_the_site)
    (main,) = manifest(pod, run, who, rules, Given())["spec"]["containers"]
    assert main.get("imagePullPolicy") == policy


@pytest.mark.parametrize(
    ("allocatable", "held", "offered", "others"),
    [
        ("4", 2.4, 3, 2),  # 1.1 are free, so that one task with 1 CPU fits
        ("4", 0.0, 3, 0),
        ("8", 0.25, 7, 0),
        ("2", 3.0, 1, 1),
        ("1", 0.0, 1, 0),
    ],
)
def test_what_others_hold_is_rounded_once(
    allocatable: str, held: float, offered: int, others: int
) -> None:
    node = {"status": {"allocatable": {"cpu": allocatable, "memory": "1Gi"}}}
    offer = offer_of(node, [(held, 0.0)] if held else [])
    assert (offer.cpu, sum(each.cpu for each in offer.others)) == (offered, others)


@pytest.mark.parametrize(
    ("allocatable", "held", "offered", "others"),
    [
        ("4Gi", 0.0, 3584, 0),
        ("4Gi", 1024.0, 3584, 1024),
        ("4Gi", 4096.0, 3584, 3584),
        ("512Mi", 0.0, 1, 0),
        ("256Mi", 64.0, 1, 1),
    ],
)
def test_memory_is_kept_free_for_a_roll_out(
    allocatable: str, held: float, offered: int, others: int
) -> None:
    node = {"status": {"allocatable": {"cpu": "4", "memory": allocatable}}}
    offer = offer_of(node, [(0.0, held)] if held else [])
    assert (offer.memory_mb, sum(each.memory_mb for each in offer.others)) == (offered, others)


def test_a_pod_that_requests_as_a_whole_holds_that() -> None:
    container = {"resources": {"requests": {"cpu": "1", "memory": "64Mi"}}}
    spec = {"containers": [container, container], "resources": {"requests": {"cpu": "3"}}}
    assert requests_of(spec) == (3.0, 128.0)


async def test_a_container_that_ends_before_it_asks_was_not_started(
    world: World, api: PodApiDouble
) -> None:
    api.ended(await world.created(), 128, "StartError", "runc: /mnt/data is not a directory")
    await world.until(lambda: world.rule() == "launch-failed")
    assert "StartError: runc: /mnt/data is not a directory" in str(world.verdict())


async def test_a_container_that_its_job_keeps_from_starting_fails_at_once(
    world: World, api: PodApiDouble
) -> None:
    words = "unable to find user nobody2: no matching entries in passwd file"
    body = await world.created()
    api.waiting(body, "CreateContainerError", f"failed to create containerd container: {words}")
    await world.until(lambda: world.rule() == "image-user")
    assert words in str(world.verdict())


def test_the_first_container_that_failed_says_why_the_task_never_began() -> None:
    step = {"name": "step", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    main = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"phase": "Failed", "initContainerStatuses": [step], "containerStatuses": [main]}
    metadata = {"name": "a", "namespace": "muster-jobs", "uid": "u"}
    found = ending(observed({"metadata": metadata, "status": status}), None, was_permitted=False)
    assert found is not None
    assert str(found.start_error).endswith("before it began: OOMKilled")
    assert judge(found).rule == "memory-too-small"


async def test_an_agent_that_was_killed_adopts_what_it_finds(
    world: World, api: PodApiDouble
) -> None:
    body = await world.running()
    await world.restart()
    await world.until(world.runner._mirror.pods_known.is_set)
    api.ended(body, 0)
    await world.until(lambda: world.rule() == "succeeded")
    assert [verb for verb, _name in api.calls].count("create") == 1


async def test_a_pod_of_an_older_agent_runs_on_though_its_labels_differ(
    world: World, api: PodApiDouble
) -> None:
    body = await world.running()
    body["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "muster", "muster/job": JOB}
    api.put(body)
    await world.restart()
    await world.until(world.runner._mirror.pods_known.is_set)
    api.ended(body, 0)
    await world.until(lambda: world.rule() == "succeeded" and not api.objects)
    assert [verb for verb, _name in api.calls] == ["create", "delete"]


async def test_objects_that_the_journal_does_not_know_are_deleted(
    world: World, api: PodApiDouble
) -> None:
    body = await world.created()
    await world.stop()
    (world.home / "journal.sqlite").unlink()
    for path in world.home.glob("journal.sqlite-*"):
        path.unlink()
    world._start()
    await world.until(lambda: "deletionTimestamp" in api.only()["metadata"])
    assert not world.runner.end_now("pod-1", of_another_machine=False)
    api.drop(("jobs", body["metadata"]["name"]))
    await world.until(lambda: world.runner.end_now("pod-1", of_another_machine=False))
    assert (await world.permit()).status_code == 410


@pytest.mark.parametrize(
    ("why", "changes"),
    [("unknown", {"muster/pod": "pod-9"}), ("other-journal", {"muster/journal": "another"})],
)
async def test_an_object_that_the_journal_never_wanted_is_deleted_and_counted_once(
    world: World, api: PodApiDouble, why: str, changes: dict[str, str]
) -> None:
    stray = copy.deepcopy(await world.running())
    stray["metadata"] |= {"name": "stray", "uid": "stray"}
    stray["metadata"]["annotations"] |= changes
    api.put(stray)
    await world.until(world.strays)
    await world.restart()
    await world.until(lambda: api.calls.count(("delete", "stray")) == 2)
    api.drop(("jobs", "stray"))
    api.ended(api.only(), 0)
    await world.until(lambda: not api.objects)
    assert world.strays() == {why: 1}


async def test_an_object_whose_record_is_lost_is_deleted_and_counted(
    world: World, api: PodApiDouble
) -> None:
    body = await world.running()
    (world.files.path("pod-1") / SPEC_FILE).unlink()
    await world.restart()
    await world.until(world.strays)
    api.drop(("jobs", body["metadata"]["name"]))
    await world.until(lambda: world.rule() == "record-lost")
    assert world.strays() == {"other-record": 1}


@pytest.mark.parametrize(("instances", "address"), [(1, "127.0.0.1"), (2, None)])
async def test_the_address_of_a_pod_that_has_its_own_is_published(
    world: World, api: PodApiDouble, instances: int, address: str | None
) -> None:
    world.accept(run=a_run(instances))
    await world.until(lambda: api.objects and not world.runner._works["pod-1"].request)
    body = api.only()
    api.running(body)
    assert (await world.permit()).status_code == 200
    assert world.message().get("address") == address
    await world.restart()
    api.ended(body, 0)
    await world.until(lambda: world.rule() == "succeeded")
    assert world.message().get("address") == address


def sealed(world: World, name: str = "pod-1") -> PodRun:
    """A run with a secret in its command and a private image, as the Launcher seals it."""
    pull = PullCredentials(username="ada", password="p", registry="registry.example.org")
    secrets = PodSecrets(pod=name, values={"$secrets.token": "s3cr3t"}, pull=pull)
    text = seal(secrets.model_dump_json(), world.key.public)
    run = a_run(secrets=text)
    return run.model_copy(update={"command": "curl -H <% $secrets.token %>"})


async def test_secrets_come_with_the_permit_and_a_private_image_has_its_pull_secret(
    world: World, api: PodApiDouble
) -> None:
    world.accept(run=sealed(world))
    await world.until(lambda: len(api.objects) == 1 and api.secrets)
    (secret,) = api.secrets.values()
    assert secret["metadata"]["name"] == api.only()["metadata"]["name"]
    assert json.loads(secret["stringData"][".dockerconfigjson"]) == {
        "auths": {"registry.example.org": {"username": "ada", "password": "p"}}
    }
    assert "s3cr3t" not in str(api.only())
    assert "'curl -H s3cr3t'" in (await world.permit()).text
    api.ended(api.only(), 0)
    await world.until(lambda: world.rule() == "succeeded" and not api.objects and not api.secrets)


@pytest.mark.parametrize("has_secrets", [True, False])
async def test_the_step_image_is_pulled_with_a_secret_of_its_own(
    world: World, api: PodApiDouble, has_secrets: bool
) -> None:
    world.runner._creation.rules = replace(world.runner.rules, step_is_private=True)
    world.accept(run=sealed(world) if has_secrets else a_run())
    await world.until(lambda: api.objects)
    own = [{"name": api.only()["metadata"]["name"]}] if has_secrets else []
    assert api.only()["spec"]["imagePullSecrets"] == [*own, {"name": "muster-step"}]


async def test_an_agent_killed_between_a_pod_and_its_pull_secret_creates_that_after_its_start(
    world: World, api: PodApiDouble
) -> None:
    api.failing = lambda verb: Unavailable("away", 0.01) if verb == "create-secret" else None
    world.accept(run=sealed(world))
    await world.until(lambda: len([verb for verb, _ in api.calls if verb == "create-secret"]) > 1)
    api.waiting(api.only(), "ErrImagePull", "pull access denied")
    await world.until(lambda: world.reason().endswith("away"))
    assert not api.secrets
    await world.restart()
    api.failing = lambda _: None
    await world.until(lambda: api.secrets)
    api.running(api.only())
    assert (await world.permit()).status_code == 200


async def test_an_image_that_was_denied_before_its_pull_secret_was_there_is_not_the_users_fault(
    world: World, api: PodApiDouble
) -> None:
    api.failing = lambda verb: Unavailable("away", 0.01) if verb == "create-secret" else None
    world.accept(run=sealed(world))
    await world.until(lambda: api.objects)
    api.waiting(api.only(), "ImagePullBackOff", "pull access denied")
    await world.until(lambda: world.reason().endswith("away"))
    api.failing = lambda _: None
    await world.until(lambda: api.secrets)
    await world.until(lambda: world.reason().endswith("denied"))
    await world.restart()
    await world.until(world.runner._mirror.pods_known.is_set)
    api.running(api.only())
    assert (await world.permit()).status_code == 200


@pytest.mark.parametrize("is_made", [False, True])
async def test_a_denied_image_is_the_users_fault_unless_an_earlier_request_may_have_made_the_pod(
    world: World, api: PodApiDouble, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    monkeypatch.setattr("runtime_agent.kubernetes.runner.RETRY_S", 0.001)
    monkeypatch.setattr("runtime_agent.kubernetes.runner.SECRET_LATE_S", 60.0)
    api.is_paused = api.is_deaf = is_made
    api.failing = lambda _verb: None if is_made else Unavailable("exceeded quota: few")
    world.accept(run=sealed(world))
    await world.until(lambda: ("create" in dict(api.calls)) and world.reason())
    api.is_paused = api.is_deaf = False
    api.failing = lambda _verb: None
    await world.until(lambda: api.secrets)
    api.waiting(api.only(), "ImagePullBackOff", "pull access denied")
    if is_made:
        await world.until(lambda: world.reason().endswith("denied"))
    else:
        await world.until(lambda: world.rule() == "image-denied")


@pytest.mark.parametrize(("memory_mb", "is_created"), [(11, False), (12, True), (0, True)])
async def test_a_pod_with_too_little_memory_for_any_runtime_is_the_users_fault(
    world: World, api: PodApiDouble, memory_mb: int, is_created: bool
) -> None:
    world.accept(run=a_run().model_copy(update={"memory_mb": memory_mb}))
    await world.until(lambda: api.objects or world.rule() == "memory-too-small")
    assert bool(api.objects) is is_created
    assert is_created or "too low; on Kubernetes" in world.verdict()["cause"]


@pytest.mark.parametrize(("memory_mb", "shm_mb", "size"), [
    (64, 16, "16Mi"), (64, 128, "64Mi"), (64, 0, "64Mi"), (1024, 0, "512Mi"),
    (0, 16, "16Mi"), (0, 0, "512Mi"),
])  # fmt: skip
async def test_shared_memory_is_as_asked_within_the_memory_limit(
    world: World, api: PodApiDouble, memory_mb: int, shm_mb: int, size: str
) -> None:
    run = a_run()
    role = run.roles[0].model_copy(update={"shm_mb": shm_mb})
    world.accept(run=run.model_copy(update={"memory_mb": memory_mb, "roles": (role,)}))
    await world.until(lambda: api.objects)
    volumes = {each["name"]: each for each in api.only()["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


async def test_a_pod_whose_pull_secret_is_refused_is_told_why(
    world: World, api: PodApiDouble
) -> None:
    api.failing = lambda verb: Refused("no such right") if verb == "create-secret" else None
    world.accept(run=sealed(world))
    await world.until(lambda: world.rule() == "rejected")
    assert "no such right" in str(world.verdict())
    await world.until(lambda: "deletionTimestamp" in api.only()["metadata"])


async def test_a_pod_whose_secrets_can_not_be_opened_never_runs(
    world: World, api: PodApiDouble
) -> None:
    world.accept(run=a_run(secrets="sealed to another"))
    await world.until(lambda: world.rule() == "launch-failed")
    assert not api.objects


async def test_the_node_offers_what_is_allocatable_less_what_others_request(
    world: World, api: PodApiDouble
) -> None:
    api.put(
        {
            "metadata": {"namespace": "kube-system", "name": "proxy", "uid": "p"},
            "spec": {
                "nodeName": "n",
                "containers": [{"resources": {"requests": {"cpu": "750m", "memory": "1Gi"}}}],
            },
            "status": {"phase": "Running"},
        }
    )
    await world.until(lambda: world.runner.offer().others)
    offer = world.runner.offer()
    assert (offer.cpu, offer.memory_mb, offer.problem) == (7, 16 * 1024 - 512, None)
    (others,) = offer.others
    assert (others.pod, others.cpu, others.memory_mb) == ("kubernetes/foreign", 1, 1024)
    assert offer.labels == {"rack": "r1"}
