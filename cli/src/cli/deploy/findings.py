"""Judges a cluster before an installation: what refuses it, and what to know. Pure."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum

from muster import taints
from muster.addresses import is_within, networks_of
from muster.contracts.node_access import ALL
from muster.counted import counted
from muster.settings import PREFIX, names_in

from cli.deploy.cluster_file import commands, differences, file_in, virtual_clusters_in
from cli.deploy.known_settings import RULES
from cli.deploy.objects import (
    AGENT,
    AGENT_LABEL,
    HOST_JOBS,
    JOBS,
    NAMESPACES,
    SYSTEM,
    WORKLOADS,
    Images,
    Json,
    Key,
    agent_setting,
    containers,
    find,
    gpus_of,
    group_of,
    name_of,
    plural,
    title_of,
)
from cli.deploy.references import to_be_made
from cli.deploy.setting_rules import is_taken, shown, wanted

LEAST = (1, 32)
MAX_SKEW_S = 5.0
LEASE_RENEWED_S = 40.0
"""kubelet renews its lease every 10 s; after 40 s its node is no longer ready."""
OURS = (("linux", "amd64"), ("", ""))
"""Operating system and processor for which the image is; or the node has not told yet."""
MAX_NODE_NAME = 64
SHOWN = 5
LEVEL = "pod-security.kubernetes.io/enforce"
RUNTIME_CLASS = "nvidia"
GPU_MODE = "MUSTER_KUBE_GPU_MODE"
VISIBLE_DEVICES, NO_GPUS = "visible-devices", "none"
TAINTS_SETTING = "MUSTER_KUBE_TOLERATED_TAINTS"
NETWORKS_SETTING = "MUSTER_AGENT_NETWORKS"
HOST_NETWORK_SETTING = "MUSTER_KUBE_HOST_NETWORK"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
VERBS = ("create", "patch", "delete")
_SETTINGS = re.compile("settings(-[0-9a-z]+)?")
"""The ConfigMap's name, to which kustomize adds a hash."""
REFERENCE = "$("
"""In a variable's value: Kubernetes puts that of another one there."""
MAKERS = {"monitoring.coreos.com": ("the Prometheus Operator", "monitoring")}
"""Of API groups that components need: who brings them, and the component."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    REFUSAL = "refusal"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix`: what to do."""

    subject: str
    level: Level
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Right:
    """A request that the roll-out makes."""

    verb: str
    group: str
    resource: str
    namespace: str

    def text(self) -> str:
        """For people."""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}{where}"


@dataclass(frozen=True)
class Cluster:
    """What kubectl tells of a cluster. `server_time`: the API server's clock; `asked_at` and
    `answered_at`: this machine's, before and after it asked for that.
    """

    client: str
    server: str
    denied: Sequence[Right]
    groups: Collection[str]
    """Of its API."""
    nodes: Sequence[Json]
    leases: Sequence[Json]
    storage_classes: Sequence[Json]
    runtime_classes: Sequence[Json]
    namespaces: Sequence[Json]
    limits: Sequence[Json]
    """ResourceQuotas and LimitRanges in Muster's namespaces."""
    made: Collection[Key]
    """The ConfigMaps and Secrets that there are, of those that a person makes."""
    server_time: datetime
    asked_at: datetime
    answered_at: datetime


@dataclass(frozen=True)
class Plan:
    """What is to be installed."""

    objects: Sequence[Json]
    images: Images
    nodes: Sequence[str] = field(default=())
    """Names of nodes that are to run jobs, beside those with the label."""


def rights(objects: Sequence[Json]) -> list[Right]:
    """What applying and removing these objects needs, and the nodes' labels."""
    found = {
        Right(verb, group_of(each), plural(each["kind"]), each["metadata"].get("namespace", ""))
        for each in objects
        for verb in VERBS
    }
    needed = [*found, *(Right(verb, "", "secrets", SYSTEM) for verb in ("create", "patch", "list"))]
    nodes = Right("patch", "", "nodes", "")
    return sorted({*needed, nodes}, key=lambda each: (each.namespace, each.resource, each.verb))


def findings(cluster: Cluster, plan: Plan) -> list[Finding]:
    """All findings, in the order in which they are looked at."""
    return [
        *_versions(cluster),
        _rights(cluster.denied),
        *_kinds(cluster, plan),
        *_namespaces(cluster, plan),
        *_storage(cluster, plan),
        *_references(cluster, plan),
        *_settings(plan),
        *_permitted(plan),
        *_services(cluster),
        *_nodes(cluster, plan),
        *_gpus(cluster, plan),
        *cells(plan.objects, agents(cluster.nodes, plan.nodes) or cluster.nodes),
        *_clocks(cluster),
        *_images(cluster, plan),
    ]


