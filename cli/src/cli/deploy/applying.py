"""Brings a cluster to what an overlay says, step by step, and takes all of it away again."""

import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from muster.contracts.acls import agent_user

from cli.client import CommandError, Exit
from cli.deploy.credentials import NODE_ANNOTATION, USERS
from cli.deploy.findings import agents, is_away, is_ready
from cli.deploy.kubectl import Kubectl
from cli.deploy.looking import why_not_ready
from cli.deploy.objects import (
    AGENT,
    AGENT_LABEL,
    HOST_JOBS,
    JOBS,
    NAMESPACES,
    OF_MUSTER,
    POD_OF_JOB,
    SYSTEM,
    Images,
    Json,
    find,
    images_of,
    name_of,
    settings_of,
    title_of,
)
from cli.deploy.rollout import JOB_NAME, SETUP, Look, Progress, Step, is_pending, look

SOON_S, AGAIN_S = 0.1, 1.0
"""Between two questions, at first and at most. kubectl's own wait shows neither progress nor what
is wrong.
"""
SAID_AGAIN_S = 30.0
IMAGES_BEFORE = "muster/images-before"
OVERLAY = "muster/overlay"
STOPPED_FIRST = ("deployments", "daemonsets", "jobs")
"""What makes pods, or has them made. Kafka and PostgreSQL stay until the namespace goes."""
CLUSTER_SCOPED = (
    "clusterrolebindings,clusterroles,priorityclasses,"
    "validatingadmissionpolicybindings,validatingadmissionpolicies"
)
ENDLESS = (
    "These do not end. Where the node of a pod is gone for good: `kubectl delete pod --force`."
    " Where an API does not answer: `kubectl get apiservices` names it; repair or delete it."
    " Then remove again."
)
SHOWN = 5
BUS = "bus"

Found = TypeVar("Found")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Waiting:
    """How long a part may take. `back`: what to do where one does not become ready."""

    timeout_s: float
    say: Say
    back: str


def roll_out(kubectl: Kubectl, steps: Sequence[Step], waiting: Waiting | None) -> None:
    """Apply one step after another, each once the one before it is ready."""
    for step in steps:
        if step.replaced:
            names = [f"job/{name_of(each)}" for each in step.objects]
            kubectl.run("delete", "-n", SYSTEM, "--ignore-not-found", *names)
        kubectl.apply(step.objects)
        if waiting is not None:
            for each in step.awaited:
                _wait(kubectl, each, waiting)


def _wait(kubectl: Kubectl, wanted: Json, waiting: Waiting) -> None:
    until = time.monotonic() + waiting.timeout_s
    said, said_at = "", 0.0
    node = wanted["metadata"].get("annotations", {}).get(NODE_ANNOTATION)
    title = title_of(wanted) + (f" on {node}" if node else "")
    away = nodes_away(kubectl) if wanted["kind"] == "DaemonSet" else []
    failed_before: str | None = None
    pauses = _pauses()
    while True:
        now = time.monotonic()
        found = _unless_away(
            lambda: _look(kubectl, wanted, len(away)),
            Look(Progress.WAITING, "the API server does not answer"),
            until,
        )
        if found.progress is Progress.FAILED:
            # A Deployment keeps what an earlier roll-out came to, until new pods make progress.
            failed_before = found.detail if not said else failed_before
            if found.detail == failed_before:
                found = Look(Progress.WAITING, found.detail)
        text = f"{title}: {found.detail}"
        if away:
            text = f"{text}, not on {', '.join(away[:SHOWN])}: not ready"
        if text != said or now - said_at > SAID_AGAIN_S:
            waiting.say(text)
            said, said_at = text, now
        if found.progress is Progress.READY:
            return
        if found.progress is Progress.FAILED or now > until:
            why = [f"Node {each} is not ready. `muster nodes remove {each}`?" for each in away]
            pods = _pods(kubectl, wanted)
            why += why_not_ready(kubectl, [name_of(wanted)], pods)
            raise CommandError(
                Exit.NOT_ALL_READY,
                f"{text}. It did not become ready; what comes after it was not changed."
                f" {_more(wanted, pods)}. {waiting.back}",
                tuple(why[:SHOWN]),
            )
        time.sleep(next(pauses))


