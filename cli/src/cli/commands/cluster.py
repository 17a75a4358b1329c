"""`muster queue`, `cluster` and `cells`: waiting gangs, and the quota and use of cells."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from cli.commands.session import Output, client
from cli.output import (
    Format,
    length,
    milliseconds,
    print_as_of,
    print_facts,
    print_json,
    print_line,
    print_table,
    when,
)
from cli.reasons import gang_of, more_wait, numbers, until

BORROWING = ("lent", "borrowed")
"""Of GPUs: columns that are only shown where there are any."""
_ORDERS = {"cordon": "cordoned", "drain": "drained"}


def queue(
    *,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """Waiting gangs in order, and why: the code and its numbers (`muster why` explains them)."""
    found = client().get("/queue", {"limit": limit}).json()
    if output is Format.JSON:
        print_json(found)
        return
    gangs = found.get("gangs") or []
    print_table(
        ("#", "JOB", "VC", "PRIO", "GPUS", "AGE", "START", "WHY", "NUMBERS"),
        [
            (
                gang.get("position"),
                gang_of(gang),
                gang.get("virtualCluster"),
                gang.get("priority"),
                gang.get("gpus"),
                _age(gang.get("submittedAt")),
                until(gang["expectedStart"]).removeprefix("in ")
                if gang.get("expectedStart")
                else "",
                (gang.get("reason") or {}).get("code"),
                numbers(gang.get("reason")),
            )
            for gang in gangs
        ],
    )
    if (left := (found.get("total") or 0) - len(gangs)) > 0:
        print_line(f"{more_wait(left)}; {_of_more(found, limit)}.")
    print_as_of(found)


def _of_more(found: dict[str, Any], limit: int) -> str:
    """Whether our own limit or the Scheduler's cuts the list."""
    most = found.get("limit") or limit
    if most < limit:
        return f"the Scheduler shows no more than {most} at once"
    return "--limit shows more of them"


def _age(submitted_at: str | None) -> str:
    if submitted_at is None:
        return ""
    age = length(milliseconds(submitted_at), None)
    return "".join(re.findall(r"^-?\d+[a-z]", age)) or age  # its first unit is enough


def cluster(*, output: Output = Format.TABLE) -> None:
    """Virtual clusters: their quota, what of it is bound, used and free; and nodes in trouble.
    Quota is free also while its nodes take no pods: USABLE is what of it can be used now.
    """
    found = client().get("/cluster").json()
    if output is Format.JSON:
        print_json(found)
        return
    clusters, nodes = found["virtualClusters"], found["nodes"]
    print_facts(
        {
            "GPUs": f"{found['gpuTotal']}, {nodes['gpusReady']} healthy on ready nodes",
            "nodes": f"{nodes['total']}, {nodes['ready']} ready, {nodes['troubled']} listed below",
        }
    )
    print_line("")
    borrowing = BORROWING if any(each["gpus"].get("lent") for each in clusters.values()) else ()
    gpus = [each["gpus"] for each in clusters.values()]
    is_less = any(each.get("usable", each["free"]) < each["free"] for each in gpus)
    shown = ("quota", "guaranteed", "opportunistic", "free", *(("usable",) if is_less else ()))
    headings = ("VC", "GPUS", *map(str.upper, (*shown[1:], *borrowing)), "TYPES", "PINS")
    print_table(
        headings,
        [
            (
                name,
                *(each["gpus"][key] for key in shown),
                *(each["gpus"][name] or "" for name in borrowing),
                " ".join(each["gpuTypes"]),
                " ".join(each["pins"]),
            )
            for name, each in clusters.items()
        ],
    )
    _print_cells(clusters)
    if nodes["inTrouble"]:
        _print_trouble(nodes["inTrouble"])
    print_as_of(found)


