"""`muster deploy`: Muster on a Kubernetes cluster, by the user's kubectl."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from muster.contracts.acls import agent_user
from muster.counted import counted

from cli.client import CommandError, Exit
from cli.commands.session import Output, seconds
from cli.deploy.applying import (
    Waiting,
    bus_job,
    drop_setup,
    enrol,
    images_before,
    is_anything_left,
    let_in,
    nodes_away,
    overlay_before,
    remember_images,
    remember_overlay,
    roll_out,
    take_away,
    take_out,
)
from cli.deploy.cluster_file import LEVELS, cluster_file, written
from cli.deploy.credentials import DATABASE_VARIABLE, NO_DATABASE, address_of_database
from cli.deploy.difference import Change, changes, summary
from cli.deploy.findings import Finding, Level, Plan, agents, cells, findings, is_ready, some
from cli.deploy.key import (
    enrolments,
    first_password,
    has_database,
    key_for,
    secrets_of,
    users_of,
)
from cli.deploy.kubectl import Connection, Kubectl
from cli.deploy.looking import (
    installed_or_refuse,
    job_nodes,
    job_pods,
    live_agent,
    live_secrets,
    look_at,
    lost_claims,
    why_not_ready,
)
from cli.deploy.objects import (
    AGENT,
    AGENT_LABEL,
    REST,
    SYSTEM,
    Images,
    Json,
    agent_setting,
    find,
    images_of,
    name_of,
    namespace_of,
    settings_of,
    with_images,
    with_marks,
)
from cli.deploy.probe_pods import try_gpus
from cli.deploy.rollout import Progress, Step, short, standing, steps
from cli.home import checkout_root
from cli.output import Format, print_json, print_line, print_note, print_table

MINIMAL = "deploy/k8s/overlays/minimal"
BOOTSTRAP = "MUSTER_KAFKA_BOOTSTRAP"
REST_PORT = 8080
SHOWN = 3
RUN_AGAIN = "run again"

CONNECTION = Connection()
Cluster = Annotated[Connection, Parameter(name="*")]
Overlay = Annotated[
    Path | None,
    Parameter(name="--overlay", help=f"The folder of your overlay; by default {MINIMAL}."),
]
Nodes = Annotated[
    tuple[str, ...],
    Parameter(name="--node", help="A node that is to run jobs; may be given again."),
]
KeyFile = Annotated[
    Path, Parameter(help="The key from which all passwords derive; `apply` makes it once.")
]
KEY = Path("muster.key")
Timeout = Annotated[str, Parameter(help="How long one part may take: 90s, 10m.")]
Yes = Annotated[bool, Parameter(name="--yes", help="Do it without a confirmation.", negative=())]
NewImage = Annotated[
    str | None, Parameter(help="Muster's new image with its tag or digest, else the overlay's.")
]
NewStep = Annotated[str | None, Parameter(help="The new image `muster-step`, else the overlay's.")]

app = App(
    name="deploy",
    help="Muster on Kubernetes: check, apply, status, upgrade, rollback, remove, cluster-file.",
    default_parameter=Parameter(negative=()),
)


@app.command
def check(
    *,
    overlay: Overlay = None,
    node: Nodes = (),
    no_gpu_pods: Annotated[
        bool, Parameter(name="--no-gpu-pods", help="Start no pods.", negative=())
    ] = False,
    cluster: Cluster = CONNECTION,
    output: Output = Format.TABLE,
) -> Exit:
    """Whether a cluster can run Muster, and what to do where not. Where containers are to get GPUs,
    it starts two short pods in muster-jobs on one node of each kind, at most on three, sees whether
    they get them, and deletes them. It changes nothing else. The exit status is 1 where something
    refuses.
    """
    kubectl = Kubectl(cluster)
    plan = _plan(kubectl, overlay, node)
    looked_at = look_at(kubectl, plan.objects)
    found = findings(looked_at, plan)
    if not no_gpu_pods:
        found += try_gpus(kubectl, looked_at, plan, print_note)
    if output is Format.JSON:
        print_json([vars(each) for each in found])
    else:
        _print_findings(found)
    return Exit.CHECK_REFUSED if _refusals(found) else Exit.OK


@Parameter(name="*")
@dataclass(frozen=True)
class Applying:
    """Options of `apply`."""

    key_file: KeyFile = KEY
    database_url: Annotated[
        str | None,
        Parameter(
            help="Your PostgreSQL; {password} stands for the one in the Secret postgres. An address"
            " with a password of yours goes into the environment as MUSTER_DEPLOY_DATABASE_URL."
        ),
    ] = None
    yes: Yes = False
    no_wait: Annotated[
        bool, Parameter(name="--no-wait", help="Do not wait until all is ready.", negative=())
    ] = False
    timeout: Timeout = "10m"


APPLYING = Applying()


@app.command
def apply(
    *,
    overlay: Overlay = None,
    node: Nodes = (),
    options: Annotated[Applying, Parameter(name="*")] = APPLYING,
    cluster: Cluster = CONNECTION,
) -> None:
    """Install Muster, or bring an installation to what the overlay says. It checks, shows the
    difference, asks, and waits until all is ready.
    """
    kubectl = Kubectl(cluster)
    timeout_s = _seconds(options.timeout)
    try:
        database_url = address_of_database(options.database_url, os.environ)
    except ValueError as error:
        raise CommandError(Exit.USAGE, str(error)) from error
    plan = _plan(kubectl, overlay, node)
    _refuse_or_warn(kubectl, plan)
    before = live_secrets(kubectl)
    if database_url is None and not has_database(plan.objects, before):
        raise CommandError(Exit.USAGE, NO_DATABASE)
    rest = find(before, "Secret", REST)
    named = job_nodes(kubectl, node)
    _show(kubectl, with_marks(plan.objects, before), RUN_AGAIN)
    print_line(f"nodes for jobs: {', '.join(named) or 'none'}")
    if database_url and not options.database_url:
        print_line(f"database: that of {DATABASE_VARIABLE} in your environment")
    _confirm("Apply this?", yes=options.yes)
    had_key = options.key_file.exists()
    key = key_for(options.key_file, rest)
    if not had_key:
        print_line(f"Made the key {options.key_file}. Keep it: later commands need it.")
    if rest is None:  # before there is that Secret, so that no error can hide it for good
        print_line(f"The first administrator's password, shown once: {first_password(key)}")
    secrets = secrets_of(key, before, named, database_url)
    known = job_nodes(kubectl)
    enrolled = enrolments(key, known, plan.images.muster)
    if (agent := live_agent(kubectl)) is not None:
        remember_images(kubectl, agent, plan.images)
    first, *_ = steps(plan.objects)
    roll_out(kubectl, [first, Step("credentials", [*secrets, *enrolled])], None)
    remember_overlay(kubectl, _other_than_minimal(overlay))
    back = "Then apply again; it goes on there."
    waiting = None if options.no_wait else Waiting(timeout_s, print_note, back)
    if new := [each for each in named if each not in known]:
        away = [each for each in nodes_away(kubectl, new) if each in new]
        there = [each for each in new if each not in away]
        enrol(kubectl, enrolments(key, away, plan.images.muster), None)
        enrol(kubectl, enrolments(key, there, plan.images.muster), waiting)
        kubectl.run("label", "nodes", "--overwrite", *new, f"{AGENT_LABEL}=true")
    _, *later = steps(with_marks(plan.objects, live_secrets(kubectl)))
    roll_out(kubectl, later, waiting)
    _print_address()


@app.command
def status(*, cluster: Cluster = CONNECTION, output: Output = Format.TABLE) -> Exit:
    """The parts, their images, and the nodes. The exit status is 0 when all is ready. A service
    that is not there, or has 0 replicas, is `missing`.
    """
    kubectl = Kubectl(cluster)
    installed_or_refuse(kubectl)
    kinds = "deployments,statefulsets,daemonsets,jobs"
    bodies = kubectl.every("get", kinds, "-n", SYSTEM, "-l", "app.kubernetes.io/name")
    pods = kubectl.every("get", "pods", "-n", SYSTEM)
    lasting = [
        each
        for each in bodies
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") != "enrolment"
    ]
    found = standing(lasting, pods)
    parts = [
        {
            "part": each.name,
            "kind": each.kind,
            "state": each.look.progress.value,
            "detail": each.look.detail,
            "images": each.images,
        }
        for each in found
    ]
    agents_on = {
        each["spec"].get("nodeName"): is_ready(each)
        for each in pods
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/name") == AGENT
    }
    every_node = kubectl.every("get", "nodes")
    nodes = [{"node": name_of(each), "agent": _agent(each, agents_on)} for each in every_node]
    in_force = kubectl.every("get", "deployments,configmaps", "-n", SYSTEM)
    of_cells = list(cells(in_force, agents(every_node, ()) or every_node))
    waiting = [each.name for each in found if each.look.progress is not Progress.READY]
    of_jobs, why = len(job_pods(kubectl)), why_not_ready(kubectl, waiting, pods)
    if output is Format.JSON:
        cells_ = [vars(each) for each in of_cells]
        shown = {"parts": parts, "nodes": nodes, "jobPods": of_jobs, "troubles": why}
        print_json(shown | {"cells": cells_})
    else:
        print_table(("PART", "STATE", "DETAIL", "IMAGES"), [_row(each) for each in parts])
        _print_nodes(nodes)
        print_line(f"pods of jobs: {of_jobs}")
        _print_findings([each for each in of_cells if each.level is not Level.OK])
        for line in why[:SHOWN]:
            print_line(line)
    lagging = any(each["agent"] in ("missing", "not ready") for each in nodes)
    return Exit.OK if not (waiting or lagging) else Exit.NOT_ALL_READY


@Parameter(name="*")
@dataclass(frozen=True)
class Rolling:
    """Options of `upgrade` and `rollback`."""

    overlay: Overlay = None
    yes: Yes = False
    timeout: Timeout = "10m"


ROLLING = Rolling()


@app.command
def upgrade(
    *,
    image: NewImage = None,
    step_image: NewStep = None,
    key_file: KeyFile = KEY,
    options: Annotated[Rolling, Parameter(name="*")] = ROLLING,
    cluster: Cluster = CONNECTION,
) -> None:
    """Roll a new version out: Secrets and migrations first, then one service after another, agents
    last. It stops at the first that does not become ready. Jobs run on.
    """
    kubectl = Kubectl(cluster)
    plan = _plan(kubectl, options.overlay, ())
    new = Images(image or plan.images.muster, step_image or plan.images.step)
    if image and not step_image:
        print_note(f"The step image stays {new.step}. It needs the same version: --step-image.")
    installed_or_refuse(kubectl)
    before = live_secrets(kubectl)
    key = key_for(key_file, find(before, "Secret", REST))
    secrets = secrets_of(key, before, job_nodes(kubectl), None)
    _change_images(kubectl, plan, new, options, secrets)


@app.command
def rollback(
    *,
    options: Annotated[Rolling, Parameter(name="*")] = ROLLING,
    cluster: Cluster = CONNECTION,
) -> None:
    """Return to the images before the last change of them. The database stays as it is: older
    services run on newer tables.
    """
    kubectl = Kubectl(cluster)
    installed_or_refuse(kubectl)
    before = images_before(kubectl)
    if before is None:
        message = "No images before are known: Muster's have not changed here."
        raise CommandError(Exit.REFUSED, f"{message} Name them: `upgrade --image`.")
    _change_images(kubectl, _plan(kubectl, options.overlay, ()), before, options, None)


@app.command
def remove(*, yes: Yes = False, timeout: Timeout = "10m", cluster: Cluster = CONNECTION) -> None:
    """Take all of Muster out of the cluster: jobs, data, namespaces, rights and labels."""
    kubectl = Kubectl(cluster)
    if not is_anything_left(kubectl):
        print_line("This cluster has nothing of Muster to remove; --context names another one.")
        return
    if running := job_pods(kubectl):
        print_note(f"This ends {counted(len(running), 'pod')} of running jobs.")
    print_note("It deletes all objects of Muster, also the volumes of Kafka and PostgreSQL.")
    if lost := lost_claims(kubectl):
        print_note(f"It deletes the data of these storages: the claims {', '.join(lost)}.")
        print_note("To keep them, set persistentVolumeReclaimPolicy of their volumes to Retain.")
    if not yes and _answer(f"Type {SYSTEM} to go on: ") != SYSTEM:
        raise CommandError(Exit.REFUSED, "Nothing is removed. --yes removes without a question.")
    take_away(kubectl, _seconds(timeout), print_note)
    print_line(
        "Muster is removed. On the nodes that ran jobs /var/lib/muster stays: delete it there."
    )
    print_line("Volumes whose storage class retains them stay too: `kubectl get pv`.")


@app.command(name="cluster-file")
def cluster_file_(
    *,
    level: Annotated[
        tuple[str, ...],
        Parameter(help="A label that groups nodes, from the node outwards; may be given again."),
    ] = LEVELS,
    cluster: Cluster = CONNECTION,
) -> None:
    """Print a cluster file from the nodes' labels: GPUs, NVLink domains, racks. Virtual clusters
    are yours to add.
    """
    nodes = Kubectl(cluster).every("get", "nodes")
    chosen = agents(nodes, ()) or nodes
    content = cluster_file(chosen, level)
    if not content["physicalCells"]:
        message = "No node announces nvidia.com/gpu: install NVIDIA's device plug-in."
        raise CommandError(Exit.REFUSED, f"{message} Without it, write the file by hand.")
    sys.stdout.write(written(content, level))


NodeNames = Annotated[str, Parameter(help="A node's name, as Kubernetes has it; or several.")]


def add_nodes(
    *node: NodeNames,
    overlay: Overlay = None,
    key_file: KeyFile = KEY,
    timeout: Timeout = "10m",
    cluster: Cluster = CONNECTION,
) -> None:
    """On Kubernetes: let nodes run jobs, also those made anew under an old name. It changes no
    service and no other node.
    """
    _refuse_none(node)
    kubectl = Kubectl(cluster)
    waiting = Waiting(_seconds(timeout), print_note, "Then add again.")
    images = images_of(installed_or_refuse(kubectl))
    plan = _plan(kubectl, overlay, node)
    _refuse_or_warn(kubectl, plan)
    key = key_for(key_file, kubectl.get("secret", REST, SYSTEM))
    kubectl.apply([users_of(key, job_nodes(kubectl, node))])
    enrol(kubectl, enrolments(key, node, images.muster), waiting)
    let_in(kubectl, node, bus_job(with_images(plan.objects, plan.images, images)), waiting)
    print_line(f"{', '.join(node)}: ready for jobs. `muster nodes uncordon` ends an earlier drain.")


def remove_nodes(
    *node: NodeNames,
    overlay: Overlay = None,
    timeout: Timeout = "10m",
    cluster: Cluster = CONNECTION,
) -> None:
    """On Kubernetes: take drained nodes out of Muster. It ends their agents, revokes their log-ins
    to Kafka, deletes their Secrets and labels, and has Muster forget them.
    """
    _refuse_none(node)
    kubectl = Kubectl(cluster)
    waiting = Waiting(_seconds(timeout), print_note, "Then remove again.")
    images = images_of(installed_or_refuse(kubectl))
    plan = _plan(kubectl, overlay, node)
    known = set(job_nodes(kubectl))
    enrolled = {name_of(each) for each in live_secrets(kubectl)}
    if unknown := [e for e in node if e not in known and agent_user(e) not in enrolled]:
        message = f"{some(unknown)}: no node of Muster. `muster deploy status` lists those."
        raise CommandError(Exit.REFUSED, message)
    pods = Counter(each["spec"].get("nodeName") for each in job_pods(kubectl))
    if busy := [each for each in node if pods[each]]:
        drains = tuple(
            f"`muster nodes drain {each}`: {counted(pods[each], 'pod')}" for each in busy
        )
        raise CommandError(
            Exit.REFUSED,
            "Pods of jobs run there. Drain first, and wait until `muster nodes` shows `drained`."
            " Where the machine is gone for good: `kubectl delete node`.",
            drains,
        )
    objects = with_images(plan.objects, plan.images, images)
    take_out(kubectl, node, bus_job(objects, node), waiting)
    print_line(f"{', '.join(node)}: removed. Delete /var/lib/muster there.")


def _refuse_none(nodes: tuple[str, ...]) -> None:
    if not nodes:
        raise CommandError(Exit.USAGE, "Name at least one node: `kubectl get nodes` has them.")


def _plan(kubectl: Kubectl, overlay: Path | None, nodes: tuple[str, ...]) -> Plan:
    if overlay is None:
        root = checkout_root()
        if root is None:
            raise CommandError(Exit.USAGE, "Name the folder of your overlay by --overlay.")
        overlay = root / MINIMAL
        objects = kubectl.render(overlay)
        _refuse_other_installation(kubectl, objects)
    else:
        objects = kubectl.render(overlay)
    agent = find(objects, "DaemonSet", AGENT)
    if agent is None:
        message = f"{overlay} has no DaemonSet {AGENT}: it must use deploy/k8s/base."
        raise CommandError(Exit.USAGE, message)
    images = images_of(agent)
    # An overlay of an overlay changes the step container's image, not the variable beside it.
    return Plan(with_images(objects, images, images), images, nodes)


def _refuse_other_installation(kubectl: Kubectl, objects: Sequence[Json]) -> None:
    """The overlay that is taken where none is named may not be the installation's."""
    if before := overlay_before(kubectl):
        message = f"The installation's overlay is {before}."
        fix = f"Name it by --overlay. `--overlay {MINIMAL}` changes to that one."
        raise CommandError(Exit.USAGE, f"{message} {fix}")
    agent = live_agent(kubectl)
    if agent is None:
        return
    live = [kubectl.get("configmap", each, SYSTEM) for each in settings_of(agent)]
    found = [agent, *filter(None, live)]
    now, then = agent_setting(found, BOOTSTRAP), agent_setting(objects, BOOTSTRAP)
    if now != then:
        message = f"The installation's Kafka is {now}, that of the overlay {MINIMAL} {then}."
        fix = "Name the installation's overlay by --overlay."
        raise CommandError(Exit.USAGE, f"{message} {fix}")


