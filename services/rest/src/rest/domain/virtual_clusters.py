"""The Scheduler's last answer about virtual clusters, and whether a job's names are among them.
Only the Scheduler decides whether there is room, now or ever.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from muster.contracts.model import Model
from muster.contracts.node_access import is_permitted, uses_node_network, uses_rdma
from muster.errors import Problem, Rejected
from muster.protocol import Named, ParsedJob, ProtocolError

from rest.domain.callers import Caller

ALL_OTHERS = "*"
"""In a user's priority caps: the virtual clusters that are not named."""

PLACE = "defaults.virtualCluster"
DEFAULT = "default"
NAMES_SHOWN = 20
NO_CLUSTERS = "there are none yet: an administrator adds them to the cluster file"
NO_GRANT = "ask an administrator to let you use one"


class QuotaCells(Model):
    """Cells of one type that a virtual cluster owns, by number; ``bound`` of them are bound to
    hardware. ``quota`` is their path, from the chain's top down.
    """

    quota: str
    count: int
    bound: int = 0


class Gpus(Model):
    """GPUs of a virtual cluster: owned; of these held by its guaranteed gangs, lent to gangs of
    others, and free for guaranteed ones, also on nodes that take no pods; beside them what its own
    gangs have borrowed, and what its opportunistic ones use, downgraded ones included. ``usable``:
    how many of the free ones can be used now.
    """

    quota: int
    guaranteed: int = 0
    opportunistic: int = 0
    free: int = 0
    usable: int = 0
    lent: int = 0
    borrowed: int = 0


class Share(Model):
    """What a virtual cluster has of something that nodes count, and what its gangs use."""

    quota: int
    used: int = 0


class VirtualCluster(Model):
    """One of them. ``gpu_types``: of the cells that it owns, pinned ones included."""

    cells: tuple[QuotaCells, ...] = ()
    pins: tuple[str, ...] = ()
    gpus: Gpus
    gpu_types: tuple[str, ...] = ()
    cpu: Share | None = None
    memory_mb: Share | None = None


class VirtualClusters(Model):
    """All of them, as of the Scheduler's cycle ``as_of``. ``gpu_types``: of the whole cluster, also
    those that nobody owns; None: not answered.
    """

    as_of: int
    virtual_clusters: Mapping[str, VirtualCluster]
    gpu_types: tuple[str, ...] | None = None


def virtual_cluster_json(found: VirtualCluster, as_of: int, cluster_gpus: int) -> dict[str, Any]:
    """A virtual cluster as OpenPAI shows it, and what the Scheduler says of it beside.

    ``cluster_gpus``: those of the whole cluster that are in sight.
    """
    gpus = found.gpus
    used = gpus.guaranteed + gpus.borrowed + gpus.opportunistic
    owned = _amounts(gpus.quota, found.cpu, found.memory_mb, is_used=False)
    fields = found.model_dump(mode="json", by_alias=True)
    return {
        "capacity": _percent(gpus.quota, cluster_gpus),
        "usedCapacity": _percent(used, gpus.quota),
        "maxCapacity": 100.0,
        "dedicated": False,
        "status": "running",
        "resourcesUsed": _amounts(used, found.cpu, found.memory_mb, is_used=True),
        "resourcesGuaranteed": owned,
        "resourcesTotal": owned,
        "asOf": as_of,
        **{name: fields[name] for name in ("cells", "pins", "gpus", "gpuTypes")},
    }


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def _amounts(
    gpus: int, cpu: Share | None, memory_mb: Share | None, *, is_used: bool
) -> dict[str, int | None]:
    cpus, memory = (
        None if share is None else share.used if is_used else share.quota
        for share in (cpu, memory_mb)
    )
    return {"cpu": cpus, "memory": memory, "gpu": gpus, "vCores": cpus, "GPUs": gpus}


def no_virtual_cluster(name: str, known: Collection[str], place: Problem | None = None) -> Rejected:
    """There is none of this name; ``place`` is where a job file names it."""
    names = _names(known)
    there = f"there are {names}" if known else NO_CLUSTERS
    message = f"There is no virtual cluster {name[:80]}; {there}."
    return Rejected("NoVirtualClusterError", message, (place,) if place else ())


def check_virtual_cluster(job: ParsedJob, caller: Caller, known: VirtualClusters | None) -> None:
    """Whether the caller's job may go where it wants to. Raises Rejected, with its place."""
    name, (line, column) = job.spec.virtual_cluster, job.virtual_cluster_place
    if known is not None and name not in known.virtual_clusters:
        names = known.virtual_clusters
        fix = f"use one of {_names(names)}" if names else NO_CLUSTERS
        raise no_virtual_cluster(name, names, Problem(PLACE, f"names none; {fix}", line, column))
    if not caller.is_admin and name not in caller.virtual_clusters:
        if caller.virtual_clusters:
            allowed = _names(caller.virtual_clusters)
            only, fix = f"the virtual cluster {name}, only {allowed}.", f"use one of {allowed}"
        else:
            only, fix = f"any virtual cluster; {NO_GRANT}.", NO_GRANT
        problem = Problem(PLACE, f"is not allowed; {fix}", line, column)
        raise Rejected("ForbiddenUserError", f"{caller.username} may not use {only}", (problem,))


