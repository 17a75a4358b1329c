"""How an agent of a DaemonSet gets credentials of its own: ``python -m runtime_agent.enrolment``.

All pods of a DaemonSet mount the same Secrets, but each agent has its own keys. So a Job on the
node stores the node's Secret in a folder there (``store``). The agent's pod loads it (``load``).
Kubernetes gives a Secret only to nodes with a pod that names it.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

NEEDED = frozenset({"muster_kafka_password", "muster_service_key"})
WAIT_S = 1.0
REPEAT_S = 60.0
USAGE = "usage: python -m runtime_agent.enrolment store|load FROM TO"


def read(folder: Path) -> dict[str, bytes]:
    """The credentials in a folder, by the names of their settings."""
    if not folder.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def store(credentials: Mapping[str, bytes], folder: Path) -> None:
    """Write the credentials for their owner alone; files of the folder that they lack go."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name, content in credentials.items():
        new = folder / f".{name}.new"
        new.unlink(missing_ok=True)
        with open(new, "wb", opener=_privately) as file:
            file.write(content)
            os.fsync(file.fileno())
        new.rename(folder / name)
    for path in folder.iterdir():
        if path.is_file() and path.name not in credentials:
            path.unlink()


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def load(source: Path, target: Path) -> None:
    """Copy the node's credentials, once they are there."""
    shown = -REPEAT_S
    while not set(credentials := read(source)) >= NEEDED:
        if time.monotonic() - shown >= REPEAT_S:
            shown = time.monotonic()
            sys.stderr.write(
                f"{source} has no credentials of this node yet: apply the node's Secret and Job"
                " (deploy/k8s/README.md, Nodes)\n"
            )
        time.sleep(WAIT_S)
    for name, content in credentials.items():
        (target / name).write_bytes(content)
        (target / name).chmod(0o400)


def main(arguments: list[str]) -> None:
    """The command."""
    match arguments:
        case ["store", source, target]:
            credentials = read(Path(source))
            if missing := NEEDED - set(credentials):
                sys.exit(f"{source} lacks {', '.join(sorted(missing))}")
            store(credentials, Path(target))
        case ["load", source, target]:
            load(Path(source), Path(target))
        case _:
            sys.exit(USAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
