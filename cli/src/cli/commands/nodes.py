"""`muster nodes`: the nodes as their agents report them."""

from cli.commands.session import Output, client
from cli.output import Format, print_json, print_table


def nodes(*, output: Output = Format.TABLE) -> None:
    """The nodes and what they have; GPUs that are only pretended say so."""
    found = client().get("/cluster/nodes").json()["nodes"]
    if output is Format.JSON:
        print_json(found)
        return
    print_table(
        ("NODE", "STATE", "ADDRESS", "GPUS", "CPU", "MEMORY (MB)", "PODS", "PROBLEM"),
        [
            (
                node["name"],
                node["state"],
                node["address"],
                f"{node['gpuUsed']}/{node['gpuTotal']}"
                + (" SIMULATED" if any(gpu["simulated"] for gpu in node["gpus"]) else ""),
                f"{node['cpuUsed']}/{node['cpu']}",
                f"{node['memoryMBUsed']}/{node['memoryMB']}",
                len(node["pods"]),
                node["problem"],
            )
            for node in found
        ],
        ends_in_text=True,
    )