def cells(
    address: Annotated[str | None, Parameter(help="The cell there, and all in it.")] = None,
    *,
    virtual_cluster: Annotated[str | None, Parameter(help="Only what is bound to it.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """The cells of the cluster, down to nodes: used and free GPUs, binding, state."""
    query = {"address": address, "virtualCluster": virtual_cluster, "limit": limit}
    found = client().get("/cluster/cells", query).json()
    if output is Format.JSON:
        print_json(found)
        return
    print_table(
        ("CELL", "TYPE", "USED", "FREE", "VC", "PRIO", "STATE"),
        [
            (
                name,
                cell["type"],
                f"{cell['gpusUsed']}/{cell['gpus']}",
                cell["gpusFree"],
                _owner(cell),
                cell["priority"],
                _state_of(cell),
            )
            for name, cell in _as_tree(found["cells"])
        ],
        ends_in_text=True,
    )
    if (left := found["total"] - len(found["cells"])) > 0:
        print_line(f"{left} more cells; {_of_more(found, limit)}.")
    print_as_of(found)


def _as_tree(cells: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each with its name: below the cell that it is in, where that is shown, else its address."""
    depths: dict[tuple[str, str], int] = {}
    for cell in cells:
        above, _, name = cell["cell"].rpartition("/")
        depth = depths.get((cell["chain"], above), -1) + 1
        depths[cell["chain"], cell["cell"]] = depth
        yield "  " * depth + name if depth else cell["cell"], cell


def _owner(cell: dict[str, Any]) -> str:
    """The virtual cluster that it, or the cell around it, is bound to."""
    binding = cell["binding"]
    if binding is None:
        return "in parts" if cell["gpusBound"] else ""
    pin = f", pin {binding['pin']}" if binding["pin"] else ""
    return f"{binding['virtualCluster'] or 'nobody'}{pin}"


def _state_of(cell: dict[str, Any]) -> str:
    """Its condition, and the gang that has reserved some of it."""
    reservation = cell.get("reservedFor")  # an older Scheduler has none
    if reservation is None:
        return _condition(cell)
    starts = f"{reservation['user']}~{reservation['name']} ({until(reservation['startsAt'])})"
    return f"{_condition(cell)}, {cell['gpusReserved']} reserved for {starts}"


def _condition(cell: dict[str, Any]) -> str:
    order = _ORDERS.get(cell["order"] or "")
    if cell["health"] == "healthy":
        return order or "healthy"
    bad = f"{cell['gpus'] - cell['gpusHealthy']} bad"
    why = f": {cell['trouble']}" if cell["trouble"] else ""
    return f"{order}, {bad}{why}" if order else f"{bad}{why}"


def _print_cells(clusters: dict[str, Any]) -> None:
    rows = [
        (name, cells["quota"], cells["count"], cells["bound"])
        for name, each in clusters.items()
        for cells in each["cells"]
    ]
    if rows:
        print_line("")
        print_table(("VC", "CELLS", "OWNED", "BOUND"), rows)


def _print_trouble(nodes: list[dict[str, Any]]) -> None:
    print_line("")
    print_table(
        ("NODE", "STATE", "BAD GPUS", "PODS", "PROBLEM"),
        [
            (
                node["name"],
                state(node),
                f"{len(node['badGpus'])} of {node['gpus']}" if node["badGpus"] else "",
                node["pods"],
                "; ".join(it.rstrip(".") for it in (node["problem"], order_given(node)) if it),
            )
            for node in nodes
        ],
    )


def order_given(node: dict[str, Any]) -> str | None:
    """Since when the order in force stands, and who gave it: a person, or a rule with its alert."""
    if node.get("orderedAt") is None:
        return None
    by = node["orderReason"] or node["orderedBy"]
    return f"{_ORDERS[node['order']]} since {when(milliseconds(node['orderedAt']))} UTC by {by}"


def state(node: dict[str, Any]) -> str:
    """A node's state with the order in force. For a node that is ready the order alone is shown."""
    order = _ORDERS.get(node.get("order") or "")
    order = "draining" if order == "drained" and node["pods"] else order
    if order is None:
        return str(node["state"])
    return order if node["state"] == "ready" else f"{node['state']}, {order}"