def _other_than_minimal(overlay: Path | None) -> Path | None:
    root = checkout_root()
    if overlay is None or root is None or overlay.resolve() != (root / MINIMAL).resolve():
        return overlay
    return None


def _refuse_or_warn(kubectl: Kubectl, plan: Plan) -> None:
    found = findings(look_at(kubectl, plan.objects), plan)
    _print_findings([each for each in found if each.level is not Level.OK])
    if refusals := _refusals(found):
        message = f"Nothing is changed, because of {counted(refusals, 'refusal')} above."
        raise CommandError(Exit.CHECK_REFUSED, message)


def _refusals(found: list[Finding]) -> int:
    return sum(1 for each in found if each.level is Level.REFUSAL)


def _print_findings(found: list[Finding]) -> None:
    for each in found:
        print_line(f"{each.level.value:<8} {each.subject}: {each.text}")
        if each.fix:
            print_line(f"{'':<8} {each.fix}")


def _change_images(
    kubectl: Kubectl, plan: Plan, new: Images, options: Rolling, secrets: list[Json] | None
) -> None:
    """Without Secrets it is a way back: no Job runs either."""
    timeout_s = _seconds(options.timeout)
    agent = installed_or_refuse(kubectl)
    objects = with_images(plan.objects, plan.images, new)
    print_line(f"{images_of(agent).muster} -> {new.muster}")
    setup = "are deleted and do not run" if secrets is None else RUN_AGAIN
    _show(kubectl, with_marks(objects, live_secrets(kubectl)), setup)
    _confirm("Roll this out?", yes=options.yes)
    remember_images(kubectl, agent, new)
    remember_overlay(kubectl, _other_than_minimal(options.overlay))
    kubectl.apply(secrets or ())
    marked = with_marks(objects, live_secrets(kubectl))
    back = "`muster deploy rollback` returns to the images before."
    if secrets is None:
        drop_setup(kubectl)
    planned = steps(marked, with_setup=secrets is not None)
    roll_out(kubectl, planned, Waiting(timeout_s, print_note, back))
    print_line(f"{new.muster} runs.")


