"""Turns a job file into a job's specification, or into one error that lists all its faults."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from muster.contracts.jobs import JobChange, JobSpec, TaskRoleSpec
from muster.contracts.secrets import PullCredentials, Secrets
from muster.errors import Problem
from muster.protocol.checks import check_references, find_warnings
from muster.protocol.data import as_mounted, storages_of_data
from muster.protocol.document import Node, read_document
from muster.protocol.masks import masked
from muster.protocol.messages import problems_of
from muster.protocol.problems import MAX_PROBLEMS, ProtocolError, join_path
from muster.protocol.requests import (
    HIVED,
    MUSTER,
    Named,
    NamedStorage,
    RoleRequests,
    lazy_preemption_of,
    named,
    priority_of,
    requests_of,
    storages_of,
)
from muster.protocol.shape import MAX_STORAGES, DockerImage, JobFile, TaskRole
from muster.protocol.sizes import MAX_RECORD_BYTES, having_secrets, having_storages, largest_record
from muster.protocol.templates import MAX_RENDERED_CHARACTERS, RenderError, render, secrets_in
from muster.protocol.tree import Path, fields, find, items, look_up, string
from muster.references import SECRETS, fill_in

HTTP_PORT = "http"
"""Every task gets a port of this label, as in OpenPAI: its ``HOST_LIST`` variables name it."""


@dataclass(frozen=True, slots=True)
class ParsedJob:
    """A job file, understood.

    ``text`` is the file as it was sent, with masks in place of its secrets; ``secrets`` has those
    that it uses, None: it uses none. ``priority_class`` is None where the file names none, and
    the number as text where the priority is no class.
    ``priority_place`` is the path, the line and the column at which it does.
    ``virtual_cluster_place`` is the line and the column of the virtual cluster's name; ``named``
    has the GPU types and pins that it requests, ``storages`` the storages, None: none,
    ``data`` those that only data lie in. ``warnings`` name what the job runs without.
    """

    name: str
    text: str
    spec: JobSpec
    priority_class: str | None
    priority_place: tuple[str, int, int]
    virtual_cluster_place: tuple[int, int]
    named: tuple[Named, ...]
    warnings: tuple[Problem, ...]
    storages: tuple[NamedStorage, ...] | None = None
    data: tuple[NamedStorage, ...] = ()
    secrets: Secrets | None = field(default=None, repr=False)

    @property
    def tasks(self) -> int:
        """All tasks of the job."""
        return sum(role.instances for role in self.spec.task_roles)

    @property
    def gpus(self) -> int:
        """All GPUs of the job."""
        return sum(role.instances * role.gpus for role in self.spec.task_roles)


def parse_job(data: bytes) -> ParsedJob:
    """Read a job file.

    Raises ProtocolError with every problem that is found, and nothing else for any bytes.
    """
    text, root = read_document(data)
    problems = check_references(root)
    commands = _Commands(root, text, problems)
    roles_of_file = fields(root, "taskRoles")
    scripts = {name: commands.of(name, role) for name, role in roles_of_file.items()}
    pulls = commands.pulls(roles_of_file)
    job = _validate(root, problems)
    images = {
        prerequisite.name: prerequisite.uri
        for prerequisite in job.prerequisites
        if isinstance(prerequisite, DockerImage)
    }
    roles = [
        _role_spec(name, role, images[role.docker_image], scripts[name], requests_of(job, name))
        for name, role in job.task_roles.items()
    ]
    spec = _job_spec(job, tuple(roles))
    secrets = Secrets(values=commands.secrets, pulls=pulls)
    has_secrets = bool(secrets.values or secrets.pulls)
    storages, mounted = storages_of(job, root), storages_of_data(root)
    largest = having_secrets(spec, secrets) if has_secrets else spec
    most = len(mounted) + (0 if storages is None else len(storages) or MAX_STORAGES)
    largest = having_storages(largest, min(most, MAX_STORAGES))
    _check_size(largest, root)
    virtual_cluster = find(root, ("defaults", "virtualCluster"))
    return ParsedJob(
        name=job.name,
        text=masked(text, root),
        spec=spec,
        priority_class=priority_of(job)[1],
        priority_place=_priority_place(job, root),
        virtual_cluster_place=(virtual_cluster.line, virtual_cluster.column),
        named=named(job, root),
        warnings=_bounded(find_warnings(job, root)),
        storages=storages,
        data=mounted,
        secrets=secrets if has_secrets else None,
    )


def _priority_place(job: JobFile, root: Node) -> tuple[str, int, int]:
    """Where the file sets the priority, or would."""
    hived = job.extras.hived_scheduler
    is_hived = hived is not None and hived.job_priority_class is not None
    path = (*HIVED, "jobPriorityClass") if is_hived else (*MUSTER, "priority")
    node = find(root, path)
    return ".".join(map(str, path)), node.line, node.column


def _bounded(warnings: list[Problem]) -> tuple[Problem, ...]:
    """They are kept with the job and shown whenever it is: the first ones and a count."""
    left = len(warnings) - MAX_PROBLEMS
    if left <= 0:
        return tuple(warnings)
    more = Problem("", f"{left} more like these are not shown", 1, 1)
    return (*warnings[:MAX_PROBLEMS], more)


def _validate(root: Node, problems: list[Problem]) -> JobFile:
    """The file in its shape. Raises ProtocolError with the problems found before and its own."""
    if not isinstance(root.value, dict):
        message = "A job file is a mapping: start with `protocolVersion: 2`"
        raise ProtocolError([Problem("", message, root.line, root.column)])
    try:
        job = JobFile.model_validate(root.value)
    except ValidationError as error:
        raise ProtocolError([*problems_of(error, root), *problems]) from None
    if problems:
        raise ProtocolError(problems)
    return job


def _job_spec(job: JobFile, roles: tuple[TaskRoleSpec, ...]) -> JobSpec:
    own = job.extras.muster
    return JobSpec(
        virtual_cluster=job.defaults.virtual_cluster,
        priority=priority_of(job)[0],
        lazy_preemption=lazy_preemption_of(job),
        job_retry_count=job.job_retry_count,
        gang=job.extras.gang_allocation,
        time_limit_s=own.time_limit_seconds,
        expected_s=own.expected_seconds,
        min_run_s=own.min_run_seconds,
        checkpoint_s=own.checkpoint_seconds,
        borrow=own.borrow,
        notify=_changes_of(job),
        task_roles=roles,
    )


def _changes_of(job: JobFile) -> tuple[JobChange, ...]:
    """The changes that the job's user is notified of."""
    asked = job.extras.job_status_change_notification
    if asked is None:
        return ()
    return tuple(JobChange(name) for name, is_asked in asked if is_asked)


