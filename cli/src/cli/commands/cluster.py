"""`muster queue` and `muster cluster`: who waits for what, and who owns and uses what."""

import sys
from datetime import datetime
from typing import Annotated, Any

from cyclopts import Parameter

from cli.commands.session import Output, client
from cli.output import Format, length, print_facts, print_json, print_table
from cli.reasons import numbers


def queue(
    *,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """What waits, first come first, and why: the code and its numbers (`muster why` has words)."""
    found = client().get("/cluster/queue", {"limit": limit}).json()
    if output is Format.JSON:
        print_json(found)
        return
    gangs = found.get("gangs") or []
    print_table(
        ("#", "JOB", "VC", "PRIO", "AGE", "WHY", "NUMBERS"),
        [
            (
                gang.get("position"),
                f"{gang.get('user')}~{gang.get('name')}",
                gang.get("virtualCluster"),
                gang.get("priority"),
                _age(gang.get("submittedAt")),
                (gang.get("reason") or {}).get("code"),
                numbers(gang.get("reason")),
            )
            for gang in gangs
        ],
    )
    if (left := (found.get("waiting") or 0) - len(gangs)) > 0:
        sys.stdout.write(f"{left} more wait; --limit shows more of them.\n")


def _age(submitted_at: str | None) -> str:
    if submitted_at is None:
        return ""
    return length(int(datetime.fromisoformat(submitted_at).timestamp() * 1000), None)


def cluster(*, output: Output = Format.TABLE) -> None:
    """Virtual clusters: what they own, what is bound of it, who uses it; and nodes in trouble."""
    found = client().get("/cluster").json()
    if output is Format.JSON:
        print_json(found)
        return
    clusters, nodes = found["virtualClusters"], found["nodes"]
    print_facts(
        {
            "GPUs": found["gpuTotal"],
            "nodes": f"{nodes['total']}, {nodes['ready']} ready, {nodes['troubled']} below",
        }
    )
    sys.stdout.write("\n")
    print_table(
        ("VC", "GPUS", "GUARANTEED", "OPPORTUNISTIC", "FREE", "TYPES", "PINS"),
        [
            (
                name,
                each["gpus"]["quota"],
                each["gpus"]["guaranteed"],
                each["gpus"]["opportunistic"],
                each["gpus"]["free"],
                " ".join(each["gpuTypes"]),
                " ".join(each["pins"]),
            )
            for name, each in clusters.items()
        ],
    )
    _print_cells(clusters)
    if nodes["inTrouble"]:
        _print_trouble(nodes["inTrouble"])


def _print_cells(clusters: dict[str, Any]) -> None:
    rows = [
        (name, cells["quota"], cells["count"], cells["bound"])
        for name, each in clusters.items()
        for cells in each["cells"]
    ]
    if rows:
        sys.stdout.write("\n")
        print_table(("VC", "CELLS", "OWNED", "BOUND"), rows)


def _print_trouble(nodes: list[dict[str, Any]]) -> None:
    sys.stdout.write("\n")
    print_table(
        ("NODE", "STATE", "BAD GPUS", "PODS", "PROBLEM"),
        [
            (
                node["name"],
                state(node),
                f"{len(node['badGpus'])} of {node['gpus']}" if node["badGpus"] else "",
                node["pods"],
                node["problem"],
            )
            for node in nodes
        ],
    )


def state(node: dict[str, Any]) -> str:
    """A node's state with the order that stands for it: what is ready but for the order is as the
    order has it.
    """
    told = {"cordon": "cordoned", "drain": "draining" if node["pods"] else "drained"}
    order = told.get(node.get("order") or "")
    if order is None:
        return str(node["state"])
    return order if node["state"] == "ready" else f"{node['state']}, {order}"