def _show(kubectl: Kubectl, objects: Sequence[Json], setup: str) -> None:
    """The difference. Setup Jobs are left out; `setup`: what becomes of them."""
    compared = [each for each in objects if each["kind"] != "Job"]
    there = {"", *map(name_of, kubectl.every("get", "namespaces"))}
    # A dry run needs the namespaces; of an installation that was cut off some are there.
    new = [each for each in compared if SYSTEM not in there or namespace_of(each) not in there]
    others = [each for each in compared if each not in new]
    found = [Change(each) for each in new]
    if others:
        found += changes(kubectl.live(others), kubectl.applied(others))
    for line in summary(found):
        print_line(line)
    if not found:
        print_line(f"No object changes. The Jobs `bus` and `migrate` {setup}.")


def _confirm(question: str, *, yes: bool) -> None:
    if not yes and _answer(f"{question} [y/N] ").lower() not in ("y", "yes"):
        raise CommandError(Exit.REFUSED, "Nothing is changed. --yes does it without a question.")


def _answer(question: str) -> str:
    """What the user at the terminal types; empty where there is none."""
    if sys.stdin.closed or not sys.stdin.isatty():
        return ""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def _print_address() -> None:
    print_line(f"REST is at http://{REST}.{SYSTEM}.svc:{REST_PORT} inside the cluster. From here:")
    print_line(f"  kubectl -n {SYSTEM} port-forward service/{REST} {REST_PORT} &")
    print_line(f"  MUSTER_URL=http://127.0.0.1:{REST_PORT} muster login admin")


def _row(part: Json) -> tuple[object, ...]:
    images = " ".join(map(short, part["images"]))
    return part["part"], part["state"], part["detail"], images


def _agent(node: Json, agents_on: dict[str, bool]) -> str:
    ready = agents_on.get(name_of(node))
    if ready is not None:
        return "ready" if ready else "not ready"
    has_label = node["metadata"].get("labels", {}).get(AGENT_LABEL) == "true"
    return "missing" if has_label else "none"


def _print_nodes(nodes: list[Json]) -> None:
    for state in ("ready", "not ready", "missing", "none"):
        names = [each["node"] for each in nodes if each["agent"] == state]
        if names:
            print_line(f"nodes, agent {state}: {len(names)} ({some(names, SHOWN)})")


def _seconds(text: str) -> int:
    found = seconds(text)
    if found is None:
        raise CommandError(Exit.USAGE, f"--timeout {text} is no length of time: 90s, 10m.")
    return found
