"""The cluster's file: read at the start, and again whenever its content changes.

A wrong file changes nothing. At the start it ends the process; later it is rejected and the
previous one stays in force.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scheduler import order_policies
from scheduler.domain.configured import looked_at
from scheduler.domain.core.config import ClusterConfig, Finding
from scheduler.domain.formats.cluster_file import CLUSTER_FILE, ClusterFile, read_cluster
from scheduler.domain.formats.fields import MAX_FINDINGS, FormatError, finding_text

WRONG = 2
"""The process's exit status, as for any wrong setting."""


class Refused(Exception):
    """The file can't be used. ``problems``: all problems, each with its line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid file. ``content``: its bytes. ``warnings``: parts without effect."""

    content: bytes
    config: ClusterConfig
    warnings: tuple[str, ...]


def content_of(path: Path) -> bytes:
    """The file's content. Raises Refused."""
    try:
        with path.open("rb") as source:
            return source.read(CLUSTER_FILE.max_bytes + 1)
    except OSError as error:
        raise Refused([str(error)]) from None


def load(path: Path, content: bytes) -> Loaded:
    """The configuration in this content. Raises Refused."""
    try:
        file = read_cluster(content)
        warnings = _check(file)
    except FormatError as error:
        raise Refused(_lines(path, error.findings, error.more)) from None
    more = max(0, len(warnings) - MAX_FINDINGS)
    lines = _lines(path, file.placed(warnings[:MAX_FINDINGS]), more)
    return Loaded(content, file.config, tuple(lines))


def load_or_exit(path: Path) -> Loaded:
    """The same at a process's start: a wrong file ends the process with its problems on stderr."""
    try:
        return load(path, content_of(path))
    except Refused as error:
        sys.stderr.write("".join(f"MUSTER_CLUSTER_FILE: {line}\n" for line in error.problems))
        sys.exit(WRONG)


def _check(file: ClusterFile) -> list[Finding]:
    failed: list[Finding] = []  # to be loaded; none is asked for a rank here
    policies = order_policies.load(
        lambda name, how: failed.append(
            Finding("policy.orderBy", order_policies.failure_text(name, how))
        )
    )
    wrong, warnings = looked_at(file.config, policies)
    if wrong:
        raise FormatError(file.placed([*wrong, *failed]))
    return warnings + failed


def _lines(path: Path, findings: Iterable[Finding], more: int) -> list[str]:
    lines = [finding_text(str(path), each) for each in findings]
    return [*lines, f"and {more} more"] if more else lines
