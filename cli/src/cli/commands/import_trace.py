"""`muster import`: job lists of public traces as events for `muster simulate`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.client import Exit
from cli.scheduler_program import run


def import_trace(
    mapping: Annotated[
        Path, Parameter(allow_leading_hyphen=True, help="Which column is what, YAML or JSON.")
    ],
    csv: Annotated[
        Path,
        Parameter(
            allow_leading_hyphen=True,
            help="The job list, CSV, plain or gzip; - reads the standard input.",
        ),
    ],
    *,
    output: Annotated[Path | None, Parameter(help="Write the events to this file.")] = None,
) -> Exit:
    """Convert a CSV job list to events for the simulator, by a mapping."""
    options = [] if output is None else [f"--output={output}"]
    return run("scheduler.import_trace", options, str(mapping), str(csv))
