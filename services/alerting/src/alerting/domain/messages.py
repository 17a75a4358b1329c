"""What a receiver gets to read, before it has the form of one kind of receiver."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

from muster.contracts.confirmations import Confirmation
from muster.contracts.subscriptions import ACCOUNT
from pydantic import JsonValue

from alerting.domain.deliveries import ALERTS, DeliveryPolicy, Receiver
from alerting.domain.events import BEGINS, ENDS, RANKS, Event, Severity
from alerting.domain.texts import EVIDENCE

DIGEST = "digest/"
"""How the thread of a digest begins; its subscription follows."""


@dataclass(frozen=True, slots=True)
class Message:
    """One event in the words that people read. It is kept as JSON until it is sent.

    ``alert``: the fingerprint of the alert that the event begins or, where ``is_over``, ends.
    ``job``: the job's name, ``user~name``. ``verdict`` and ``line``: what a failed job's verdict
    says, and the line of its log that shows it. ``thread`` groups the messages about one thing.
    """

    key: str
    name: str
    at: datetime
    severity: Severity
    title: str
    text: str
    thread: str
    data: Mapping[str, JsonValue]
    alert: str | None = None
    is_over: bool = False
    job: str | None = None
    verdict: str | None = None
    line: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"at": self.at.isoformat(), "data": dict(self.data)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """As it was before it was kept."""
        at, severity = datetime.fromisoformat(kept["at"]), Severity(kept["severity"])
        return cls(**{**kept, "at": at, "severity": severity})

    @property
    def type(self) -> str:
        """The event's name with a full stop, as webhooks have it: ``job.failed``."""
        return self.name.replace("-", ".", 1)

    @property
    def text_without_line(self) -> str:
        """What happened, for a form that shows the telling line apart."""
        shown = f"{EVIDENCE}{self.line}"
        return "\n".join(it for it in self.text.splitlines() if it != shown)

    @property
    def all_of_it(self) -> str:
        """The command that shows what a form has to leave out; empty: none does."""
        if self.name == "digest":
            return deliveries_command(self.thread.removeprefix(DIGEST))
        if self.name in ALERTS:
            return "muster alerts"
        return f"muster job {self.job}" if self.job else ""

    @property
    def subject(self) -> str:
        """One line that names it."""
        return " ".join(f"[Muster] {self.title}".split())[:200]

    @property
    def thread_id(self) -> str:
        """A short name of its thread, of hexadecimal digits."""
        return hashlib.sha256(self.thread.encode()).hexdigest()[:24]


def message_of(event: Event) -> Message:
    """The message of an event."""
    data = event.data
    alert, verdict = data.get("alert"), data.get("verdict")
    phrase = line = None
    if isinstance(verdict, Mapping):
        phrase = f"{verdict.get('phrase')} (code {verdict.get('code')}): {verdict.get('cause')}"
        line = str(verdict["evidence"]) if verdict.get("evidence") else None
    job = event.job
    return Message(
        key=event.key,
        name=event.name.value,
        at=event.at,
        severity=event.severity,
        title=event.title,
        text=event.text,
        thread=event.thread,
        data=data,
        alert=alert if isinstance(alert, str) else None,
        is_over=event.name in ENDS,
        job=f"{job.user}~{job.name}" if job is not None and job.name else None,
        verdict=phrase,
        line=line,
    )


def test_message(key: str, owner: str, at: datetime) -> Message:
    """What an owner orders to see that a receiver works."""
    text = f"{owner} asked for this message. The receiver works."
    title = "A test message of Muster"
    return Message(key, "receiver-test", at, Severity.INFO, title, text, key, {"owner": owner})


def failing_message(
    key: str, receiver: Receiver, reason: str, policy: DeliveryPolicy, at: datetime
) -> Message:
    """What tells an owner that a receiver of theirs fails, or is gone."""
    name = receiver.subscription
    if receiver.disabled is not None:
        title, then = f"The receiver of subscription {name} is disabled", "It gets nothing more."
    else:
        title = f"The receiver of subscription {name} fails"
        then = f"{receiver.given_up} deliveries in a row were given up."
        if policy.can_disable:
            then += f" After {policy.disable_after} the receiver is disabled."
    text = (
        f"{then}\nIts last answer: {reason}\nSee `muster subscriptions deliveries {name}`. Once it"
        f" works, run `muster subscriptions test {name}`."
    )
    data: dict[str, JsonValue] = {
        "subscription": name,
        "givenUp": receiver.given_up,
        "disabledAfter": policy.disable_after if policy.can_disable else None,
        "reason": reason,
    }
    return Message(key, "receiver-failing", at, Severity.WARNING, title, text, key, data)


