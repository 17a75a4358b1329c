"""Messages for faults in a file's shape. Each names the fix."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from muster.errors import Problem
from muster.protocol.document import Node
from muster.protocol.problems import MAX_PROBLEMS, join_path
from muster.protocol.shape import (
    Additions,
    Completion,
    ContainerOptions,
    DeploymentRole,
    DockerImage,
    JobFile,
    Resources,
    RoleAdditions,
    StatusChanges,
    TaskRole,
)
from muster.protocol.tree import find, look_up

_PREREQUISITE_TAGS = frozenset(("dockerimage", "script", "output", "data"))
_KEY = "[key]"

_TYPES = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}

_LIMITS = {
    "union_tag_invalid": "needs a `type`: dockerimage, script, output or data",
    "union_tag_not_found": "needs a `type`: dockerimage, script, output or data",
    "string_pattern_mismatch": "may only have letters, digits, _ and -",
    "string_too_short": "must not be empty",
    "string_too_long": "has more than {max_length} characters",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must not be empty: add an entry, or leave the field out",
    "too_long": "has more than {max_length} entries",
}

_EXAMPLES = {
    "protocolVersion": "protocolVersion: 2",
    "name": "name: my_job",
    "type": "type: job",
    "taskRoles": "taskRoles:",
    "dockerImage": "dockerImage: the name of a prerequisite of type dockerimage",
    "resourcePerInstance": "resourcePerInstance: {cpu: 1, memoryMB: 1024, gpu: 0}",
    "commands": "commands: [the commands to run]",
    "cpu": "cpu: 1",
    "memoryMB": "memoryMB: 1024",
    "gpu": "gpu: 0",
    "uri": "uri: where it is",
}


def problems_of(error: ValidationError, root: Node) -> list[Problem]:
    """Each error of pydantic's as a problem with its place in the file."""
    seen: dict[tuple[str, str], Problem] = {}
    for detail in error.errors(include_url=False, include_input=False)[: 4 * MAX_PROBLEMS]:
        problem = _problem(detail, root)
        seen.setdefault((problem.path, problem.message), problem)
    by_path: dict[str, Problem] = {}
    for problem in seen.values():  # the branches of a union complain once each
        by_path.setdefault(problem.path, problem)
    return list(by_path.values())


def _problem(detail: ErrorDetails, root: Node) -> Problem:
    parts = _file_path(detail["loc"], root)
    is_key = bool(detail["loc"]) and detail["loc"][-1] == _KEY
    missing = detail["type"] == "missing"
    node = find(root, parts[:-1] if missing else parts)
    message = _message(detail, parts, node, is_key=is_key)
    return Problem(join_path(parts), message, node.line, node.column)


def _file_path(loc: Sequence[str | int], root: Node) -> list[str | int]:
    """A location of pydantic's without the names of union branches, which are not in the file."""
    parts: list[str | int] = []
    for index, part in enumerate(loc):
        if index == 2 and loc[0] == "prerequisites" and part in _PREREQUISITE_TAGS:
            continue
        if part == _KEY and index == len(loc) - 1:
            continue
        parts.append(part)
    while parts and parts[-1] in ("int", "float", "str", "constrained-str", "constrained-int"):
        if look_up(root, parts) is not None:
            break
        parts.pop()
    if parts and isinstance(parts[-1], str) and parts[-1].startswith("function-"):
        parts.pop()
    return parts


def _message(detail: ErrorDetails, parts: Sequence[str | int], node: Node, *, is_key: bool) -> str:
    kind = detail["type"]
    context: dict[str, Any] = detail.get("ctx", {})
    if is_key:
        return "is no name for this: up to 100 letters, digits and _, not starting with a digit"
    if kind == "missing":
        name = str(parts[-1])
        return f"is required: add `{_EXAMPLES.get(name, name + ':')}`"
    if kind == "extra_forbidden":
        return _unknown_field(parts)
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, not {_what(node)}"
    if kind == "literal_error":
        expected = _expected(context)
        is_other = isinstance(node.value, str) and "`" in expected
        return f"must be {expected}, not {'another string' if is_other else _what(node)}"
    if kind == "string_pattern_mismatch" and parts[-1] == "mountPath":
        return "must be an absolute path of letters, digits, _, +, - and ., without `..`: `/data`"
    if kind == "string_pattern_mismatch" and parts[-1] == "uri":
        return "must be an image's name without spaces and line breaks: `debian:12`"
    if kind in _LIMITS:
        return _LIMITS[kind].format(**context)
    return detail["msg"][:1].lower() + detail["msg"][1:]


def _expected(context: dict[str, Any]) -> str:
    return str(context.get("expected", "another value")).replace("'", "`")


def _what(node: Node) -> str:
    """The kind of a value. Never the value itself, which may be a secret in the wrong place."""
    match node.value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _unknown_field(parts: Sequence[str | int]) -> str:
    known = sorted(_fields_at(parts[:-1]))
    close = get_close_matches(str(parts[-1])[:80], known, n=1)
    if close:
        return f"is no field here; did you mean `{close[0]}`?"
    return f"is no field here; the fields are {', '.join(known)}"


def _fields_at(parts: Sequence[str | int]) -> list[str]:
    """The names that the model has at a path of the file."""
    models: dict[str, type[BaseModel]] = {
        "": JobFile,
        "prerequisites": DockerImage,
        "taskRoles": TaskRole,
        "taskRoles.completion": Completion,
        "taskRoles.extraContainerOptions": ContainerOptions,
        "taskRoles.resourcePerInstance": Resources,
        "deployments.taskRoles": DeploymentRole,
        "extras.jobStatusChangeNotification": StatusChanges,
        "extras.muster": Additions,
        "extras.muster.taskRoles": RoleAdditions,
    }
    names = [part for part in parts if isinstance(part, str)]
    if "taskRoles" in names and len(names) > names.index("taskRoles") + 1:
        del names[names.index("taskRoles") + 1]  # the role's own name
    model = models.get(".".join(names))
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]
