"""`muster advise`: which moves would free cells. It moves no job."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from cli.commands.session import Output, client
from cli.output import Format, print_as_of, print_json, print_line, print_table

HOUR_S = 3_600
NODES_SHOWN = 2


def advise(
    *,
    level: Annotated[str | None, Parameter(help="Type of cell to free; a rack, if none.")] = None,
    cells: Annotated[int, Parameter(help="The number of cells.")] = 1,
    chain: Annotated[str | None, Parameter(help="Only in this chain (its top type).")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Which jobs to checkpoint and restart, from where to where, so that whole cells become free:
    the fewest GPUs, then the least work lost. It only advises; no job is moved.
    """
    query = {"level": level, "cells": cells, "chain": chain}
    found = client().get("/advice", query).json()
    if output is Format.JSON:
        print_json(found)
        return
    if found["reason"] is not None:
        print_line(f"No: {found['reason']['text']}")
    else:
        _print_moves(found)
    print_as_of(found)


def _print_moves(found: Mapping[str, Any]) -> None:
    cells, free = found["cells"], found["freeAlready"]
    if not found["moves"]:
        print_line(f"Free already: {', '.join(cells)} ({found['cell']}). No job moves.")
        return
    already = f": {', '.join(cells[:free])} already {_is(free)}." if free else "."
    print_line(
        f"With these moves {', '.join(cells[free:])} ({found['cell']})"
        f" {_is(len(cells) - free)} free{already}"
    )
    print_line("")
    print_table(
        ("JOB", "VC", "PRIO", "GPUS", "LOST GPU-H", "FROM", "TO"),
        [
            (
                f"{move['user']}~{move['name']}",
                move["virtualCluster"],
                move["priority"],
                move["gpus"],
                f"{move['lostGpuSeconds'] / HOUR_S:.1f}",
                nodes(pod["from"] for pod in move["pods"]),
                _to(move),
            )
            for move in found["moves"]
        ],
    )
    lost = found["lostGpuSeconds"] / HOUR_S
    print_line("")
    print_line(
        f"{found['gpus']} {'GPU moves' if found['gpus'] == 1 else 'GPUs move'},"
        f" {lost:.1f} GPU-hours since the last checkpoints are lost."
        f"{'' if found['isLeast'] else ' Cheaper moves may exist: not all were tried.'}"
    )
    print_line("Nothing was moved; -o json has each pod's GPUs.")


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _to(move: Mapping[str, Any]) -> str:
    """Where it would go to; pods that it does not need may have no place."""
    there = nodes(pod["to"] for pod in move["pods"])
    left = sum(pod["to"] is None for pod in move["pods"])
    if not left:
        return there
    return f"{there}, {left} released" if there else "released"


def nodes(places: Iterable[Mapping[str, Any] | None]) -> str:
    """The first nodes by name, and how many more there are."""
    names = sorted({place["node"] for place in places if place is not None})
    more = len(names) - NODES_SHOWN
    return " ".join(names[:NODES_SHOWN]) + (f" +{more}" if more > 0 else "")
