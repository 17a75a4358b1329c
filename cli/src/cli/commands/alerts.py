"""`muster alerts`: what fires now, and what was resolved in the last days."""

from typing import Annotated, Any

from cyclopts import App, Parameter

from cli.commands.session import Output, client
from cli.output import Format, length, milliseconds, print_json, print_line, print_table, when

app = App(
    name="alerts",
    help="What fires now, and what was resolved in the last days.",
    default_parameter=Parameter(negative=()),
)


@app.default
def alerts(
    *,
    all_: Annotated[bool, Parameter(name="--all", help="Resolved ones too.")] = False,
    severity: Annotated[str | None, Parameter(help="info, warning or critical.")] = None,
    node: Annotated[str | None, Parameter(help="Only alerts about this node.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """Firing alerts, newest first: of one's own jobs, for admins all."""
    given = {"severity": severity, "node": node}
    query: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    query |= {"limit": limit} | ({} if all_ else {"state": "firing"})
    found = client().get("/alerts", query).json()
    if output is Format.JSON:
        print_json(found)
        return
    rows = [
        (
            each["state"],
            each["severity"],
            each["name"],
            when(milliseconds(each["startsAt"])),
            length(milliseconds(each["startsAt"]), _end(each)),
            each["summary"],
        )
        for each in found["alerts"]
    ]
    headings = ("STATE", "SEVERITY", "ALERT", "SINCE (UTC)", "FOR", "SUMMARY")
    print_table(headings, rows, ends_in_text=True)
    if (left := found["total"] - len(rows)) > 0:
        print_line(f"There are {left} more; --limit shows more of them.")


def _end(alert: dict[str, Any]) -> int | None:
    return None if alert["endsAt"] is None else milliseconds(alert["endsAt"])