def _settings(plan: Plan) -> Iterator[Finding]:
    """Names that no service knows, which it would ignore, and values with which none starts."""
    found: dict[tuple[str, str], list[str]] = {}
    for where, name, value in _given(plan.objects):
        found.setdefault((name, value), []).append(where)
    for (name, value), places in sorted(found.items()):
        if name not in RULES:
            yield Finding("settings", Level.WARNING, f"no service knows {name}", _meant(name))
        elif not is_taken(RULES[name], value):
            text = f"{name} can't be {shown(RULES[name], value)}, in {some(places)}"
            fix = f"Set it to {wanted(RULES[name])}: with this value its services do not start."
            yield Finding("settings", Level.REFUSAL, text, fix)


def _meant(name: str) -> str:
    """Of the names that are written alike, the one with most of its words."""
    words = set(name.split("_"))
    near = get_close_matches(name, RULES, len(RULES))
    if not near:
        return "docs/settings.md has all of them."
    return f"Did you mean {max(near, key=lambda each: len(words & set(each.split('_'))))}?"


def _given(objects: Sequence[Json]) -> Iterator[tuple[str, str, str]]:
    """Where, name and value of each setting in the overlay. No Secret is read."""
    for each in objects:
        pairs: list[tuple[str, str]] = []
        if each["kind"] == "ConfigMap" and _SETTINGS.fullmatch(name_of(each)):
            pairs = list(each.get("data", {}).items())
        elif each["kind"] in WORKLOADS:
            variables = [e for container in containers(each) for e in container.get("env", [])]
            pairs = [
                (e["name"], e["value"])
                for e in variables
                if REFERENCE not in e.get("value", REFERENCE)
            ]
        for name, value in dict.fromkeys(pairs):
            if name.startswith(PREFIX):
                yield title_of(each), name, value


def _permitted(plan: Plan) -> Iterator[Finding]:
    """Virtual clusters whose jobs may use the nodes' network, and that the cluster file lacks."""
    known = virtual_clusters_in(file_in(plan.objects) or "")
    named = names_in(agent_setting(plan.objects, HOST_NETWORK_SETTING) or "")
    unknown = [each for each in named if each not in (ALL, *known)]
    if known and unknown:
        text = f"{HOST_NETWORK_SETTING} names {some(unknown)}, and the cluster file does not"
        fix = f"Its virtual clusters are {some(known)}. `muster config` may have set others."
        yield Finding("settings", Level.WARNING, text, fix)


def agents(nodes: Sequence[Json], named: Sequence[str]) -> list[Json]:
    """The nodes that run jobs, or are to."""
    return [
        each
        for each in nodes
        if name_of(each) in named or each["metadata"].get("labels", {}).get(AGENT_LABEL) == "true"
    ]


def _versions(cluster: Cluster) -> Iterator[Finding]:
    for subject, version, fix in (
        ("API server", cluster.server, "Upgrade the cluster."),
        ("kubectl", cluster.client, "Install a newer kubectl, or name it by --kubectl."),
    ):
        good = _version(version) >= LEAST
        need = "" if good else "; Muster needs 1.32 or later"
        level = Level.OK if good else Level.REFUSAL
        yield Finding(subject, level, f"version {version}{need}", "" if good else fix)


def _version(text: str) -> tuple[int, int]:
    match = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _rights(denied: Sequence[Right]) -> Finding:
    if not denied:
        return Finding("rights", Level.OK, "you may make, change and delete all objects")
    text = f"you may not {some([each.text() for each in denied])}"
    return Finding("rights", Level.REFUSAL, text, "Use a context with the role cluster-admin.")


