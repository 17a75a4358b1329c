"""Which machine this is: a journal counts on one machine only, whatever copies its files."""

from __future__ import annotations

from pathlib import Path

import structlog
from muster.errors import Broken

SYSTEM_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
NOT_YET = "uninitialized"
"""What machine-id(5) has before the first boot of an image has finished."""

_log = structlog.get_logger()


def machine_id(setting: str | None, node: str) -> str:
    """The setting (an id, or the absolute path of a file with one), else the operating system's id,
    else the node's name. None of them changes when the machine restarts.

    Raises Broken where the setting names a file without an id.
    """
    if setting is not None and not setting.startswith("/"):
        return setting
    files = SYSTEM_FILES if setting is None else (Path(setting),)
    found = next(filter(None, map(_id_in, files)), None)
    if found is not None:
        return found
    if setting is not None:
        raise Broken(f"MUSTER_MACHINE_ID: {setting} has no machine id; name a file that has one")
    _log.warning(
        "this machine has no id, so the node's name has to do: a copy of MUSTER_AGENT_HOME is"
        " noticed only under another name; set MUSTER_MACHINE_ID"
    )
    return f"node {node}"


def _id_in(file: Path) -> str | None:
    try:
        text = file.read_text(errors="replace").strip()
    except OSError:
        return None
    return None if text in ("", NOT_YET) else text
