"""`muster subscriptions`: who is notified of what, and what became of each message."""

import time
from typing import Annotated, Any, Literal
from urllib.parse import quote

from cyclopts import App, Parameter
from muster.counted import counted

from cli.client import API, Client, CommandError, Exit
from cli.commands.session import Output, ask_password, client
from cli.output import (
    Format,
    milliseconds,
    print_json,
    print_left,
    print_line,
    print_note,
    print_table,
    when,
)

PATH = "/alerts/subscriptions"
TEST_S = 30.0
"""How long a test waits for the receiver's answer."""
LOOK_S = 0.3

SECRETS = {
    "slack": ("url", "The address of Slack's incoming webhook"),
    "teams": ("url", "The address of the workflow of Teams"),
    "pagerduty": ("routingKey", "The integration key of PagerDuty"),
    "ntfy": ("url", "The address of the topic of ntfy"),
}
"""The secret of each receiver: its field, and what it is."""
PAGERDUTY_EU = "https://events.eu.pagerduty.com/v2/enqueue"

Id = Annotated[str, Parameter(help="The subscription's id, as `muster subscriptions` has it.")]

app = App(
    name="subscriptions",
    help="Messages about alerts: list, add, remove; deliveries, test, replay; secrets.",
    default_parameter=Parameter(negative=()),
)


@app.default
def subscriptions(*, output: Output = Format.TABLE) -> None:
    """The same as list."""
    list_(output=output)


@app.command(name="list")
def list_(*, output: Output = Format.TABLE) -> None:
    """One's own subscriptions, for admins all."""
    found = client().get_pages(PATH, "subscriptions")
    if output is Format.JSON:
        print_json(found)
        return
    rows = [
        (
            each["id"],
            each["owner"],
            _state(each),
            _receiver(each),
            ", ".join(each["events"]) + _narrowed(each),
        )
        for each in found
    ]
    print_table(("ID", "OWNER", "STATE", "RECEIVER", "EVENTS"), rows, ends_in_text=True)


@app.command
def add(  # noqa: PLR0913 - these are the command's options
    event: Annotated[list[str], Parameter(help="An event, as job-failed; more may follow.")],
    *,
    email: Annotated[str | None, Parameter(help="Mail to this address.")] = None,
    webhook: Annotated[str | None, Parameter(help="Post signed JSON to this address.")] = None,
    to: Annotated[
        Literal["slack", "teams", "pagerduty", "ntfy"] | None,
        Parameter(help="Send there; its address or key is a secret, and is asked for."),
    ] = None,
    region: Annotated[
        Literal["us", "eu"] | None,
        Parameter(help="With --to pagerduty: the account's service region; us without it."),
    ] = None,
    token: Annotated[
        bool, Parameter(help="With --to ntfy: an access token is asked for too, after the address.")
    ] = False,
    job: Annotated[list[str] | None, Parameter(help="Only jobs of this name, as train-*.")] = None,
    user: Annotated[
        list[str] | None, Parameter(help="Only jobs of this user; may be given again.")
    ] = None,
    virtual_cluster: Annotated[
        list[str] | None,
        Parameter(help="Only jobs there; everybody's, if you own it; may be given again."),
    ] = None,
    severity: Annotated[
        Literal["info", "warning", "critical"], Parameter(help="Only from this severity.")
    ] = "info",
    quiet: Annotated[
        str | None,
        Parameter(help="Only critical events in this time: 22:00-07:00@Europe/Berlin."),
    ] = None,
    digest: Annotated[
        str | None,
        Parameter(help="All but critical events as one message: hour, or 08:00@Europe/Berlin."),
    ] = None,
) -> None:
    """Subscribe to events: one receiver must be named. Secrets are asked for on a terminal;
    otherwise each is a line of the standard input.
    """
    if sum(it is not None for it in (email, webhook, to)) != 1:
        raise CommandError(Exit.USAGE, "Name one receiver: --email, --webhook or --to.")
    if region is not None and to != "pagerduty":
        raise CommandError(Exit.USAGE, "--region needs --to pagerduty: no other receiver has one.")
    if token and to != "ntfy":
        raise CommandError(Exit.USAGE, "--token needs --to ntfy: no other receiver has one.")
    asked = {"users": user, "virtualClusters": virtual_cluster, "jobNames": job}
    asked = {name: values or [] for name, values in asked.items()}
    body: dict[str, Any] = {"events": event, "filter": asked}
    body["leastSeverity"] = severity
    if quiet is not None:
        hours, _, zone = quiet.partition("@")
        start, _, end = hours.partition("-")
        body["quietHours"] = {"start": start, "end": end, "timeZone": zone}
    if digest == "hour":
        body["digest"] = {"every": "hour"}
    elif digest is not None:
        at, _, zone = digest.partition("@")
        body["digest"] = {"every": "day", "at": at, "timeZone": zone or "UTC"}
    body |= {} if email is None else {"email": email}
    body |= {} if webhook is None else {"webhookUrl": webhook}
    if to is not None:
        field, what = SECRETS[to]
        body[to] = {field: _secret(what)}
        body[to] |= {"url": PAGERDUTY_EU} if region == "eu" else {}
        body[to] |= {"token": _secret("The access token of ntfy")} if token else {}
    made = client().send("POST", PATH, body).json()
    print_line(made["id"])
    if made.get("note"):
        print_note(made["note"])
    for secret in made["secrets"]:
        print_note(f"The receiver checks signatures with this secret: {secret}")
    print_note(f"To see whether it works: muster subscriptions test {made['id']}")


