"""The effect that a change of virtual clusters and policy would have had on the last days: shown,
and confirmed, before the change.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cli.client import Answer, CommandError, Exit, problem_text
from cli.output import Format, print_json, print_line, print_lines, print_note

AGAIN_S, LONGEST_S = 1.0, 900.0
"""The interval and the longest time of requests while REST computes it."""


@dataclass(frozen=True, slots=True)
class Options:
    """``is_sure``: whatever it delays. ``is_dry``: it is only shown."""

    is_sure: bool = False
    is_dry: bool = False
    output: Format = Format.TABLE


def looked_at(ask: Callable[[], Answer], options: Options) -> dict[str, bool] | None:
    """Show what a change would have done. Returns the options of the change for REST: the user's
    acceptance, where it is needed; None: do not make the change. Raises CommandError where its
    effect can't be computed, or the user does not accept it.
    """
    found = _found(ask)
    is_table = options.output is Format.TABLE
    if is_table:
        _show(found)
    elif options.is_dry:
        print_json(found)
    is_asked = found["needsAcceptance"] and not options.is_sure
    if is_table and (options.is_dry or is_asked):  # else they are shown when it is set
        print_warnings(found)
    if options.is_dry:
        return None
    if found["state"] == "failed":
        message = f"What it would have done is not known: {found['reason']}"
        raise CommandError(Exit.REFUSED, f"{message} --no-what-if sets it all the same.")
    if not found["needsAcceptance"]:
        return {}
    if not options.is_sure and not _is_meant():
        effect = " ".join(found["report"]["text"])
        raise CommandError(
            Exit.REFUSED, f"Nothing is changed. {effect} --yes sets it all the same."
        )
    return {"acceptDelays": True}


def print_warnings(answer: Any) -> None:
    """Print values that may be mistakes."""
    for warning in answer["warnings"]:
        print_note(f"note: {problem_text(warning)}")


def _found(ask: Callable[[], Answer]) -> Any:
    until = time.monotonic() + LONGEST_S
    is_noted = False
    while (found := ask().json())["state"] == "running":
        if time.monotonic() > until:
            message = "What it would have done takes too long; --no-what-if sets it all the same."
            raise CommandError(Exit.TIMED_OUT, message)
        if not is_noted:
            print_note("What it would have made of the last days is being looked at ...")
            is_noted = True
        time.sleep(AGAIN_S)
    return found


def _show(found: Any) -> None:
    report = found["report"]
    if report is None:
        print_note(f"note: not compared with the last days: {found['reason']}")
        return
    of = "the first " if report["isPartial"] else ""
    days = f"{report['days']:g} day{'' if report['days'] == 1 else 's'}"
    days = days if report["days"] else "less than a day"
    print_line(f"On the events of {of}{days}:")
    print_lines(report["table"])
    sys.stdout.flush()


def _is_meant() -> bool:
    """Whether the user at the terminal confirms it."""
    if sys.stdin.closed or not sys.stdin.isatty():  # what is set came by it
        return False
    sys.stderr.write("Set it all the same? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
