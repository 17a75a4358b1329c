"""Storages: who may use which, and which of them a job mounts."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from muster.contracts.storages import MNT, StorageMount, usual_mount_path
from muster.errors import Problem
from muster.protocol import MAX_STORAGES, NamedStorage, ParsedJob, ProtocolError

from rest.domain.callers import Caller

EVERYBODY = "*"
"""In a storage's users."""
USER, VIRTUAL_CLUSTER = "{user}", "{virtualCluster}"
"""In a storage's sub-path: whose job it is, and where it runs."""
PLACE = "extras.storages"
NAMES_SHOWN = 20

_KEPT = tuple(map(PurePosixPath, ("/dev", "/proc", "/sys", "/muster")))
"""What a container can't begin without."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage. Kubernetes nodes find it in the PersistentVolumeClaim ``claim``, other nodes in
    their folder ``host_path``. Tasks see the folder ``sub_path`` of it. ``users`` may use it, and
    all jobs in ``virtual_clusters``.
    """

    name: str
    claim: str | None
    host_path: str | None
    sub_path: str
    is_read_only: bool
    is_default: bool
    users: list[str]
    virtual_clusters: list[str]


def may_use(storage: Storage, caller: Caller, virtual_clusters: Collection[str]) -> bool:
    """Whether the caller may use it with a job in one of these virtual clusters."""
    is_named = EVERYBODY in storage.users or caller.username in storage.users
    is_there = not set(virtual_clusters).isdisjoint(storage.virtual_clusters)
    return caller.is_admin or is_named or is_there


def unknown_hints(
    users: Collection[str], clusters: Iterable[str], known: Collection[str] | None
) -> list[str]:
    """Hints about unknown ``users``, and about those ``clusters`` that are not among the ``known``
    ones. None: it is not known which there are.
    """
    hints = [f"Unknown users: {_names(users)}."] if users else []
    if known is not None and (absent := set(clusters).difference(known)):
        there = _names(known) or "none yet"
        hints.append(f"Unknown virtual clusters: {_names(absent)}; there are {there}.")
    return hints


def mounts_of(job: ParsedJob, caller: Caller, known: Iterable[Storage]) -> tuple[StorageMount, ...]:
    """What the job's tasks mount. Raises ProtocolError where it names a storage that the caller may
    not use, or a place that it can't have.
    """
    cluster = job.spec.virtual_cluster
    usable = {each.name: each for each in known if may_use(each, caller, (cluster,))}
    problems: list[Problem] = []
    mounts: list[StorageMount] = []
    for named in _wanted(job, usable):
        problem = _problem(named, usable, caller, cluster, mounts)
        if problem is None:
            mounts.append(_mount(usable[named.name], named, caller.username, cluster))
        else:
            problems.append(Problem(named.path, problem, named.line or None, named.column or None))
    if len(mounts) > MAX_STORAGES:
        message = f"is {len(mounts)} storages with those of data; name at most {MAX_STORAGES}"
        problems.append(Problem(PLACE, message))
    if problems:
        raise ProtocolError(problems)
    return tuple(mounts)


def check_claims(
    job: ParsedJob, mounts: Iterable[StorageMount], unbound: Mapping[str, str]
) -> None:
    """Raises ProtocolError where a claim of the job's storages is not bound. ``unbound``: why, by
    claim.
    """
    problems = []
    for mount in mounts:
        if (why := unbound.get(mount.claim or "")) is not None:
            message = f"can't mount the storage {mount.name}. {why.removesuffix('.')}"
            problems.append(_at(job, mount, message))
    if problems:
        raise ProtocolError(problems)


def without_claim(job: ParsedJob, mounts: Iterable[StorageMount]) -> Iterable[Problem]:
    """The job's storages that Kubernetes nodes can't mount: there the job fails."""
    for mount in mounts:
        if mount.claim is None:
            message = (
                f"can't mount the storage {mount.name} on Kubernetes nodes, where the job fails:"
                " the storage has no claim; ask an admin for one"
            )
            yield _at(job, mount, message)


def _at(job: ParsedJob, mount: StorageMount, message: str) -> Problem:
    """A problem where the job file names the storage."""
    for named in (*(job.storages or ()), *job.data):
        if named.name == mount.name:
            return Problem(named.path, message, named.line, named.column)
    return Problem(PLACE, message)


def _wanted(job: ParsedJob, usable: Mapping[str, Storage]) -> Iterable[NamedStorage]:
    named = job.storages or ()
    if job.storages is not None and not job.storages:
        defaults = sorted(name for name, each in usable.items() if each.is_default)
        named = tuple(NamedStorage(name, usual_mount_path(name), PLACE, 0, 0) for name in defaults)
    there = {each.name for each in named}
    return [*named, *(each for each in job.data if each.name not in there)]


def _problem(
    named: NamedStorage,
    usable: Mapping[str, Storage],
    caller: Caller,
    cluster: str,
    mounts: Iterable[StorageMount],
) -> str | None:
    """Why the storage can't be mounted there, and the fix. It tells nobody of storages that they
    may not use.
    """
    storage = usable.get(named.name)
    if storage is None:
        use = f"use one of {_names(usable)}, or " if usable else ""
        return (
            f"names no storage that {caller.username} may use in the virtual cluster {cluster};"
            f" {use}ask an admin for it"
        )
    if {".", ".."}.intersection(_sub_path(storage, caller.username, cluster).split("/")):
        return f"has no folder for a user with the name {caller.username}"
    place = PurePosixPath(named.mount_path)
    if any(place.is_relative_to(kept) for kept in _KEPT):
        return f"can't be mounted at {place}, which tasks need; choose another mountPath"
    if storage.claim is None and not (place.is_relative_to(MNT) and place != PurePosixPath(MNT)):
        return f"is a folder of nodes, which is mounted below {MNT} only; choose such a mountPath"
    for other in mounts:
        there = PurePosixPath(other.mount_path)
        if place.is_relative_to(there) or there.is_relative_to(place):
            return f"can't be mounted at {place}, as {other.name} is at {there}; choose another one"
    return None


def _sub_path(storage: Storage, username: str, cluster: str) -> str:
    names = {USER: username, VIRTUAL_CLUSTER: cluster}
    return "/".join(names.get(folder, folder) for folder in storage.sub_path.split("/"))


def _mount(storage: Storage, named: NamedStorage, username: str, cluster: str) -> StorageMount:
    return StorageMount(
        name=storage.name,
        mount_path=named.mount_path,
        claim=storage.claim,
        host_path=storage.host_path,
        sub_path=_sub_path(storage, username, cluster),
        read_only=storage.is_read_only or named.is_data,
        is_own=storage.sub_path.endswith(USER),
    )


def _names(found: Iterable[str]) -> str:
    names = sorted(found)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