def check_node_access(job: ParsedJob, permitted: frozenset[str] | None) -> None:
    """Whether the job's virtual cluster may have what the job uses of Kubernetes nodes; None: that
    is not known. Raises Rejected, with its place.
    """
    name, roles = job.spec.virtual_cluster, job.spec.task_roles
    if permitted is None or is_permitted(name, permitted):
        return
    if uses_node_network(role.instances for role in roles):
        need = "more than one task, for such tasks use the node's network"
    elif any(uses_rdma(role.resources) for role in roles):
        need = "`rdma`, for such tasks lock the node's memory"
    else:
        return
    message = (
        f"A job of the virtual cluster {name} may not have {need}. Virtual clusters that may:"
        f" {_names(permitted)}. An operator can add {name} to MUSTER_KUBE_HOST_NETWORK."
    )
    problem = Problem(PLACE, f"may not have {need}", *job.virtual_cluster_place)
    raise Rejected("ForbiddenUserError", message, (problem,))


def check_priority(job: ParsedJob, caller: Caller, cap: int) -> None:
    """Whether the caller may ask for the job's priority; ``cap`` is for users without one of their
    own. Raises Rejected, with its place.
    """
    name, caps = job.spec.virtual_cluster, caller.priority_caps
    most = caps.get(name, caps.get(ALL_OTHERS, cap))
    if caller.is_admin or job.spec.priority <= most:
        return
    path, line, column = job.priority_place
    wanted = f"priority {job.spec.priority}"
    if job.priority_class is not None and job.priority_class != str(job.spec.priority):
        wanted += f" ({job.priority_class})"
    message = (
        f"{caller.username} may ask for at most priority {most} in the virtual cluster {name}; the"
        f" job asks for {wanted}. Lower it, or ask an admin to raise maxPriority."
    )
    problem = Problem(path, f"is above {most}, the highest allowed", line, column)
    raise Rejected("ForbiddenUserError", message, (problem,))


def check_requests(job: ParsedJob, known: VirtualClusters | None) -> tuple[Problem, ...]:
    """What of the job's wishes has no effect there, or could not be checked.

    Raises ProtocolError where it names GPU types or pins that can't be.
    """
    name = job.spec.virtual_cluster
    if known is None:
        if name == DEFAULT and not job.named:
            return ()
        message = "was not checked: the Scheduler has not answered yet"
        return (Problem(PLACE, message, *job.virtual_cluster_place),)
    here = known.virtual_clusters[name]
    is_guaranteed = job.spec.priority >= 0
    problems, warnings = [], []
    by_role: dict[str, list[Named]] = defaultdict(list)
    for named in job.named:
        by_role[named.role].append(named)
    for several in by_role.values():
        problems += [_no_pin(w, name, here) for w in several if w.pin and w.pin not in here.pins]
        types = [named for named in several if named.gpu_type]
        unknown = [w for w in types if not _is_somewhere(w, known)]
        fix = f"use {_names(known.gpu_types)}" if known.gpu_types else "leave it out: there is none"
        problems += [_problem(w, f"is no GPU type here; {fix}") for w in unknown]
        elsewhere = [w for w in types if w not in unknown and w.gpu_type not in here.gpu_types]
        if is_guaranteed and elsewhere:
            owned = _names(here.gpu_types)
            if len(elsewhere) + len(unknown) == len(types):
                message = f"is not in the virtual cluster {name}, which has {owned}"
                problems += [_problem(named, message) for named in elsewhere]
            else:
                message = f"has no effect: the virtual cluster {name} has {owned}"
                warnings += [_problem(named, message) for named in elsewhere]
    if problems:
        raise ProtocolError(problems)
    return tuple(warnings)


def _is_somewhere(named: Named, known: VirtualClusters) -> bool:
    if known.gpu_types is not None:
        return named.gpu_type in known.gpu_types
    return True


def _no_pin(named: Named, name: str, here: VirtualCluster) -> Problem:
    message = f"is no pin of the virtual cluster {name}, which has {_names(here.pins)}"
    return _problem(named, message)


def _problem(named: Named, message: str) -> Problem:
    return Problem(named.path, message, named.line, named.column)


def _names(found: Iterable[str]) -> str:
    """Names for people."""
    names: Sequence[str] = sorted(found)
    if not names:
        return "none"
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
