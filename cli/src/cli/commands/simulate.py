"""`muster simulate`: what the scheduler would decide, without a cluster.

The Scheduler's own program does it, in a process of its own, with this one's input and output.
"""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.client import CommandError, Exit

MODULE = "scheduler.simulate"

ENDS = (Exit.OK, Exit.USAGE, Exit.FAILED, Exit.INTERRUPTED)
"""Exit statuses of the program."""


def simulate(
    cluster: Annotated[Path, Parameter(help="The cluster, YAML or JSON.")],
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
) -> Exit:
    """Run the scheduler in virtual time; print its decisions as JSON lines."""
    if json and not summary:
        raise CommandError(Exit.USAGE, "--json goes with --summary: decisions are JSON anyway.")
    options = [
        *(["--summary"] if summary else []),
        *(["--json"] if json else []),
        *([f"--output={output}"] if output is not None else []),
    ]
    # -P: a file in the working directory that is named like a module is not one of ours.
    command = [sys.executable, "-P", "-m", MODULE, *options, "--", str(cluster), str(events)]
    sys.stdout.flush()
    ended = subprocess.run(command, check=False)
    if ended.returncode not in ENDS:
        raise CommandError(
            Exit.FAILED, f"The simulator ended with status {ended.returncode}: report it."
        )
    return Exit(ended.returncode)
