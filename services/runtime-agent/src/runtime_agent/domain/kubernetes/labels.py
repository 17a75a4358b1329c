"""Whose a pod is, for `kubectl get pods`: the labels of a Pod object, by the names of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256

from muster.contracts.pods import PodRun

LONGEST = 63
HASH_DIGITS = 12
_VALID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
BEFORE_HASH = "--"
_HASHED = re.compile(rf".*{BEFORE_HASH}[0-9a-f]{{{HASH_DIGITS}}}")
"""A name that looks so is hashed too: else it could be taken for another one."""


def names_of(run: PodRun) -> dict[str, str]:
    """Each label's exact value. `job_name` is OpenPAI's `user~name`."""
    return {
        "muster/user": run.user,
        "muster/job-name": run.job_name.removeprefix(f"{run.user}~"),
        "muster/virtual-cluster": run.virtual_cluster,
        "muster/task-role": run.role,
        "muster/task-index": str(run.index),
        "muster/job-attempt": str(run.job_attempt),
        "muster/task-attempt": str(run.task_attempt),
    }


def labels(names: Mapping[str, str]) -> dict[str, str]:
    """With values that Kubernetes takes."""
    return {key: label_value(name) for key, name in names.items()}


def unlabelled(names: Mapping[str, str]) -> dict[str, str]:
    """Those that no label holds exactly."""
    return {key: name for key, name in names.items() if label_value(name) != name}


def label_value(name: str) -> str:
    """The name, where a label can hold it; else what it can hold of it, and its hash. Two names
    never have one value.
    """
    if len(name) <= LONGEST and _VALID.fullmatch(name) and not _HASHED.fullmatch(name):
        return name
    digest = sha256(name.encode()).hexdigest()[:HASH_DIGITS]
    kept = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-") or "x"
    return f"{kept[: LONGEST - len(BEFORE_HASH) - HASH_DIGITS]}{BEFORE_HASH}{digest}"
