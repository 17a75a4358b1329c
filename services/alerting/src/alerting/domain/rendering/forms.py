"""What the forms of all receivers over HTTP share."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile

from muster.counted import counted
from pydantic import JsonValue

from alerting.domain.deliveries import Answer, Failed, Gone, Sent
from alerting.domain.messages import Message
from alerting.domain.texts import cut

USER_AGENT = "Muster"
LONGEST_LINE = 1_000
"""The most characters of a line of what happened, where a form has a bound."""
SEPARATOR = 2
"""The most characters between two lines."""

Link = Callable[[str | None], str | None]
"""Gives the address of a job's page."""


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Where a message goes, and what opens it: a token, or secrets that sign, newest first. Has no
    repr: url, token and secrets must not reach logs.
    """

    url: str
    token: str = ""
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sending:
    """One attempt: the id of its delivery, which repeats share, and the time. ``link``: where
    people read on.
    """

    id: str
    at: datetime
    link: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """A request as it is posted. Has no repr, as Target."""

    url: str
    body: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The beginning of an answer. ``retry_after_s``: what it asks for."""

    status: int
    text: str = ""
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HttpForm:
    """One kind of receiver: how it reads a message, and what its answers mean."""

    render: Callable[[Message, Target, Sending], Request]
    judge: Callable[[HttpAnswer], Answer]


def post(
    url: str, body: Mapping[str, JsonValue], headers: Mapping[str, str] | None = None
) -> Request:
    """A request with a JSON body."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    known = {"content-type": "application/json", "user-agent": USER_AGENT}
    return Request(url, text, {**known, **(headers or {})})


def judge_http(answer: HttpAnswer) -> Answer:
    """What an answer means wherever a kind of receiver says nothing else."""
    status, reason = answer.status, reason_of(answer)
    if 200 <= status < 300:
        return Sent()
    if status == 410:
        return Gone(reason)
    if status == 413:
        return Failed(reason, can_retry=False, is_receivers=False)
    if 300 <= status < 400:
        return Failed(f"HTTP {status}: redirects are not followed, subscribe the final address")
    return Failed(reason, retry_after_s=answer.retry_after_s)


def reason_of(answer: HttpAnswer) -> str:
    """An answer in one line."""
    return f"HTTP {answer.status}: {answer.text}" if answer.text else f"HTTP {answer.status}"


def lines_within(
    message: Message,
    most: int,
    *,
    form: Callable[[str], str] = str,
    size: Callable[[str], int] = len,
) -> list[str]:
    """The lines of what happened that fit into ``most``, with two for each separator. Where some
    don't, the last one says how many, and which command shows them.
    """
    lines = [form(cut(it, LONGEST_LINE)) for it in message.text_without_line.splitlines()]
    kept = _fitting(lines, most, size)
    if kept == len(lines):
        return lines
    command = f": `{message.all_of_it}` has all" if message.all_of_it else ""

    def note(left_out: int) -> str:
        return form(f"… {counted(left_out, 'line')} left out{command}.")

    kept = _fitting(lines, most - size(note(len(lines))) - SEPARATOR, size)
    return [*lines[:kept], note(len(lines) - kept)]


def _fitting(lines: Sequence[str], most: int, size: Callable[[str], int]) -> int:
    """How many of the first lines fit."""
    ends = accumulate(size(it) + SEPARATOR for it in lines)
    return sum(1 for _ in takewhile(lambda it: it <= most + SEPARATOR, ends))


def byte_length(text: str) -> int:
    """How many bytes it has in UTF-8."""
    return len(text.encode(errors="replace"))


def cut_bytes(text: str, most: int) -> str:
    """At most so many bytes in UTF-8."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= most:
        return text
    return encoded[: most - len("…".encode())].decode(errors="ignore") + "…"
