"""`muster alerts`: what fires now, and what was resolved in the last days; actions on alerts."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from cyclopts import App, Parameter
from muster.counted import counted

from cli.client import API, CommandError, Exit
from cli.commands.session import Output, client, full_name, read_given, seconds
from cli.output import (
    Format,
    length,
    milliseconds,
    print_json,
    print_left,
    print_line,
    print_note,
    print_table,
    when,
)
from cli.versions import print_versions, set_by, yaml_text

app = App(
    name="alerts",
    help="What fires now, and what was resolved in the last days; actions on alerts.",
    default_parameter=Parameter(negative=()),
)
rules_app = App(
    name="rules",
    help="Rules for alerts and actions: show, set, roll back (for admins).",
    default_parameter=Parameter(negative=()),
)
app.command(rules_app)

Comment = Annotated[str, Parameter(help="Why: for the versions and the audit log.")]


@app.default
def alerts(  # noqa: PLR0913 - these are the command's options
    *,
    all_: Annotated[bool, Parameter(name="--all", help="Resolved ones too.")] = False,
    severity: Annotated[str | None, Parameter(help="info, warning or critical.")] = None,
    node: Annotated[str | None, Parameter(help="Only alerts about this node.")] = None,
    job: Annotated[str | None, Parameter(help="Only alerts about this job, as user~name.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """Firing alerts, newest first: about one's jobs and virtual clusters, for admins all."""
    given = {"severity": severity, "node": node, "job": None if job is None else full_name(job)}
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
    print_left(found["total"] - len(rows))
    if found.get("note"):
        print_note(found["note"])


def _end(alert: dict[str, Any]) -> int | None:
    return None if alert["endsAt"] is None else milliseconds(alert["endsAt"])