def _secret(what: str) -> str:
    given = ask_password(what).strip()
    if not given:
        raise CommandError(Exit.USAGE, f"{what} is missing: write it as a line of the input.")
    return given


@app.command
def remove(subscription: Id) -> None:
    """Unsubscribe."""
    print_line(client().call("DELETE", API + _path(subscription)).json()["message"])


@app.command
def secrets(subscription: Id) -> None:
    """The secrets that sign a webhook's deliveries, newest first. For its owner."""
    _print_secrets(client().get(_path(subscription, "/secrets")).json()["secrets"])


@app.command
def rotate(subscription: Id) -> None:
    """Make a new secret for a webhook, and print it first. The former one signs too until the next
    rotation, so that the receiver can change meanwhile. For its owner.
    """
    answer = client().send("POST", _path(subscription, "/secrets/rotate"), None)
    _print_secrets(answer.json()["secrets"])


def _print_secrets(found: list[str]) -> None:
    if not found:
        raise CommandError(Exit.REFUSED, "No secret signs these messages: it is no webhook.")
    for each in found:
        print_line(each)


@app.command
def deliveries(
    subscription: Id,
    *,
    state: Annotated[str | None, Parameter(help="waiting, sent, digested or given-up.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """What was sent in the last days, what waits, and why something failed; newest events first."""
    query = {"limit": limit} | ({} if state is None else {"state": state})
    found = client().get(_path(subscription, "/deliveries"), query).json()
    if output is Format.JSON:
        print_json(found)
        return
    rows = [
        (
            each["id"],
            when(milliseconds(each["at"])),
            each["type"],
            each["state"],
            each["attempts"],
            _next(each) + (each["reason"] or each["title"] or ""),
        )
        for each in found["deliveries"]
    ]
    headings = ("DELIVERY", "EVENT AT (UTC)", "EVENT", "STATE", "ATTEMPTS", "REASON OR TITLE")
    print_table(headings, rows, ends_in_text=True)
    health = found["receiver"]
    if health["disabled"]:
        print_line(f"The receiver is disabled: {health['disabled']}. A test tries it again.")
    elif health["pausedUntil"]:
        until = when(milliseconds(health["pausedUntil"]))
        failures = counted(health["failures"], "failure")
        print_line(f"After {failures} the receiver is paused until {until}.")
    if health["givenUp"] and not health["disabled"]:
        print_line(
            f"Deliveries in a row that were given up: {health['givenUp']}. After"
            f" {health['disabledAfter']} the receiver is disabled, unless it is a mail address."
        )
    print_left(found["total"] - len(rows))


@app.command
def test(subscription: Id) -> None:
    """Send a test message, and wait for the receiver's answer."""
    here = client()
    event = here.send("POST", _path(subscription, "/test"), None).json()["event"]
    found = _answered(here, subscription, event)
    if found is not None and found["state"] == "sent":
        print_line("The receiver has the test message.")
        return
    if found is None or found["reason"] is None:
        code, text = Exit.TIMED_OUT, f"There is no answer after {TEST_S:.0f} s"
    else:
        code = Exit.CHECK_REFUSED
        text = f"The receiver does not have the test message: {found['reason']}"
    raise CommandError(code, f"{text}. See: muster subscriptions deliveries {subscription}")


@app.command
def replay(
    subscription: Id,
    *,
    delivery: Annotated[list[str] | None, Parameter(help="A delivery; may be given again.")] = None,
    since: Annotated[
        str | None, Parameter(help="Those of events since then, like 2026-01-31T13:00:00Z.")
    ] = None,
    until: Annotated[str | None, Parameter(help="Up to then; without it up to now.")] = None,
) -> None:
    """Send ended deliveries once more: named ones, or those of a time."""
    wanted = {"deliveries": delivery, "since": since, "until": until}
    body = {name: it for name, it in wanted.items() if it is not None}
    found = client().send("POST", _path(subscription, "/replay"), body).json()
    ended, waiting = found["ended"], found["waiting"]
    text = "No ended delivery was found: nothing is sent again."
    if ended:
        are = "delivery is" if ended == 1 else "deliveries are"
        text = f"{ended} ended {are} sent again."
    if waiting:
        text += f" Deliveries that wait are left alone: {waiting}."
    print_line(f"{text} See: muster subscriptions deliveries {subscription}")


def _next(delivery: dict[str, Any]) -> str:
    """When one that waits is tried next."""
    at = delivery["nextAt"]
    return "" if at is None else f"next attempt {when(milliseconds(at))}: "


def _answered(here: Client, subscription: str, event: str) -> dict[str, Any] | None:
    """The delivery about an event, once it was tried; None: not in time."""
    end = time.monotonic() + TEST_S
    found: dict[str, Any] | None = None
    while time.monotonic() < end:
        answer = here.get(_path(subscription, "/deliveries"), {"limit": 50}).json()
        found = next((it for it in answer["deliveries"] if it["event"] == event), None)
        if found is not None and (found["state"] != "waiting" or found["reason"]):
            break
        time.sleep(LOOK_S)
    return found


def _path(subscription: str, end: str = "") -> str:
    return f"{PATH}/{quote(subscription, safe='')}{end}"


def _state(subscription: dict[str, Any]) -> str:
    """Whether it is on, and how its receiver does."""
    health = subscription["health"]
    if not subscription["enabled"]:
        return "off"
    if health is None or (not health["failures"] and not health["disabled"]):
        return "on"
    return "disabled" if health["disabled"] else "failing"


def _receiver(subscription: dict[str, Any]) -> str:
    receiver = subscription["receiver"]
    if receiver is not None:
        return f"{receiver['kind']} ({receiver['host']})"
    return str(subscription["email"] or subscription["webhookUrl"])


def _narrowed(subscription: dict[str, Any]) -> str:
    """What of its events it takes, and when; empty: all, at once."""
    only, least = subscription["filter"], subscription["leastSeverity"]
    quiet, digest = subscription["quietHours"], subscription["digest"]
    users = [it for it in only["users"] if it != subscription["owner"]]
    named = {"jobs": only["jobNames"], "in": only["virtualClusters"], "of": users}
    words = [f"{word} {' '.join(names)}" for word, names in named.items() if names]
    if least != "info":
        words.append(f"from {least}")
    if quiet is not None:
        words.append(f"quiet {quiet['start']}-{quiet['end']}@{quiet['timeZone']}")
    if digest is not None:
        is_daily = digest["every"] == "day"
        words.append("digest " + (f"{digest['at']}@{digest['timeZone']}" if is_daily else "hour"))
    return f" ({', '.join(words)})" if words else ""