def _kinds(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    unknown: dict[str, list[str]] = {}
    for each in plan.objects:
        if (group := group_of(each)) and group not in cluster.groups:
            unknown.setdefault(group, []).append(each["kind"])
    for group, kinds in unknown.items():
        text = f"the cluster does not know {some(list(dict.fromkeys(kinds)))} of {group}"
        fix = f"Install what brings {group}, or take these objects out of your overlay."
        if group in MAKERS:
            maker, component = MAKERS[group]
            fix = f"Install {maker}, or take the component `{component}` out of your overlay."
        yield Finding("kinds", Level.REFUSAL, text, fix)


def _namespaces(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    before = len(NAMESPACES)
    for body in cluster.namespaces:
        name = name_of(body)
        if body.get("status", {}).get("phase") == "Terminating":
            fix = "Wait until it is gone: `muster deploy remove` shows what holds it."
            yield Finding("namespaces", Level.REFUSAL, f"{name} is being deleted", fix)
            before = 0
        wanted = find(plan.objects, "Namespace", name)
        level = body["metadata"].get("labels", {}).get(LEVEL)
        ours = None if wanted is None else wanted["metadata"].get("labels", {}).get(LEVEL)
        if ours is not None and level != ours:
            text = f"{name} has the level {level or 'of the cluster'}; Muster needs {ours}"
            fix = "`muster deploy apply` sets it, unless a policy of yours forbids it."
            if level is not None:  # an apply changes no field that somebody else has set
                fix = f"`kubectl label namespace {name} {LEVEL}={ours} --overwrite` sets it."
            refused = Level.WARNING if level is None else Level.REFUSAL
            yield Finding("Pod Security", refused, text, fix)
            before = 0
    if before:
        yield Finding("namespaces", Level.OK, f"{', '.join(sorted(NAMESPACES))} can be used")
    for body in cluster.limits:
        kind, where = body["kind"], body["metadata"]["namespace"]
        text = f"{kind} {name_of(body)} is in {where}"
        if where in (JOBS, HOST_JOBS):
            fix = "The Scheduler does not know it: jobs that it refuses wait on their nodes."
        else:
            fix = "Leave room for the services and for one agent on each node."
        yield Finding("quotas", Level.WARNING, text, fix)
    if not cluster.limits:
        yield Finding("quotas", Level.OK, "none in these namespaces")


def _storage(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    claims = [
        claim
        for each in plan.objects
        if each["kind"] == "StatefulSet"
        for claim in each["spec"].get("volumeClaimTemplates", [])
        if not claim["spec"].get("storageClassName")
    ]
    if not claims:
        return
    defaults = [
        name_of(each)
        for each in cluster.storage_classes
        if each["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true"
    ]
    if defaults:
        yield Finding("storage", Level.OK, f"the default storage class is {defaults[0]}")
    else:
        fix = f"Annotate a storage class with {DEFAULT_CLASS}=true, or name one in your overlay."
        text = "no default storage class for Kafka and PostgreSQL"
        yield Finding("storage", Level.REFUSAL, text, fix)


def _references(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    for key, parts in to_be_made(plan.objects).items():
        if key not in cluster.made:
            kind, namespace, name = key
            text = f"{kind} {name} is neither in the overlay nor in {namespace}, for {some(parts)}"
            fix = "Make it, at the latest while `apply` waits: these pods start once it is there."
            yield Finding("pods", Level.WARNING, text, fix)


def _services(cluster: Cluster) -> Iterator[Finding]:
    """Their pods tolerate no taint, and name nodes on which the image runs."""
    taken = [each for each in cluster.nodes if _refuses_all(each)]
    if taken and len(taken) == len(cluster.nodes):
        text = "each node is tainted, cordoned or not Linux on x86-64, so no service finds a place"
        fix = "Add such a node without taints, or tolerations in your overlay."
        yield Finding("services", Level.WARNING, text, fix)


def _refuses_all(node: Json) -> bool:
    spec = node.get("spec", {})
    effects = {each.get("effect") for each in spec.get("taints") or ()}
    is_closed = bool(spec.get("unschedulable")) or not effects.isdisjoint(taints.EFFECTS)
    return is_closed or _platform(node) not in OURS


def _nodes(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    known = {name_of(each) for each in cluster.nodes}
    if unknown := [each for each in plan.nodes if each not in known]:
        yield Finding(
            "nodes", Level.REFUSAL, f"no node is named {some(unknown)}", "See `kubectl get nodes`."
        )
    found = agents(cluster.nodes, plan.nodes)
    if not found:
        text = f"no node has the label {AGENT_LABEL}=true"
        fix = "Name the nodes that are to run jobs: `muster deploy apply --node NAME`."
        yield Finding("nodes", Level.WARNING, text, fix)
        return
    setting = agent_setting(plan.objects, TAINTS_SETTING)
    tolerated = names_in(taints.TOLERATED if setting is None else setting)
    wrong: dict[tuple[Level, str, str], list[str]] = {}
    for node in found:
        for problem in _of_node(node, tolerated):
            wrong.setdefault(problem, []).append(name_of(node))
    for (level, text, fix), names in wrong.items():
        yield Finding("nodes", level, f"{text}: {some(names)}", fix)
    yield from _addresses(found, agent_setting(plan.objects, NETWORKS_SETTING))
    runtimes = sorted({_info(each, "containerRuntimeVersion") for each in found} - {""})
    if not wrong:
        with_runtime = f", {some(runtimes)}" if runtimes else ""
        yield Finding("nodes", Level.OK, f"{len(found)} for jobs{with_runtime}")


def _addresses(nodes: Sequence[Json], setting: str | None) -> Iterator[Finding]:
    """REST reads logs only from agents in these networks. An agent has its node's address."""
    if setting is None:
        return
    try:
        networks = networks_of(setting)
    except ValueError as error:
        text = f"{NETWORKS_SETTING}: {error}"
        yield Finding("networks", Level.REFUSAL, text, "Write networks as 10.0.0.0/8,fd00::/8.")
        return
    outside = [
        f"{name_of(each)} ({address})"
        for each in nodes
        if (address := _host_address(each)) and not is_within(address, networks)
    ]
    if outside:
        text = f"REST may read no logs from {some(outside)}"
        fix = f"Name the network of these nodes in {NETWORKS_SETTING}, in your overlay."
        yield Finding("networks", Level.WARNING, text, fix)


def _host_address(node: Json) -> str | None:
    """As kubelet gives it to pods on the host's network."""
    found = node.get("status", {}).get("addresses") or ()
    for kind in ("InternalIP", "ExternalIP"):
        for each in found:
            if each["type"] == kind:
                return str(each["address"])
    return None


def _of_node(node: Json, tolerated: Sequence[str]) -> Iterator[tuple[Level, str, str]]:
    os, machine = _platform(node)
    elsewhere = "Remove their label, and name only nodes on Linux and x86-64."
    if (os, machine) not in OURS:
        yield Level.REFUSAL, f"Muster does not run on {os}/{machine}", elsewhere
    if _info(node, "containerRuntimeVersion").startswith("docker://"):
        text = "the container runtime is Docker, and tasks would have no logs"
        yield Level.REFUSAL, text, "Use containerd there, or name other nodes."
    kubelet = _info(node, "kubeletVersion")
    if kubelet and _version(kubelet) < LEAST:
        yield Level.REFUSAL, f"kubelet {kubelet} is older than 1.32", "Upgrade these nodes."
    if len(name_of(node)) > MAX_NODE_NAME:
        yield Level.REFUSAL, f"the name has more than {MAX_NODE_NAME} characters", elsewhere
    if not is_ready(node):
        yield Level.WARNING, "not ready", "Jobs start there once `kubectl get nodes` shows Ready."
    if node.get("spec", {}).get("unschedulable"):
        yield Level.WARNING, "cordoned, so no job starts there", "`kubectl uncordon` frees it."
    if (taint := taints.keeps_off(node, tolerated)) is not None:
        yield Level.WARNING, f"no job starts where the taint {taint} is", taints.FIX


def _gpus(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    found = agents(cluster.nodes, plan.nodes) or list(cluster.nodes)
    with_gpus = [each for each in found if gpus_of(each)]
    has_class = any(name_of(each) == RUNTIME_CLASS for each in cluster.runtime_classes)
    chosen = agent_setting(plan.objects, GPU_MODE) or NO_GPUS
    suits = VISIBLE_DEVICES if with_gpus and has_class else NO_GPUS
    total = sum(map(gpus_of, with_gpus))
    where = f"{len(with_gpus)} of {counted(len(found), 'node')}"
    seen = f"{counted(total, 'GPU')} on {where}" if total else "no GPUs seen"
    needed = _runtime_class_of_agents(plan.objects)
    if needed and not any(name_of(each) == needed for each in cluster.runtime_classes):
        text = f"{seen}; there is no RuntimeClass {needed}, without which no agent starts"
        fix = "Install NVIDIA's container toolkit with it, or take the component `nvidia` out."
        yield Finding("GPUs", Level.REFUSAL, text, fix)
        return
    if with_gpus and not has_class:
        text = f"{seen}, but no RuntimeClass {RUNTIME_CLASS}"
        fix = "Install NVIDIA's container toolkit with it. Until then nodes show none of them."
        yield Finding("GPUs", Level.WARNING, text, fix)
    elif chosen == suits:
        yield Finding("GPUs", Level.OK, f"{seen}; mode {chosen}")
    elif suits == VISIBLE_DEVICES:
        fix = "Name the component `nvidia` under `components` of your overlay."
        yield Finding("GPUs", Level.WARNING, f"{seen}; the mode is {chosen}", fix)
    else:
        fix = "`check` sees those of NVIDIA's device plug-in, which Muster does not need."
        fix = f"{fix} Where no node has any, take the component `nvidia` out of your overlay."
        yield Finding("GPUs", Level.WARNING, f"{seen}; the mode is {chosen}", fix)
    of_jobs = agents(cluster.nodes, plan.nodes)
    without = [name_of(each) for each in of_jobs if not gpus_of(each)]
    if with_gpus and without and chosen == VISIBLE_DEVICES:
        text = f"the mode is {chosen}, and no GPUs are seen on {some(without)}"
        fix = f"Agents start only where NVIDIA's runtime for the RuntimeClass {RUNTIME_CLASS} is."
        yield Finding("GPUs", Level.WARNING, text, fix)


def _runtime_class_of_agents(objects: Sequence[Json]) -> str | None:
    agent = find(objects, "DaemonSet", AGENT)
    return None if agent is None else agent["spec"]["template"]["spec"].get("runtimeClassName")


def cells(objects: Sequence[Json], nodes: Sequence[Json]) -> Iterator[Finding]:
    """Whether the cluster file among these objects still is what the nodes' labels say. Of a file
    that a person wrote nothing is known.
    """
    text = file_in(objects)
    try:
        found = None if text is None else differences(text, nodes)
    except ValueError as error:
        fix = "Correct the file in your overlay: docs/simulator.md#cluster has its form."
        yield Finding("cells", Level.REFUSAL, f"the cluster file is no YAML: {error}", fix)
        return
    if text is None or found is None:
        return
    if found:
        fix = f"`{commands(text)} > cluster.yaml`, add your virtual clusters, apply your overlay."
        yield Finding("cells", Level.WARNING, f"by labels, {some(found, 3)}", fix)
    else:
        yield Finding("cells", Level.OK, "the nodes' labels are as in the cluster file")


def _clocks(cluster: Cluster) -> Iterator[Finding]:
    """A lease in the future shows a fast clock. An old one of a ready node shows a slow one."""
    ready = {name_of(each) for each in cluster.nodes if is_ready(each)}
    wrong = []
    for lease in cluster.leases:
        at = lease.get("spec", {}).get("renewTime")
        if at is None or name_of(lease) not in ready:
            continue
        ahead_s = (datetime.fromisoformat(at) - cluster.server_time).total_seconds()
        if ahead_s > MAX_SKEW_S:
            wrong.append(f"{name_of(lease)} is {ahead_s:.0f} s ahead")
        elif ahead_s < -LEASE_RENEWED_S - MAX_SKEW_S:
            wrong.append(f"{name_of(lease)} may be {-ahead_s:.0f} s behind")
    nearest = min(max(cluster.server_time, cluster.asked_at), cluster.answered_at)
    here_s = (nearest - cluster.server_time).total_seconds()
    if abs(here_s) > MAX_SKEW_S:
        wrong.append(f"this machine differs by {here_s:+.0f} s")
    if wrong:
        text = f"compared with the API server's, {some(wrong)}"
        yield Finding("clocks", Level.WARNING, text, "Synchronise the clocks by NTP.")
    else:
        behind = f"{LEASE_RENEWED_S + MAX_SKEW_S:.0f} s behind"
        text = f"no clock is more than {MAX_SKEW_S:.0f} s ahead or {behind}"
        yield Finding("clocks", Level.OK, text)


def _images(cluster: Cluster, plan: Plan) -> Iterator[Finding]:
    """kubelet lists only some of a node's images, so a missing one is only a warning."""
    found = agents(cluster.nodes, plan.nodes)
    lacking = [name_of(each) for each in found if not _has(each, plan.images)]
    images = f"{plan.images.muster} and {plan.images.step}"
    if lacking:
        text = f"{images} are not known to be on {some(lacking)}"
        if plan.images.muster.startswith("localhost/"):
            fix = "Load them there: docs/install.md has the commands."
        else:
            fix = "These nodes pull them: whether they can is not known."
        yield Finding("images", Level.WARNING, text, fix)
    elif found:
        yield Finding("images", Level.OK, f"{images} are on all nodes for jobs")


def _has(node: Json, images: Images) -> bool:
    names = {name for each in node.get("status", {}).get("images", []) for name in each["names"]}
    return {images.muster, images.step} <= names


def is_ready(body: Json) -> bool:
    """Whether a node or pod says so."""
    conditions = body.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_away(node: Json) -> bool:
    """Whether Kubernetes says that a node's kubelet does not answer, or is not ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] != "True" for each in conditions)


def _platform(node: Json) -> tuple[str, str]:
    return _info(node, "operatingSystem"), _info(node, "architecture")


def _info(node: Json, name: str) -> str:
    return str(node.get("status", {}).get("nodeInfo", {}).get(name, ""))


def some(names: Sequence[str], most: int = SHOWN) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
