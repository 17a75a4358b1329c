"""Whether containers get the GPUs of a node: what short pods see there. Pure.

The first pod of a node gets all GPUs, and sees what the agent would report. The second one gets one
of them, as the agent gives it to a task. Both obey the rules of the namespace of jobs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from muster.contracts.images import STEP_PULL_SECRET

from cli.deploy.cluster_file import by_name, kind_of
from cli.deploy.findings import (
    GPU_MODE,
    RUNTIME_CLASS,
    VISIBLE_DEVICES,
    Cluster,
    Finding,
    Level,
    Plan,
    agents,
    is_ready,
    some,
)
from cli.deploy.objects import (
    JOBS,
    LEAST_RIGHTS,
    Json,
    agent_setting,
    gpus_of,
    is_step_private,
    name_of,
)
from cli.deploy.rollout import happened_at, troubles

SUBJECT = "GPU pods"
NAME = "gpu-probe"
LABELS = {"app.kubernetes.io/part-of": "muster", "app.kubernetes.io/name": NAME}
MOST_NODES = 3
LIMIT_S = 60
"""For one pod, from its creation to its end."""
ANSWER = "/dev/termination-log"
ALL = "all"
TOOLKIT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
CLASS_SETTING = "MUSTER_KUBE_RUNTIME_CLASS"
FIXES = {
    "Image": "Load Muster's image there: docs/install.md, step 1.",
    "untime": f"Set NVIDIA's container toolkit up there, for the RuntimeClass {RUNTIME_CLASS}.",
    "OutOf": "Check again once the node has room.",
}
"""What to do, by a part of the reason why a pod did not run."""


@dataclass(frozen=True)
class Choice:
    """The nodes to try, one of each kind of GPU node. `left_out`: about the other kinds."""

    nodes: Sequence[Json] = ()
    left_out: Sequence[Finding] = ()


@dataclass(frozen=True)
class Outcome:
    """What a pod saw, or the problem that kept it from running."""

    uuids: tuple[str, ...] = ()
    problem: str = ""


def choice(cluster: Cluster, plan: Plan) -> Choice:
    """Of no node where containers get no GPUs. `findings` says so. Nodes of `plan` come first."""
    if agent_setting(plan.objects, GPU_MODE) != VISIBLE_DEVICES:
        return Choice()
    every = sorted(agents(cluster.nodes, plan.nodes) or cluster.nodes, key=by_name)
    every.sort(key=lambda each: name_of(each) not in plan.nodes)
    kinds: dict[tuple[str, int], list[Json]] = {}
    for node in filter(gpus_of, every):
        kinds.setdefault(kind_of(node), []).append(node)
    chosen: list[Json] = []
    left_out: list[Finding] = []
    for nodes in kinds.values():
        fit = [each for each in nodes if is_ready(each) and not _is_cordoned(each)]
        if not fit:
            fix = "Check again once one is."
            left_out.append(_untried(nodes[0], "no such node is ready and uncordoned", fix))
        elif len(chosen) == MOST_NODES:
            fix = f"`muster deploy check --node {name_of(fit[0])}` tries it first."
            left_out.append(_untried(fit[0], f"at most {MOST_NODES} nodes are tried", fix))
        else:
            chosen.append(fit[0])
    return Choice(chosen, left_out)


def has_namespace(cluster: Cluster) -> bool:
    """Whether pods can be made where jobs run."""
    return any(
        name_of(each) == JOBS and each.get("status", {}).get("phase") != "Terminating"
        for each in cluster.namespaces
    )


def probe_pod(name: str, plan: Plan, node: str, devices: str) -> Json:
    """A pod that writes which GPUs it sees. It is not labelled as a job's, which agents delete."""
    runtime_class = agent_setting(plan.objects, CLASS_SETTING)
    if runtime_class is None:
        runtime_class = RUNTIME_CLASS
    is_private = is_step_private(plan.objects)
    container = {
        "name": NAME,
        "image": plan.images.muster,
        "args": ["runtime_agent.visible_gpus", ANSWER],
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": devices},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "terminationMessagePath": ANSWER,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "securityContext": LEAST_RIGHTS,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": JOBS, "labels": LABELS},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIMIT_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"runtimeClassName": runtime_class} if runtime_class else {}),
            **({"imagePullSecrets": [{"name": STEP_PULL_SECRET}]} if is_private else {}),
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


def outcome(pod: Json) -> Outcome | None:
    """What came of a pod; None: it has not ended. Others may have added containers to it."""
    status = pod.get("status", {})
    states = {each["name"]: each["state"] for each in status.get("containerStatuses", [])}
    ended = states.get(NAME, {}).get("terminated", {})
    if ended.get("exitCode") == 0:
        try:
            return Outcome(tuple(json.loads(ended.get("message", ""))))
        except ValueError:
            return Outcome(problem="its answer was lost")
    if ended or status.get("phase") == "Failed":
        last = ended.get("message", "").strip().splitlines()[-1:]
        parts = (status.get("reason"), status.get("message"), *last)
        return Outcome(problem=": ".join(filter(None, parts)) or "it failed")
    if found := troubles([pod]):
        return Outcome(problem=found[0].partition(": ")[2])
    return None


def late(events: Sequence[Json]) -> Outcome:
    """Of a pod that has not ended in time. `events`: its own."""
    warnings = [each for each in events if each.get("type") == "Warning"]
    last = max(warnings, key=happened_at, default={})
    reason = f": {last.get('message')}" if last else ""
    return Outcome(problem=f"it did not end within {LIMIT_S} s{reason}")


def judged(node: Json, every: Outcome, one: Outcome | None) -> Finding:
    """Of a node. `one`: of the second pod, which got the first GPU that the first one saw."""
    where, expected = _title(node), gpus_of(node)
    for found in (every, one):
        if found is not None and found.problem:
            fixes = [fix for sign, fix in FIXES.items() if sign in found.problem]
            fix = (fixes or [f"See `kubectl describe node {name_of(node)}`."])[0]
            return _untried(node, found.problem, fix)
    obey = (
        "NVIDIA's container runtime there has to obey NVIDIA_VISIBLE_DEVICES in unprivileged pods:"
    )
    toolkit = f"{obey} {TOOLKIT} = true."
    if one is None:
        text = f"{where}: a pod that got all GPUs saw none"
        return Finding(SUBJECT, Level.REFUSAL, text, toolkit)
    if one.uuids != every.uuids[:1]:
        text = f"{where}: a pod that got {every.uuids[0]} saw {some(one.uuids) or 'none'}"
        return Finding(SUBJECT, Level.REFUSAL, text, toolkit)
    if len(every.uuids) != expected:
        text = (
            f"{where}: a pod saw {len(every.uuids)}, NVIDIA's device plug-in announces {expected}"
        )
        fix = "Muster uses what pods see. Time-slicing announces a GPU more than once."
        return Finding(SUBJECT, Level.WARNING, text, fix)
    text = f"{where}: a pod saw all of them, and a pod that got one saw that one only"
    return Finding(SUBJECT, Level.OK, text)


def _untried(node: Json, why: str, fix: str) -> Finding:
    return Finding(SUBJECT, Level.WARNING, f"{_title(node)}: not tried: {why}", fix)


def _title(node: Json) -> str:
    product, gpus = kind_of(node)
    return f"{name_of(node)} ({gpus} {product})"


def _is_cordoned(node: Json) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


NO_NAMESPACE = Finding(
    SUBJECT,
    Level.WARNING,
    f"not tried: there is no namespace {JOBS} yet",
    "Check again after `muster deploy apply`, which makes it.",
)