def _role_spec(
    name: str, role: TaskRole, image: str, command: str, requests: RoleRequests
) -> TaskRoleSpec:
    """OpenPAI's defaults: one failed task ends the attempt, and so does the success of all tasks of
    a role. 0 and null mean the default.
    """
    resources = role.resource_per_instance
    return TaskRoleSpec(
        name=name,
        instances=role.instances,
        min_failed_instances=role.completion.min_failed_instances or 1,
        min_succeeded_instances=role.completion.min_succeeded_instances or role.instances,
        min_instances=requests.min_instances,
        task_retry_count=role.task_retry_count,
        cpu=resources.cpu,
        memory_mb=resources.memory_mb,
        gpus=resources.gpu,
        gpu_types=requests.gpu_types,
        pin=requests.pin,
        group=requests.group,
        shm_mb=role.extra_container_options.shm_mb,
        ports={HTTP_PORT: 1} | resources.ports,
        resources=dict(requests.resources),
        image=image,
        image_pull_policy=requests.image_pull_policy,
        command=command,
    )


class _Commands:
    """Makes the scripts of all task roles, within bounds for the whole file: a reference of a few
    characters can stand for many.
    """

    def __init__(self, root: Node, text: str, problems: list[Problem]) -> None:
        self._text = text
        self._problems = problems
        self._room = MAX_RECORD_BYTES
        self._line_starts: list[int] = []
        self.secrets: dict[str, str] = {}
        self._root = root
        self._parameters = find(root, ("parameters",)) if fields(root, "parameters") else None
        self._secrets = find(root, (SECRETS,)) if fields(root, SECRETS) else None
        self._prerequisites = {
            (string(entry, "type"), string(entry, "name")): as_mounted(entry, root)
            for entry in items(root, "prerequisites")
        }
        self._around: Mapping[str, Node] = {}
        self._around_place: Path = ()
        wanted = string(root, "defaults", "deployment")
        for index, deployment in enumerate(items(root, "deployments") if wanted else ()):
            if string(deployment, "name") == wanted:
                self._around = fields(deployment, "taskRoles")
                self._around_place = ("deployments", index, "taskRoles")
                break

    def of(self, name: str, role: Node) -> str:
        """The script of a role: the deployment's commands around its own, references filled in."""
        scopes = self._scopes(role)
        lines: list[str] = []
        length = 0
        for path, node in self._nodes(name, role):
            if not isinstance(node.value, str):
                continue
            if self._room < 0 or len(self._problems) >= MAX_PROBLEMS:
                break
            rendered = render(node.value.strip(), scopes)
            secrets = secrets_in(rendered.text, self._secrets)
            self.secrets.update(secrets.values)
            self._report(path, node, (*rendered.errors, *secrets.errors))
            length += len(rendered.text) + secrets.longer + 1
            self._room -= len(rendered.text) + secrets.longer + 1
            if too_long := self._too_long(length):
                self._problems.append(Problem(join_path(path), too_long, node.line, node.column))
                break
            lines.append(rendered.text)
        return "\n".join(lines).strip()

    def _report(self, path: Path, node: Node, errors: Iterable[RenderError]) -> None:
        for error in errors:
            line, column = self._place(node, error.reference)
            message = f"{error.reference[:200]} {error.message}"
            self._problems.append(Problem(join_path(path), message, line, column))

    def pulls(self, roles: Mapping[str, Node]) -> dict[str, PullCredentials]:
        """Who pulls the image of each role, where the file says it."""
        found: dict[str, PullCredentials] = {}
        for index, entry in enumerate(items(self._root, "prerequisites")):
            auth = {
                key: self._auth(("prerequisites", index, "auth", key))
                for key in ("username", "password", "registryuri")
            }
            if not (auth["username"] or auth["password"]):
                continue
            credentials = PullCredentials(
                username=auth["username"], password=auth["password"], registry=auth["registryuri"]
            )
            name = string(entry, "name")
            found |= {
                role: credentials
                for role, node in roles.items()
                if string(node, "dockerImage") == name
            }
        return found

    def _auth(self, path: Path) -> str:
        """A field of an image's ``auth``, its secrets filled in."""
        node = look_up(self._root, path)
        if node is None or not isinstance(node.value, str):
            return ""
        secrets = secrets_in(node.value, self._secrets)
        self._report(path, node, secrets.errors)
        return fill_in(node.value, secrets.values)

    def _too_long(self, length: int) -> str | None:
        if length > MAX_RENDERED_CHARACTERS:
            return f"makes the commands longer than {MAX_RENDERED_CHARACTERS} characters"
        if self._room < 0:
            return f"makes the commands of all roles longer than {MAX_RECORD_BYTES} characters"
        return None

    def _nodes(self, name: str, role: Node) -> list[tuple[Path, Node]]:
        """Each command of a role with its path, in the order in which they run."""
        own: list[tuple[Path, Node]] = _listed(role, ("taskRoles", name), "commands")
        around = self._around.get(name)
        if around is None:
            return own
        place = (*self._around_place, name)
        before = _listed(around, place, "preCommands")
        return [*before, *own, *_listed(around, place, "postCommands")]

    def _scopes(self, role: Node) -> dict[str, Node | None]:
        scopes: dict[str, Node | None] = {"parameters": self._parameters}
        for kind in ("script", "output", "data"):
            name = string(role, kind)
            scopes[kind] = self._prerequisites.get((kind, name)) if name else None
        return scopes

    def _place(self, node: Node, reference: str) -> tuple[int, int]:
        """Where a reference stands; of a text over several lines, the line that has it."""
        if not self._line_starts:
            ends = re.finditer("\n", self._text)
            self._line_starts = [0, *(end.end() for end in ends)]
        at = self._text.find(reference, self._line_starts[node.line - 1])
        if at < 0:
            return node.line, node.column
        line = bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1


def _listed(node: Node, place: Path, field: str) -> list[tuple[Path, Node]]:
    return [((*place, field, index), entry) for index, entry in enumerate(items(node, field))]


def _check_size(spec: JobSpec, root: Node) -> None:
    topic, size = largest_record(spec)
    if size > MAX_RECORD_BYTES:
        node = find(root, ("taskRoles",))
        tasks = sum(role.instances for role in spec.task_roles)
        message = (
            f"asks for more than one record can hold: {tasks} tasks need up to {size} bytes on "
            f"{topic}, {MAX_RECORD_BYTES} are the most; use fewer instances, GPUs or ports a task, "
            "or shorter commands and secrets"
        )
        raise ProtocolError([Problem("taskRoles", message, node.line, node.column)])
