"""What a job file requests of the Scheduler, in OpenPAI's fields (``extras.hivedScheduler``) and in
Muster's (``extras.muster``). Both have the same meaning, so a file may set each value only once. A
warning names each field without effect.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from muster.contracts.node_access import RDMA
from muster.contracts.storages import usual_mount_path
from muster.errors import Problem
from muster.protocol.document import Node
from muster.protocol.problems import join_path
from muster.protocol.shape import HivedRole, JobFile, RoleAdditions, TaskRole
from muster.protocol.tree import Path, fields, find, look_up, problem_at, string

HIVED: Path = ("extras", "hivedScheduler")
MUSTER: Path = ("extras", "muster")
STORAGES: Path = ("extras", "storages")

PRIORITIES: Mapping[str, int] = {"crit": 120, "prod": 100, "test": 10, "oppo": -1}
"""OpenPAI's priority classes; `crit` is in its documents, though its server refused it."""

DEFAULT_PRIORITY_CLASS = "test"
OPPORTUNISTIC = -1

_SAME = (
    ((*HIVED, "jobPriorityClass"), (*MUSTER, "priority")),
    ((*HIVED, "lazyPreemptionEnable"), (*MUSTER, "lazyPreemption")),
)
"""Fields of which a job may have one."""

_SAME_OF_ROLE = (
    ((HIVED, "skuType"), (HIVED, "pinnedCellId"), (MUSTER, "gpuTypes"), (MUSTER, "pin")),
    ((HIVED, "affinityGroupName"), (MUSTER, "group")),
)
"""Fields of which a task role may have one: a pinned cell has the GPUs that it has."""

_EXPECTED = "expectedSeconds"
_LEAST = "minInstances"


@dataclass(frozen=True, slots=True)
class RoleRequests:
    """What a task role requests, in either place."""

    gpu_types: tuple[str, ...] = ()
    pin: str | None = None
    group: str | None = None
    resources: tuple[tuple[str, int], ...] = ()
    min_instances: int | None = None
    image_pull_policy: str = ""


@dataclass(frozen=True, slots=True)
class NamedStorage:
    """A storage that the file names, and where tasks see it. ``path``, ``line`` and ``column`` are
    its place. ``is_data``: as data, which tasks only read.
    """

    name: str
    mount_path: str
    path: str
    line: int
    column: int
    is_data: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A GPU type or a pin that the file names for a role: whether there is such a one is known only
    where the cluster is known. ``path``, ``line`` and ``column`` are its place.
    """

    role: str
    gpu_type: str | None
    pin: str | None
    path: str
    line: int
    column: int


def check_requests(root: Node) -> Iterator[Problem]:
    """Roles that are not defined, values set twice, groups that can't be near one another, jobs
    that their limit would end too early, and gangs that need more tasks than there are, or none.
    """
    for same in _SAME:
        yield from _stated_twice(root, same)
    for base in (HIVED, MUSTER):
        for name in fields(root, *base, "taskRoles"):
            if name not in fields(root, "taskRoles"):
                yield problem_at(root, (*base, "taskRoles", name), "names no task role of this job")
    for name in fields(root, "taskRoles"):
        for fields_of_role in _SAME_OF_ROLE:
            yield from _stated_twice(
                root, tuple((*base, "taskRoles", name, key) for base, key in fields_of_role)
            )
    yield from _mixed_groups(root)
    yield from _never_done(root)
    yield from _of_wrong_size(root)


def _stated_twice(root: Node, same: tuple[Path, ...]) -> Iterator[Problem]:
    stated = [path for path in same if _is_stated(root, path)]
    for path in stated[1:]:
        message = f"can't be together with `{join_path(stated[0])}`; keep one of them"
        yield problem_at(root, path, message)


def _never_done(root: Node) -> Iterator[Problem]:
    limit, expected = (look_up(root, (*MUSTER, key)) for key in ("timeLimitSeconds", _EXPECTED))
    if limit is None or expected is None or not (_is_number(limit) and _is_number(expected)):
        return
    if expected.value > limit.value:
        message = (
            "is above `timeLimitSeconds`, after which the job is ended; lower it, or raise the "
            "limit"
        )
        yield problem_at(root, (*MUSTER, _EXPECTED), message)


def _of_wrong_size(root: Node) -> Iterator[Problem]:
    needs_none: list[Path] = []
    roles = fields(root, "taskRoles")
    for name in roles:
        place = (*MUSTER, "taskRoles", name, _LEAST)
        least = look_up(root, place)
        instances = look_up(root, ("taskRoles", name, "instances"))
        if least is None or not _is_number(least):
            continue
        if least.value == 0:
            needs_none.append(place)
        if instances is None or not _is_number(instances):
            continue
        if least.value > instances.value:
            message = (
                f"is more than the {instances.value} instances; lower it, or raise `instances`"
            )
            yield problem_at(root, place, message)
    if roles and len(needs_none) == len(roles):
        message = "is 0 for every task role, so that nothing would have to start; raise one of them"
        yield problem_at(root, needs_none[0], message)


def _is_number(node: Node) -> bool:
    return isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _is_stated(root: Node, path: Path) -> bool:
    node = look_up(root, path)
    return node is not None and node.value is not None


def _mixed_groups(root: Node) -> Iterator[Problem]:
    """OpenPAI's rule: tasks of one affinity group want one kind of cell."""
    first: dict[str, tuple[str, str]] = {}
    for name in fields(root, *HIVED, "taskRoles"):
        place = (*HIVED, "taskRoles", name)
        group = string(root, *place, "affinityGroupName")
        sku = string(root, *place, "skuType") or string(root, *place, "pinnedCellId")
        if not group:
            continue
        other, wanted = first.setdefault(group, (name, sku))
        if sku != wanted:
            message = (
                f"is the group of `{other}` too, which wants another `skuType` or `pinnedCellId`; "
                "give both the same, or groups of their own"
            )
            yield problem_at(root, (*place, "affinityGroupName"), message)


