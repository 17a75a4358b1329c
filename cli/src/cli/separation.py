"""Whether users are separated from one another, as text for people."""

import time

from cli.client import Client

REPORT_TIMEOUT_S, REPORT_POLL_S = 10.0, 0.2


def separation(client: Client, *, wait: bool = False) -> str | None:
    """What the nodes report; None where none has reported. `wait`: for the first report."""
    deadline = time.monotonic() + (REPORT_TIMEOUT_S if wait else 0.0)
    while not (nodes := client.get_pages("/cluster/nodes", "nodes")):
        if time.monotonic() >= deadline:
            return None
        time.sleep(REPORT_POLL_S)
    reasons = [node["singleUser"] for node in nodes if node["singleUser"]]
    if not reasons:
        return "separated: each task runs in a container, or under a uid of its user"
    where = f" on {len(reasons)} of {len(nodes)} nodes" if len(nodes) > 1 else ""
    return f"not separated{where}: {'; '.join(sorted(set(reasons)))}"
