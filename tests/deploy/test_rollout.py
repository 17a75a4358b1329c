"""The order of a roll-out, and when a part counts as ready."""

from typing import Any

import pytest
from cli.deploy.objects import Images, find, images_of, with_images
from cli.deploy.rollout import Progress, look, steps, troubles
from manifests import Json, workload, workloads
from rendering import K8S, OVERLAYS, render

NEW = Images("registry.example/muster:2", "registry.example/muster-step:2")

pytestmark = pytest.mark.k8s  # they render with kubectl


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_object_is_in_one_step_and_agents_come_last(overlay: str) -> None:
    objects = render(K8S / "overlays" / overlay)
    planned = steps(objects)
    titles = [each.title for each in planned]
    assert titles[:3] == ["namespaces, accounts", "rights, settings, stores", "setup"]
    accounts = [each["kind"] for each in planned[0].objects].count("ServiceAccount")
    assert accounts == len([each for each in objects if each["kind"] == "ServiceAccount"]) > 0
    parts = ["scheduler", "launcher", "alerting", "rest", "fence", "runtime-agent"]
    has_fence = find(objects, "Deployment", "fence") is not None
    assert titles[3:] == [each for each in parts if each != "fence" or has_fence]
    placed = [id(body) for each in planned for body in each.objects]
    assert sorted(placed) == sorted(map(id, objects))
    assert "setup" not in [each.title for each in steps(objects, with_setup=False)]


def test_all_images_of_muster_change_and_no_others() -> None:
    objects = render(K8S / "overlays/minimal")
    old = images_of(workload(objects, "runtime-agent").body)
    changed = with_images(objects, old, NEW)
    assert images_of(workload(changed, "runtime-agent").body) == NEW
    used = {each["image"] for body in workloads(changed) for each in body.containers}
    assert used == {NEW.muster, NEW.step, "apache/kafka:4.3.0", "postgres:17"}
    agent = workload(changed, "runtime-agent").main
    assert {"name": "MUSTER_KUBE_STEP_IMAGE", "value": NEW.step} in agent["env"]


def a_workload(kind: str, spec: Any = None, generation: int = 1, **status: Any) -> Json:
    """One as the server has it."""
    return {
        "kind": kind,
        "metadata": {"name": "rest", "generation": generation},
        "spec": spec or {},
        "status": status,
    }


ENDED = {"type": "Progressing", "status": "False", "message": "took too long"}
DONE = {"type": "Complete", "status": "True"}
LOST = {"type": "Failed", "status": "True", "message": "too often"}


@pytest.mark.parametrize(
    ("body", "progress"),
    [
        (a_workload("Job"), Progress.WAITING),
        (a_workload("Job", conditions=[DONE]), Progress.READY),
        (a_workload("Job", conditions=[LOST]), Progress.FAILED),
        (a_workload("DaemonSet", observedGeneration=1), Progress.READY),
        (
            a_workload("DaemonSet", observedGeneration=1, desiredNumberScheduled=2, numberReady=2),
            Progress.WAITING,
        ),
        (a_workload("Deployment", observedGeneration=1), Progress.WAITING),
        (
            a_workload(
                "Deployment", observedGeneration=1, replicas=1, readyReplicas=1, updatedReplicas=1
            ),
            Progress.READY,
        ),
        (  # an old pod still serves
            a_workload(
                "Deployment", observedGeneration=1, replicas=2, readyReplicas=1, updatedReplicas=1
            ),
            Progress.WAITING,
        ),
        (  # the controller has not seen the change
            a_workload("Deployment", None, 2, observedGeneration=1, replicas=1, readyReplicas=1),
            Progress.WAITING,
        ),
        (a_workload("Deployment", observedGeneration=1, conditions=[ENDED]), Progress.FAILED),
        (  # what the controller says is of the roll-out before
            a_workload("Deployment", None, 2, observedGeneration=1, conditions=[ENDED]),
            Progress.WAITING,
        ),
        (
            a_workload(
                "StatefulSet", observedGeneration=1, replicas=1, readyReplicas=1, updatedReplicas=1
            ),
            Progress.READY,
        ),
    ],
)
def test_a_part_is_ready_once_all_its_pods_are_new_and_ready(
    body: Json, progress: Progress
) -> None:
    assert look(body, body).progress is progress


def test_nodes_that_are_away_do_not_hold_up_a_roll_out() -> None:
    agents = {"desiredNumberScheduled": 3, "numberReady": 2, "updatedNumberScheduled": 2}
    body = a_workload("DaemonSet", observedGeneration=1, **agents)
    assert look(body, body).progress is Progress.WAITING
    assert look(body, body, away=1).progress is Progress.READY


CREATES = {"name": "rest", "state": {"waiting": {"reason": "ContainerCreating"}}}
DELETED = {"deletionTimestamp": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("status", "metadata", "detail"),
    [
        ({"phase": "Running"}, {}, "runs"),
        ({"phase": "Pending"}, {}, "its container has not started"),
        (
            {"phase": "Pending", "containerStatuses": [CREATES]},
            {},
            "its container has not started (ContainerCreating)",
        ),
        ({"phase": "Running"}, DELETED, "its container has not started"),
        ({"phase": "Running"}, {"labels": {}}, "its container has not started"),
    ],
)
def test_a_job_runs_only_once_its_container_has_started(
    status: Json, metadata: Json, detail: str
) -> None:
    labels = {"batch.kubernetes.io/job-name": "rest"}
    pod = {"metadata": {"name": "rest-1", "labels": labels} | metadata, "status": status}
    body = a_workload("Job")
    assert look(body, body, pods=[pod]).detail == detail


def test_a_pod_tells_why_it_waits() -> None:
    state = {"waiting": {"reason": "ErrImageNeverPull", "message": "not present"}}
    pod = {
        "metadata": {"name": "rest-1"},
        "status": {"containerStatuses": [{"name": "rest", "state": state}]},
    }
    assert troubles([pod]) == ["Pod rest-1, container rest: ErrImageNeverPull: not present"]


def test_a_pod_that_ends_again_and_again_has_its_own_log_named() -> None:
    ended = {"lastState": {"terminated": {"exitCode": 1}}, "name": "c"}
    off = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    log = "it ended with exit code 1: kubectl -n muster-system logs a-1 -c c --previous"
    for container, expected in (
        ({**ended, "state": {"running": {}}, "ready": False}, [log]),
        ({**ended, "state": {"waiting": off}}, [f"CrashLoopBackOff: back-off 10s: {log}"]),
        ({**ended, "state": {"running": {}}, "ready": True}, []),
    ):
        pod = {"metadata": {"name": "a-1"}, "status": {"containerStatuses": [container]}}
        assert troubles([pod]) == [f"Pod a-1, container c: {text}" for text in expected]
