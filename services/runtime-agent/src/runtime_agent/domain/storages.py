"""Which storages of a pod this node can mount."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from muster.contracts.pods import PodRun
from muster.contracts.storages import MNT, StorageMount


def folder_of(mount: StorageMount) -> PurePosixPath:
    """Where its files lie on a node without containers."""
    return PurePosixPath(mount.host_path or "/", mount.sub_path)


def why_no_folders(run: PodRun, roots: Sequence[str], single_user: str | None) -> str | None:
    """Why a node without containers can't mount the pod's storages; None: it can. `roots`: what
    storages may lie in. `single_user`: why the node does not separate users.
    """
    for mount in run.mounts:
        what = f"The storage {mount.name}"
        if mount.host_path is None:
            return f"{what} has no folder on nodes without Kubernetes: an admin sets its hostPath."
        if single_user is not None:
            return f"{what} can't be mounted on a node that does not separate users: {single_user}."
        folder, place = folder_of(mount), PurePosixPath(mount.mount_path)
        if ".." in folder.parts or not any(folder.is_relative_to(root) for root in roots):
            return (
                f"{what} lies in {folder}, which the node does not allow: its operator sets"
                " MUSTER_STORAGE_PATHS of the agent."
            )
        if ".." in place.parts or PurePosixPath(MNT) not in place.parents:
            return f"{what} can't be at {place}: nodes without Kubernetes mount below {MNT} only."
    return None


def why_no_claims(run: PodRun) -> str | None:
    """Why a Kubernetes node can't mount the pod's storages; None: it can, if claims are bound."""
    for mount in run.mounts:
        if mount.claim is None:
            return f"The storage {mount.name} has no claim for Kubernetes nodes: an admin sets it."
    return None