def _look(kubectl: Kubectl, wanted: Json, away: int) -> Look:
    live = kubectl.get(wanted["kind"], name_of(wanted), SYSTEM)
    pods = _pods(kubectl, wanted) if wanted["kind"] == "Job" else ()
    return look(wanted, live, away, pods)


def _pods(kubectl: Kubectl, wanted: Json) -> list[Json]:
    return kubectl.every("get", "pods", "-n", SYSTEM, "-l", _label(wanted))


def _label(wanted: Json) -> str:
    of_part = JOB_NAME if wanted["kind"] == "Job" else "app.kubernetes.io/name"
    return f"{of_part}={name_of(wanted)}"


def _more(wanted: Json, pods: Sequence[Json]) -> str:
    """Where to read on. What has not started has no log."""
    part = f"{wanted['kind'].lower()}/{name_of(wanted)}"
    if any(not is_pending(each) for each in pods):
        return f"Its log: kubectl -n {SYSTEM} logs {part}"
    asked = f"pods -l {_label(wanted)}" if pods else part
    return f"More: kubectl -n {SYSTEM} describe {asked}"


def nodes_away(kubectl: Kubectl, named: Sequence[str] = ()) -> list[str]:
    """Of Muster's nodes and those named, the ones whose kubelet does not answer: nothing starts
    there.
    """
    found = agents(kubectl.every("get", "nodes"), named)
    return [name_of(each) for each in found if is_away(each)]


def remember_images(kubectl: Kubectl, agent: Json, new: Images) -> None:
    """Keep the images that an upgrade or an apply replaces, for `rollback`."""
    old = images_of(agent)
    if old != new:
        text = f"{IMAGES_BEFORE}={old.muster} {old.step}"
        kubectl.run("annotate", "namespace", SYSTEM, "--overwrite", text)


def images_before(kubectl: Kubectl) -> Images | None:
    """The images before the last change of them."""
    text = _remembered(kubectl, IMAGES_BEFORE)
    return Images(*text.split()) if text else None


def remember_overlay(kubectl: Kubectl, overlay: Path | None) -> None:
    """Keep of which overlay the installation is. None: the one that is taken without a name."""
    text = f"{OVERLAY}-" if overlay is None else f"{OVERLAY}={overlay.resolve()}"
    kubectl.run("annotate", "namespace", SYSTEM, "--overwrite", text)


def overlay_before(kubectl: Kubectl) -> str:
    """The folder of the installation's overlay; empty where none was named."""
    return _remembered(kubectl, OVERLAY)


def _remembered(kubectl: Kubectl, name: str) -> str:
    namespace = kubectl.get("namespace", SYSTEM) or {"metadata": {}}
    return str(namespace["metadata"].get("annotations", {}).get(name, ""))


def bus_job(objects: Sequence[Json], removed: Sequence[str] = ()) -> Step:
    """The Job that sets Kafka's users and rights, with its settings. `removed`: nodes whose agents
    it revokes.
    """
    job = copy.deepcopy(find(objects, "Job", BUS))
    if job is None:
        raise CommandError(
            Exit.USAGE, f"The overlay has no Job {BUS}: it must use deploy/k8s/base."
        )
    [container] = job["spec"]["template"]["spec"]["containers"]
    container["args"] += [word for node in removed for word in ("--remove", node)]
    settings = [find(objects, "ConfigMap", each) for each in settings_of(job)]
    return Step("bus", [job, *filter(None, settings)], replaced=True)