def priority_of(job: JobFile) -> tuple[int, str | None]:
    """The job's priority, and its class as people see it: a number that is no class is its own
    name, None where the file has no priority.
    """
    own = job.extras.muster.priority
    if own is not None:
        names = {number: name for name, number in PRIORITIES.items()}
        return own, names.get(own, str(own))
    hived = job.extras.hived_scheduler
    stated = hived.job_priority_class if hived else None
    return PRIORITIES[stated or DEFAULT_PRIORITY_CLASS], stated


def lazy_preemption_of(job: JobFile) -> bool | None:
    """Whether the job is downgraded before it is preempted; None: as the cluster's policy."""
    hived = job.extras.hived_scheduler
    own = job.extras.muster.lazy_preemption
    return own if own is not None or hived is None else hived.lazy_preemption_enable


def requests_of(job: JobFile, name: str) -> RoleRequests:
    """What the task role requests."""
    hived, own = _hived_role(job, name), _own_role(job, name)
    types = (hived.sku_type,) if hived.sku_type else own.gpu_types
    return RoleRequests(
        gpu_types=tuple(dict.fromkeys(types or ())),
        pin=hived.pinned_cell_id or own.pin,
        group=hived.affinity_group_name or own.group,
        resources=tuple(sorted((_infiniband(job.task_roles[name]) | own.resources).items())),
        min_instances=_least_of(job, name, own),
        image_pull_policy=own.image_pull_policy or "",
    )


def _infiniband(role: TaskRole) -> dict[str, int]:
    """OpenPAI's option is one of Muster's counted resource."""
    return {RDMA: 1} if role.extra_container_options.infiniband else {}


def _least_of(job: JobFile, name: str, own: RoleAdditions) -> int | None:
    """How many tasks of the role are enough; None: all."""
    least = own.min_instances if job.extras.gang_allocation else None
    return None if least == job.task_roles[name].instances else least


def _hived_role(job: JobFile, name: str) -> HivedRole:
    hived = job.extras.hived_scheduler
    return hived.task_roles.get(name, HivedRole()) if hived else HivedRole()


def _own_role(job: JobFile, name: str) -> RoleAdditions:
    return job.extras.muster.task_roles.get(name, RoleAdditions())


def named(job: JobFile, root: Node) -> tuple[Named, ...]:
    """All GPU types and pins that count, with their places."""
    return tuple(found for name in job.task_roles for found in _named_by(job, name, root))


