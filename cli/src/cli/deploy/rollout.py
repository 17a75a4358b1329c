"""The order of a roll-out, and when one of its parts is ready. Pure.

Setup Jobs run before the services, whose new version refuses older tables. Agents come last: they
understand older and newer services, and leave jobs running.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cli.deploy.objects import AGENT, SYSTEM, WORKLOADS, Json, containers, name_of

SERVICES = ("scheduler", "launcher", "alerting", "rest")
"""The Deployments that every overlay has."""
ORDER = (*SERVICES, "fence", AGENT)
SETUP = ("bus", "migrate")
MAKERS = ("ReplicaSet", "DaemonSet", "StatefulSet", "Job")
DIGEST_SHOWN = 12
JOB_NAME = "batch.kubernetes.io/job-name"


class Progress(StrEnum):
    """How far a workload is."""

    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True)
class Look:
    """What a look at a workload found. `detail` is for people: `1 of 2 ready`."""

    progress: Progress
    detail: str


@dataclass(frozen=True)
class Step:
    """Objects that are applied together, and the workloads among them that have to be ready."""

    title: str
    objects: list[Json]
    replaced: bool = False
    """Jobs, which can't be changed: those of the last roll-out are deleted before."""

    @property
    def awaited(self) -> list[Json]:
        """The workloads."""
        return [each for each in self.objects if each["kind"] in WORKLOADS]


def steps(objects: Sequence[Json], *, with_setup: bool = True) -> list[Step]:
    """The roll-out of an overlay, step by step."""
    # An account's log-in to a registry counts only for pods that are made after it.
    first = [each for each in objects if each["kind"] in ("Namespace", "ServiceAccount")]
    jobs = [each for each in objects if each["kind"] == "Job" and name_of(each) in SETUP]
    services = {
        name: [
            each
            for each in objects
            if each["kind"] in ("Deployment", "DaemonSet") and name_of(each) == name
        ]
        for name in ORDER
    }
    later = [id(each) for group in (first, jobs, *services.values()) for each in group]
    rest = [each for each in objects if id(each) not in later]
    planned = [
        Step("namespaces, accounts", first),
        Step("rights, settings, stores", rest),
        *([Step("setup", jobs, replaced=True)] if with_setup else []),
        *(Step(name, found) for name, found in services.items()),
    ]
    return [each for each in planned if each.objects]


def look(wanted: Json, live: Json | None, away: int = 0, pods: Sequence[Json] = ()) -> Look:
    """Whether a workload is as wanted and ready. ``away``: nodes on which no agent can be now.
    ``pods``: those of Jobs, at least.
    """
    if live is None:
        return Look(Progress.WAITING, "not there yet")
    status, spec = live.get("status", {}), live.get("spec", {})
    match wanted["kind"]:
        case "Job":
            return _job(status, [each for each in pods if _is_of(each, name_of(wanted))])
        case "DaemonSet":
            total = max(status.get("desiredNumberScheduled", 0) - away, 0)
            name = "numberReady"
            updated = status.get("updatedNumberScheduled", 0)
        case _:
            total, name = spec.get("replicas", 1), "readyReplicas"
            updated = status.get("updatedReplicas", 0)
    ready = status.get(name, 0)
    seen = status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    for each in status.get("conditions", []):
        if seen and each["type"] == "Progressing" and each["status"] == "False":
            return Look(Progress.FAILED, str(each.get("message", each.get("reason", ""))))
    old = status.get("replicas", total) - updated if wanted["kind"] == "Deployment" else 0
    if seen and ready >= total and updated >= total and old <= 0:
        return Look(Progress.READY, f"{ready} of {total} ready")
    return Look(Progress.WAITING, f"{ready} of {total} ready, {updated} new")


@dataclass(frozen=True)
class Part:
    """A workload of an installation that nobody rolls out."""

    name: str
    kind: str
    look: Look
    images: list[str]


def standing(live: Sequence[Json], pods: Sequence[Json]) -> list[Part]:
    """The parts of an installation: these workloads, and services that are not there."""
    found = [Part(name_of(e), e["kind"], _stands(e, pods), images_in(e)) for e in live]
    missing = Look(Progress.MISSING, "no Deployment")
    names = [each.name for each in found]
    return [*found, *(Part(e, "Deployment", missing, []) for e in SERVICES if e not in names)]


def _stands(live: Json, pods: Sequence[Json]) -> Look:
    if live["spec"].get("replicas") == 0:
        return Look(Progress.MISSING, "0 replicas")
    return look(live, live, pods=pods)


def _is_of(pod: Json, job: str) -> bool:
    """One with a time of deletion is of a Job that had the name before."""
    metadata = pod["metadata"]
    return metadata.get("labels", {}).get(JOB_NAME) == job and "deletionTimestamp" not in metadata


