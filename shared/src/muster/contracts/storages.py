"""The storages that a job's tasks mount."""

from muster.contracts.model import Model

STORAGE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
FOLDER = r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*"
ABSOLUTE_PATH = rf"^(/{FOLDER})+$"
CLAIM_CHARACTERS = 253
PATH_CHARACTERS = 255
"""Of a mount path, and of a storage's folder."""
SUB_PATH_CHARACTERS = 600
"""With the user's name in it."""

MNT = "/mnt"
"""The folder of mount paths, unless a job file names others."""


def usual_mount_path(storage: str) -> str:
    """Where tasks see a storage whose job file names no path."""
    return f"{MNT}/{storage}"


class StorageMount(Model):
    """A storage at ``mount_path``. Kubernetes nodes find it in the PersistentVolumeClaim ``claim``,
    other nodes in their folder ``host_path``; None: they have it not. ``sub_path``: which folder of
    it. ``is_own``: that folder is the user's alone, and the node makes it.
    """

    name: str
    mount_path: str
    claim: str | None = None
    host_path: str | None = None
    sub_path: str = ""
    read_only: bool = False
    is_own: bool = False
