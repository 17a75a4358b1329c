"""Runs the pods of `gpu_probe`, and deletes them, whatever happens."""

import secrets
import time
from collections.abc import Callable, Mapping

from cli.client import CommandError
from cli.deploy.findings import Cluster, Finding, Plan
from cli.deploy.gpu_probe import (
    ALL,
    LIMIT_S,
    NAME,
    NO_NAMESPACE,
    Outcome,
    choice,
    has_namespace,
    judged,
    late,
    outcome,
    probe_pod,
)
from cli.deploy.kubectl import Kubectl
from cli.deploy.objects import JOBS, name_of

AGAIN_S = 0.5


def try_gpus(
    kubectl: Kubectl, cluster: Cluster, plan: Plan, say: Callable[[str], None]
) -> list[Finding]:
    """What pods see on one node of each kind of GPU node."""
    chosen = choice(cluster, plan)
    if chosen.nodes and not has_namespace(cluster):
        return [NO_NAMESPACE]
    names = [name_of(each) for each in chosen.nodes]
    if names:
        say(f"Starting GPU pods in {JOBS} on {', '.join(names)}")
    every = _run(kubectl, plan, dict.fromkeys(names, ALL), say)
    firsts = {node: found.uuids[0] for node, found in every.items() if found.uuids}
    one = _run(kubectl, plan, firsts, say)
    found = [judged(each, every[name_of(each)], one.get(name_of(each))) for each in chosen.nodes]
    return [*found, *chosen.left_out]


def _run(
    kubectl: Kubectl, plan: Plan, devices: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, Outcome]:
    """What came of a pod on each node, which got these devices of it."""
    names = {f"{NAME}-{secrets.token_hex(6)}": node for node in devices}
    found: dict[str, Outcome] = {}
    try:
        for name, node in names.items():
            pod = probe_pod(name, plan, node, devices[node])
            try:
                kubectl.run("create", "-f", "-", objects=[pod])
            except CommandError as refused:
                found[node] = Outcome(problem=str(refused))
        try:
            _watch(kubectl, names, found)
        except CommandError as error:
            found |= {n: Outcome(problem=str(error)) for n in devices.keys() - found.keys()}
        return found
    finally:
        _delete(kubectl, [*names], say)


def _watch(kubectl: Kubectl, names: Mapping[str, str], found: dict[str, Outcome]) -> None:
    """Wait for the ends of pods, by name the node of each. Raises CommandError."""
    until = time.monotonic() + LIMIT_S
    while len(found) < len(names) and time.monotonic() < until:
        label = f"app.kubernetes.io/name={NAME}"
        for body in kubectl.every("get", "pods", "-n", JOBS, "-l", label):
            node = names.get(name_of(body), "")
            if node and node not in found and (ended := outcome(body)) is not None:
                found[node] = ended
        time.sleep(AGAIN_S)
    for name, node in names.items():
        if node not in found:
            of_pod = f"involvedObject.name={name}"
            found[node] = late(
                kubectl.every("get", "events", "-n", JOBS, "--field-selector", of_pod)
            )


def _delete(kubectl: Kubectl, names: list[str], say: Callable[[str], None]) -> None:
    if not names:
        return
    try:
        kubectl.run("delete", "pods", "-n", JOBS, "--ignore-not-found", "--wait=false", *names)
    except CommandError as error:
        say(f"Delete the pods {', '.join(names)} in {JOBS}, if they are there: {error}")
