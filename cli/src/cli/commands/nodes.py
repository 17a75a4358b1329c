"""`muster nodes`: the nodes as their agents report them, and an operator's orders about them."""

from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from cli.commands.cluster import order_given, state
from cli.commands.session import Output, client
from cli.output import Format, print_json, print_line, print_table

NodeName = Annotated[str, Parameter(help="A node's name, as `muster nodes` has it.")]

app = App(
    name="nodes",
    help="The nodes and what they have; cordon, drain, uncordon; add, remove.",
    default_parameter=Parameter(negative=()),
)


app.command("cli.commands.deploy:add_nodes", name="add", help="On Kubernetes: let nodes run jobs.")
app.command(
    "cli.commands.deploy:remove_nodes",
    name="remove",
    help="On Kubernetes: take drained nodes out of Muster.",
)


@app.default
def nodes(*, output: Output = Format.TABLE) -> None:
    """The nodes and what they have; simulated GPUs are marked."""
    found = client().get_pages("/cluster/nodes", "nodes")
    if output is Format.JSON:
        print_json(found)
        return
    print_table(
        ("NODE", "STATE", "ADDRESS", "GPUS", "CPU", "MEMORY (MB)", "PODS", "REMARKS"),
        [
            (
                node["name"],
                state(node),
                node["address"],
                f"{node['gpuUsed']}/{node['gpuTotal']}"
                + (" SIMULATED" if any(gpu["simulated"] for gpu in node["gpus"]) else ""),
                f"{node['cpuUsed']}/{node['cpu']}",
                f"{node['memoryMBUsed']}/{node['memoryMB']}",
                len(node["pods"]),
                _remarks(node),
            )
            for node in found
        ],
        ends_in_text=True,
    )


def _remarks(node: dict[str, Any]) -> str:
    missing = ", ".join(node["missingLimits"])
    limits = f"can't limit {missing}" if missing else None
    users = f"users not separated: {node['singleUser']}" if node["singleUser"] else None
    gpus = (f"GPU {gpu['index']}: {gpu['problem']}" for gpu in node["gpus"] if gpu.get("problem"))
    found = (order_given(node), node["problem"], *gpus, limits, users)
    return "; ".join(it.removesuffix(".") for it in found if it)


@app.command
def cordon(node: NodeName) -> None:
    """Place nothing new on a node; what runs there runs on. For admins."""
    _order(node, "cordon")


@app.command
def drain(node: NodeName) -> None:
    """Place nothing new on a node, and preempt its pods, at no cost to their users. For
    admins.
    """
    _order(node, "drain")


@app.command
def uncordon(
    node: NodeName,
    *,
    after: Annotated[
        str | None,
        Parameter(help="A rule that releases nodes: only if its preflight job succeeds there."),
    ] = None,
) -> None:
    """Use a node again that was cordoned or drained. For admins."""
    if after is None:
        _order(node, "none")
        return
    path = f"/cluster/nodes/{quote(node, safe='')}/release"
    print_line(client().send("POST", path, {"rule": after}).json()["message"])


def _order(node: str, value: str) -> None:
    path = f"/cluster/nodes/{quote(node, safe='')}/order"
    answer = client().send("PUT", path, {"value": value}).json()
    print_line(answer["message"])