@app.command
def actions(
    *,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """What rules did because of alerts, or would have done, newest first. For admins."""
    found = client().get("/alerts/actions", {"limit": limit}).json()
    if output is Format.JSON:
        print_json(found)
        return
    keys = ("action", "rule", "do", "target", "state")
    rows = [
        (*(each[key] for key in keys), when(milliseconds(each["at"])), each["reason"])
        for each in found["actions"]
    ]
    headings = ("ACTION", "RULE", "DOES", "TARGET", "STATE", "SINCE (UTC)", "REASON")
    print_table(headings, rows, ends_in_text=True)


@app.command
def undo(
    action: Annotated[str, Parameter(help="An action, as `muster alerts actions` has it.")],
) -> None:
    """Take back what an action did to a node. For admins."""
    path = f"/alerts/actions/{quote(action, safe='')}/undo"
    print_line(client().send("POST", path, {}).json()["message"])


@app.command
def answer(
    action: Annotated[str, Parameter(help="An action, as `muster alerts actions` has it.")],
    text: Annotated[
        str,
        Parameter(allow_leading_hyphen=True, help="What the script said; its last line is kept."),
    ] = "",
    *,
    failed: Annotated[bool, Parameter(help="The script failed: the node stays out.")] = False,
) -> None:
    """Answer an action that waits for a script's end. For admins, and for the script with the code
    of its message as MUSTER_TOKEN.
    """
    path = f"/alerts/actions/{quote(action, safe='')}/answer"
    told = {"succeeded": not failed, "text": text}
    print_line(client().send("POST", path, told).json()["message"])


@rules_app.default
def rules(
    file: Annotated[
        Path | None,
        Parameter(
            allow_leading_hyphen=True,
            help="Set the rules in this file, all at once; - reads the standard input.",
        ),
    ] = None,
    *,
    check: Annotated[bool, Parameter(help="Only check the file.")] = False,
    comment: Comment = "",
    output: Output = Format.TABLE,
) -> None:
    """Show the rules that hold, as YAML that can be changed and set again, or set others. For
    admins.
    """
    server = client()
    if file is None:
        newest = server.get("/alerts/rules").json()["newest"]
        if output is Format.JSON:
            print_json(newest)
            return
        for line in set_by(newest):
            print_line(f"# {line}")
        sys.stdout.write(yaml_text(newest and newest["content"]))
        return
    text = read_given(file, "rules").encode()
    kind = {"Content-Type": "text/yaml"}
    if check:
        answer = server.call("POST", f"{API}/alerts/rules/check", text, kind).json()
        print_line("The rules can be set.")
        _print_findings(answer)
        return
    path = f"{API}/alerts/rules?{urlencode({'comment': comment})}"
    made = server.call("PUT", path, text, kind).json()
    _print_made(made)


@rules_app.command
def versions(
    *,
    limit: Annotated[int, Parameter(help="At most so many.")] = 20,
    output: Output = Format.TABLE,
) -> None:
    """The versions of the rules, newest first."""
    found = client().get("/alerts/rules/versions", {"limit": limit}).json()
    if output is Format.JSON:
        print_json(found)
        return
    print_versions(found)


@rules_app.command
def rollback(
    version: Annotated[int, Parameter(help="As `muster alerts rules versions` has it.")],
    *,
    comment: Comment = "",
) -> None:
    """Set the rules of an earlier version, as a new version."""
    wanted = {"version": version, "comment": comment}
    _print_made(client().send("POST", "/alerts/rules/rollback", wanted).json())


def _print_made(version: dict[str, Any]) -> None:
    print_line(f"Version {version['version']} of the rules holds.")
    _print_findings(version)


def _print_findings(answer: dict[str, Any]) -> None:
    for each in answer["trial"]:
        times, events = counted(each["fired"], "time"), counted(each["failed"], "event")
        failed = f"; it could not evaluate {events}" if each["failed"] else ""
        print_line(f"{each['rule']} would have fired {times} on the last day{failed}.")
    for note in answer["notes"]:
        print_note(note)


@app.command
def mute(
    *,
    alert: Annotated[
        str | None, Parameter(help="An alert's name or identity, or an event's name.")
    ] = None,
    job: Annotated[str | None, Parameter(help="A job, as user~name.")] = None,
    for_: Annotated[str, Parameter(name="--for", help="How long, as 30m, 2h or 1d.")] = "1h",
    comment: Annotated[str, Parameter(help="Why.")] = "",
    own: Annotated[
        bool, Parameter(help="An admin's mute too is for their own subscriptions only.")
    ] = False,
) -> None:
    """Hold messages about an alert or a job back: for one's own subscriptions; for everybody, if an
    admin does it without --own.
    """
    if (alert is None) == (job is None):
        raise CommandError(Exit.USAGE, "Name what to mute: either --alert or --job.")
    length_s = seconds(for_)
    if length_s is None:
        raise CommandError(Exit.USAGE, f"{for_} is no length of time: write 30m, 2h or 1d.")
    until = datetime.fromtimestamp(time.time() + length_s, UTC).isoformat()
    given = {"alert": alert, "job": None if job is None else full_name(job)}
    body = {key: value for key, value in given.items() if value is not None}
    more = {"until": until, "comment": comment, "own": own}
    made = client().send("POST", "/alerts/mutes", body | more).json()
    whose = f"the subscriptions of {made['owner']}" if made["owner"] else "everybody"
    what, until = made["alert"] or made["job"], made["until"]
    print_line(f"Muted {what} for {whose} until {until}; `muster alerts unmute {made['id']}`.")
    if made.get("note"):
        print_note(made["note"])


@app.command
def mutes(*, output: Output = Format.TABLE) -> None:
    """The mutes that stand: one's own, for admins all."""
    found = client().get("/alerts/mutes").json()
    if output is Format.JSON:
        print_json(found)
        return
    rows = [
        (
            it["id"],
            it["alert"] or it["job"],
            it["owner"] or "everybody",
            when(milliseconds(it["until"])),
            it["by"],
            it["comment"],
        )
        for it in found["mutes"]
    ]
    headings = ("MUTE", "ALERT OR JOB", "FOR", "UNTIL (UTC)", "BY", "COMMENT")
    print_table(headings, rows, ends_in_text=True)


@app.command
def unmute(ident: Annotated[str, Parameter(help="As `muster alerts mutes` has it.")]) -> None:
    """End a mute."""
    path = f"/alerts/mutes/{quote(ident, safe='')}"
    print_line(client().call("DELETE", f"{API}{path}").json()["message"])
