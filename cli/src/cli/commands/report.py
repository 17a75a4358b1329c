"""The command about the usage of the cluster in a week."""

import sys
from typing import Annotated, Any

from cyclopts import Parameter
from muster.contracts.reports import FIGURES, decimals

from cli.commands.session import Output, client
from cli.output import Format, print_json, print_line, print_note, print_table

SHOWN = 10
PARTS = (("virtualClusters", "VIRTUAL CLUSTER"), ("users", "USER"), ("jobs", "JOB"))


def report(
    *,
    week: Annotated[
        str | None, Parameter(help="A day of the week, as 2026-01-31; default: the last week.")
    ] = None,
    csv: Annotated[bool, Parameter(help="Everything as CSV.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """GPU-hours of a week, by virtual cluster, user and job."""
    form = "csv" if csv else None
    answer = client().get("/reports/usage", {"week": week, "format": form})
    if csv:
        sys.stdout.write(answer.text())
        return
    content = answer.json()
    if output is Format.JSON:
        print_json(content)
        return
    total = content["total"]
    digits = decimals(total["held"])
    print_line(f"GPU-hours, {content['since'][:10]} to {content['until'][:10]}")
    for name, heading in PARTS:
        lines = content[name]
        print_line("")
        print_table(
            (heading, *(column.upper() for column in FIGURES)),
            [(line["name"], *_figures(line, digits)) for line in lines[:SHOWN]],
        )
        if lines[SHOWN:]:
            print_line(f"and {len(lines) - SHOWN} more: --csv has all")
    print_line("")
    figures = zip(_figures(total, digits), FIGURES, strict=True)
    print_line("all: " + ", ".join(f"{figure} {column}" for figure, column in figures))
    if content["missing"]:
        print_note(f"without nodes {', '.join(content['missing'])}: their agents did not answer")


def _figures(line: dict[str, Any], digits: int) -> list[str]:
    return [f"{line[column]:.{digits}f}" for column in FIGURES]
