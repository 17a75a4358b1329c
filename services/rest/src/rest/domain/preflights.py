"""Preflight jobs: each tests one node, which may be cordoned or drained."""

from dataclasses import replace

from muster.protocol import ParsedJob
from muster.protocol.requests import OPPORTUNISTIC


def on_node(job: ParsedJob, node: str) -> ParsedJob:
    """The same job on one node. It is opportunistic: it uses no quota, and preempts no job."""
    spec = job.spec.model_copy(update={"node": node, "priority": OPPORTUNISTIC, "borrow": False})
    return replace(job, spec=spec, priority_class="oppo")
