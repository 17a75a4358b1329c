"""Checks beyond the shape: names that must be defined, masks of secrets, and what is accepted but
has no effect yet.
"""

from collections.abc import Iterator

from muster.errors import Problem
from muster.protocol.data import check_data, data_in_storages
from muster.protocol.document import Node
from muster.protocol.masks import check_masks
from muster.protocol.requests import MUSTER, check_requests, request_warnings
from muster.protocol.shape import DockerImage, JobFile, TaskRole
from muster.protocol.tree import fields, items, look_up, problem_at, string

RUNTIME_PLUGINS = "com.microsoft.pai.runtimeplugin"
IMAGE_WITHOUT_EFFECT = "is pulled on Kubernetes nodes only; elsewhere tasks run on the node itself"
_NOT_YET = "is kept, but not acted on yet"
_ROLE_FIELDS = {
    "dockerImage": "dockerimage",
    "data": "data",
    "output": "output",
    "script": "script",
}


def check_references(root: Node) -> list[Problem]:
    """Names that are used and not defined, or defined twice; and masks in place of secrets."""
    return [
        *check_masks(root),
        *_duplicates(root, "prerequisites"),
        *_duplicates(root, "deployments"),
        *_undefined(root),
        *check_requests(root),
        *check_data(root),
        *_unchecked_log_ins(root),
    ]


def _unchecked_log_ins(root: Node) -> Iterator[Problem]:
    """Images with a log-in that nodes would use without asking the registry whether it is right."""
    private = {
        string(entry, "name")
        for entry in items(root, "prerequisites")
        if string(entry, "auth", "username") or string(entry, "auth", "password")
    }
    for name in fields(root, *MUSTER, "taskRoles"):
        place = (*MUSTER, "taskRoles", name, "imagePullPolicy")
        policy = look_up(root, place)
        is_private = string(root, "taskRoles", name, "dockerImage") in private
        if is_private and policy is not None and policy.value in ("IfNotPresent", "Never"):
            message = (
                "must be `Always` for an image with `auth`, so that the registry checks the log-in "
                "each time; write that, or leave the field out"
            )
            yield problem_at(root, place, message)


def _duplicates(root: Node, where: str) -> Iterator[Problem]:
    seen: set[tuple[str, str]] = set()
    for index, entry in enumerate(items(root, where)):
        kind, name = string(entry, "type"), string(entry, "name")
        if name and (kind, name) in seen:
            message = f"names a second {kind or 'deployment'} `{name[:80]}`; rename one of them"
            yield problem_at(root, (where, index, "name"), message)
        seen.add((kind, name))


def _undefined(root: Node) -> Iterator[Problem]:
    defined = {
        (string(entry, "type"), string(entry, "name")) for entry in items(root, "prerequisites")
    }
    names = {name for _, name in defined}
    for role_name, role in fields(root, "taskRoles").items():
        place = ("taskRoles", role_name)
        for field, kind in _ROLE_FIELDS.items():
            name = string(role, field)
            if name and (kind, name) not in defined:
                message = f"names no prerequisite of type {kind}; add it under `prerequisites`"
                yield problem_at(root, (*place, field), message)
        for index, entry in enumerate(items(role, "prerequisites")):
            if isinstance(entry.value, str) and entry.value not in names:
                message = "names no prerequisite; add it under `prerequisites`"
                yield problem_at(root, (*place, "prerequisites", index), message)
    wanted = string(root, "defaults", "deployment")
    if wanted and all(string(entry, "name") != wanted for entry in items(root, "deployments")):
        message = "names no deployment; add it under `deployments`"
        yield problem_at(root, ("defaults", "deployment"), message)


def find_warnings(job: JobFile, root: Node) -> list[Problem]:
    """What the job runs without, each with its path."""
    found = [
        *_asset_warnings(job, root),
        *_extras_warnings(job, root),
        *request_warnings(job, root),
    ]
    for name, role in job.task_roles.items():
        found.extend(_role_warnings(job, name, role, root))
    for index, deployment in enumerate(job.deployments):
        for name in deployment.task_roles:
            if name not in job.task_roles:
                place = ("deployments", index, "taskRoles", name)
                found.append(problem_at(root, place, "names no task role of this job"))
    return sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0))


def _asset_warnings(job: JobFile, root: Node) -> Iterator[Problem]:
    mounted = {path[1] for path, _ in data_in_storages(root)}
    for index, prerequisite in enumerate(job.prerequisites):
        place = ("prerequisites", index)
        if isinstance(prerequisite, DockerImage):
            yield problem_at(root, (*place, "uri"), IMAGE_WITHOUT_EFFECT)
        elif prerequisite.plugin:
            yield problem_at(root, (*place, "plugin"), _NOT_YET)
        elif index not in mounted:
            message = f"only fills in `<% ${prerequisite.type}... %>`; nothing is fetched or stored"
            yield problem_at(root, place, message)


def _role_warnings(job: JobFile, name: str, role: TaskRole, root: Node) -> Iterator[Problem]:
    place = ("taskRoles", name)
    if role.prerequisites:
        yield problem_at(root, (*place, "prerequisites"), _NOT_YET)
    if role.task_retry_count and job.extras.gang_allocation:
        message = "has no effect on a gang; set `extras.gangAllocation: false` for single retries"
        yield problem_at(root, (*place, "taskRetryCount"), message)
    for field, bound in (
        ("minFailedInstances", role.completion.min_failed_instances),
        ("minSucceededInstances", role.completion.min_succeeded_instances),
    ):
        if bound is not None and bound > role.instances:
            message = f"is more than the {role.instances} instances, so it is never reached"
            yield problem_at(root, (*place, "completion", field), message)


def _extras_warnings(job: JobFile, root: Node) -> Iterator[Problem]:
    extras = job.extras.model_extra or {}
    if extras.get(RUNTIME_PLUGINS):
        yield problem_at(root, ("extras", RUNTIME_PLUGINS), _NOT_YET)