def _job(status: Json, pods: Sequence[Json]) -> Look:
    for each in status.get("conditions", []):
        if each["status"] == "True" and each["type"] == "Complete":
            return Look(Progress.READY, "complete")
        if each["status"] == "True" and each["type"] == "Failed":
            return Look(Progress.FAILED, str(each.get("message", each.get("reason", ""))))
    failed = status.get("failed", 0)
    detail = _begun(pods)
    return Look(Progress.WAITING, f"{detail}, {failed} failed before" if failed else detail)


def _begun(pods: Sequence[Json]) -> str:
    statuses = [each.get("status", {}) for each in pods]
    if any(each.get("phase") in ("Running", "Succeeded") for each in statuses):
        return "runs"
    states = [c.get("state", {}) for each in statuses for c in each.get("containerStatuses", [])]
    reasons = [reason for each in states if (reason := each.get("waiting", {}).get("reason"))]
    return "its container has not started" + "".join(f" ({each})" for each in reasons[:1])


def is_pending(pod: Json) -> bool:
    """Whether a container of it, or more, has not started yet."""
    return bool(pod.get("status", {}).get("phase") == "Pending")


def troubles(pods: Sequence[Json]) -> list[str]:
    """Why pods don't become ready, as kubelet and the scheduler of Kubernetes say."""
    found = []
    for pod in pods:
        status = pod.get("status", {})
        for each in status.get("conditions", []):
            if each["type"] == "PodScheduled" and each["status"] == "False":
                found.append(f"Pod {name_of(pod)}: {each.get('message')}")
        every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        found += [
            f"Pod {name_of(pod)}, container {each['name']}: {text}"
            for each in every
            if (text := _trouble(name_of(pod), each))
        ]
    return found


def _trouble(pod: str, container: Json) -> str:
    """Why a container does not run, or has ended before; a part's log may be that of another pod.
    Empty: neither.
    """
    waiting = container.get("state", {}).get("waiting") or {}
    if waiting.get("reason") in ("PodInitializing", "ContainerCreating"):
        waiting = {}
    parts = [waiting.get("reason"), waiting.get("message")]
    ended = container.get("lastState", {}).get("terminated")
    if ended and not container.get("ready"):
        log = f"kubectl -n {SYSTEM} logs {pod} -c {container['name']} --previous"
        parts.append(f"it ended with exit code {ended.get('exitCode')}: {log}")
    return ": ".join(filter(None, parts))


def warnings(pods: Sequence[Json], events: Sequence[Json]) -> list[str]:
    """The last warning about each of these pods: as of a volume or a runtime, of which its status
    tells nothing.
    """
    names = set(map(name_of, pods))
    last: dict[str, Json] = {}
    for each in sorted(events, key=happened_at):
        if (name := each.get("involvedObject", {}).get("name")) in names:
            last[name] = each
    return [f"Pod {name}: {each.get('message')}" for name, each in sorted(last.items())]


def refusals(parts: Sequence[str], pods: Sequence[Json], events: Sequence[Json]) -> list[str]:
    """Why Kubernetes can't make pods of these parts: as by a quota or a policy. `pods`: those that
    there are. What happened before a part's newest pod is over.
    """
    last: dict[str, Json] = {}
    for each in sorted(events, key=happened_at):
        part = _made_by(each.get("involvedObject", {}), parts)
        if (
            each.get("reason") == "FailedCreate"
            and part
            and happened_at(each) >= _newest(part, pods)
        ):
            last[part] = each
    return [
        f"{each['involvedObject']['kind']} {part}: {each['message']}" for part, each in last.items()
    ]


def _made_by(maker: Json, parts: Sequence[str]) -> str | None:
    """A Deployment's pods are made by its ReplicaSets."""
    name = str(maker.get("name"))
    stem = name.rpartition("-")[0] if maker.get("kind") == "ReplicaSet" else name
    return stem if maker.get("kind") in MAKERS and stem in parts else None


def _newest(part: str, pods: Sequence[Json]) -> str:
    return max(
        (
            str(each["metadata"].get("creationTimestamp"))
            for each in pods
            if each["metadata"].get("labels", {}).get("app.kubernetes.io/name") == part
        ),
        default="",
    )


def happened_at(event: Json) -> str:
    """When it happened last; the Scheduler of Kubernetes writes only the newer fields."""
    newer = (event.get("series") or {}).get("lastObservedTime") or event.get("eventTime")
    created = event.get("metadata", {}).get("creationTimestamp")
    return str(event.get("lastTimestamp") or newer or created)


def images_in(body: Json) -> list[str]:
    """The images of a workload."""
    return list(dict.fromkeys(str(each["image"]) for each in containers(body)))


def short(image: str) -> str:
    """An image without its registry, and the beginning of its digest: `muster@0123456789ab`."""
    name, _, digest = image.rpartition("/")[2].partition("@sha256:")
    return f"{name}@{digest[:DIGEST_SHOWN]}" if digest else name