LINES = 50
"""The most events that a digest describes; the rest is counted."""
NOT_ASKED_FOR = (
    "`muster why JOB` says why a job waits.",
    "You get this without a subscription. To end it:"
    " `muster alerts mute --alert JobWaitsLong --for 90d`.",
)
"""How a digest to the address of an account ends: it has nothing else."""


def digest_message(
    key: str, subscription: str, messages: Sequence[Message], at: datetime
) -> Message:
    """Many messages as one: how many there are of each event, then each in a few lines, the most
    severe first. The begin and the end of an alert are one. Those of one kind are named by the most
    severe.
    """
    counts = Counter(it.name for it in messages)
    entries = _entries(messages)
    told, number = entries[:LINES], len(messages)
    total = f"{number} events" if number > 1 else "1 event"
    lines = [f"{count} {name}" for name, count in counts.most_common()]
    for each in told:
        lines.append(f"\n{each.when} {each.message.severity}: {each.message.title}")
        lines += [f"  {it}" for it in (each.message.verdict, each.message.line) if it]
    is_preset = subscription.startswith(ACCOUNT)
    if len(entries) > LINES:
        lines.append(f"\n{len(entries) - LINES} more: `{deliveries_command(subscription)}`")
    lines += ["", *NOT_ASKED_FOR] if is_preset else ()
    named = ", ".join(lines[: len(counts)])
    data: dict[str, JsonValue] = {
        "count": number,
        "counts": dict(counts),
        "events": [
            {
                "type": it.message.type,
                "timestamp": it.message.at.isoformat(),
                "endsAt": None if it.ends_at is None else it.ends_at.isoformat(),
                "severity": it.message.severity.value,
                "title": it.message.title,
                "job": it.message.job,
            }
            for it in told
        ],
    }
    title = f"{total}: {named}"
    if len(counts) == 1 or len(entries) == 1:
        title = entries[0].message.title
        title += f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    severity = entries[0].message.severity
    thread = f"{DIGEST}{subscription}"
    return Message(key, "digest", at, severity, title, "\n".join(lines), thread, data)


def deliveries_command(subscription: str) -> str:
    """The command that shows what a subscription was sent."""
    name = "account" if subscription.startswith(ACCOUNT) else subscription
    return f"muster subscriptions deliveries {name}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a digest: an event, with the end of the alert that it begins."""

    message: Message
    ends_at: datetime | None = None

    @property
    def when(self) -> str:
        at = f"{self.message.at:%Y-%m-%d %H:%M} UTC"
        return f"began {at}, ended {self.ends_at:%Y-%m-%d %H:%M} UTC," if self.ends_at else at


def _entries(messages: Iterable[Message]) -> list[_Entry]:
    found: list[_Entry] = []
    firing: dict[object, int] = {}  # the places of begins in what was found
    for each in sorted(messages, key=lambda it: (it.at, it.is_over, it.key)):
        place = firing.pop(_about(each), None) if each.is_over else None
        if place is not None:
            found[place] = _Entry(found[place].message, each.at)
            continue
        if each.name in BEGINS:
            firing[_about(each)] = len(found)
        found.append(_Entry(each))
    return sorted(found, key=lambda it: _rank(it.message))


def _rank(message: Message) -> tuple[int, datetime, str]:
    return -RANKS[message.severity], message.at, message.key


def _about(message: Message) -> object:
    """The same for the begin and the end of the same alerts."""
    alerts = message.data.get("alerts")
    named = alerts if isinstance(alerts, Sequence) else ()
    idents = frozenset(str(it.get("alert")) for it in named if isinstance(it, Mapping))
    return message.alert, idents


def confirmation_message(confirmation: Confirmation, code: str, at: datetime) -> Message:
    """What brings a code to the address that it confirms."""
    until = confirmation.expires_at.isoformat(timespec="seconds")
    text = (
        f"The user {confirmation.user} of Muster wants notifications at this address.\n"
        f"To confirm the address, the user runs: muster users confirm {code}\n"
        f"The code is valid until {until} and works once.\n"
        "If you are not this user, ignore this mail: without the code you get no notifications."
    )
    title, key = "Confirm your mail address", confirmation.id
    return Message(key, "email-confirmation", at, Severity.INFO, title, text, key, {})