def enrol(kubectl: Kubectl, enrolled: Sequence[Json], waiting: Waiting | None) -> None:
    """Store credentials on nodes, before they get an agent: it may find those of an earlier
    installation there. Also the same Job runs anew: it may have run on a machine that had the
    node's name before.
    """
    jobs = [each for each in enrolled if each["kind"] == "Job"]
    kubectl.apply([each for each in enrolled if each not in jobs])
    if jobs:
        roll_out(kubectl, [Step("enrolment", jobs, replaced=True)], waiting)


def let_in(kubectl: Kubectl, nodes: Sequence[str], wanted: Step, waiting: Waiting) -> None:
    """Have agents on these nodes, once their users are in `wanted`. Returns when they are ready."""
    kubectl.run("label", "nodes", "--overwrite", *nodes, f"{AGENT_LABEL}=true")
    roll_out(kubectl, [wanted], waiting)

    def missing() -> list[str]:
        ready = {each["spec"].get("nodeName") for each in agent_pods(kubectl) if is_ready(each)}
        return [f"the agent of {each}" for each in nodes if each not in ready]

    until = time.monotonic() + waiting.timeout_s
    logs = f"kubectl -n {SYSTEM} logs -l app.kubernetes.io/name={AGENT} --all-containers"
    _until_none(missing, until, waiting.say, f"Not ready. Their logs: {logs}. {waiting.back}")


def take_out(kubectl: Kubectl, nodes: Sequence[str], wanted: Step, waiting: Waiting) -> None:
    """Take agents off these nodes, revoke them by the Job in `wanted`, and delete what is theirs. A
    node that is no longer in the cluster has no label to lose.
    """
    there = {name_of(each) for each in kubectl.every("get", "nodes")}
    if labelled := [each for each in nodes if each in there]:
        kubectl.run("label", "nodes", *labelled, f"{AGENT_LABEL}-")
    until = time.monotonic() + waiting.timeout_s
    gone = "Where a machine is gone for good: `kubectl delete node`. Then remove again."

    def running() -> list[str]:
        return _names([e for e in agent_pods(kubectl) if e["spec"].get("nodeName") in nodes])

    _until_none(running, until, waiting.say, f"These do not end. {gone}")
    for node in nodes:  # what was placed there in the last moment runs again elsewhere
        for namespace in (JOBS, HOST_JOBS):
            of_node = ("-l", POD_OF_JOB, "--field-selector", f"spec.nodeName={node}")
            kubectl.run("delete", "pods", "-n", namespace, *of_node, "--wait=false")
    without = json.dumps({"data": dict.fromkeys(map(agent_user, nodes))})
    kubectl.run("patch", "secret", USERS, "-n", SYSTEM, "--type=merge", "-p", without)
    roll_out(kubectl, [wanted], waiting)
    jobs = kubectl.every("get", "jobs", "-n", SYSTEM, "-l", OF_MUSTER)
    theirs = [*_of_nodes(jobs, nodes), *(f"secret/{agent_user(each)}" for each in nodes)]
    kubectl.run("delete", "-n", SYSTEM, "--ignore-not-found", *theirs)


def _of_nodes(objects: Sequence[Json], nodes: Sequence[str]) -> list[str]:
    return [
        f"{each['kind'].lower()}/{name_of(each)}"
        for each in objects
        if each["metadata"].get("annotations", {}).get(NODE_ANNOTATION) in nodes
    ]


def agent_pods(kubectl: Kubectl) -> list[Json]:
    """The pods of all agents."""
    return kubectl.every("get", "pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={AGENT}")


def drop_setup(kubectl: Kubectl) -> None:
    """Delete the setup Jobs: those of another version may still be to run."""
    kubectl.run("delete", "-n", SYSTEM, "--ignore-not-found", *(f"job/{each}" for each in SETUP))