def _named_by(job: JobFile, name: str, root: Node) -> Iterator[Named]:
    hived, own = _hived_role(job, name), _own_role(job, name)
    stated: list[tuple[str | None, str | None, Path]] = [
        (hived.sku_type, None, (*HIVED, "taskRoles", name, "skuType")),
        (None, hived.pinned_cell_id, (*HIVED, "taskRoles", name, "pinnedCellId")),
        (None, own.pin, (*MUSTER, "taskRoles", name, "pin")),
    ]
    place: Path = (*MUSTER, "taskRoles", name, "gpuTypes")
    stated += [(gpu_type, None, (*place, at)) for at, gpu_type in enumerate(own.gpu_types or ())]
    for gpu_type, pin, path in stated:
        if gpu_type or pin:
            node = find(root, path)
            yield Named(name, gpu_type, pin, join_path(path), node.line, node.column)


def storages_of(job: JobFile, root: Node) -> tuple[NamedStorage, ...] | None:
    """The storages that the file names; None: it wants none, empty: the default ones."""
    if job.extras.storages is None:
        return None
    found = []
    for index, use in enumerate(job.extras.storages):
        path: Path = (*STORAGES, index)
        node = find(root, path)
        place = use.mount_path or usual_mount_path(use.name)
        found.append(NamedStorage(use.name, place, join_path(path), node.line, node.column))
    return tuple(found)


def request_warnings(job: JobFile, root: Node) -> Iterator[Problem]:
    """Requests without effect."""
    yield from _hived_warnings(job, root)
    if priority_of(job)[0] == OPPORTUNISTIC and lazy_preemption_of(job) is not None:
        own = job.extras.muster.lazy_preemption is not None
        path = (*MUSTER, "lazyPreemption") if own else (*HIVED, "lazyPreemptionEnable")
        yield problem_at(root, path, "has no effect: an opportunistic job has nothing to lose")
    if priority_of(job)[0] == OPPORTUNISTIC and job.extras.muster.borrow:
        message = "has no effect: an opportunistic job runs on whatever is idle"
        yield problem_at(root, (*MUSTER, "borrow"), message)
    for name, role in job.task_roles.items():
        yield from _role_warnings(job, name, role, root)
    groups = {requests_of(job, name).group for name in job.task_roles} - {None}
    if job.extras.gang_allocation and len(groups) > 1:
        message = (
            "have several groups, and no effect: the job is one gang, placed together and near "
            "one another; set `extras.gangAllocation: false` for tasks that start singly"
        )
        base = HIVED if fields(root, *HIVED, "taskRoles") else MUSTER
        yield problem_at(root, (*base, "taskRoles"), message)


def _hived_warnings(job: JobFile, root: Node) -> Iterator[Problem]:
    hived = job.extras.hived_scheduler
    if hived is None:
        return
    if hived.gang_release_enable:
        message = "has no effect: what a task holds is free as soon as it has ended"
        yield problem_at(root, (*HIVED, "gangReleaseEnable"), message)
    if hived.ignore_suggested_nodes is False:
        message = "has no effect: nobody suggests nodes to the Scheduler"
        yield problem_at(root, (*HIVED, "ignoreK8sSuggestedNodes"), message)
    for key in hived.model_extra or {}:
        yield problem_at(root, (*HIVED, key), "is kept, but nothing reads it")
    for name, requests in hived.task_roles.items():
        for key in requests.model_extra or {}:
            path = (*HIVED, "taskRoles", name, key)
            yield problem_at(root, path, "is kept, but nothing reads it")


def _role_warnings(job: JobFile, name: str, role: TaskRole, root: Node) -> Iterator[Problem]:
    hived, own = _hived_role(job, name), _own_role(job, name)
    if own.min_instances is not None and not job.extras.gang_allocation:
        message = "has no effect: without `extras.gangAllocation` each task starts when it can"
        yield problem_at(root, (*MUSTER, "taskRoles", name, _LEAST), message)
    gpus = role.resource_per_instance.gpu
    if hived.sku_num is not None and hived.sku_num != gpus:
        message = f"has no effect: a task gets the {gpus} GPUs of its `resourcePerInstance`"
        yield problem_at(root, (*HIVED, "taskRoles", name, "skuNum"), message)
    if gpus == 0 and (hived.sku_type or own.gpu_types):
        base, key = (HIVED, "skuType") if hived.sku_type else (MUSTER, "gpuTypes")
        message = "has no effect: the role's tasks ask for no GPU"
        yield problem_at(root, (*base, "taskRoles", name, key), message)
