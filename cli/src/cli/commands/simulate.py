"""`muster simulate`: what the scheduler would decide, without a cluster."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.client import Exit
from cli.scheduler_program import run


def simulate(  # noqa: PLR0913 - these are the command's options
    cluster: Annotated[
        Path, Parameter(allow_leading_hyphen=True, help="The cluster, YAML or JSON.")
    ],
    events: Annotated[
        Path,
        Parameter(
            allow_leading_hyphen=True,
            help="What happens, JSON lines, plain or gzip; - reads the standard input.",
        ),
    ],
    *,
    summary: Annotated[bool, Parameter(help="Print sums instead of decisions.")] = False,
    json: Annotated[bool, Parameter(help="Print the sums as JSON.")] = False,
    output: Annotated[Path | None, Parameter(help="Write decisions to this file.")] = None,
    what_if: Annotated[
        Path | None,
        Parameter(
            allow_leading_hyphen=True,
            help="Print what this file would change: another cluster, or only policy and"
            " virtualClusters.",
        ),
    ] = None,
) -> Exit:
    """Run the scheduler in virtual time; print its decisions as JSON lines."""
    options = [
        *(["--summary"] if summary else []),
        *(["--json"] if json else []),
        *([f"--output={output}"] if output is not None else []),
        *([f"--what-if={what_if}"] if what_if is not None else []),
    ]
    return run("scheduler.simulate", options, str(cluster), str(events))
