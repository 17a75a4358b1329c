"""What confines pods on this node: limits by control groups, and a uid of each user's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import psutil
import structlog
from muster.errors import Broken

from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor import cgroup, isolation

GROUPS_ARE_OLD_S = 60.0
"""No pod enters an empty control group of this age any more."""
PROBE_TIMEOUT_S = 30.0

_log = structlog.get_logger()


@dataclass(frozen=True)
class Confinement:
    """`parents`: below which group each limit can be set. `missing`: the limits that can't be set.
    `single_user`: why all tasks run as the agent's user; None: each runs under its user's uid.
    `task_folders`: what tasks reach of MUSTER_TASK_PATHS, by paths without links.
    """

    parents: Mapping[cgroup.Limit, Path]
    missing: tuple[cgroup.Limit, ...]
    single_user: str | None
    task_folders: tuple[Path, ...] = ()


def confinement_of(settings: AgentSettings) -> Confinement:
    """Tries what this process may do here, and logs what it may not.

    Raises Broken where MUSTER_TASK_PATHS or MUSTER_CGROUP_PARENT is of no use, and where a task
    could read other users' logs.
    """
    task_folders = tuple(map(_resolved, settings.task_folders()))
    if settings.cgroup_parent is not None:
        _check_parent(settings.cgroup_parent)
    wanted = [of for of in cgroup.LIMITS if _is_wanted(of, settings)]
    parents = cgroup.usable_parents(wanted, settings.cgroup_parent)
    for parent in set(parents.values()):
        cgroup.sweep(parent, time.time() - GROUPS_ARE_OLD_S)
    missing = tuple(of for of in wanted if of not in parents)
    if missing:
        _log.warning(
            "the agent can't limit pods; see its docs/operations.md, Limits", missing=missing
        )
    single_user = _why_single_user(settings)
    if single_user is None and not settings.service_key.get_secret_value():
        raise Broken(
            "MUSTER_SERVICE_KEY is not set, so tasks could read other users' logs: set it to what"
            f" `python -m muster.derive_key agent/{settings.node}` prints beside REST's"
            " MUSTER_CLUSTER_KEY"
        )
    if single_user is not None:
        _log.warning("this node is for a single user only", why=single_user)
    return Confinement(parents, missing, single_user, task_folders)


def _resolved(path: str) -> Path:
    """Once for all, so that nobody gains by a link that is set later."""
    try:
        return Path(os.path.realpath(path, strict=True))
    except OSError as error:
        raise Broken(
            f"MUSTER_TASK_PATHS: {path} can't be used ({error.strerror}); mount it, or leave it out"
        ) from error


def _check_parent(parent: Path) -> None:
    try:
        cgroup.try_parent(parent)
    except OSError as error:
        raise Broken(
            f"MUSTER_CGROUP_PARENT: no group can be made in {parent} ({error}); name a delegated"
            " control group, or leave it out"
        ) from error


def _is_wanted(of: cgroup.Limit, settings: AgentSettings) -> bool:
    match of:
        case "memory":
            return settings.memory_limits
        case "swap":
            return settings.memory_limits and psutil.swap_memory().total > 0
        case "cpu":
            return settings.cpu_limits
        case "processes":
            return True
        case never:
            assert_never(never)


def _why_single_user(settings: AgentSettings) -> str | None:
    if os.geteuid() != 0:
        return "the agent is not root, so all tasks run as its user"
    uid = str(settings.task_uid_first + settings.task_uid_count)
    command = [sys.executable, "-I", "-m", "runtime_agent.supervisor", "--separate", uid]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Broken(
            f"the trial to separate users did not end in {PROBE_TIMEOUT_S:g} s; start again"
        ) from error
    if done.returncode == 0:
        return None
    if done.returncode == isolation.CANNOT_SEPARATE:
        return f"{done.stderr.strip()}, so all tasks run as the agent's user"
    raise Broken(  # never a reason to run all users' tasks as root
        f"the trial to separate users ended with status {done.returncode}"
        f" ({done.stderr.strip()[-500:] or 'without a message'}); start again"
    )
