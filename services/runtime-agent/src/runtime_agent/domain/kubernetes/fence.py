"""Which pods of a lost node are deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from runtime_agent.domain.kubernetes.status import Observed


def to_delete(pods: Iterable[Observed], node: str, lost: Collection[str]) -> list[Observed]:
    """Of a node's pods, those that are lost and may still run something.

    A pod that has ended stays, so that its agent can still read its log.
    """
    return [
        seen
        for seen in pods
        if seen.pod in lost and seen.node == node
        if not (seen.is_terminal or seen.is_deleting)
    ]
