"""The commands of `muster`. Each is imported only when used, so that short ones start at once."""

import os
import sys
import traceback
from typing import Any

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from cli.client import CommandError, Exit
from cli.home import HomeError
from cli.output import print_note

COMMANDS = {
    "up": ("cli.commands.up:up", "Run everything on this machine until Ctrl-C."),
    "demo": ("cli.commands.up:demo", "Run everything, and the sample job to its end; then stop."),
    "status": ("cli.commands.status:status", "What runs here, and where."),
    "login": ("cli.commands.login:login", "Log in; the commands that follow act as this user."),
    "logout": ("cli.commands.login:logout", "Revoke the login's token."),
    "users": ("cli.commands.users:app", "The users: list, add, show, set, remove."),
    "tokens": ("cli.commands.tokens:app", "Tokens: list, create, revoke; for admins any user's."),
    "storage": (
        "cli.commands.storage:app",
        "Storages that jobs may mount: list, show, set, remove.",
    ),
    "submit": ("cli.commands.jobs:submit", "Submit a job file."),
    "jobs": ("cli.commands.jobs:jobs", "List jobs, newest first."),
    "job": ("cli.commands.jobs:job", "Everything about one job."),
    "why": ("cli.commands.jobs:why", "Why a job waits, or why it failed."),
    "usage": ("cli.commands.usage:usage", "What a job's tasks use: CPU, memory, GPU, network."),
    "logs": ("cli.commands.logs:logs", "What a task wrote."),
    "tag": ("cli.commands.jobs:tag", "Give a job a tag, or remove it."),
    "stop": ("cli.commands.jobs:stop", "Stop a job."),
    "report": ("cli.commands.report:report", "GPU-hours of a week: held, used, idle, refunded."),
    "queue": ("cli.commands.cluster:queue", "What waits, and why."),
    "cluster": ("cli.commands.cluster:cluster", "Quota, use and demand; nodes in trouble."),
    "cells": ("cli.commands.cluster:cells", "The cells: used and free GPUs, binding, state."),
    "advise": ("cli.commands.advice:advise", "Which moves would free a rack, or other cells."),
    "nodes": ("cli.commands.nodes:app", "The nodes and what they have; drain, add, remove."),
    "deploy": ("cli.commands.deploy:app", "Muster on Kubernetes: check, apply, upgrade, remove."),
    "config": ("cli.commands.config:app", "Virtual clusters and policy: show, set, roll back."),
    "export": ("cli.commands.export:export", "What the scheduler was given, to be simulated."),
    "simulate": ("cli.commands.simulate:simulate", "Try the scheduler in virtual time."),
    "import": ("cli.commands.import_trace:import_trace", "A public trace, to be simulated."),
    "alerts": ("cli.commands.alerts:app", "What fires now, and what was resolved lately."),
    "subscriptions": (
        "cli.commands.subscriptions:app",
        "Messages about alerts: list, add, remove; deliveries, test, replay; secrets.",
    ),
    "events": ("cli.commands.events:app", "Follow the bus; republish messages."),
}


def _version() -> str:
    from importlib.metadata import version  # costs 50 ms that other commands need not spend

    return version("muster-cli")


app = App(
    name="muster",
    default_parameter=Parameter(negative=()),
    help="Runs AI jobs: gathers all the GPUs that a job needs and runs it there to its end.",
    version=_version,
    version_flags=("--version",),
)
for name, (place, text) in COMMANDS.items():
    app.command(place, name=name, help=text)


def _worded(error: CycloptsError) -> Any:
    """What is printed of it. Cyclopts calls a positional argument by an option's name."""
    from cyclopts import CycloptsPanel  # it loads rich

    missing = error.argument if isinstance(error, MissingArgumentError) else None
    if missing is None or not missing.field_info.is_positional or missing.tokens:
        return CycloptsPanel(error)
    name, command = missing.name.lstrip("-").upper(), " ".join(error.command_chain or ())
    return CycloptsPanel(f"{name} is missing: see muster {command} --help.")


def main() -> None:
    """Run one command; its exit status is one of cli.client.Exit."""
    try:
        result = app(
            exit_on_error=False,
            print_error=True,
            error_formatter=_worded,
            result_action="return_value",
        )
        sys.stdout.flush()
    except CycloptsError:
        code = Exit.USAGE  # cyclopts has printed the error
    except CommandError as error:
        code = error.code
        print_note(f"muster: {error}")
        for detail in error.details:
            print_note(f"  {detail}")
    except HomeError as error:
        code = Exit.USAGE
        print_note(f"muster: {error}")
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:  # the reader of our output is gone; Python would try once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.OK
    except OSError as error:  # a full disk, a file of another user
        code = Exit.FAILED
        print_note(f"muster: {error}")
    except Exception:  # a bug of ours must not look like a failed job
        traceback.print_exc()
        code = Exit.FAILED
    else:
        code = result if isinstance(result, Exit) else Exit.OK
    sys.exit(int(code))
