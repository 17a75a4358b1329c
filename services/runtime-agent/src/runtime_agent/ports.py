"""The TCP ports of this machine on which processes listen, as the kernel lists them."""

from __future__ import annotations

import contextlib
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in net/tcp_states.h


def listening_ports() -> frozenset[int]:
    """Of IPv4 and IPv6, on any address."""
    found: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return frozenset(found)