def is_anything_left(kubectl: Kubectl) -> bool:
    """Whether there is anything to take away."""
    return bool(
        _namespaces(kubectl)
        or kubectl.every("get", CLUSTER_SCOPED, "-l", OF_MUSTER)
        or kubectl.every("get", "nodes", "-l", AGENT_LABEL)
    )


def take_away(kubectl: Kubectl, timeout_s: float, say: Say) -> None:
    """Take all objects away. Returns when none is left."""
    until = time.monotonic() + timeout_s
    here = _namespaces(kubectl)
    if SYSTEM in here:
        say("Ending the services and agents")
        # Before the jobs' pods: the services would have these made again.
        kubectl.run(
            "delete", ",".join(STOPPED_FIRST), "-n", SYSTEM, "-l", OF_MUSTER, "--wait=false"
        )
        makers = ("get", "deployments,daemonsets", "-n", SYSTEM, "-l", OF_MUSTER)
        _until_none(lambda: _names(kubectl.every(*makers)), until, say, ENDLESS)
    for name in here:
        kubectl.run("delete", "pods", "-n", name, "-l", POD_OF_JOB, "--wait=false")
    of_jobs = ("get", "pods", "-A", "-l", POD_OF_JOB)
    _until_none(lambda: _names(kubectl.every(*of_jobs)), until, say, ENDLESS)
    if here:
        kubectl.run("delete", "namespace", "--wait=false", "--ignore-not-found", *here)
        _until_none(lambda: _left_in(kubectl), until, say, ENDLESS, lambda: _holders(kubectl))
    kubectl.run("delete", CLUSTER_SCOPED, "-l", OF_MUSTER)
    kubectl.run("label", "nodes", "-l", AGENT_LABEL, f"{AGENT_LABEL}-")


def _namespaces(kubectl: Kubectl) -> list[str]:
    found = {name_of(each) for each in kubectl.every("get", "namespaces")}
    return [each for each in NAMESPACES if each in found]


def _names(objects: Sequence[Json]) -> list[str]:
    return [title_of(each) for each in objects]


def _left_in(kubectl: Kubectl) -> list[str]:
    """The namespaces and what they hold: pods whose nodes are away hold them longest."""
    namespaces = _namespaces(kubectl)
    found = [f"Namespace {each}" for each in namespaces]
    for each in namespaces:
        found += _names(kubectl.every("get", "pods", "-n", each))
    return found


def _holders(kubectl: Kubectl) -> list[str]:
    """What Kubernetes says of namespaces that do not end: often the same of each."""
    found = kubectl.every("get", "namespaces", *NAMESPACES, "--ignore-not-found")
    said = [
        str(each["message"])
        for body in found
        for each in body["status"].get("conditions", [])
        if each["status"] == "True"
    ]
    return list(dict.fromkeys(said))


def _until_none(
    left: Callable[[], list[str]],
    until: float,
    say: Say,
    late: str,
    why: Callable[[], list[str]] = list,
) -> None:
    """`why`: more about what is left too long."""
    said, said_at, pauses = -1, 0.0, _pauses()
    away = ["the API server, which does not answer"]
    while found := _unless_away(left, away, until):
        now = time.monotonic()
        if len(found) != said or now - said_at > SAID_AGAIN_S:
            say(f"Waiting for {len(found)}: {', '.join(found[:SHOWN])}")
            said, said_at = len(found), now
        if now > until:
            raise CommandError(Exit.TIMED_OUT, late, (*found[:SHOWN], *why()))
        time.sleep(next(pauses))


def _unless_away(ask: Callable[[], Found], away: Found, until: float) -> Found:
    """The API server of a small cluster may not answer while all pods start."""
    try:
        return ask()
    except CommandError as error:
        if error.code is not Exit.UNREACHABLE or time.monotonic() > until:
            raise
        return away


def _pauses() -> Iterator[float]:
    pause_s = SOON_S
    while True:
        yield pause_s
        pause_s = min(AGAIN_S, pause_s * 2)
