"""Which nodes a check tries, and what it makes of its pods."""

from dataclasses import replace
from typing import Any

import pytest
from checked_cluster import DIRECT, GOOD, IMAGES, PLAN, a_node
from cli.deploy.findings import Level, Plan
from cli.deploy.gpu_probe import Outcome, choice, judged, late, outcome, probe_pod
from cli.deploy.objects import name_of
from manifests import Json

WITH_GPUS = Plan([DIRECT], IMAGES)


def of_kind(name: str, product: str, **more: Any) -> Json:
    """A node with eight GPUs."""
    node = a_node(name, 8, **more)
    node["metadata"]["labels"] = node["metadata"]["labels"] | {"nvidia.com/gpu.product": product}
    return node


def tried(nodes: list[Json], plan: Plan = WITH_GPUS) -> list[str]:
    return [name_of(each) for each in choice(replace(GOOD, nodes=nodes), plan).nodes]


def test_one_node_of_each_kind_is_tried_those_named_first() -> None:
    kinds = [of_kind(f"{kind}-{number}", kind) for kind in "abcd" for number in (10, 2)]
    assert tried(kinds) == ["a-2", "b-2", "c-2"]
    assert tried(kinds, replace(WITH_GPUS, nodes=("d-10",))) == ["d-10", "a-2", "b-2"]
    [left_out] = choice(replace(GOOD, nodes=kinds), WITH_GPUS).left_out
    assert "`muster deploy check --node d-2`" in left_out.fix


def test_a_node_that_takes_no_pods_is_not_tried() -> None:
    cordoned = of_kind("a-1", "a") | {"spec": {"unschedulable": True}}
    assert tried([cordoned, of_kind("a-2", "a")]) == ["a-2"]
    alone = choice(replace(GOOD, nodes=[of_kind("b-1", "b", is_ready=False)]), WITH_GPUS)
    assert not alone.nodes
    assert "not tried: no such node is ready" in alone.left_out[0].text


@pytest.mark.parametrize(
    ("nodes", "plan"), [([a_node()], WITH_GPUS), ([of_kind("a-1", "a")], PLAN)]
)
def test_without_gpus_or_with_another_mode_nothing_is_tried(nodes: list[Json], plan: Plan) -> None:
    found = choice(replace(GOOD, nodes=nodes), plan)
    assert not found.nodes
    assert not found.left_out


def test_the_pod_is_none_of_a_job() -> None:
    pod = probe_pod("gpu-probe-1", WITH_GPUS, "a-1", "GPU-a")
    assert "app.kubernetes.io/managed-by" not in pod["metadata"]["labels"]
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert "imagePullSecrets" not in pod["spec"]


def test_the_pod_is_pulled_with_the_log_in_that_pods_of_jobs_have() -> None:
    settings = {
        "kind": "ConfigMap",
        "metadata": {"name": "settings"},
        "data": {"MUSTER_KUBE_STEP_PULL_SECRET": "true"},
    }
    plan = Plan([*WITH_GPUS.objects, settings], IMAGES)
    pod = probe_pod("gpu-probe-1", plan, "a-1", "GPU-a")
    assert pod["spec"]["imagePullSecrets"] == [{"name": "muster-step"}]


def ended(code: int, message: str) -> Json:
    state = {"terminated": {"exitCode": code, "message": message}}
    return {"containerStatuses": [{"name": "gpu-probe", "state": state}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Pending"}, None),
        (ended(0, '["GPU-a"]'), Outcome(("GPU-a",))),
        (ended(0, ""), Outcome(problem="its answer was lost")),
        (ended(1, "Traceback\nNo module named x\n"), Outcome(problem="No module named x")),
        ({"phase": "Failed", "reason": "OutOfcpu"}, Outcome(problem="OutOfcpu")),
    ],
)
def test_a_pod_that_ends_tells_what_it_saw(status: Json, expected: Outcome | None) -> None:
    assert outcome({"metadata": {"name": "gpu-probe-1"}, "status": status}) == expected


def test_a_pod_that_is_late_gives_its_last_warning() -> None:
    events = [
        {"type": "Warning", "lastTimestamp": "2026-01-01T00:00:02Z", "message": "no runtime for"},
        {"type": "Warning", "lastTimestamp": "2026-01-01T00:00:01Z", "message": "before"},
        {"type": "Normal", "lastTimestamp": "2026-01-01T00:00:03Z", "message": "pulled"},
    ]
    found = judged(of_kind("a-1", "a"), late(events), None)
    assert found.text == "a-1 (8 a): not tried: it did not end within 60 s: no runtime for"
    assert found.fix.startswith("Set NVIDIA's container toolkit up there")


def test_another_number_of_gpus_is_a_warning() -> None:
    found = judged(of_kind("a-1", "a"), Outcome(("GPU-a",)), Outcome(("GPU-a",)))
    assert (found.level, "a pod saw 1, " in found.text) == (Level.WARNING, True)
