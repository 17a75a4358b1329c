"""Whether users are separated from one another, as text for people."""

import time
from typing import Any

from cli.client import Client

REPORT_TIMEOUT_S, REPORT_POLL_S = 10.0, 0.2


def separation(client: Client, *, bus_is_open: bool, wait: bool = False) -> str | None:
    """What the nodes report; None where none has reported. `wait`: for the first report.
    `bus_is_open`: any process of this machine may publish.
    """
    deadline = time.monotonic() + (REPORT_TIMEOUT_S if wait else 0.0)
    while not (nodes := client.get_pages("/cluster/nodes", "nodes")):
        if time.monotonic() >= deadline:
            return None
        time.sleep(REPORT_POLL_S)
    return _in_words(nodes, bus_is_open)


def _in_words(nodes: list[dict[str, Any]], bus_is_open: bool) -> str:
    reasons = [node["singleUser"] for node in nodes if node["singleUser"]]
    if not reasons and bus_is_open:
        return (
            "separated by uid, but the embedded broker has no log-in: a task can act as any user."
            " Start with Apache Kafka (--kafka apache) before other people submit jobs"
        )
    if not reasons:
        return "separated: each task runs under a uid of its user"
    where = f" on {len(reasons)} of {len(nodes)} nodes" if len(nodes) > 1 else ""
    why = "; ".join(sorted(set(reasons)))
    return f"not separated{where}: everybody's tasks run as the agent's user ({why})"
