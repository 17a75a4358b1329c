"""`muster config`: what administrators have set of virtual clusters and policy, in versions."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from cyclopts import App, Parameter

from cli.client import API, Answer, Client, CommandError, Exit, problem_text
from cli.commands.session import Output, client, read_given
from cli.commands.what_if import Options, looked_at, print_warnings
from cli.output import Format, print_json, print_line
from cli.versions import print_versions, set_by, yaml_text

PATH = "/cluster/config"

Comment = Annotated[str, Parameter(help="Why: for the list of versions and the audit log.")]
After = Annotated[
    int | None,
    Parameter(name="--after", help="Refuse where another version than this is in force now."),
]
Number = Annotated[int, Parameter(help="A version, as `muster config versions` has it.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Asking:
    """Options of the comparison with the last days."""

    yes: Annotated[
        bool, Parameter(name="--yes", help="Set it without a confirmation.", negative=())
    ] = False
    no_what_if: Annotated[
        bool,
        Parameter(
            name="--no-what-if",
            help="It is urgent: set it without a comparison with the last days.",
            negative=(),
        ),
    ] = False
    dry_run: Annotated[
        bool,
        Parameter(name="--dry-run", help="Only show what it would have done.", negative=()),
    ] = False

    def __post_init__(self) -> None:
        """Raises CommandError where the options contradict each other."""
        if self.dry_run and self.no_what_if:
            raise CommandError(Exit.USAGE, "--dry-run shows what --no-what-if leaves out.")

    def fields(self, ask: Callable[[], Answer], output: Format) -> dict[str, bool] | None:
        """The options that REST gets with the change; None: do not make it. Raises CommandError."""
        if self.no_what_if:
            return {"whatIf": False}
        return looked_at(ask, Options(self.yes, self.dry_run, output))


ASKED = Asking()
Asked = Annotated[Asking, Parameter(name="*")]

app = App(
    name="config",
    help="Virtual clusters and policy: show, set, roll back (for admins).",
    default_parameter=Parameter(negative=()),
)


@app.default
def default(*, output: Output = Format.TABLE) -> None:
    """The same as show."""
    show(output=output)


@app.command
def show(*, output: Output = Format.TABLE) -> None:
    """The configuration in force, as YAML that can be changed and set again. Where nothing is set:
    that of the cluster's file or the nodes.
    """
    found = client().get(PATH).json()
    if output is Format.JSON:
        print_json(found)
        return
    newest, running = found["newest"], found["scheduler"]
    for line in [*set_by(newest), *_run(found), *_rejected(running or {})]:
        print_line(f"# {line}")
    content = None if newest is None else newest["content"]
    if content is None and running is not None:
        print_line("# What is in force is the cluster's file's, or the nodes':")
        content = running["inForce"]
    sys.stdout.write(yaml_text(content))


@app.command
def versions(
    *,
    limit: Annotated[int, Parameter(help="At most so many.")] = 20,
    output: Output = Format.TABLE,
) -> None:
    """The versions, newest first."""
    found = client().get(f"{PATH}/versions", {"limit": limit}).json()
    if output is Format.JSON:
        print_json(found)
        return
    print_versions(found)


@app.command(name="set")
def set_(
    file: Annotated[
        Path,
        Parameter(
            allow_leading_hyphen=True,
            help="virtualClusters, policy or both, as in a cluster's file; - reads the standard"
            " input.",
        ),
    ],
    *,
    comment: Comment = "",
    after: After = None,
    asked: Asked = ASKED,
    output: Output = Format.TABLE,
) -> None:
    """Set virtual clusters, policy or both, each whole. Running jobs continue. The effect on the
    last days is shown first; where it would have caused long delays, you must confirm.
    """
    server = client()
    text = read_given(file, "a configuration").encode()
    follows = _follows(server, after)
    kind = {"Content-Type": "text/yaml"}
    target = f"{API}{PATH}/what-if"
    fields = asked.fields(lambda: server.call("POST", target, text, kind), output)
    if fields is not None:
        query = _query(comment, fields)
        answer = server.call("PUT", f"{API}{PATH}?{query}", text, kind | follows)
        _print_made(answer, output)


@app.command
def rollback(
    version: Number,
    *,
    comment: Comment = "",
    after: After = None,
    asked: Asked = ASKED,
    output: Output = Format.TABLE,
) -> None:
    """Set the contents of an earlier version, as a new version. The effect on the last days is
    shown first, as for `muster config set`.
    """
    server = client()
    headers = _follows(server, after)
    target = f"{API}{PATH}/versions/{version}/what-if"
    fields = asked.fields(lambda: server.call("POST", target), output)
    if fields is not None:
        wanted = {"version": version, "comment": comment} | fields
        _print_made(server.send("POST", f"{PATH}/rollback", wanted, headers), output)


@app.command
def remove(
    *,
    comment: Comment = "",
    after: After = None,
    asked: Asked = ASKED,
    output: Output = Format.TABLE,
) -> None:
    """Remove what was set: the cluster's file or the nodes decide again. The effect on the last
    days is shown first, as for `muster config set`.
    """
    server = client()
    follows = _follows(server, after)
    target = f"{API}{PATH}/removal/what-if"
    fields = asked.fields(lambda: server.call("POST", target), output)
    if fields is not None:
        query = _query(comment, fields)
        _print_made(server.call("DELETE", f"{API}{PATH}?{query}", headers=follows), output)


@app.command
def diff(
    version: Number,
    other: Annotated[
        int | None, Parameter(help="The version to compare with; by default the one in force.")
    ] = None,
) -> None:
    """What has changed from a version to another one, as a unified diff of their YAML."""
    server = client()
    before = server.get(f"{PATH}/versions/{version}").json()
    if other is None:
        after = server.get(PATH).json()["newest"]
    else:
        after = server.get(f"{PATH}/versions/{other}").json()
    lines = unified_diff(
        yaml_text(before["content"]).splitlines(keepends=True),
        yaml_text(after["content"]).splitlines(keepends=True),
        f"version {before['version']}",
        f"version {after['version']}",
    )
    sys.stdout.writelines(lines)


def _follows(server: Client, after: int | None) -> dict[str, str]:
    """The version that a change must follow: the one in force, if none is named."""
    number = server.get(PATH).json()["version"] if after is None else after
    return {"If-Match": f'"{number}"'}


def _query(comment: str, fields: Mapping[str, bool]) -> str:
    flags = {name: str(value).lower() for name, value in fields.items()}
    return urlencode({"comment": comment, **flags})


def _print_made(answer: Answer, output: Format) -> None:
    made = answer.json()
    if output is Format.JSON:
        print_json(made)
        return
    print_line(f"version {made['version']}")
    sys.stdout.flush()
    print_warnings(made)


def _run(found: Mapping[str, Any]) -> list[str]:
    running = found["scheduler"]
    if running is None:
        return [f"Whether the Scheduler runs it is not known: {found['schedulerProblem']}"]
    if running["isTaken"]:
        return [] if found["newest"] is None else ["The Scheduler runs it."]
    what = "none" if running["version"] is None else f"version {running['version']}"
    if not running["problems"]:
        return [f"The Scheduler runs {what} yet."]
    return [
        f"The Scheduler runs {what}, as this can't be honoured:",
        *map(_line, running["problems"]),
    ]


def _rejected(running: Mapping[str, Any]) -> list[str]:
    """A changed cluster file that the Scheduler can't use."""
    found = running.get("rejectedFile")
    if not found:
        return []
    since = f"since {found['since']}"
    return [
        f"The Scheduler rejects the changed cluster file {since}; the previous one stays in force:",
        *(f"  {' '.join(line.split())}" for line in found["problems"]),
    ]


def _line(problem: Mapping[str, Any]) -> str:
    return "  " + " ".join(problem_text(problem).split())
