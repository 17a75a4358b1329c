"""Preflight jobs: each tests one node, with all of its GPUs."""

import json
from copy import deepcopy
from typing import Any

from muster.errors import Problem
from muster.protocol.parse import ParsedJob, parse_job
from muster.protocol.problems import ProtocolError


def check_preflight(content: dict[str, Any]) -> None:
    """Raises ProtocolError where it can be no preflight job."""
    preflight_job(content, "preflight", 0)


def preflight_job(content: dict[str, Any], name: str, gpus: int) -> ParsedJob:
    """A job file's content as the job that tests a node with so many GPUs. Raises ProtocolError."""
    filled = deepcopy(content) | {"name": name}
    roles = filled.get("taskRoles")
    for role in roles.values() if isinstance(roles, dict) else ():
        wanted = role.get("resourcePerInstance") if isinstance(role, dict) else None
        if isinstance(wanted, dict):
            wanted["gpu"] = gpus
    job = parse_job(json.dumps(filled).encode())
    problems = []
    if job.tasks != 1:
        fault = f"has {job.tasks} tasks; a preflight job has one task role with one instance"
        problems.append(Problem("taskRoles", fault))
    if job.secrets is not None:
        problems.append(Problem("secrets", "can't be used: rules are no place for secrets"))
    if job.storages is not None or job.data:
        problems.append(Problem("extras.storages", "can't be used by a preflight job"))
    if problems:
        raise ProtocolError(problems)
    return job
