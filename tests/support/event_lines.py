"""Lines of EVENTS as the tests of the format write them."""

import json
from collections.abc import Iterator
from typing import Any

GANG: dict[str, Any] = {
    "id": "a",
    "user": "u",
    "virtualCluster": "vision",
    "priority": 5,
    "pods": [{"name": "w", "count": 2, "gpus": 8}],
}
PLACEMENT = [
    {"pod": "w-0", "node": "n0", "gpus": [0, 1, 2, 3, 4, 5, 6, 7]},
    {"pod": "w-1", "node": "n1", "gpus": [7, 6, 5, 4, 3, 2, 1, 0]},
]


def lines(*events: dict[str, Any] | str) -> Iterator[bytes]:
    """A file."""
    for event in events:
        yield (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n"


def requested(at: float = 0, **gang: Any) -> dict[str, Any]:
    """A line."""
    return {"at": at, "event": "gang-requested", "gang": GANG | gang}


def restored(**more: Any) -> dict[str, Any]:
    """A line."""
    return {"at": 9, "event": "gang-restored", "gang": GANG, "placement": PLACEMENT} | more
