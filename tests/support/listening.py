"""Where a process listens, as the kernel tells."""

import contextlib
import socket
from pathlib import Path


def listens_on(pid: int) -> set[str]:
    """The addresses on which a process listens, of both families."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # A file that the process closes meanwhile listens nowhere.
        with contextlib.suppress(FileNotFoundError):
            target = str(link.readlink())
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").rstrip("]"))
    found = set()
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                words = bytes.fromhex(local.partition(":")[0])
                packed = b"".join(words[n : n + 4][::-1] for n in range(0, len(words), 4))
                found.add(socket.inet_ntop(family, packed).removeprefix("::ffff:"))
    return found
