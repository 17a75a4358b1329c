"""What the kubelet double writes into a pod's status, as kubelet 1.35 does. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Json = dict[str, Any]
KUBELETS_CONDITIONS = (
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
)
UNLOCATED = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
}
SCALES = {
    "m": Decimal("0.001"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate(" kMGT") if power},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate(" KMGT") if power},
}


@dataclass(frozen=True)
class Start:
    """The latest start of a container: its state, and how many there were before."""

    state: Json
    number: int
    identity: str


@dataclass(frozen=True)
class Facts:
    """What the node knows of a pod. `waiting`: why a container does not start. `verdict`: why the
    kubelet itself ends the pod. `is_ending`: it ends, by its deletion or by a verdict. `is_alive`:
    a process of it is left. `unready`: running containers whose probes have not passed.
    """

    starts: Mapping[str, Start]
    waiting: Mapping[str, Json]
    verdict: Json | None
    is_ending: bool
    is_alive: bool
    host_address: str
    address: str
    now: str
    unready: frozenset[str] = frozenset()


def is_terminal(status: Json) -> bool:
    """Such a phase never changes."""
    return status.get("phase") in ("Succeeded", "Failed")


def status(body: Json, facts: Facts) -> Json:
    """The status to write; `body` holds the former one."""
    former: Json = body["status"]
    policy = body["spec"].get("restartPolicy", "Always")
    inits = [
        _container(given, facts, policy_of_init(policy))
        for given in body["spec"].get("initContainers", [])
    ]
    for each in inits:
        each["ready"] = _code(each) == 0
    idle = "PodInitializing" if inits else "ContainerCreating"
    mains = [_container(given, facts, policy, idle) for given in body["spec"]["containers"]]
    is_initialized = all(each["ready"] for each in inits)
    is_refused = facts.verdict is not None and not facts.starts
    phase = _phase(inits, mains)
    if facts.is_ending and facts.is_alive:
        phase = former["phase"]  # Final only when no container can run.
    elif facts.is_ending:
        begun = [n for n, each in enumerate(inits, 1) if "waiting" not in each["state"]]
        for each in [*inits[: max(begun, default=1)], *(mains if is_initialized else [])]:
            if "terminated" not in each["state"]:
                each["state"] = {"terminated": dict(UNLOCATED)}
        phase = "Succeeded" if phase == "Succeeded" and not facts.verdict else "Failed"
    if is_terminal(former):
        phase = former["phase"]
    found: Json = {"phase": phase, "startTime": former.get("startTime") or facts.now}
    if not is_refused:
        found |= {"hostIP": facts.host_address, "hostIPs": [{"ip": facts.host_address}]}
        found |= {"initContainerStatuses": inits, "containerStatuses": mains}
    if facts.starts:
        found |= {"podIP": facts.address, "podIPs": [{"ip": facts.address}]}
    if facts.verdict is not None and phase == "Failed":
        found |= {name: facts.verdict[name] for name in ("reason", "message")}
    is_ready = all(each["ready"] for each in mains)
    wanted = dict.fromkeys(KUBELETS_CONDITIONS, "True") | {
        "PodReadyToStartContainers": str(bool(facts.starts) and not is_terminal(found)),
        "Initialized": str(is_initialized),
        "Ready": str(is_ready),
        "ContainersReady": str(is_ready),
    }
    if facts.verdict is not None and facts.verdict["is_disruption"]:
        wanted["DisruptionTarget"] = "True"
    return found | {
        "conditions": [_condition(each, wanted, former, found, facts) for each in wanted]
    }


def _condition(kind: str, wanted: Json, former: Json, found: Json, facts: Facts) -> Json:
    since = facts.now
    for each in former.get("conditions", []):
        if each["type"] == kind and each["status"] == wanted[kind]:
            since = each.get("lastTransitionTime") or since
    condition = {"type": kind, "status": wanted[kind], "lastTransitionTime": since}
    if kind == "DisruptionTarget":
        return condition | {"reason": "TerminationByKubelet"}
    if wanted[kind] == "True":
        return condition
    reasons = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
    missing = "ContainersNotInitialized" if kind == "Initialized" else "ContainersNotReady"
    return condition | {"reason": reasons.get(found["phase"], missing)}


def is_restarted(policy: str, state: Json) -> bool:
    """Whether a container that has ended starts again."""
    code = state.get("terminated", {}).get("exitCode")
    return code is not None and (policy == "Always" or (policy == "OnFailure" and code != 0))


def policy_of_init(policy: str) -> str:
    """An initial container that succeeded never starts again."""
    return "Never" if policy == "Never" else "OnFailure"


def _container(given: Json, facts: Facts, policy: str, idle: str = "PodInitializing") -> Json:
    start = facts.starts.get(given["name"])
    state = (
        start.state if start else {"waiting": facts.waiting.get(given["name"], {"reason": idle})}
    )
    last: Json = {}
    if start and is_restarted(policy, state) and not facts.is_ending:
        last, state = {"lastState": state}, {"waiting": {"reason": "CrashLoopBackOff"}}
    return {
        "name": given["name"],
        "image": given["image"],
        "imageID": given["image"] if start else "",
        "ready": "running" in state and given["name"] not in facts.unready,
        "started": "running" in state,
        "restartCount": start.number if start else 0,
        "state": state,
        **last,
        **({"containerID": start.identity} if start else {}),
    }


def _code(container: Json) -> int | None:
    code: int | None = container["state"].get("terminated", {}).get("exitCode")
    return code


def _phase(inits: list[Json], mains: list[Json]) -> str:
    if any(_code(each) for each in inits):
        return "Failed"
    codes = [_code(each) for each in mains]
    if None not in codes:
        return "Failed" if any(codes) else "Succeeded"
    began = [each for each in mains if "waiting" not in each["state"] or "lastState" in each]
    return "Running" if began else "Pending"


def verdict(reason: str, message: str, *, is_disruption: bool = False) -> Json:
    """The kubelet's own end of a pod."""
    return {"reason": reason, "message": message, "is_disruption": is_disruption}


def quantity(text: str) -> Decimal:
    """Of a resource."""
    digits = text.rstrip("mkKMGTi")
    return Decimal(digits) * SCALES.get(text[len(digits) :], Decimal(1))


def requests(body: Json) -> dict[str, Decimal]:
    """What a pod takes of its node: its containers at once, or its largest init container."""
    total = {"pods": Decimal(1)}
    for container in body["spec"]["containers"]:
        for name, asked in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, Decimal(0)) + quantity(asked)
    for container in body["spec"].get("initContainers", []):
        for name, asked in container.get("resources", {}).get("requests", {}).items():
            total[name] = max(total.get(name, Decimal(0)), quantity(asked))
    return total


def tolerates(tolerations: list[Json], taint: Json) -> bool:
    """Whether one of them covers the taint."""
    return any(
        each.get("effect", taint["effect"]) == taint["effect"]
        and each.get("key", taint["key"]) == taint["key"]
        and (
            each.get("operator", "Equal") == "Exists"
            or each.get("value", "") == taint.get("value", "")
        )
        for each in tolerations
    )
